"""Decode a data set's pictures once, into columns that are mapped into memory from then on.

    FOLDER/image.npy uint8 [N, size, size, 3], label.npy, client.npy, …, examples.json          (one such folder a split)

Rows are decoded in any order by several threads, each straight to its place; what became of each is written down as well, so that
what was interrupted goes on where it was. A folder without examples.json is not complete.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.lib.format import header_data_from_array_1_0, open_memmap, write_array_header_1_0
from numpy.typing import NDArray

from fedlens.data.examples import Examples
from fedlens.data.listing import Listing, coded
from fedlens.data.pictures import BrokenPicture, Fit, MissingPicture, decode, decode_mask

Missing: TypeAlias = Literal["refuse", "skip"]
Columns: TypeAlias = dict[str, NDArray[Any]]
Watch: TypeAlias = Callable[[int], None]  # told how many rows are done

WAITING, DECODED, MISSING, BROKEN = range(4)
TURN = 32  # rows that a thread decodes before it reports
AHEAD = 4  # turns that wait for each thread
MOVED = 1024  # rows that are moved at a time where some are dropped
NAMED = 5  # rows and clients that a message names


@dataclass(frozen=True)
class Shape:
    """What the pictures become."""

    size: int
    fit: Fit = "crop"


@dataclass(frozen=True)
class Bad:
    """What could not be decoded of a split."""

    status: NDArray[np.uint8]  # of each row
    reasons: list[str]  # the first few
    clients: dict[str, int]  # how many of each, most first

    def __str__(self) -> str:
        gone, broken = int((self.status == MISSING).sum()), int((self.status == BROKEN).sum())
        text = f"{gone + broken:,} of {len(self.status):,} pictures cannot be used: {gone:,} missing, {broken:,} broken"
        if self.clients:
            worst = ", ".join(f"{name}: {count:,}" for name, count in list(self.clients.items())[:NAMED])
            text += f"; {len(self.clients):,} clients lack some ({worst}{', …' if len(self.clients) > NAMED else ''})"
        return "\n  ".join([text, *self.reasons[:NAMED]])


def decoded(listing: Listing, shape: Shape, missing: Missing) -> tuple[Examples, Bad | None]:
    """A split in memory; and what was skipped of it."""
    columns: Columns = {name: np.zeros(extent, kind) for name, (extent, kind) in _made(listing, shape).items()}
    reasons: list[str] = []
    for start in range(0, len(listing), TURN):
        rows = np.arange(start, min(start + TURN, len(listing)))
        reasons += _decode(listing, shape, rows, columns)
    bad = _judged(listing, status := columns.pop("status"), reasons, missing)
    whole = listing.examples(columns)
    if bad is None:
        return whole, None
    kept = np.flatnonzero(status == DECODED)
    return replace(whole, columns={name: values[kept] for name, values in whole.columns.items()}), bad


def prepare(listing: Listing, folder: Path, shape: Shape, missing: Missing, threads: int, watch: Watch) -> Bad | None:
    """Write a split to a folder, or go on writing it; returns what was skipped of it."""
    store = Store(folder, _made(listing, shape))
    if not store.begin({"rows": len(listing), "size": shape.size, "fit": shape.fit, "listing": _digest(listing)}):
        watch(len(listing))
        return None
    columns = store.columns()
    status = columns["status"]
    waiting = np.flatnonzero(status != DECODED)
    status[waiting] = WAITING  # what was missing may be there by now
    done, reasons = len(listing) - len(waiting), []
    watch(done)
    turns = [waiting[start : start + TURN] for start in range(0, len(waiting), TURN)]
    for rows, said in zip(turns, _decoded_by(threads, listing, columns, shape, turns), strict=True):
        reasons += said
        done += len(rows)
        watch(done)
    bad = _judged(listing, status, reasons, missing)
    store.finish(listing, np.flatnonzero(status == DECODED))
    return bad


class Store:
    """A split's folder while it is written: the columns that are made of pictures lie in it at their full length."""

    def __init__(self, folder: Path, made: Mapping[str, tuple[tuple[int, ...], Any]]):
        self.folder, self.made = folder, dict(made)

    def begin(self, asked: Mapping[str, Any]) -> bool:
        """Make the folder, or take one up that was begun with the same pictures; false if there is nothing left to do."""
        path = self.folder / "preparation.json"
        if (self.folder / "examples.json").is_file() and not path.is_file():
            raise ValueError(f"{self.folder} holds examples already, from elsewhere: choose another folder")
        if path.is_file():
            begun = json.loads(path.read_text())
            if begun != dict(asked):
                changed = ", ".join(sorted(key for key in asked if begun.get(key) != asked[key]))
                raise ValueError(f"{self.folder} was begun with other settings or files ({changed}): take another, or delete it")
            return not (self.folder / "examples.json").is_file()
        self.folder.mkdir(parents=True, exist_ok=True)
        needed = sum(int(np.prod(extent)) * np.dtype(kind).itemsize for extent, kind in self.made.values())
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise ValueError(f"{self.folder}: needs {needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free; take a smaller size")
        for name, (extent, kind) in self.made.items():
            open_memmap(self._path(name), mode="w+", dtype=kind, shape=extent)
        path.write_text(json.dumps(dict(asked)))
        return True

    def columns(self) -> Columns:
        return {name: open_memmap(self._path(name), mode="r+") for name in self.made}

    def finish(self, listing: Listing, kept: NDArray[np.int64]) -> None:
        """Drop the rows that are not kept, and write all other columns and what is known of them."""
        made = [name for name in self.made if name != "status"]
        if len(kept) < len(listing):
            for name in made:
                self._drop_rows(name, kept)
        columns, categories = coded({name: values for name, values in listing.columns.items() if name not in made})
        for name, values in columns.items():
            np.save(self._path(name), values[kept], allow_pickle=False)
        whole = columns | {name: open_memmap(self._path(name), mode="r") for name in made}
        known = listing.name, listing.class_names, listing.mean, listing.standard_deviation
        found = Examples({name: whole[name][: len(kept)] for name in whole}, *known, {**listing.categories, **categories})
        found.save_facts(self.folder)
        self._path("status").unlink()

    def _drop_rows(self, name: str, kept: NDArray[np.int64]) -> None:
        """Move the rows that stay to the front of the file, and cut it off behind them."""
        rows = open_memmap(self._path(name), mode="r+")
        for start in range(0, len(kept), MOVED):
            part = kept[start : start + MOVED]
            rows[start : start + len(part)] = rows[part]  # never overwrites what is still to be moved: kept[i] ≥ i
        rows.flush()
        header, offset = header_data_from_array_1_0(rows), rows.offset
        size = offset + len(kept) * rows[:1].nbytes
        del rows
        with self._path(name).open("r+b") as file:
            write_array_header_1_0(file, header | {"shape": (len(kept), *header["shape"][1:])})
            if file.tell() != offset:  # NumPy leaves room for longer numbers in it, so that it stays as long as it was
                raise RuntimeError(f"{self._path(name)}: the header of a shorter column has another length")
            file.truncate(size)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.npy"


def _made(listing: Listing, shape: Shape) -> dict[str, tuple[tuple[int, ...], Any]]:
    """The columns that depend on how pictures are decoded, and what became of each: shape and type."""
    square = (len(listing), shape.size, shape.size)
    found: dict[str, tuple[tuple[int, ...], Any]] = {"image": ((*square, 3), np.uint8), "status": ((len(listing),), np.uint8)}
    if listing.masks is not None:
        found["mask"] = square, np.uint8
    for name, kind in (("boxes", np.float32), ("box_label", np.int64)):
        if name in listing.columns:
            found[name] = listing.columns[name].shape, kind
    return found


def _decode(listing: Listing, shape: Shape, rows: NDArray[np.int64], columns: Columns) -> list[str]:
    """Fill in some rows; returns what is wrong with those that cannot be."""
    reasons = []
    for row in rows.tolist():
        try:
            columns["image"][row], placement = decode(listing.pictures[row], shape.size, shape.fit)
            if listing.masks is not None:
                columns["mask"][row] = decode_mask(listing.masks[row], placement, shape.size)
            if "boxes" in columns:
                boxes = placement.boxes(np.asarray(listing.columns["boxes"][row], dtype=np.float32))
                gone = (boxes[:, 2] <= boxes[:, 0]) | (boxes[:, 3] <= boxes[:, 1])  # cut away with the part that is not kept
                columns["boxes"][row] = np.where(gone[:, None], 0, boxes)
                columns["box_label"][row] = np.where(gone, -1, listing.columns["box_label"][row])
            columns["status"][row] = DECODED
        except (MissingPicture, BrokenPicture) as error:
            columns["status"][row] = MISSING if isinstance(error, MissingPicture) else BROKEN
            reasons.append(f"{listing.key(row)}: {error}")
    return reasons


def _judged(listing: Listing, status: NDArray[np.uint8], reasons: list[str], missing: Missing) -> Bad | None:
    """What is wrong with a split, if that is to be skipped."""
    rows = np.flatnonzero(status != DECODED)
    if not len(rows):
        return None
    clients: dict[str, int] = {}
    if "client" in listing.columns:
        names, counts = np.unique(listing.columns["client"][rows], return_counts=True)
        clients = {str(names[place]): int(counts[place]) for place in np.argsort(-counts, kind="stable")}
    bad = Bad(np.array(status), reasons, clients)
    if missing == "refuse" or len(rows) == len(status):
        raise ValueError(f"{listing.name}: {bad}\n  (missing=skip goes on without them)")
    return bad


def _digest(listing: Listing) -> str:
    """Of what the rows are called and what stands in them, not of the pictures themselves."""
    digest = hashlib.blake2b(digest_size=16)
    for name, values in sorted(listing.columns.items()):
        digest.update(f"{name} {values.dtype} {values.shape}".encode())
        digest.update(np.ascontiguousarray(values).view(np.uint8).data)
    for key in listing.keys:
        digest.update(f"{key}\n".encode())
    return digest.hexdigest()


def _decoded_by(
    threads: int, listing: Listing, columns: Columns, shape: Shape, turns: Sequence[NDArray[np.int64]]
) -> Iterator[list[str]]:
    """Decode turn after turn; yields what is wrong with the rows of each. Pillow lets other threads run while it decodes."""
    with ThreadPoolExecutor(threads) as pool:
        ahead: deque[Future[list[str]]] = deque()
        waiting = iter(turns)
        try:
            for _ in turns:
                for rows in islice(waiting, AHEAD * threads - len(ahead)):
                    ahead.append(pool.submit(_decode, listing, shape, rows, columns))
                yield ahead.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
