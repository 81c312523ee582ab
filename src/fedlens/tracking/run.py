"""One run as it goes: times it, records it, keeps its checkpoints, and goes on where an earlier process stopped."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import mean, pstdev
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import nn

from fedlens.engines.admission import Report
from fedlens.state import Best, State
from fedlens.tracking.checkpoints import is_whole, load_newest, save_state, save_weights
from fedlens.tracking.console import Console
from fedlens.tracking.manifest import differences, session
from fedlens.tracking.run_folder import RunFolder, RunFolderError
from fedlens.tracking.trackers import Listener, Row

T = TypeVar("T")


@dataclass(frozen=True)
class Subject:
    """What a run needs to know of the experiment."""

    description: Mapping[str, Any]  # recipe, data and model, as they must be again when the run goes on
    begin: Callable[[], State]
    trained: Callable[[State], nn.Module]
    score: tuple[str, bool] | None  # which number tells the best round, and is higher better
    names: Callable[[int], str]  # of clients
    device: torch.device
    engine: str  # by which this session trains


class Run:
    """The state after the last whole round, the history up to it, and both on disk if there is a folder.

    Whatever interrupts a round leaves no trace of it: a state is never changed in place, and going on starts with the
    last one that was written.
    """

    def __init__(self, subject: Subject, folder: RunFolder | None, console: Console):
        self.subject, self.folder, self.console = subject, folder, console
        self.history: list[dict[str, Any]] = []
        self.listeners: Sequence[Listener] = ()
        self.seconds = dict.fromkeys(("train", "evaluate"), 0.0)
        self.state = self._resume() or subject.begin()
        self.mark = self.saved = time.monotonic()

    def _resume(self) -> State | None:
        """Check that the folder is of this experiment, write down this session, and find the state to go on with."""
        if self.folder is None:
            return None
        now, before = {**session(), "engine": {"name": self.subject.engine}}, self._manifest(self.folder)
        sessions = [now]
        if before is not None:
            sessions = [*before["sessions"], now]
            if changed := differences({key: before[key] for key in self.subject.description}, self.subject.description):
                listed = "\n  ".join(changed)
                raise RunFolderError(
                    f"{self.folder.path} holds a run of something else; what differs (before → now):\n  {listed}\n"
                    "undo that to go on, or start a new run"
                )
            for what in ("versions", "hardware", "engine"):
                if changed := differences(before["sessions"][-1].get(what, {}), now[what]):
                    self.console.warn(f"{what} changed since this run stopped, results may differ in bits: {'; '.join(changed)}")
        state = load_newest(self.folder.checkpoints, self.subject.device, self.console.warn)
        best = self.folder.checkpoints / "best.safetensors"
        if state is not None and state.best is not None and not is_whole(best):
            self.console.warn(
                f"{best} is damaged or gone, and with it the weights of round {state.best.round}; the best is sought anew"
            )
            state = replace(state, best=None)
        self.history = self.folder.rows(until=state.round if state else 0)
        self.folder.write("manifest.json", {**self.subject.description, "sessions": sessions})
        return state

    def _manifest(self, folder: RunFolder) -> dict[str, Any] | None:
        """What the sessions before wrote down, by which a checkpoint is known to be of this experiment; None in a new folder."""
        manifest, path = folder.read("manifest.json"), folder.path / "manifest.json"
        if manifest is None:
            if any(folder.checkpoints.iterdir()):
                raise RunFolderError(f"{path} is missing, without which nobody knows of what the checkpoints are: put it back")
            return None
        sessions = manifest.get("sessions")
        whole = isinstance(sessions, list) and sessions and all(isinstance(earlier, dict) for earlier in sessions)
        if missing := [*(key for key in self.subject.description if key not in manifest), *([] if whole else ["sessions"])]:
            raise RunFolderError(f"{path} is damaged (no {', '.join(missing)}): put it back as it was, or start a new run")
        return manifest

    def __enter__(self) -> Run:
        self.heard = False
        self.handler = signal.signal(signal.SIGTERM, self._interrupt) if _hears_signals() else None
        if _hears_signals() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)
        return self

    def _interrupt(self, number: int, frame: object) -> None:
        self.heard = True  # where Python swallows what is raised, as in a finaliser, the end of the round still knows
        raise KeyboardInterrupt(f"signal {number}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with _undisturbed(self.handler, self._interrupt):
            try:
                if self.folder is not None and kind is not None and issubclass(kind, KeyboardInterrupt):
                    self._checkpoint()
                    self.console.interrupted(self.state.round, self.folder.path)
            finally:
                self.console.close()
                if self.folder is not None:
                    self.folder.close()

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds[what] += time.monotonic() - start

    def watch(self, updates: Iterable[T], clients: int) -> Iterator[T]:
        return self.console.watch(updates, clients)

    def record(self, state: State, report: Report, row: Row) -> None:
        """Take in a finished round: its numbers, whether it is the best so far, and a checkpoint if one is due."""
        numbers = {
            "round": state.round,
            **row,
            "admitted": report.admitted,
            "empty": report.empty,
            "rejected": {self.subject.names(client): reason for client, reason in sorted(report.rejected.items())},
            "images": report.images,
            "train/loss": report.loss,
            "update_norm": report.update_norm,
            **self._lap(),
        }
        finished = {name: _plain(value) for name, value in numbers.items()}
        judged = self._judge(state, finished)
        if self.folder is not None:  # before the state moves on: no checkpoint may know of a round that the metrics lack
            self.folder.append(finished)
        self.history.append(finished)
        self.state = judged
        for listener in (self.console, *self.listeners):
            listener.round(finished)
        if self.folder is not None and time.monotonic() - self.saved > self.subject.description["recipe"]["checkpoint_seconds"]:
            self._checkpoint()
        if self.heard:
            raise KeyboardInterrupt

    def finish(self) -> dict[str, Any]:
        """Write what came out: summary, final weights and a last checkpoint."""
        summary = self._summary()
        if self.folder is not None:
            self._checkpoint()
            self._weights("model.safetensors", self.state)
            self.folder.write("summary.json", summary)
        for listener in (self.console, *self.listeners):
            listener.end(summary)
        return summary

    def _lap(self) -> dict[str, float]:
        """Seconds since the round before, by what they went into."""
        now = time.monotonic()
        spent, self.seconds = self.seconds, dict.fromkeys(self.seconds, 0.0)
        spent["other"] = max(0.0, now - self.mark - sum(spent.values()))
        self.mark = now
        return {f"seconds/{name}": round(value, 6) for name, value in spent.items()}

    def _judge(self, state: State, row: Row) -> State:
        if self.subject.score is None:
            return state
        name, higher = self.subject.score
        value = row.get(name)
        if value is None or (state.best is not None and (value <= state.best.value if higher else value >= state.best.value)):
            return state
        if self.folder is not None:  # before any checkpoint that knows of it
            self._weights("checkpoints/best.safetensors", state, metric=name, value=value)
        return replace(state, best=Best(state.round, name, value))

    def _weights(self, name: str, state: State, **facts: object) -> None:
        assert self.folder is not None
        save_weights(self.folder.path / name, self.subject.trained(state).state_dict(), {"round": state.round, **facts})

    def _checkpoint(self) -> None:
        assert self.folder is not None
        self.folder.flush()
        save_state(self.folder.checkpoints, self.state)
        self.saved = time.monotonic()

    def _summary(self) -> dict[str, Any]:
        history, description, best = self.history, self.subject.description, self.state.best
        seconds = {part: sum(row[f"seconds/{part}"] for row in history) for part in ("train", "evaluate", "other")}
        up, down = (sum(row[name] for row in history) for name in ("bytes_up", "bytes_down"))
        images, rounds = sum(row["images"] for row in history), len(history)
        clients = _over_clients(history)
        return {
            "name": description["recipe"]["name"],
            "seed": description["recipe"]["seed"],
            "rounds": rounds,
            "engine": self.subject.engine,
            "final": {name: spread["mean"] for name, spread in clients.items()} or _scores(history[-1]),
            "clients": clients or None,
            "best": {"round": best.round, "metric": best.metric, "value": best.value, "metrics": _scores(history[best.round - 1])}
            if best
            else None,
            "seconds": {"total": sum(seconds.values()), **seconds},
            "images": images,
            "images_per_second": images / max(seconds["train"], 1e-9),
            "bytes": {"up": up, "down": down, "up_per_round": up / rounds, "down_per_round": down / rounds},
            "rejected": sum(len(row["rejected"]) for row in history),
            "void_rounds": sum(row["admitted"] == 0 for row in history),
            "parameters": {name: description["model"][name] for name in ("parameters", "trainable", "sent_numbers")},
            "data": description["data"],
            "recipe": description["recipe"],
            "folder": str(self.folder.path) if self.folder is not None else None,
        }


def _scores(row: Row) -> dict[str, Any]:
    """What was measured of the model in a round."""
    return {name: value for name, value in row.items() if "/" in name and not name.startswith("seconds/")}


def _over_clients(history: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Where clients train alone: how what each of them ended with is distributed."""
    finals = {row["client"]: _scores(row) for row in history if "client" in row}
    values: dict[str, list[float]] = {}
    for scores in finals.values():
        for name, value in scores.items():
            if value is not None:
                values.setdefault(name, []).append(value)
    return {
        name: {"mean": mean(found), "std": pstdev(found), "min": min(found), "max": max(found), "count": len(found)}
        for name, found in values.items()
    }


def _plain(value: Any) -> Any:
    """JSON knows no NaN: a number that is not there is null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _hears_signals() -> bool:
    return threading.current_thread() is threading.main_thread()  # no other thread may


@contextmanager
def _undisturbed(handler: Any, own: Any) -> Iterator[None]:
    """Let whoever presses Ctrl-C twice wait until what is left to do is done; then SIGTERM has its old handler again."""
    if not _hears_signals():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if before == own else before)
        signal.signal(signal.SIGTERM, handler)
