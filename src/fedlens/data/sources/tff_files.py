"""The two formats in which TensorFlow Federated publishes its data sets, read without it.

SQLite        examples(split_name, client_id, serialized_example_proto), client_metadata(client_id, split_name, num_examples)
HDF5, older   /examples/CLIENT/FEATURE, each an array of all of that client's examples
"""

from __future__ import annotations

import lzma
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import h5py  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from fedlens.data.sources import protobuf

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]  # of each feature: () is an integer, anything else a picture
Columns: TypeAlias = dict[str, NDArray[Any]]

FLOATS = 2  # a kind of features
TOGETHER = 16  # examples that are decoded at a time


class Broken(ValueError):
    """Something is wrong with one example: with which of those that were read together, and what."""

    def __init__(self, place: int, why: str):
        super().__init__(why)
        self.place = place


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """A database, or for as long as it is needed a temporary copy of what is in a .lzma file."""
    if path.suffix != ".lzma":
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="fedlens-") as folder:
        copy = Path(folder, path.stem)
        try:
            with lzma.open(path) as packed, copy.open("wb") as file:
                shutil.copyfileobj(packed, file, 1 << 24)
        except (lzma.LZMAError, EOFError) as error:
            raise ValueError(f"{path} cannot be unpacked ({error}): truncated download?") from error
        except OSError as error:
            advice = f"set TMPDIR to a folder with room, or unpack it yourself, once: lzma --decompress --keep {path}"
            raise ValueError(f"{path} cannot be unpacked into {folder} ({error}): {advice}") from error
        yield copy


def read_database(path: Path, split: str, shapes: Shapes) -> Columns:
    """All examples of a split and the `client` of each, in the order in which they are stored."""
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        try:
            expected = dict(
                database.execute("SELECT client_id, num_examples FROM client_metadata WHERE split_name = ?", [split]).fetchall()
            )
            if not expected:
                there = [name for (name,) in database.execute("SELECT DISTINCT split_name FROM client_metadata")]
                raise ValueError(f"{path} has no split '{split}'; it has: {', '.join(map(str, there)) or 'none'}")
            rows = database.execute("SELECT client_id, serialized_example_proto FROM examples WHERE split_name = ?", [split])
            columns, clients = _decoded(rows.fetchmany, sum(expected.values()), shapes, f"{path}, split '{split}'")
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{path} cannot be read as TensorFlow Federated's database ({error}): truncated download?") from error
    found = Counter(clients)
    if wrong := [client for client in expected | found if found[client] != expected.get(client)]:
        promised = expected.get(wrong[0], 0)
        raise ValueError(f"{path}, split '{split}': client {wrong[0]} should have {promised} examples; it has {found[wrong[0]]}")
    return {**columns, "client": np.array(clients, dtype=np.str_)}


def read_hdf5(path: Path, shapes: Shapes) -> Columns:
    """All examples of an older file and the `client` of each, client after client."""
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in shapes}
    clients: list[str] = []
    where = str(path)
    try:
        with h5py.File(path) as file:
            for client, group in file["examples"].items():
                where = f"{path}, client {client}"
                own = {name: np.asarray(group[name]) for name in shapes}
                if len(lengths := {len(values) for values in own.values()}) != 1:
                    raise ValueError(f"features of {' and '.join(map(str, sorted(lengths)))} examples")
                for name, values in own.items():
                    parts[name].append(_converted(values.reshape(len(values), *shapes[name]), shapes[name]))
                clients += [client] * lengths.pop()
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{where} cannot be read as TensorFlow Federated's HDF5 ({error}): truncated download?") from error
    return {**{name: np.concatenate(values) for name, values in parts.items()}, "client": np.array(clients, dtype=np.str_)}


def _decoded(fetch: Callable[[int], list[tuple[str, bytes]]], count: int, shapes: Shapes, where: str) -> tuple[Columns, list[str]]:
    """Columns of `count` examples, and the client of each example that there really is."""
    columns: Columns = {name: np.zeros((count, *shape), np.uint8 if shape else np.int64) for name, shape in shapes.items()}
    clients: list[str] = []
    while rows := fetch(TOGETHER):
        start = len(clients)
        clients += [str(client) for client, _ in rows]
        if len(clients) > count:
            raise ValueError(f"{where}: more than the {count:,} examples that its metadata promise")
        try:
            for name, values in zip(shapes, _columns([blob for _, blob in rows], shapes), strict=True):
                columns[name][start : len(clients)] = values
        except Broken as error:
            raise ValueError(f"{where}, example {start + error.place}: {error}") from error
    return columns, clients


def _columns(blobs: Sequence[bytes], shapes: Shapes) -> Iterator[NDArray[Any]]:
    """Of some examples, the values of each feature."""
    parsed = []
    for place, blob in enumerate(blobs):
        try:
            parsed.append(features(blob))
        except (ValueError, TypeError) as error:
            raise Broken(place, f"no tf.train.Example ({error})") from error
    for name, shape in shapes.items():
        kinds, blocks = [], []
        for place, example in enumerate(parsed):
            if name not in example:
                raise Broken(place, f"no feature '{name}'; it has: {', '.join(example) or 'none'}")
            kinds.append(example[name][0])
            blocks.append(example[name][1])
        if kinds[0] not in (FLOATS, protobuf.INTEGERS) or len(set(kinds)) > 1:
            raise Broken(0, f"'{name}' should be numbers")
        read = floats if kinds[0] == FLOATS else integers
        yield _converted(read(blocks, int(np.prod(shape))).reshape(len(blobs), *shape), shape)


def _converted(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Integers as they are; pictures as bytes, of which real numbers are shares from 0 to 1."""
    if not shape:
        return values.astype(np.int64)
    most = 1 if values.dtype.kind == "f" else 255
    inside = (values >= 0) & (values <= most)  # neither is true of NaN
    if not inside.all():
        raise Broken(int(np.argwhere(~inside)[0][0]), f"a pixel that does not lie in 0…{most}")
    return (np.rint(values * 255) if most == 1 else values).astype(np.uint8)


def features(blob: bytes) -> dict[str, tuple[int, bytes]]:
    """The features of a serialized tf.train.Example: their kind, and their values as they are stored, one after the other."""
    found = {}
    for name, values in protobuf.features(blob, 0, len(blob)).items():
        stored = [blob[value.start : value.stop] for value in protobuf.fields(blob, values.start, values.stop)]
        found[name] = values.number, b"".join(stored)
    return found


def floats(blocks: Sequence[bytes], size: int) -> NDArray[np.float32]:
    """So many numbers of each example [n, size]."""
    _require_size([len(block) // 4 for block in blocks], size)
    return np.frombuffer(b"".join(blocks), dtype="<f4").reshape(len(blocks), size)


def integers(blocks: Sequence[bytes], size: int) -> NDArray[np.int64]:
    """So many numbers of each example [n, size]: the first byte of all of them, then the second of those that have one, …"""
    stored = np.frombuffer(b"".join(blocks), dtype=np.uint8)
    ends = np.flatnonzero(stored < 128)
    _require_size(np.diff(np.searchsorted(ends, np.cumsum([0, *map(len, blocks)]))).tolist(), size)
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    values = (stored[starts] & 127).astype(np.int64)
    for place in range(1, int(lengths.max())):
        longer = np.flatnonzero(lengths > place)
        values[longer] |= (stored[starts[longer] + place] & 127).astype(np.int64) << 7 * place
    return values.reshape(len(blocks), size)


def _require_size(sizes: Sequence[int], size: int) -> None:
    for place, found in enumerate(sizes):
        if found != size:
            raise Broken(place, f"{found} values instead of {size}")
