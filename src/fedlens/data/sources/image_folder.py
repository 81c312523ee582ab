"""Your own pictures: any folder of class folders, with or without users."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from fedlens.data.listing import Listing
from fedlens.data.sources.base import SOURCES, About, PictureFiles

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"}
SPLITS = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation", "test": "test"}
TABLE = "clients.csv"
COLUMNS = ("file", "client", "label")


def _levels(layout: str) -> str:
    levels = layout.split("/")
    if set(levels) - {"class", "client", "*"} or levels.count("class") > 1 or levels.count("client") > 1:
        raise ValueError(f"expected folder levels such as client/class, of class, client (each once) and *; got '{layout}'")
    return layout


@dataclass(frozen=True)
class Row:
    """A picture of a split, by its path from the source's folder, and what is known of it."""

    file: str
    client: str | None
    label: str | None


@SOURCES.register("image_folder")
class ImageFolder(PictureFiles):
    """Your own pictures by class: PATH/train/CLASS/…, also with validation and test in place of train; or just PATH/CLASS/….

    layout    what the folders below PATH or its splits stand for, from the outside in: `client/class`, `class/*/client`, …;
              pictures may lie deeper than that
    PATH/clients.csv, if it is there, has a row for each picture: its `file` (from PATH), its `client` and, if folders do not say
              it, its `label`; what it says takes precedence over folders

    Classes are sorted by name. Files are pictures by their suffix; others, and names that begin with a dot, are left alone.
    """

    layout: Annotated[str, AfterValidator(_levels)] = "class"

    about: ClassVar[About] = About(contents="your own", licence="yours", where="anywhere: one folder for each class")

    def listings(self) -> dict[str, Listing]:
        if not self.path.is_dir():
            raise FileNotFoundError(f"data.source.path: {self.path} is no folder; it should hold one folder for each class")
        folders = self._splits()
        files = {split: list(_pictures(self.path, folder)) for split, folder in folders.items()}
        table: dict[str, Row] = {}
        if (self.path / TABLE).is_file():
            table = _read_table(self.path / TABLE)
            files = self._of_table(table, files, folders)
        if not files["train"]:
            raise ValueError(f"data.source.path: {self.path} holds no pictures to train on ({', '.join(sorted(SUFFIXES))})")
        rows = {split: [self._row(folders[split], file, table.get(file)) for file in files[split]] for split in files}
        names = tuple(sorted({str(row.label) for row in rows["train"]}))
        return {split: self._listing(rows[split], names) for split in rows if rows[split]}

    def _splits(self) -> dict[str, str]:
        """The folders of the splits, from PATH; PATH itself where there is none to train on."""
        if not (self.path / "train").is_dir():
            return {"train": ""}
        there = [folder for folder in SPLITS if (self.path / folder).is_dir()]
        self._require_no_pictures_beside(there)
        if len({SPLITS[folder] for folder in there}) < len(there):
            raise ValueError(f"data.source.path: {self.path} has several folders of the same split: {', '.join(there)}; keep one")
        return {SPLITS[folder]: folder for folder in there}

    def _require_no_pictures_beside(self, splits: list[str]) -> None:
        """A class may be called train, as trains are: then the others are classes, too, and not to be passed over."""
        names = (folder.name for folder in self.path.iterdir() if folder.is_dir() and folder.name not in splits)
        beside = sorted(name for name in names if not name.startswith("."))
        if stray := next((file for folder in beside for file in _pictures(self.path, folder)), None):
            raise ValueError(
                f"data.source.path: {self.path} has the splits {', '.join(splits)}, but {stray} lies in none of them: if 'train' "
                "is a class like the others, put all of them into a new folder called train; if it is a split, move the others away"
            )

    def _of_table(self, table: dict[str, Row], found: dict[str, list[str]], folders: dict[str, str]) -> dict[str, list[str]]:
        """The files of each split by the table, in which all that were found have to be; if others are missing is seen later."""
        if unlisted := set().union(*found.values()) - set(table):
            raise ValueError(f"{self.path / TABLE} has no row for {min(unlisted)}; each picture needs one (or delete the picture)")
        splits = {folder: split for split, folder in folders.items()}
        files: dict[str, list[str]] = {split: [] for split in found}
        for file in sorted(table):
            folder = "" if "" in splits else file.split("/")[0]
            if folder not in splits:
                raise ValueError(f"{self.path / TABLE}: {file} lies in none of the folders {', '.join(splits)}")
            files[splits[folder]].append(file)
        return files

    def _row(self, folder: str, file: str, said: Row | None) -> Row:
        """What the table says of a picture, or else what its folders do."""
        parts = file.split("/")[:-1]
        levels = dict(zip(self.layout.split("/"), parts[1:] if folder else parts, strict=False))
        client = said.client if said else levels.get("client")
        label = (said.label if said else None) or levels.get("class")
        if label is None or ("client" in self.layout and client is None):
            raise ValueError(f"{self.path / file} does not lie as deep as data.source.layout={self.layout} says")
        return Row(file, client, label)

    def _listing(self, rows: list[Row], names: tuple[str, ...]) -> Listing:
        place = {name: number for number, name in enumerate(names)}
        if unknown := next((row for row in rows if row.label not in place), None):
            raise ValueError(f"{self.path / unknown.file}: no picture to train on is of the class '{unknown.label}'")
        columns: dict[str, NDArray[Any]] = {"label": np.array([place[str(row.label)] for row in rows], dtype=np.int64)}
        if rows[0].client is not None:  # then all have one
            columns["client"] = np.array([row.client for row in rows], dtype=np.str_)
        files = [row.file for row in rows]
        return Listing([self.path / file for file in files], columns, self.path.name or "pictures", names, keys=files)


def _pictures(path: Path, folder: str) -> Iterator[str]:
    """Pictures at any depth below PATH/folder, by their paths from PATH, sorted; through links too, but not in circles."""
    top = str(path / folder)
    above: dict[str, set[str]] = {top: set()}  # what a folder lies in, by real paths: a link back to that is a circle
    for here, folders, files in os.walk(top, followlinks=True):
        around = above.pop(here) | {os.path.realpath(here)}
        names = (name for name in folders if not name.startswith("."))
        folders[:] = sorted(name for name in names if os.path.realpath(os.path.join(here, name)) not in around)
        above |= {os.path.join(here, name): around for name in folders}
        below = Path(here).relative_to(path).as_posix()
        for name in sorted(files):
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES:
                yield name if below == "." else f"{below}/{name}"


def _read_table(path: Path) -> dict[str, Row]:
    """Rows of clients.csv by file."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.DictReader(file)
        header = tuple(lines.fieldnames or ())
        if header not in (COLUMNS, COLUMNS[:2]):
            raise ValueError(f"{path}: the first line should be file,client or file,client,label; it is {','.join(header)!r}")
        rows: dict[str, Row] = {}
        for line in lines:
            where = f"{path}: line {lines.line_num}"
            if None in line or not all(line.values()):
                raise ValueError(f"{where} should have a value for each of {','.join(header)}; it is {line}")
            name = Path(line["file"]).as_posix()
            if name in rows:
                raise ValueError(f"{where}: {name} stands there for the second time; each picture has one row")
            rows[name] = Row(name, line["client"], line.get("label"))
    return rows
