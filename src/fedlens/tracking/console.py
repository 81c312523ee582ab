"""Show a run as it goes: a progress bar on a terminal, plain lines elsewhere, and a table at the end."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console as Terminal
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedlens.tracking.trackers import Row

T = TypeVar("T")

LINE_SECONDS = 2.0  # at least so long between two plain lines


class Console:
    """The line above the bar says what is run; the bar where it stands; the table what came out and what to do next."""

    def __init__(self, terminal: Terminal, rounds: int, score: str):
        self.terminal, self.rounds, self.score = terminal, rounds, score
        self.progress: Progress | None = None
        self.last_line = 0.0
        self.status: dict[str, str] = {}

    def begin(self, headline: str, done: int) -> None:
        self.terminal.print(escape(headline), highlight=False, soft_wrap=not self.terminal.is_terminal)
        if self.terminal.is_terminal:
            columns = ("round", MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn(), "left")
            self.progress = Progress(*columns, console=self.terminal, speed_estimate_period=600)
            self.task = self.progress.add_task("", total=self.rounds, completed=done)
            self.progress.start()

    def watch(self, clients: Iterable[T], count: int) -> Iterator[T]:
        """Pass a cohort on, and show how far it is; rounds may be long."""
        for done, client in enumerate(clients):
            if self.progress is not None:
                self._describe(f"client {done}/{count}")
            yield client

    def phase(self, what: str) -> None:
        if self.progress is not None:
            self._describe(what)

    def round(self, row: Row) -> None:
        self.status["loss"] = f"loss {row['train/loss']:.3f}" if row["train/loss"] is not None else "no update"
        if self.score in row:
            self.status["score"] = f"{self.score.replace('/', ' ')} {_shown(self.score, row[self.score])}"
        self.status["speed"] = f"{row['images'] / max(row['seconds/train'], 1e-9):,.0f} images/s"
        if row["bytes_up"]:
            self.status["bytes"] = f"{_bytes(row['bytes_up'] / row['cohort'])}/client"
        if row["rejected"]:
            self.status["rejected"] = f"{len(row['rejected'])} rejected"
        if self.progress is not None:
            self._describe("")
            self.progress.update(self.task, completed=row["round"])
        elif time.monotonic() - self.last_line > LINE_SECONDS or row["round"] == self.rounds:
            self.last_line = time.monotonic()
            self.terminal.print(f"round {row['round']:>4}/{self.rounds}  {'  '.join(self.status.values())}", highlight=False)

    def warn(self, message: str) -> None:
        self.terminal.print(f"warning: {message}", style="yellow", highlight=False, markup=False, soft_wrap=True)

    def interrupted(self, round: int, folder: Path) -> None:
        self.close()
        self.terminal.print(
            f"stopped after round {round} of {self.rounds}; go on with: fedlens resume {shlex.quote(str(folder))}", soft_wrap=True
        )

    def end(self, summary: Mapping[str, Any]) -> None:
        self.close()

    def close(self) -> None:
        if self.progress is not None:
            self.progress.stop()
            self.progress = None

    def _describe(self, phase: str) -> None:
        assert self.progress is not None
        self.progress.update(self.task, description="  ".join([*self.status.values(), phase]).strip())


def closing_table(summary: Mapping[str, Any]) -> Table:
    """What came out of a run: final and best numbers, time, traffic."""
    table = Table(title=summary["name"], title_justify="left", show_header=True, header_style="bold")
    table.add_column("")
    table.add_column("final", justify="right")
    best = summary["best"]
    if best:
        table.add_column(f"best (round {best['round']})", justify="right")
    for name, value in summary["final"].items():
        if name.count("/") == 1:  # not the accuracy of each class
            cells = [_shown(name, value)] + ([_shown(name, best["metrics"][name])] if best else [])
            table.add_row(name.replace("/", " ").replace("_", " "), *cells)
    seconds = summary["seconds"]
    table.add_section()
    table.add_row("time", f"{_duration(seconds['total'])}")
    for part, name in (("train", "training"), ("evaluate", "evaluation"), ("other", "all else")):
        table.add_row(f"  {name}", f"{seconds[part] / max(seconds['total'], 1e-9):.0%}")
    table.add_row("images/s", f"{summary['images_per_second']:,.0f}")
    if summary["bytes"]["down"]:
        table.add_row("sent up, down", f"{_bytes(summary['bytes']['up'])}, {_bytes(summary['bytes']['down'])}")
    if summary["void_rounds"]:
        table.add_row("rounds without an update", f"{summary['void_rounds']:,}")
    if summary["rejected"]:
        table.add_row("updates rejected", f"{summary['rejected']:,}")
    return table


def data_table(found: Mapping[str, Any]) -> Table:
    """Who holds what."""
    table = Table(title=found["name"], title_justify="left", show_header=False)
    for name, value in data_rows(found).items():
        table.add_row(name, value)
    return table


def data_rows(found: Mapping[str, Any]) -> dict[str, str]:
    """What `describe` found, in words."""
    rows = {name: f"{found[name]:,}" for name in ("clients", "examples", "classes") if name in found}
    for name, title in (("sizes", "examples of a client"), ("classes_per_client", "classes of a client")):
        if spread := found.get(name):
            low, middle, high, mean = (spread[part] for part in ("min", "median", "max", "mean"))
            rows[title] = f"{low:,.0f} … {high:,.0f}, median {middle:,.1f}, mean {mean:,.2f}"
            rows[f"{title.split()[0]}, quantiles 10, 25, 75, 90 %"] = ", ".join(
                f"{spread[part]:,.0f}" for part in ("q10", "q25", "q75", "q90")
            )
    rows["the largest tenth holds"] = f"{found['largest_tenth_holds']:.0%}"
    if "mean_earth_movers_distance" in found:
        rows["mean EMD of labels"] = f"{found['mean_earth_movers_distance']:.4f}"
    if spread := found.get("earth_movers_distances"):
        rows["EMD of a client's labels"] = f"{spread['min']:.2f} … {spread['max']:.2f}, median {spread['median']:.2f}"
    if pairs := found.get("pairwise_label_distances"):
        rows["between two clients"] = f"EMD {pairs['l1']['mean']:.2f}, Jensen–Shannon {pairs['jensen_shannon']['mean']:.2f} (means)"
    for split, part in found["evaluation"].items():
        grouped = f" of {part['clients']:,} clients" if part["clients"] > 1 else ""
        rows[split] = f"{part['examples']:,} examples{grouped}"
    return rows


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1%}" if "accuracy" in name else f"{value:.3f}"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds) // 60
    return f"{minutes} min {round(seconds) % 60} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def sources_table(found: Iterable[Mapping[str, Any]]) -> Table:
    """The data sets that can be read, and whether they are there."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(no_wrap=True)
    for row in found:
        size = f" · {row['gigabytes']:g} GB" if row["gigabytes"] else ""
        state = {True: "[green]here[/]", False: "–", None: "built in"}[row["here"]]
        table.add_row(escape(row["name"]), state, escape(f"{row['contents']}{size} · {row['licence']}\n{row['where']}"))
    return table


@contextmanager
def decoding(terminal: Terminal) -> Iterator[Callable[[str, int, int], None]]:
    """Show how far the splits of a data set are decoded: a bar for each on a terminal, a line now and then elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.speed:,.0f} images/s"))
    progress = Progress(*columns, TimeRemainingColumn(), console=terminal, disable=not terminal.is_terminal)
    tasks: dict[str, TaskID] = {}
    said = time.monotonic()

    def watch(split: str, of: int, done: int) -> None:
        nonlocal said
        if split not in tasks:
            tasks[split] = progress.add_task(split, total=of, completed=done)
        progress.update(tasks[split], completed=done)
        if not terminal.is_terminal and time.monotonic() - said >= LINE_SECONDS:
            said = time.monotonic()
            terminal.print(f"{split}: {done:,} of {of:,}", highlight=False)

    with progress:
        yield watch
