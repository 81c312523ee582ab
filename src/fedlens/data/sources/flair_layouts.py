"""The layouts in which FLAIR is kept, all read to the same: who took each picture, what it is called, and its labels by name.

raw       labels_and_metadata.json and small_images/ID.jpg, as Apple publishes them
parquet   {train,val,test}-*.parquet, as on the Hugging Face Hub
HDF5      as pfl-research and ml-flair make them: see flair_hdf5.py
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedlens.data.pictures import Pictures
from fedlens.data.sources import arrow

Pairs: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]  # (row, label) of each label of each picture
Texts: TypeAlias = NDArray[np.str_]

SPLITS = {"train": "train", "val": "validation", "dev": "validation", "test": "test"}  # FLAIR's names for ours
FIELDS = ("user_id", "image_id", "labels", "fine_grained_labels")


@dataclass(frozen=True)
class Split:
    """Equally long columns of one split; labels are numbers of names that all splits share."""

    pictures: Pictures
    client: Texts
    image_id: Texts
    labels: Pairs
    fine_labels: Pairs


class Names:
    """Names of labels, numbered as they turn up."""

    def __init__(self, numbers: Mapping[str, int] | None = None):
        self.numbers = dict(numbers or {})

    def pairs(self, labels: Sequence[Sequence[str]]) -> Pairs:
        """(row, number) of the names in each row."""
        rows = np.repeat(np.arange(len(labels)), [len(names) for names in labels])
        numbers = [self.numbers.setdefault(name, len(self.numbers)) for names in labels for name in names]
        return rows, np.array(numbers, dtype=np.int64)

    def multi_hot(self, pairs: Pairs, count: int, known: Sequence[str]) -> NDArray[np.uint8]:
        """[count, C], by the place of each name among the known ones, which has to include it."""
        place = {name: c for c, name in enumerate(known)}
        if unknown := sorted(name for name in self.numbers if name not in place):
            raise ValueError(f"FLAIR has no label '{unknown[0]}'; it has: {', '.join(known)}")
        rows, numbers = pairs
        hot = np.zeros((count, len(known)), dtype=np.uint8)
        hot[rows, np.array([place[name] for name in self.numbers], dtype=np.int64)[numbers]] = 1
        return hot


@dataclass(frozen=True)
class Tables:
    """All splits, by our names."""

    splits: Mapping[str, Split]
    labels: Names
    fine_labels: Names


def read_raw(folder: Path) -> Tables:
    """labels_and_metadata.json: [{user_id, image_id, labels, fine_grained_labels, partition}, …]"""
    path, entries = folder / "labels_and_metadata.json", []
    try:
        for entry in json.loads(path.read_bytes()):
            entries.append((entry["partition"], *(entry[name] for name in FIELDS)))
    except (ValueError, KeyError, TypeError) as error:
        where = f"{path}, entry {len(entries)}" if entries or isinstance(error, KeyError) else str(path)
        raise ValueError(f"{where} cannot be read ({type(error).__name__}: {error}): truncated download?") from error
    rows: dict[str, list[tuple[Any, ...]]] = {}
    for number, (partition, *values) in enumerate(entries):
        if partition not in SPLITS:
            raise ValueError(f"{path}, entry {number}: partition '{partition}' is none of train, val and test")
        rows.setdefault(SPLITS[partition], []).append(tuple(values))
    pictures = next(
        (place for name in ("small_images", "raw_images") if (place := folder / name).is_dir()), folder / "small_images"
    )
    labels, fine = Names(), Names()
    splits = {}
    for split, values in rows.items():
        columns = dict(zip(FIELDS, zip(*values, strict=True), strict=True))
        paths = [pictures / f"{image}.jpg" for image in columns["image_id"]]
        splits[split] = from_columns(f"{path}, {split}", paths, columns, labels, fine)
    _check_relationship(folder / "label_relationship.txt", labels, fine)
    return Tables(splits, labels, fine)


def read_parquet(files: Mapping[str, Sequence[Path]]) -> Tables:
    """Columns of the Hub's apple/flair: image, image_id, user_id, labels, fine_grained_labels."""
    arrow.require_pyarrow()
    labels, fine = Names(), Names()
    splits: dict[str, Split] = {}
    for split, paths in files.items():
        for path in paths:
            arrow.require_columns(path, arrow.read_schema(path)[0], ("image", *FIELDS))
        table = arrow.read_columns(paths, FIELDS)
        columns = {name: table[name].to_pylist() for name in FIELDS}
        splits[split] = from_columns(f"{paths[0].parent}, {split}", arrow.TablePictures(paths, "image"), columns, labels, fine)
    return Tables(splits, labels, fine)


def parquet_splits(folder: Path) -> dict[str, list[Path]]:
    """The files of each split: train-00000-of-00010.parquet, …, or train/0000.parquet, … as the Hub converts them."""
    found: dict[str, list[Path]] = {}
    for name, split in SPLITS.items():
        if files := sorted([*folder.glob(f"{name}-*.parquet"), *folder.glob(f"{name}/*.parquet")]):
            found[split] = files
    return found


def from_columns(where: str, pictures: Pictures, columns: Mapping[str, Sequence[Any]], labels: Names, fine: Names) -> Split:
    """A split of which each row has its own user, name and lists of labels; nothing of that may be missing."""
    texts = {}
    for name in ("user_id", "image_id"):
        if (lacking := next((row for row, value in enumerate(columns[name]) if value in (None, "")), None)) is not None:
            raise ValueError(f"{where}, row {lacking}: '{name}' is empty")
        texts[name] = np.array([str(value) for value in columns[name]], dtype=np.str_)
    for name in ("labels", "fine_grained_labels"):
        for row, values in enumerate(columns[name]):
            if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
                raise ValueError(f"{where}, row {row}: '{name}' should be a list of names; it is {str(values)[:80]}")
    pairs = labels.pairs(columns["labels"]), fine.pairs(columns["fine_grained_labels"])
    return Split(pictures, texts["user_id"], texts["image_id"], *pairs)


def _check_relationship(path: Path, labels: Names, fine: Names) -> None:
    """Warn of labels that the published taxonomy, lines `fine -> coarse`, does not have."""
    if not path.is_file():
        return
    lines = [line.split("->") for line in path.read_text().splitlines() if line.strip()]
    known = {name.strip() for line in lines for name in line}
    if unknown := sorted(name for name in [*labels.numbers, *fine.numbers] if name not in known):
        warnings.warn(f"{path} does not have {len(unknown):,} labels of the pictures: {', '.join(unknown[:5])}", stacklevel=2)
