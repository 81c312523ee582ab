"""Pictures as TensorFlow Federated writes them, in one TFRecord file for each client: found once, read when they are wanted."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, overload

import numpy as np
from numpy.typing import NDArray

from fedlens.data.listing import Listing
from fedlens.data.population import Indices
from fedlens.data.sources import protobuf
from fedlens.data.sources.base import SOURCES, About, PictureFiles
from fedlens.data.sources.tables import identities

PICTURE, LABEL = "image/encoded_jpeg", "class"
TEST = ("test.tfRecord", "test/test.tfRecord")
CASTAGNOLI = 0x82F63B78  # the polynomial of CRC-32C, reversed


@SOURCES.register("tfrecords")
class TFRecords(PictureFiles):
    """What TensorFlow Federated's loaders of Google Landmarks and iNaturalist leave in their cache, read without TensorFlow.

    PATH/train has a file for each client, named by it; the test is PATH/test.tfRecord. Records have the features
    `image/encoded_jpeg` and `class`. PATH is one data set's folder, such as gld160k. Clients whose names are numbers sort as
    numbers here, and as texts there. TensorFlow Federated leaves out pictures that it did not find when it wrote them.
    """

    about: ClassVar[About] = About(
        contents="the caches gld23k and gld160k, or those of iNaturalist's splits",
        licence="that of the images",
        where="tff.simulation.datasets.gldv2.load_data and inaturalist.load_data write them",
        gigabytes=24,
        files=("train", "*.tfRecord"),
    )

    def listings(self) -> Mapping[str, Listing]:
        folder = self.path / "train"
        files = sorted(file for file in folder.iterdir() if file.is_file() and file.name[0] != ".") if folder.is_dir() else []
        if not files:
            raise FileNotFoundError(
                f"data.source.path: {folder} is missing or empty; it should have a TFRecord file for each client"
            )
        test = next((file for name in TEST if (file := self.path / name).is_file()), None)
        if test is None:
            raise FileNotFoundError(f"data.source.path: {self.path / TEST[0]} is missing; it should have the test's records")
        parts = {"train": _read(files), "test": _read([test])}
        classes = 1 + max(int(label.max(initial=-1)) for _, label in parts.values())
        columns: dict[str, dict[str, NDArray[Any]]] = {split: {"label": label} for split, (_, label) in parts.items()}
        columns["train"]["client"] = identities(np.array([file.name for file in files]))[parts["train"][0].file]
        return {
            split: Listing(
                pictures, columns[split], f"TFRecords {self.path.name}", tuple(map(str, range(classes))), keys=pictures.keys()
            )
            for split, (pictures, _) in parts.items()
        }


@dataclass(frozen=True)
class Pieces(Sequence[bytes]):
    """Parts of files, read when they are asked for: row r is files[file[r]] from start[r] to stop[r]."""

    files: Sequence[Path]
    file: Indices
    start: Indices
    stop: Indices

    def __len__(self) -> int:
        return len(self.file)

    @overload
    def __getitem__(self, row: int) -> bytes: ...
    @overload
    def __getitem__(self, row: slice) -> Pieces: ...
    def __getitem__(self, row: int | slice) -> bytes | Pieces:
        if isinstance(row, slice):
            return Pieces(self.files, self.file[row], self.start[row], self.stop[row])
        with self.files[self.file[row]].open("rb") as file:
            file.seek(self.start[row])
            return file.read(self.stop[row] - self.start[row])

    def keys(self) -> list[str]:
        """What each row is called in a report."""
        return [f"{self.files[file]}, byte {start}" for file, start in zip(self.file.tolist(), self.start.tolist(), strict=True)]


def _read(files: Sequence[Path]) -> tuple[Pieces, Indices]:
    """Where the picture of each record is, and its class."""
    found = [(number, *record) for number, file in enumerate(files) for record in _examples(file)]
    columns = np.array(found, dtype=np.int64).reshape(-1, 4).T
    if columns[3].min(initial=0) < 0:
        raise ValueError(f"{files[int(columns[0][columns[3].argmin()])]}: classes should be 0, 1, …; one is {columns[3].min()}")
    return Pieces(files, *columns[:3]), columns[3]


def _examples(path: Path) -> Iterator[tuple[int, int, int]]:
    """Of each record of a file: where its picture begins and ends, and its class."""
    if not path.stat().st_size:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
        for start, stop in _records(path, buffer):
            try:
                features = protobuf.features(buffer, start, stop)
                yield *protobuf.only_bytes(buffer, features[PICTURE]), protobuf.only_integer(buffer, features[LABEL])
            except KeyError as error:
                has = ", ".join(features) or "none"
                raise ValueError(f"{path}, byte {start}: a record without the feature {error}; it has: {has}") from error
            except ValueError as error:
                raise ValueError(f"{path}, byte {start}: no picture with a class can be read ({error})") from error


def _records(path: Path, buffer: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Where each record of a TFRecord file begins and ends: length (8 bytes), its checksum (4), content, its checksum (4)."""
    place = 0
    while place < len(buffer):
        head = buffer[place : place + 12]
        if len(head) < 12 or struct.unpack("<I", head[8:])[0] != masked_crc(head[:8]):
            what = "truncated?" if place else "is it one?"
            raise ValueError(f"{path}, byte {place}: no record of a TFRecord file begins there: {what}")
        start = place + 12
        stop = start + struct.unpack("<Q", head[:8])[0]
        place = stop + 4
        if place > len(buffer):
            raise ValueError(f"{path} has {len(buffer):,} bytes, and a record that ends at {place:,}: truncated?")
        yield start, stop


def masked_crc(content: bytes) -> int:
    """The checksum of TFRecord files: CRC-32C, turned by 15 bits and shifted by a constant."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _remainder(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (CASTAGNOLI if value & 1 else 0)
    return value


_TABLE = [_remainder(value) for value in range(256)]
