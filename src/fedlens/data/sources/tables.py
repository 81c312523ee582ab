"""Tables as data sets publish them: CSV files with a header, in folders or still in their zips, and the pictures that they name.

Files are found by name anywhere under a folder, columns by name in any order, and nothing is taken for granted that a file can get
wrong: every complaint names the file and the row.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np
from numpy.typing import NDArray

Texts: TypeAlias = NDArray[np.str_]

PICTURE_FOLDERS = ("train_val_images", "images")  # hold a file for each picture, and no tables; nor do folders of one letter
NOT_A_CLIENT = "NA"  # a row that belongs to no client
STRANGERS = "the table does not belong to these data"
LONGEST = 1 << 24  # field: one of a landmark names all of its images
READING = (csv.Error, UnicodeDecodeError, zipfile.BadZipFile, zlib.error, EOFError)  # whatever a torn file raises


@dataclass(frozen=True)
class Place:
    """A file: one in a folder, or a member of a zip."""

    path: Path  # of the file, or of the zip
    member: str = ""

    def __str__(self) -> str:
        return f"{self.path}/{self.member}" if self.member else str(self.path)

    @property
    def file_name(self) -> str:
        return (self.member or self.path.name).rpartition("/")[2]

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        if not self.member:
            with self.path.open("rb") as file:
                yield file
            return
        with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as file:
            yield file

    def beside(self, file_name: str) -> Place | None:
        """The file of that name in the same folder, which may be one of the same zip."""
        if self.member:
            name = self.member[: -len(self.file_name)] + file_name
            return Place(self.path, name) if name in _members(self.path) else None
        path = self.path.with_name(file_name)
        return Place(path) if path.is_file() else None

    def md5(self) -> str:
        digest = hashlib.md5(usedforsecurity=False)
        with self.open() as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()


def find(folder: Path, *patterns: str) -> Place | None:
    """The file of the first name, or pattern of names, of which there is one anywhere under a folder, or in a zip there.

    What is unpacked comes before what is still in a zip. Copies are as good as each other; where files of a name differ, somebody
    has to say which is meant.
    """
    files = [folder] if folder.is_file() else list(_files(folder))
    for pattern in patterns:
        found = [Place(file) for file in files if fnmatchcase(file.name, pattern)]
        zips = [] if found else [file for file in files if file.suffix == ".zip"]
        for file in zips:
            found += [Place(file, member) for member in _members(file) if fnmatchcase(member.rpartition("/")[2], pattern)]
        if len(found) > 1 and len({place.md5() for place in found}) > 1:
            named = ", ".join(map(str, found))
            raise ValueError(f"several files called '{pattern}' that differ: {named}; give the folder or zip of one as path")
        if found:
            return found[0]
    return None


def _files(folder: Path) -> Iterator[Path]:
    """All files under a folder but those of folders that hold pictures; through links too, but not in circles."""
    seen: set[str] = set()
    for root, folders, names in os.walk(folder, followlinks=True):
        seen.add(os.path.realpath(root))
        folders[:] = sorted(
            name
            for name in folders
            if name not in PICTURE_FOLDERS and len(name) > 1 and name[0] != "." and os.path.realpath(Path(root, name)) not in seen
        )
        yield from (Path(root, name) for name in sorted(names) if name[0] != ".")


def _members(path: Path) -> list[str]:
    """The files in a zip, without those that some systems add to it."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError) as error:
        raise ValueError(f"{path} cannot be read as a zip: {error}; truncated download?") from error
    return [name for name in names if not name.endswith("/") and not name.startswith("__MACOSX/")]


def check_md5(place: Place, known: Mapping[str, str]) -> None:
    """Compare a file, or the zip in which it is, with the digest that was published, or that lies beside it in an md5 file."""
    path = place.path
    expected = {known[path.name]} if path.name in known else set()
    for beside in (path.with_name(f"{path.name}.md5"), path.with_name(f"md5.{path.stem}.txt")):
        expected |= {_published_md5(beside)} if beside.is_file() else set()
    if expected and expected != {found := Place(path).md5()}:
        raise ValueError(f"{path} is not the published file: its md5 is {found}, not {' or '.join(sorted(expected))}; get it again")


def _published_md5(path: Path) -> str:
    """The digest in an md5 file, in which the name of the file may follow it."""
    digest = (path.read_text(errors="replace").split() or [""])[0].lower()
    if not re.fullmatch("[0-9a-f]{32}", digest):
        raise ValueError(f"{path} is no md5 file: it should begin with 32 hexadecimal digits")
    return digest


def rows(place: Place, *columns: str, optional: Sequence[str] = ()) -> Iterator[tuple[str, ...]]:
    """These columns of a CSV file, row after row; an optional one that is not there is left out."""
    csv.field_size_limit(LONGEST)
    try:
        with place.open() as file:
            reader = csv.reader(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""))
            header = [name.strip().lower() for name in next(reader, [])]
            if lacking := [name for name in columns if name not in header]:
                raise ValueError(f"{place} has no column '{lacking[0]}' in its first line; it has: {', '.join(header)[:200]}")
            wanted = [header.index(name) for name in (*columns, *(name for name in optional if name in header))]
            for row in reader:
                if len(row) == len(header):
                    yield tuple([row[place] for place in wanted])
                elif row:
                    raise ValueError(f"{place}, line {reader.line_num}: {len(row)} fields, not {len(header)}; truncated download?")
    except READING as error:
        raise ValueError(f"{place} cannot be read ({type(error).__name__}: {error}); truncated download?") from error


def read(place: Place, *columns: str, optional: Sequence[str] = ()) -> dict[str, Texts]:
    """These columns of a CSV file, none of whose fields may be empty."""
    found = [np.array(values, dtype=np.str_) for values in zip(*rows(place, *columns, optional=optional), strict=True)]
    if not found:
        raise ValueError(f"{place} has no rows")
    table = dict(zip((*columns, *optional), found, strict=False))
    for name, values in table.items():
        if (empty := values == "").any():
            raise ValueError(f"{place}, row {1 + int(empty.argmax()):,}: '{name}' is empty")
    return table


def integers(values: Texts, name: str, place: Place) -> NDArray[np.int64]:
    """A column of whole numbers."""
    try:
        return values.astype(np.int64)
    except (ValueError, OverflowError):
        row = next(row for row, text in enumerate(values.tolist()) if not re.fullmatch(r"[+-]?\d{1,18}", text.strip()))
        raise ValueError(f"{place}, row {1 + row:,}: '{name}' should be a whole number; it is '{values[row]}'") from None


def identities(values: Texts) -> NDArray[np.generic]:
    """Names of clients: numbers, which sort as numbers, only if all of them are and nothing of how they are written gets lost."""
    try:
        numbers = values.astype(np.int64)
    except (ValueError, OverflowError):
        return values
    return numbers if (numbers.astype(np.str_) == values).all() else values


def require_distinct(values: NDArray[np.generic], name: str, place: Place) -> None:
    found, counts = np.unique(values, return_counts=True)
    if (counts > 1).any():
        first = np.argmax(counts > 1)
        raise ValueError(f"{place}: '{name}' {found[first]} stands in {counts[first]} rows; each should stand in one")


@dataclass(frozen=True)
class Rows:
    """What a published table says of its pictures."""

    place: Place
    image: Texts
    label: NDArray[np.int64]
    client: NDArray[np.generic] | None = None
    original: Texts | None = None  # label, as the data set had it before classes were counted from 0

    def __len__(self) -> int:
        return len(self.image)

    @property
    def columns(self) -> dict[str, NDArray[np.generic]]:
        own: dict[str, NDArray[np.generic]] = {"label": self.label, "image_id": self.image}
        return own if self.client is None else {**own, "client": self.client}


def federated(train: Place, test: Place, client: str = "user_id") -> tuple[Rows, Rows]:
    """The pictures of the clients, sorted by client, and those of the test; rows of no client are left out."""
    trained, tested = _rows(train, client), _rows(test, None)
    if len(both := np.intersect1d(trained.image, tested.image)):
        raise ValueError(f"{len(both):,} pictures stand in {train} and in {test}, {both[0]} is one: they are no pair")
    if (counted := classes(trained, tested)) != 1 + max(trained.label.max(), tested.label.max()) or trained.label.min() < 0:
        raise ValueError(f"{train} and {test}: classes should be 0, 1, … without gaps; there are {counted:,}: are they a pair?")
    return trained, tested


def classes(train: Rows, test: Rows) -> int:
    """How many classes there are in one or the other: what lies nowhere may leave one without training images."""
    return len(np.union1d(train.label, test.label))


def _rows(place: Place, client: str | None) -> Rows:
    wanted = ("image_id", "class") if client is None else ("image_id", "class", client)
    table = read(place, *wanted, optional=("label",))
    if client is not None:
        kept = table[client] != NOT_A_CLIENT
        if not kept.any():
            raise ValueError(f"{place}: '{client}' is {NOT_A_CLIENT} in all {len(kept):,} rows")
        table = {name: values[kept] for name, values in table.items()}
    image = table["image_id"]
    if (odd := np.char.find(image, "/") >= 0).any():
        raise ValueError(f"{place}: '{image[odd.argmax()]}' is no image_id: it is a path")
    require_distinct(image, "image_id", place)
    label, users = integers(table["class"], "class", place), None if client is None else identities(table[client])
    order = np.argsort(image, kind="stable")
    if users is not None:
        order = order[np.argsort(users[order], kind="stable")]  # one client's pictures lie side by side when they are prepared
        users = users[order]
    return Rows(place, image[order], label[order], users, table["label"][order] if "label" in table else None)


def names_of_classes(label: NDArray[np.int64], names: Texts, what: str) -> dict[int, str]:
    """The name of each class that has one (not ''); a class of two names, or two classes of one, are an error."""
    known = names != ""
    found, code = np.unique(names[known], return_inverse=True)
    classes, named = np.unique(np.stack([label[known], code.reshape(-1)]), axis=1)  # pairs that occur, sorted by class
    for i in np.flatnonzero(classes[1:] == classes[:-1]):
        raise ValueError(f"{what}: class {classes[i]} is both '{found[named[i]]}' and '{found[named[i + 1]]}': {STRANGERS}")
    order = np.argsort(named, kind="stable")
    for i, j in pairwise(order):
        if named[i] == named[j]:
            raise ValueError(f"{what}: '{found[named[i]]}' is both class {classes[i]} and class {classes[j]}: {STRANGERS}")
    return {int(c): str(found[name]) for c, name in zip(classes, named, strict=True)}


def pictures_by_stem(folder: Path, stems: Texts) -> list[Path]:
    """Where under a folder the picture of each stem lies; one that is nowhere is expected in the folder itself."""
    wanted = set(stems.tolist())
    found: dict[str, str] = {}
    for root, _, names in os.walk(folder):
        for name in names:
            stem = name.rpartition(".")[0]
            if stem in wanted:
                path = os.path.join(root, name)
                if stem in found:
                    raise ValueError(f"two pictures have the id {stem}: {found[stem]} and {path}")
                found[stem] = path
    return [Path(found[stem]) if stem in found else folder / f"{stem}.jpg" for stem in stems.tolist()]


def at_most(group: NDArray[np.int64], most: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Rows of up to so many members of each group, drawn at random without replacement, in rising order."""
    order = np.lexsort((generator.random(len(group)), group))
    _, first, counts = np.unique(group[order], return_index=True, return_counts=True)
    place = np.arange(len(group)) - np.repeat(first, counts)  # of each row in its group
    return np.sort(order[place < most])
