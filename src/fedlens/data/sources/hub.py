"""Data sets in the form of Hugging Face's hub: by name, or from Parquet files or a folder of `save_to_disk`."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedlens.data.listing import Listing
from fedlens.data.sources.arrow import (
    KINDS,
    TablePictures,
    class_names,
    read_columns,
    read_schema,
    require_columns,
    require_pyarrow,
)
from fedlens.data.sources.base import SOURCES, About, PictureFiles

SPLITS = {"validation": "validation", "valid": "validation", "val": "validation", "dev": "validation", "test": "test"}
SHARD = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(-[0-9a-f]+)?")
PICTURES = re.compile(r"(large_)?binary|struct<(.*, )?bytes: (large_)?binary.*>")
IMAGES = ("image", "img", "picture", "photo")  # what columns are called, most usual first
LABELS = ("label", "labels", "fine_label", "character", "class", "target", "category")
CLIENTS = ("client", "client_id", "user_id", "user", "writer_id", "celeb_id", "photographer_id")


@SOURCES.register("hub", paper="Lhoest et al. 2021, Datasets: A Community Library for Natural Language Processing")
class Hub(PictureFiles):
    """Any data set of pictures in Hugging Face's form: Parquet files or a folder of `save_to_disk` under PATH, or one of the hub.

    dataset        its name there, such as flwrlabs/femnist, to fetch it with the package `datasets`; PATH is not used then
    config         one of several data sets in the same place (a folder of PATH)
    image, label, client    the columns that hold them; if not given, those with usual names, or the only ones of their type
    keep           other columns to take along, of numbers or texts
    train_split    what the split to train on is called; validation (valid, val, dev) and test are found by name

    A column of lists is one of several labels each: `labels` [N, C]. Classes are called as the files say, or else as they stand
    in the column, sorted. A row without a picture is a missing one, a row without label or client is an error; a split for
    evaluation whose labels are hidden, all −1, is left out.
    """

    dataset: str | None = None
    config: str | None = None
    image: str | None = None
    label: str | None = None
    client: str | None = None
    keep: tuple[str, ...] = ()
    train_split: str = "train"

    about: ClassVar[About] = About(
        contents="whatever it is", licence="as its page says", where="https://huggingface.co/datasets, or your own Parquet files"
    )

    def listings(self) -> dict[str, Listing]:
        require_pyarrow()
        found = _fetched(self.dataset, self.config) if self.dataset else _found(self.path, self.config, self.train_split)
        if self.train_split not in found:
            raise ValueError(
                f"{self.dataset or self.path}: there is no split '{self.train_split}' to train on, but: {', '.join(found)} "
                "(data.source.train_split says which it is)"
            )
        files = {"train": found.pop(self.train_split)} | {SPLITS[name]: found[name] for name in found if name in SPLITS}
        roles = self._roles(files["train"][0])
        declared = class_names(read_schema(files["train"][0])[1].get(roles["label"]))
        tables = {split: self._table(paths, roles) for split, paths in files.items()}
        classes = Classes.of(tables["train"][roles["label"]], declared, f"{files['train'][0].parent}: '{roles['label']}'")
        return {
            split: self._listing(files[split], table, roles, classes)
            for split, table in tables.items()
            if split == "train" or not _hidden(table[roles["label"]])
        }

    def _roles(self, path: Path) -> dict[str, str]:
        """Which column is the image, the label and, if there is one, the client."""
        schema, features = read_schema(path)
        pictures = [name for name in schema.names if _is_image(schema.field(name).type)]
        labelled = [name for name in features if class_names(features[name])]
        image = self.image or _named(path, "image", [name for name in IMAGES if name in pictures], pictures)
        label = self.label or _named(path, "label", [name for name in LABELS if name in schema.names], labelled)
        client = self.client or next((name for name in CLIENTS if name in schema.names), None)
        return {"image": image, "label": label} | ({"client": client} if client else {})

    def _table(self, paths: list[Path], roles: dict[str, str]) -> Any:
        """The columns other than pictures."""
        require_columns(paths[0], read_schema(paths[0])[0], [*roles.values(), *self.keep])
        return read_columns(paths, list(dict.fromkeys([*(roles[role] for role in roles if role != "image"), *self.keep])))

    def _listing(self, paths: list[Path], table: Any, roles: dict[str, str], classes: Classes) -> Listing:
        said = {name: f"{paths[0]}: '{name}'" if len(paths) == 1 else f"{paths[0]}, …: '{name}'" for name in table.column_names}
        columns: dict[str, NDArray[Any]] = {name: _plain(table[name], said[name]) for name in self.keep}
        label = roles["label"]
        columns["labels" if _is_list(table[label]) else "label"] = classes.codes(table[label], said[label])
        if "client" in roles:
            columns["client"] = _plain(table[roles["client"]], said[roles["client"]]).astype(np.str_)
        title = self.dataset or self.path.resolve().name
        return Listing(TablePictures(paths, roles["image"]), columns, title, classes.names)


def _fetched(dataset: str, config: str | None) -> dict[str, list[Path]]:
    """The files of a data set's splits, where `datasets` keeps them."""
    try:
        load_dataset = import_module("datasets").load_dataset  # typed or not, installed or not
    except ImportError as error:
        raise ImportError(
            f"data.source.dataset: to fetch {dataset}, the package datasets is needed (pip install 'fedlens[hub]'); "
            "Parquet files that are here already need only data.source.path"
        ) from error
    return {
        str(name): [Path(file["filename"]) for file in split.cache_files] for name, split in load_dataset(dataset, config).items()
    }


def _found(path: Path, config: str | None, train_split: str) -> dict[str, list[Path]]:
    """The files of each split under a folder, in order: SPLIT-00000-of-00002.parquet, or any names in a folder SPLIT."""
    root = path / config if config else path
    if not root.is_dir():
        raise FileNotFoundError(
            f"data.source.{'config' if config else 'path'}: {root} is no folder; Parquet files should lie in it"
        )
    files = sorted(file for file in root.rglob("*") if file.suffix in KINDS)
    if not files:
        raise FileNotFoundError(f"data.source.path: {root} holds no Parquet or Arrow files")
    splits: dict[str, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for file in files:
        folders = [name for name in file.relative_to(root).parts[:-1] if name != "data"]
        shard = SHARD.fullmatch(file.stem)
        name = shard["name"] if shard else file.stem
        if name == "data" or name.isdecimal():  # files are only numbered: their folder says what they are
            name = folders.pop() if folders else train_split
        splits[name]["/".join(folders)].append(file)
    for name, places in splits.items():
        if len(places) > 1:
            raise ValueError(f"{root} holds '{name}' of several data sets: {', '.join(places)}; choose one by data.source.config")
        _require_all(next(iter(places.values())))
    return {name: next(iter(places.values())) for name, places in splits.items()}


def _require_all(files: Sequence[Path]) -> None:
    """Files that are numbered 00000-of-00002, … have to be all there."""
    shards = [shard for file in files if (shard := SHARD.fullmatch(file.stem))]
    for count, there in Counter(shard["count"] for shard in shards).items():
        if there != int(count):
            raise ValueError(f"{files[0].parent} holds {there} of {int(count)} files of '{shards[0]['name']}': get the others, too")


def _is_image(kind: Any) -> bool:
    """Whether a column of this type may hold encoded pictures: bytes, or bytes and a path."""
    return PICTURES.fullmatch(str(kind)) is not None


def _named(path: Path, role: str, usual: Sequence[str], fitting: Sequence[str]) -> str:
    """The column that plays a role: the first with a usual name, or the only one of a fitting type."""
    if usual or len(fitting) == 1:
        return [*usual, *fitting][0]
    names = ", ".join(read_schema(path)[0].names)
    raise ValueError(f"{path}: which column holds the {role}? set data.source.{role} to one of: {names}")


@dataclass(frozen=True)
class Classes:
    """What the values of a label column stand for: by number where names are declared, or else those found in training data."""

    names: tuple[str, ...]
    values: NDArray[Any]

    @classmethod
    def of(cls, column: Any, declared: tuple[str, ...] | None, where: str) -> Classes:
        values = np.arange(len(declared)) if declared else np.unique(_plain(_flat(column), where))
        if values.dtype.kind not in "iubU":
            raise ValueError(f"{where} should hold whole numbers or texts, or lists of them; it holds {values.dtype}")
        return cls(declared or tuple(values.astype(np.str_).tolist()), values)

    def codes(self, column: Any, where: str) -> NDArray[Any]:
        """Classes 0 … C − 1 [N]; of lists, which are in each [N, C]."""
        flat = _plain(_flat(column), where)
        place = np.searchsorted(self.values, flat).clip(max=len(self.values) - 1)
        if len(unknown := np.flatnonzero(self.values[place] != flat)):
            raise ValueError(f"{where} holds '{flat[unknown[0]]}', which is none of the {len(self.names):,} classes to learn")
        if not _is_list(column):
            return place
        hot = np.zeros((len(column), len(self.names)), dtype=np.uint8)
        hot[np.repeat(np.arange(len(column)), _lengths(column)), place] = 1
        return hot


def _is_list(column: Any) -> bool:
    return "list<" in str(column.type) or "fixed_size_list" in str(column.type)


def _flat(column: Any) -> Any:
    """All values of all lists; a column without lists as it is."""
    return column.combine_chunks().flatten() if _is_list(column) else column


def _lengths(column: Any) -> NDArray[np.int64]:
    lengths = column.combine_chunks().value_lengths()
    return np.asarray(lengths.fill_null(0), dtype=np.int64)  # no list holds as much as an empty one


def _hidden(column: Any) -> bool:
    """Whether all labels are −1, as those of competitions' test sets."""
    return not _is_list(column) and column.type in ("int64", "int32", "int8") and bool((_plain(column, "") == -1).all())


def _plain(values: Any, where: str) -> NDArray[Any]:
    """A column of numbers or texts without gaps."""
    if values.null_count:
        row = int(np.flatnonzero(np.asarray(values.is_null()))[0])
        raise ValueError(f"{where} is empty in {values.null_count:,} rows, first in row {row}; each needs a value")
    plain = np.asarray(values)
    if plain.dtype == object and all(isinstance(value, str) for value in plain):
        plain = plain.astype(np.str_)
    if plain.dtype.kind not in "iufbU":
        raise ValueError(f"{where} should hold numbers or texts; it holds {values.type}")
    return plain
