"""Decode a data set's pictures once, into columns that are mapped into memory from then on.

    FOLDER/image.npy uint8 [N, size, size, 3], label.npy, client.npy, …, examples.json          (one such folder a split)

Rows are decoded in any order by several threads, each straight to its place; what became of each is written down as well, so that
what was interrupted goes on where it was. A folder without examples.json is not complete.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.lib.format import header_data_from_array_1_0, open_memmap, write_array_header_1_0
from numpy.typing import NDArray

from fedlens.data.examples import Examples, write_atomically
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

    of: int  # rows that there were
    missing: int
    broken: int
    clients: dict[str, int]  # how many each lacks, most first
    reasons: list[str]  # of each row

    def __str__(self) -> str:
        text = f"{self.missing + self.broken:,} of {self.of:,} pictures cannot be used: "
        text += f"{self.missing:,} missing, {self.broken:,} broken"
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
    order = _order(status)
    return replace(whole, columns={name: values[order] for name, values in whole.columns.items()}), bad


def prepare(listing: Listing, folder: Path, shape: Shape, missing: Missing, threads: int, watch: Watch) -> Bad | None:
    """Write a split to a folder, or go on writing it; returns what was skipped of it."""
    store = Store(folder, _made(listing, shape))
    skipped = store.begin({"rows": len(listing), "size": shape.size, "fit": shape.fit, "listing": _digest(listing)})
    if skipped is None:  # it is not complete
        skipped = _decoded_in(store, listing, shape, missing, threads, watch)
    else:
        watch(len(listing))
    if skipped.reasons and missing == "refuse":
        raise ValueError(f"{folder} was prepared without some pictures: {skipped}\n  (missing=skip takes it so; or delete it)")
    return skipped if skipped.reasons else None


def _decoded_in(store: Store, listing: Listing, shape: Shape, missing: Missing, threads: int, watch: Watch) -> Bad:
    """Decode what is still waiting, and finish; a store that was finishing already only goes on with that."""
    if (bad := store.finishing()) is None:
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
        bad = _judged(listing, status, reasons, missing) or Bad(len(listing), 0, 0, {}, [])
        store.decide(_order(status), bad)
    store.finish(listing)
    return bad


class Store:
    """A split's folder while it is written: the columns that are made of pictures lie in it at their full length.

    preparation.json says what it is made of, from the beginning; order.npy which rows stay, once all are decoded: from then on the
    store is only finished, by steps that may all be done twice; skipped.json what was left out; examples.json comes last.
    """

    def __init__(self, folder: Path, made: Mapping[str, tuple[tuple[int, ...], Any]]):
        self.folder, self.made = folder, dict(made)

    def begin(self, asked: Mapping[str, Any]) -> Bad | None:
        """Make the folder, or take one up that was begun with the same pictures; if it is complete, what was left out of it."""
        path, complete = self.folder / "preparation.json", (self.folder / "examples.json").is_file()
        if complete and not path.is_file():
            raise ValueError(f"{self.folder} holds examples already, from elsewhere: choose another folder")
        if path.is_file():
            begun = json.loads(path.read_text())
            if begun != dict(asked):
                changed = ", ".join(sorted(key for key in asked if begun.get(key) != asked[key]))
                raise ValueError(f"{self.folder} was begun with other settings or files ({changed}): take another, or delete it")
            return self._skipped() if complete else None
        self.folder.mkdir(parents=True, exist_ok=True)
        needed = sum(int(np.prod(extent)) * np.dtype(kind).itemsize for extent, kind in self.made.values())
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise ValueError(f"{self.folder}: needs {needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free; take a smaller size")
        for name, (extent, kind) in self.made.items():
            open_memmap(self._path(name), mode="w+", dtype=kind, shape=extent)
        write_atomically(path, json.dumps(dict(asked)).encode())
        return None

    def columns(self) -> Columns:
        return {name: open_memmap(self._path(name), mode="r+") for name in self.made}

    def finishing(self) -> Bad | None:
        """What is left out of a store that was being finished; None if it was not."""
        return self._skipped() if self._path("order").is_file() else None

    def decide(self, order: NDArray[np.int64], bad: Bad) -> None:
        """Note which rows stay, in which order, and what is left out."""
        write_atomically(self.folder / "skipped.json", json.dumps(asdict(bad), indent=1).encode())
        content = io.BytesIO()
        np.save(content, order)
        write_atomically(self._path("order"), content.getvalue())

    def finish(self, listing: Listing) -> None:
        """Move rows into the places of those that are left out, write all other columns, and what is known of them."""
        made, order = [name for name in self.made if name != "status"], np.load(self._path("order"))
        if len(order) < len(listing):
            for name in made:
                self._shorten(name, order)
        columns, categories = coded({name: values for name, values in listing.columns.items() if name not in made})
        for name, values in columns.items():
            np.save(self._path(name), values[order], allow_pickle=False)
        whole = {name: values[order] for name, values in columns.items()}
        whole |= {name: open_memmap(self._path(name), mode="r") for name in made}
        known = listing.name, listing.class_names, listing.mean, listing.standard_deviation
        Examples(whole, *known, {**listing.categories, **categories}).save_facts(self.folder)
        for name in ("status", "order"):
            self._path(name).unlink(missing_ok=True)

    def _shorten(self, name: str, order: NDArray[np.int64]) -> None:
        """Copy rows from behind into the holes, from where they are not moved until the file is cut off."""
        rows = open_memmap(self._path(name), mode="r+")
        if len(rows) > len(order):
            holes = np.flatnonzero(order != np.arange(len(order)))
            for start in range(0, len(holes), MOVED):
                part = holes[start : start + MOVED]
                rows[part] = rows[order[part]]
            rows.flush()
        header, offset = header_data_from_array_1_0(rows), rows.offset
        size = offset + len(order) * rows[:1].nbytes
        del rows
        with self._path(name).open("r+b") as file:
            write_array_header_1_0(file, header | {"shape": (len(order), *header["shape"][1:])})
            if file.tell() != offset:  # NumPy leaves room for longer numbers in it, so that it stays as long as it was
                raise RuntimeError(f"{self._path(name)}: the header of a shorter column has another length")
            file.truncate(size)

    def _skipped(self) -> Bad:
        return Bad(**json.loads((self.folder / "skipped.json").read_text()))

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.npy"


def _order(status: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The rows that stay: each in its place, and those from behind in the places of those that are left out."""
    good = status == DECODED
    count = int(good.sum())
    order = np.arange(count)
    order[~good[:count]] = count + np.flatnonzero(good[count:])
    return order


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
            columns["image"][row], placement = decode(listing.pictures[row], shape.size, shape.fit, listing.is_turned)
            if listing.sizes is not None:
                placement.require(tuple(listing.sizes[row].tolist()), "what is said of it")
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
    gone = int((status == MISSING).sum())
    bad = Bad(len(status), gone, len(rows) - gone, clients, reasons)
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
