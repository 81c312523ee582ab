"""Google Landmarks v2 (Weyand et al. 2020) as Hsu, Qi and Brown 2020 made it federated: who photographed what."""

from __future__ import annotations

import os
import re
import unicodedata
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedlens import random
from fedlens.data.listing import Listing
from fedlens.data.population import Indices
from fedlens.data.sources import tables
from fedlens.data.sources.base import SOURCES, About, PictureFiles
from fedlens.data.sources.checks import Expect, require_counts
from fedlens.data.sources.tables import Place, Rows, Texts

PAPER = "Hsu, Qi and Brown 2020, Federated Visual Classification; Weyand et al. 2020, Google Landmarks Dataset v2"
NAME = "Google Landmarks"
OFFICIAL = {
    "user_160k": {"clients": 1262, "classes": 2028, "training images": 164_172, "test images": 19_526},
    "23k": {"clients": 233, "classes": 203, "training images": 23_080},
}
FILES = {  # by whom they were published: the paper's authors or TensorFlow Federated, and FedML
    "user_160k": (("federated_train.csv", "test.csv"), ("gld160k_user_dict_train.csv", "gld160k_user_dict_test.csv")),
    "23k": (("mini_gld_train_split.csv", "mini_gld_test.csv"), ("gld23k_user_dict_train.csv", "gld23k_user_dict_test.csv")),
}
MD5 = {
    "landmarks-user-160k.zip": "53c36bd7d5fc12f927af2820b7e4a57c",
    "mini_gld_train_split.csv": "9fd62cf79a67046fdd673d3a0ac52841",
    "mini_gld_test.csv": "298e9d19d66357236f66fe8e22920933",
}
WHERE = "github.com/cvdfoundation/google-landmark (metadata and images_000.tar … images_499.tar of train)"
IMAGES, USERS, LANDMARKS = 30, 10, 5  # at least: images of a landmark and of a user, users of a landmark, landmarks of a user
TESTED = 10  # images of a landmark at most
HEX = "0123456789abcdef"
LOOKED_AT = 10_000  # entries of a folder, to see whether tables are there


@SOURCES.register("landmarks", paper=PAPER)
class Landmarks(PictureFiles):
    """Landmarks-User-160k, or TensorFlow Federated's smaller GLD-23k, as published: a client is who took the pictures.

    Pictures are PATH/images/<id>.jpg, or a/b/c/<id>.jpg, as the shards unpack, in PATH, PATH/train or PATH/images. Anywhere
    under PATH, unpacked or not: landmarks-user-160k.zip; or mini_gld_train_split.csv and mini_gld_test.csv; or FedML's
    data_user_dict.zip.
    Landmarks have names where train_label_to_category.csv and train_clean.csv or train.csv are there too.
    `expect=official` refuses tables that are not complete. Many people find some of the images missing: see `missing`.
    """

    about: ClassVar[About] = About(
        contents="164,172 + 19,526 images of 2,028 landmarks, 1,262 photographers; or 23,080, 203, 233",
        licence="images CC BY or public domain, annotations CC BY 4.0",
        where=f"{WHERE}, storage.googleapis.com/gresearch/federated-vision-datasets/landmarks-user-160k.zip",
        gigabytes=24,
        files=(
            "federated_train.csv | mini_gld_train_split.csv | gld160k_user_dict_train.csv | gld23k_user_dict_train.csv | "
            "landmarks-user-160k.zip | data_user_dict.zip",
        ),
    )

    split: Literal["user_160k", "23k"] = "user_160k"
    expect: Expect = "official"

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        return _holds_pictures(folder) and all(nearby(folder, either) for either in cls.about.files)

    def listings(self) -> Mapping[str, Listing]:
        train, test = self._rows()
        self._require_official(train, test)
        names = _class_names(self.path, train, test)
        return {
            split: Listing(_pictures(self.path, rows.image), rows.columns, f"{NAME} {self.split}", names, keys=rows.image.tolist())
            for split, rows in (("train", train), ("test", test))
        }

    def _rows(self) -> tuple[Rows, Rows]:
        pairs = dict(FILES[self.split])
        if (train := tables.find(self.path, *pairs)) is None:
            raise FileNotFoundError(
                f"data.source.path: neither {' nor '.join(pairs)} is under {self.path} or in a zip there (get one from "
                f"{self.about.where}, or draw anew from the metadata: data.source.name=landmarks_raw)"
            )
        if (test := train.beside(pairs[train.file_name])) is None:
            raise FileNotFoundError(f"data.source.path: {pairs[train.file_name]} is missing beside {train}; the two come together")
        for place in (train, test):
            tables.check_md5(place, MD5 if self.expect == "official" else {})
        return tables.federated(train, test)

    def _require_official(self, train: Rows, test: Rows) -> None:
        assert train.client is not None
        clients, client = np.unique(train.client, return_inverse=True)
        found = {"clients": len(clients), "classes": tables.classes(train, test)}
        found |= {"training images": len(train), "test images": len(test)}
        official = OFFICIAL[self.split]
        require_counts(f"{NAME} {self.split}", self.expect, {what: (found[what], count) for what, count in official.items()})
        if self.expect == "official" and self.split == "user_160k" and (broken := Holdings.of(train.label, client).broken()):
            raise ValueError(f"{train.place}: {broken} (data.source.expect=any takes what is there)")


@SOURCES.register("landmarks_raw", paper=PAPER)
class LandmarksRaw(PictureFiles):
    """Landmarks-User-160k drawn anew from the metadata of Google Landmarks v2: the same rules, and nearly the same images.

    Of the cleaned training set those landmarks stay that have 30 images and 10 photographers at least, and those photographers
    that have 30 images of 5 landmarks at least. As dropping some breaks others, both are repeated until nothing changes: that
    leaves the largest set for which all of it holds, whatever the order; `max_passes` stops earlier. The test has up to 10 images
    of each landmark by other photographers. `client` is the photographer's name; images without one are left out.
    PATH has train_clean.csv and train_attribution.csv anywhere, and the pictures, as the source `landmarks` reads them.
    """

    about: ClassVar[About] = About(
        contents="about 164,172 + 19,526 images of 2,028 landmarks, 1,262 photographers",
        licence="images CC BY or public domain, annotations CC BY 4.0",
        where=WHERE,
        gigabytes=500,
        files=("train_clean.csv", "train_attribution.csv"),
    )

    seed: int = 0
    max_passes: Annotated[int, Field(ge=1)] | None = None

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        return _holds_pictures(folder) and all(nearby(folder, either) for either in cls.about.files)

    def listings(self) -> Mapping[str, Listing]:
        images, landmark, author, authors = _attributed(self.path)
        holdings = Holdings.of(landmark, author)
        kept_landmark, kept_author = holdings.filtered(self.max_passes)
        train = np.flatnonzero(kept_landmark[landmark] & kept_author[author])
        if not len(train):
            raise ValueError(f"{NAME}: no landmark under {self.path} has enough images and photographers; are the files complete?")
        others = np.flatnonzero(kept_landmark[landmark] & ~kept_author[author])
        test = others[tables.at_most(landmark[others], TESTED, random.generator(self.seed, "landmarks"))]
        self._compare(landmark, author, train, test)
        kept = np.flatnonzero(kept_landmark)
        names = _landmark_names(self.path)
        return {
            split: Listing(
                _pictures(self.path, images[rows]),
                {"label": np.searchsorted(kept, landmark[rows]), "image_id": images[rows], **client},
                f"{NAME} raw",
                tuple(names.get(c, str(c)) for c in kept.tolist()),
                keys=images[rows].tolist(),
            )
            for split, rows, client in (("train", train, {"client": authors[author[train]]}), ("test", test, {}))
        }

    def _compare(self, landmark: Indices, author: Indices, train: Indices, test: Indices) -> None:
        """Assert what the rules promise, and say where the counts are not those that were published."""
        assert not np.intersect1d(author[train], author[test]).size
        if broken := Holdings.of(landmark[train], author[train]).broken():
            assert self.max_passes is not None, broken
            warnings.warn(f"{NAME} with max_passes={self.max_passes}: {broken}", stacklevel=3)
        counts = len(np.unique(author[train])), len(np.unique(landmark[train])), len(train), len(test)
        found = dict(zip(OFFICIAL["user_160k"], counts, strict=True))
        if found != OFFICIAL["user_160k"]:
            texts = [", ".join(f"{count:,} {what}" for what, count in each.items()) for each in (found, OFFICIAL["user_160k"])]
            warnings.warn(f"{NAME}: drew {texts[0]}; published were {texts[1]}", stacklevel=3)


@dataclass(frozen=True)
class Holdings:
    """How many images each photographer has of each landmark: only pairs that occur."""

    landmark: Indices
    author: Indices
    count: Indices
    landmarks: int  # numbers below which all are
    authors: int

    @classmethod
    def of(cls, landmark: Indices, author: Indices) -> Holdings:
        landmarks, authors = int(landmark.max(initial=-1)) + 1, int(author.max(initial=-1)) + 1
        pairs, count = np.unique(landmark * authors + author, return_counts=True)
        return cls(pairs // max(1, authors), pairs % max(1, authors), count, landmarks, authors)

    def of_landmarks(self, there: NDArray[np.bool_]) -> tuple[Indices, Indices]:
        """How many images and how many photographers each landmark has, of the pairs that are there."""
        own = self.landmark[there]
        return np.bincount(own, self.count[there], self.landmarks).astype(np.int64), np.bincount(own, minlength=self.landmarks)

    def of_authors(self, there: NDArray[np.bool_]) -> tuple[Indices, Indices]:
        """How many images and how many landmarks each photographer has, of the pairs that are there."""
        own = self.author[there]
        return np.bincount(own, self.count[there], self.authors).astype(np.int64), np.bincount(own, minlength=self.authors)

    def filtered(self, max_passes: int | None = None) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which landmarks and which photographers are left when those with too little are dropped, again and again."""
        landmarks, authors = np.ones(self.landmarks, dtype=bool), np.ones(self.authors, dtype=bool)
        passes, before = 0, -1
        while (left := int(landmarks.sum() + authors.sum())) != before and passes != max_passes:
            passes, before = passes + 1, left
            images, users = self.of_landmarks(landmarks[self.landmark] & authors[self.author])
            landmarks = (images >= IMAGES) & (users >= USERS)
            images, seen = self.of_authors(landmarks[self.landmark] & authors[self.author])
            authors = (images >= IMAGES) & (seen >= LANDMARKS)
        return landmarks, authors

    def broken(self) -> str:
        """What the smallest landmark or photographer lacks of what each should have, if anything."""
        there = np.ones(len(self.count), dtype=bool)
        (images, users), (taken, seen) = self.of_landmarks(there), self.of_authors(there)
        rules = (
            ("a landmark", "images", images, IMAGES),
            ("a landmark", "photographers", users, USERS),
            ("a photographer", "images", taken, IMAGES),
            ("a photographer", "landmarks", seen, LANDMARKS),
        )
        found = [(who, what, int(counts[counts > 0].min(initial=least)), least) for who, what, counts, least in rules]
        return ", ".join(f"{who} has {least} {what}, not {wanted} at least" for who, what, least, wanted in found if least < wanted)


def _attributed(path: Path) -> tuple[Texts, Indices, Indices, NDArray[np.object_]]:
    """Of each clean image whose photographer is known, by id: its landmark and photographer; and the photographers' names."""
    clean, attribution = _place(path, "train_clean.csv"), _place(path, "train_attribution.csv")
    landmark_of = list(tables.rows(clean, "landmark_id", "images"))
    groups = [own.split() for _, own in landmark_of]
    image = np.array([one for own in groups for one in own], dtype=np.str_)
    tables.require_distinct(image, "images", clean)
    numbers = tables.integers(np.array([number for number, _ in landmark_of], dtype=np.str_), "landmark_id", clean)
    landmark = np.repeat(numbers, [len(own) for own in groups])
    row = {one: place for place, one in enumerate(image.tolist())}
    written: dict[str, int] = {}
    author = np.full(len(image), -1)
    for one, name in tables.rows(attribution, "id", "author"):
        if one in row:
            author[row[one]] = written.setdefault(name, len(written))
    names, meant = np.unique(np.array(["", *map(_one_way, written)], dtype=object), return_inverse=True)
    author = meant.reshape(-1)[author + 1]  # 0: none, as the empty text comes first
    known = np.flatnonzero(author > 0)
    known = known[np.argsort(image[known], kind="stable")]
    return image[known], landmark[known], author[known], names


def _one_way(name: str) -> str:
    """A photographer's name as it is compared: letters with accents may be written in two ways, and blanks may surround them."""
    return unicodedata.normalize("NFC", name).strip()


def _place(path: Path, file_name: str) -> Place:
    if (place := tables.find(path, file_name)) is None:
        raise FileNotFoundError(f"data.source.path: {file_name} is missing under {path} (get it from {WHERE})")
    return place


def _nested(path: Path) -> Path | None:
    """Where folders of pictures, called by the first characters of their ids, lie."""
    return next((root for root in (path, path / "train", path / "images") if any((root / first).is_dir() for first in HEX)), None)


def _holds_pictures(path: Path) -> bool:
    return (path / "images").is_dir() or _nested(path) is not None


def _pictures(path: Path, images: Texts) -> list[Path]:
    """images/<id>.jpg where it is there, else a/b/c/<id>.jpg with the id's first three characters."""
    flat = path / "images"
    if not _holds_pictures(path):
        raise FileNotFoundError(
            f"data.source.path: neither {flat} nor folders 0 … f with pictures are in {path} (get them from {WHERE})"
        )
    there = {entry.name for entry in flat.iterdir()} if flat.is_dir() else set()
    nested = _nested(path)
    files = [f"{one}.jpg" for one in images.tolist()]
    return [flat / file if file in there or nested is None else nested.joinpath(*file[:3], file) for file in files]


def nearby(folder: Path, either: str) -> bool:
    """Whether one of some files, 'one | other', is in a folder or up to two below it.

    That is where `tables.find` looks, but for what lies deeper, and without reading zips or walking through all pictures.
    """
    below = _subfolders(folder)
    places = [folder, *below, *(deeper for one in below for deeper in _subfolders(one))]
    return any((place / name).is_file() for place in places for name in either.split(" | "))


def _subfolders(folder: Path) -> list[Path]:
    """Those that may hold tables; of a large folder only what comes first, as it is one of pictures."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        found = [Path(entry.path) for entry in islice(entries, LOOKED_AT) if entry.is_dir()]
    return [one for one in found if one.name not in tables.PICTURE_FOLDERS and len(one.name) > 1 and one.name[0] != "."]


def _class_names(path: Path, train: Rows, test: Rows) -> tuple[str, ...]:
    """The landmarks' names, as far as the metadata are there; if so, every class has to be one landmark."""
    label = np.concatenate([train.label, test.label])
    landmark = {c: str(c) for c in range(tables.classes(train, test))}
    if place := tables.find(path, "train_clean.csv", "train.csv"):
        known: dict[str, str] = dict.fromkeys(train.image.tolist() + test.image.tolist(), "")
        columns = ("landmark_id", "images") if place.file_name == "train_clean.csv" else ("landmark_id", "id")
        for number, images in tables.rows(place, *columns):
            known |= {one: number for one in images.split() if one in known}
        names = _landmark_names(path)
        found = tables.names_of_classes(label, np.array(list(known.values()), dtype=np.str_), str(place))
        landmark |= {c: names.get(int(number), number) for c, number in found.items()}
    return tuple(landmark.values())


def _landmark_names(path: Path) -> dict[int, str]:
    """What landmarks are called, from the addresses of their pages: …/Category:Tour_Eiffel."""
    if (place := tables.find(path, "train_label_to_category.csv")) is None:
        return {}
    table = tables.read(place, "landmark_id", "category")
    names = (unquote(re.sub(".*Category:", "", address)).replace("_", " ") for address in table["category"].tolist())
    return dict(zip(tables.integers(table["landmark_id"], "landmark_id", place).tolist(), names, strict=True))
