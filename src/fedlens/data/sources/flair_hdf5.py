"""FLAIR in HDF5, in the three dialects of pfl-research and ml-flair.

pfl        SPLIT/USER/{images, image_ids, labels_row, labels_col, fine_grained_labels_row, fine_grained_labels_col}
ml-flair   SPLIT/USER/{images, image_ids, labels, fine_grained_labels}: names joined by |
central    SPLIT/PICTURE/{image, user_id, labels, fine_grained_labels}: names joined by |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import h5py  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from fedlens.data.pictures import BrokenPicture
from fedlens.data.sources.flair_layouts import SPLITS, Names, Pairs, Split, Tables, from_columns

Groups: TypeAlias = Mapping[str, Mapping[str, NDArray[Any]]]  # by user or picture: arrays by name

CODED = ("labels_row", "labels_col", "fine_grained_labels_row", "fine_grained_labels_col")
DIALECTS = {
    "pfl": ("image_ids", *CODED),
    "ml-flair": ("image_ids", "labels", "fine_grained_labels"),
    "central": ("user_id", "labels", "fine_grained_labels"),
}
PICTURES = {"pfl": "images", "ml-flair": "images", "central": "image"}
MAPPINGS = ("label_mapping", "fine_grained_label_mapping")


class StoredPictures(Sequence[Any]):
    """Pictures [n, height, width, 3] in arrays of an HDF5 file, which each process opens for itself when it wants one."""

    def __init__(self, path: Path, names: Sequence[str], sizes: Sequence[int], single: bool):
        self.path, self.names, self.single = path, list(names), single
        self.ends = np.cumsum([0, *sizes])
        self._file: h5py.File | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, row: Any) -> Any:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        if self._file is None:
            self._file = h5py.File(self.path)
        number = int(np.searchsorted(self.ends, row, side="right")) - 1
        name = self.names[number]
        try:
            picture = self._file[name][() if self.single else int(row - self.ends[number])]
        except (KeyError, OSError, ValueError, IndexError) as error:
            raise BrokenPicture(f"{self.path}, {name}: {error}") from error
        if picture.dtype != np.uint8 or picture.ndim != 3:
            what = f"{picture.dtype} {picture.shape}"
            raise BrokenPicture(f"{self.path}, {name}: a picture should be uint8 [height, width, 3]; it is {what}")
        return picture


def read_hdf5(path: Path) -> Tables:
    """All splits, whatever the dialect."""
    try:
        with h5py.File(path) as file:
            there = [name for name in SPLITS if name in file and len(file[name])]
            if not there:
                raise ValueError(f"it has no groups train, val and test; it has: {', '.join(file) or 'nothing'}")
            dialect = _dialect(file[there[0]])
            mapped = [_mapping(file, name) if dialect == "pfl" else {} for name in MAPPINGS]
            names = Names(mapped[0]), Names(mapped[1])
            splits = {SPLITS[name]: READERS[dialect](path, name, _arrays(file[name], DIALECTS[dialect]), names) for name in there}
            return Tables(splits, *names)
    except (OSError, KeyError, RuntimeError) as error:
        raise ValueError(f"{path} cannot be read as HDF5 ({error}): truncated download?") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _dialect(split: Any) -> str:
    """Told by what stands in a split's first group."""
    first = next(iter(split.values()))
    for dialect in DIALECTS:
        if all(name in first for name in (PICTURES[dialect], *DIALECTS[dialect])):
            return dialect
    raise ValueError(f"'{first.name}' holds {', '.join(first)}, which is none of FLAIR's layouts")


def _arrays(split: Any, names: Sequence[str]) -> Groups:
    """These arrays of each group, by h5py's lower interface: there are more than a million."""

    def read(group: Any, name: str) -> NDArray[Any]:
        stored = h5py.h5d.open(group, name.encode())
        values = np.empty(stored.shape, stored.dtype)
        stored.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
        return values

    found = {}
    for key in split:
        group = h5py.h5g.open(split.id, key.encode())
        try:
            found[key] = {name: read(group, name) for name in names}
        except KeyError as error:
            raise ValueError(f"'{split.name}/{key}' is not complete: {error}") from error
    return found


def _pfl(path: Path, name: str, groups: Groups, names: tuple[Names, Names]) -> Split:
    sizes = [len(group["image_ids"]) for group in groups.values()]
    starts = np.concatenate(([0], np.cumsum(sizes[:-1]))).astype(np.int64)
    pairs = []
    for kind, (row_name, column_name) in zip(names, (CODED[:2], CODED[2:]), strict=True):
        rows, columns = ([group[part].astype(np.int64) for group in groups.values()] for part in (row_name, column_name))
        for user, size, row, column in zip(groups, sizes, rows, columns, strict=True):
            if len(row) != len(column) or row.max(initial=-1) >= size or column.max(initial=-1) >= len(kind.numbers):
                raise ValueError(f"{name}/{user}: {row_name} and {column_name} do not fit {size} pictures and the mapping")
        shifted = [row + start for row, start in zip(rows, starts, strict=True)]
        pairs.append((np.concatenate(shifted), np.concatenate(columns)))
    return _by_user(path, name, groups, sizes, *pairs)


def _ml_flair(path: Path, name: str, groups: Groups, names: tuple[Names, Names]) -> Split:
    sizes = [len(group["image_ids"]) for group in groups.values()]
    pairs = []
    for kind, column in zip(names, ("labels", "fine_grained_labels"), strict=True):
        for user, size in zip(groups, sizes, strict=True):
            if len(groups[user][column]) != size:
                raise ValueError(f"{name}/{user}: {size} pictures and {len(groups[user][column])} '{column}'")
        pairs.append(kind.pairs([_names(joined) for group in groups.values() for joined in group[column]]))
    return _by_user(path, name, groups, sizes, *pairs)


def _by_user(path: Path, name: str, groups: Groups, sizes: Sequence[int], labels: Pairs, fine_labels: Pairs) -> Split:
    pictures = StoredPictures(path, [f"{name}/{user}/images" for user in groups], sizes, single=False)
    client = np.repeat(np.array(list(groups), dtype=np.str_), sizes)
    image_id = np.array([_text(image) for group in groups.values() for image in group["image_ids"]], dtype=np.str_)
    return Split(pictures, client, image_id, labels, fine_labels)


def _central(path: Path, name: str, groups: Groups, names: tuple[Names, Names]) -> Split:
    pictures = StoredPictures(path, [f"{name}/{image}/image" for image in groups], [1] * len(groups), single=True)
    columns: dict[str, list[Any]] = {"image_id": list(groups)}
    columns["user_id"] = [_text(group["user_id"][()]) for group in groups.values()]
    for column in ("labels", "fine_grained_labels"):
        columns[column] = [_names(group[column][()]) for group in groups.values()]
    return from_columns(name, pictures, columns, *names)


Reader: TypeAlias = Callable[[Path, str, Groups, tuple[Names, Names]], Split]
READERS: dict[str, Reader] = {"pfl": _pfl, "ml-flair": _ml_flair, "central": _central}


def _mapping(file: Any, name: str) -> dict[str, int]:
    """The number of each name, in pfl's own file."""
    where = f"metadata/{name}"
    mapping = json.loads(file[where][()])
    if sorted(mapping.values()) != list(range(len(mapping))):
        raise ValueError(f"{where}: numbers of labels should be 0 to {len(mapping) - 1}, each once")
    return dict(sorted(mapping.items(), key=lambda item: int(item[1])))


def _names(joined: Any) -> list[str]:
    return [name for name in _text(joined).split("|") if name]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
