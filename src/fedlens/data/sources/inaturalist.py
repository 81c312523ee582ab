"""iNaturalist 2017 (Van Horn et al. 2018) as Hsu, Qi and Brown 2020 made it federated: 1,203 species, 100 photographs of each."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedlens import random
from fedlens.data.listing import Listing
from fedlens.data.sources import tables
from fedlens.data.sources.base import SOURCES, About, PictureFiles
from fedlens.data.sources.checks import Expect, require_counts
from fedlens.data.sources.landmarks import nearby
from fedlens.data.sources.tables import Place, Rows, Texts

Split: TypeAlias = Literal["user_120k", "geo_30k", "geo_10k", "geo_3k", "geo_1k", "geo_300", "geo_100"]

PAPER = "Hsu, Qi and Brown 2020, Federated Visual Classification; Van Horn et al. 2018, The iNaturalist Data Set"
NAME = "iNaturalist-2017"
PICTURES = "train_val_images"
CLIENTS: dict[str, int] = {"user_120k": 9275, "geo_30k": 11, "geo_3k": 135, "geo_1k": 368, "geo_100": 3606}  # the paper's
MOST: dict[str, int] = {"geo_30k": 30_000, "geo_10k": 10_000, "geo_3k": 3000, "geo_1k": 1000, "geo_300": 300, "geo_100": 100}
TRAIN_TABLES = (
    "iNaturalist_train.csv",
    "federated_train_user_120k.csv",
    *(f"federated_train_geo_{granularity}.csv" for granularity in ("30k", "3k", "1k", "100")),
)
CLASSES, EACH, TRAIN, TEST = 1203, 100, 120_300, 35_641
USERS_APART = 0.02  # by which the clients of another draw may differ from the published ones in number
MD5 = {"iNaturalist_train.csv": "63d5a41699434bc2b13f5853f3764c18", "iNaturalist_test.csv": "bcf08a5a740ee76dac4e5af668081891"}
WHERE = "github.com/visipedia/inat_comp/tree/master/2017 (train_val_images.tar.gz"


@SOURCES.register("inaturalist", paper=PAPER)
class INaturalist(PictureFiles):
    """iNaturalist-User-120k and iNaturalist-Geo as published: a client is a photographer, or a cell of the earth's surface.

    PATH/train_val_images/<group>/<species>/<id>.jpg, and anywhere under PATH, unpacked or not, inaturalist-user-120k.zip or
    inaturalist-geo.zip, or instead of both iNaturalist_train.csv and iNaturalist_test.csv, in which TensorFlow Federated has all
    splits. Geo splits leave out what lies in no cell. `expect=official` refuses tables that are not complete; geo_10k and geo_300
    are TensorFlow Federated's, and no number of clients was published for them.
    """

    about: ClassVar[About] = About(
        contents="120,300 + 35,641 images of 1,203 species; 9,275 photographers, or 11 to 3,606 places",
        licence="research and education, not commercial; images are their photographers'",
        where=f"{WHERE}), storage.googleapis.com/gresearch/federated-vision-datasets/inaturalist-user-120k.zip and -geo.zip",
        gigabytes=186,
        files=(f"{' | '.join(TRAIN_TABLES)} | inaturalist-user-120k.zip | inaturalist-geo.zip",),
    )

    split: Split = "user_120k"
    expect: Expect = "official"

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        return (folder / PICTURES).is_dir() and all(nearby(folder, either) for either in cls.about.files)

    def listings(self) -> Mapping[str, Listing]:
        train, test = self._rows()
        self._require_official(train, test)
        folder = _pictures(self.path)
        pictures = tables.pictures_by_stem(folder, np.concatenate([train.image, test.image]))
        names = _class_names(train, test, pictures, folder)
        parts = {"train": (train, pictures[: len(train)]), "test": (test, pictures[len(train) :])}
        return {
            split: Listing(own, rows.columns, f"{NAME} {self.split}", names, keys=rows.image.tolist())
            for split, (rows, own) in parts.items()
        }

    def _rows(self) -> tuple[Rows, Rows]:
        """From the table of this split alone if it is there, else from the one that has all of them."""
        kind, granularity = self.split.split("_")
        own = "federated_train*user*120k.csv" if kind == "user" else f"federated_train*[!0-9]{granularity}.csv"
        train = tables.find(self.path, own, "iNaturalist_train.csv")
        if train is None:
            bundle = "inaturalist-user-120k.zip" if kind == "user" else "inaturalist-geo.zip"
            raise FileNotFoundError(
                f"data.source.path: no {own} of {bundle}, and no iNaturalist_train.csv, is under {self.path} or in a zip there "
                f"(get one from {self.about.where}, or draw anew from the metadata: data.source.name=inaturalist_raw)"
            )
        everything = train.file_name == "iNaturalist_train.csv"
        test_name = "iNaturalist_test.csv" if everything else "test.csv"
        if (test := train.beside(test_name)) is None:
            raise FileNotFoundError(f"data.source.path: {test_name} is missing beside {train}; the two come together")
        for place in (train, test):
            tables.check_md5(place, MD5 if self.expect == "official" else {})
        return tables.federated(train, test, self.split if everything else "user_id")

    def _require_official(self, train: Rows, test: Rows) -> None:
        assert train.client is not None
        _, sizes = np.unique(train.client, return_counts=True)
        found = {"classes": (tables.classes(train, test), CLASSES), "test images": (len(test), TEST)}
        found |= {"clients": (len(sizes), CLIENTS[self.split])} if self.split in CLIENTS else {}
        found |= {"training images": (len(train), TRAIN)} if self.split == "user_120k" else {}
        require_counts(f"{NAME} {self.split}", self.expect, found)
        if self.expect == "official" and self.split == "user_120k" and (np.bincount(train.label) != EACH).any():
            every = f"every class should have {EACH} training images"
            raise ValueError(f"{train.place}: {every} (data.source.expect=any takes them as they are)")
        if self.expect == "official" and self.split in MOST:
            least, most = -(-MOST[self.split] // 100), MOST[self.split]
            if sizes.min() < least or sizes.max() > most:  # more may have been taken at the very same place
                should = f"clients of {self.split} should hold {least:,} to {most:,} images"
                warnings.warn(f"{train.place}: {should}; they hold {sizes.min():,} to {sizes.max():,}", stacklevel=3)


@SOURCES.register("inaturalist_raw", paper=PAPER)
class INaturalistRaw(PictureFiles):
    """The same data drawn anew from the metadata of iNaturalist 2017: as many images of each kind, but not the very same.

    Species with 100 training images or more are kept, and 100 drawn of each; all their validation images are the test. `client`
    is the photographer; with the partition `geographic`, `latitude` and `longitude` (NaN: unknown) make clients of places. Images
    whose photographer is not known are dropped before species are counted, or before images are drawn (a species may end up with
    less than 100), or never: then there is no column `client` if any of them is drawn.
    PATH/train_val_images, train2017.json and val2017.json (train_val2017.zip), and train2017_locations.json and
    val2017_locations.json (inat2017_locations.zip), unpacked or not.
    """

    about: ClassVar[About] = About(
        contents="120,300 + 35,641 images of 1,203 species, about 9,275 photographers",
        licence="research and education, not commercial; images are their photographers'",
        where=f"{WHERE}, train_val2017.zip, inat2017_locations.zip)",
        gigabytes=186,
        files=(
            *("train2017.json | train_val2017.zip", "val2017.json | train_val2017.zip"),
            *(f"{split}2017_locations.json | inat2017_locations.zip" for split in ("train", "val")),
        ),
    )

    seed: int = 0
    drop_missing_user: Literal["before_count", "before_sample", "never"] = "before_sample"
    expect: Expect = "official"

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        return (folder / PICTURES).is_dir() and all(nearby(folder, either) for either in cls.about.files)

    def listings(self) -> Mapping[str, Listing]:
        folder = _pictures(self.path)
        categories, everything = _photographs(self.path, "train")
        _, held_out = _photographs(self.path, "val")
        train, kept = self._balanced(everything)
        test = held_out.of(np.flatnonzero(np.isin(held_out.category, kept)))
        found = {"classes": (len(kept), CLASSES), "training images": (len(train), TRAIN), "test images": (len(test), TEST)}
        require_counts(f"{NAME} with drop_missing_user={self.drop_missing_user}", self.expect, found)
        photographers = len(np.unique(train.user))
        if self.expect == "official" and abs(photographers / CLIENTS["user_120k"] - 1) > USERS_APART:
            warnings.warn(f"{NAME}: {photographers:,} photographers; 9,275 were published, of another draw", stacklevel=2)
        names = tuple(categories[int(category)] for category in kept)
        return {
            split: Listing(
                [folder.parent / file for file in photographs.file],
                self._columns(photographs, kept, split),
                f"{NAME} raw",
                names,
                keys=[Path(file).stem for file in photographs.file],
            )
            for split, photographs in (("train", train), ("test", test))
        }

    def _balanced(self, photographs: Photographs) -> tuple[Photographs, NDArray[np.int64]]:
        """100 images of each species that has as many, and these species' numbers."""
        known = np.flatnonzero(photographs.user >= 0)
        if self.drop_missing_user == "before_count":
            photographs = photographs.of(known)
        category, counts = np.unique(photographs.category, return_counts=True)
        kept = category[counts >= EACH]
        if not len(kept):
            raise ValueError(f"{NAME}: no species has {EACH} training images under {self.path}; are the files complete?")
        drawn_from = np.isin(photographs.category, kept)
        if self.drop_missing_user == "before_sample":
            drawn_from &= photographs.user >= 0
        candidates = photographs.of(np.flatnonzero(drawn_from))
        return candidates.of(tables.at_most(candidates.category, EACH, random.generator(self.seed, "inaturalist"))), kept

    def _columns(self, photographs: Photographs, kept: NDArray[np.int64], split: str) -> dict[str, NDArray[Any]]:
        columns: dict[str, NDArray[Any]] = {
            "label": np.searchsorted(kept, photographs.category),
            "image_id": np.array([Path(file).stem for file in photographs.file], dtype=np.str_),
            "latitude": photographs.latitude,
            "longitude": photographs.longitude,
        }
        if split == "train" and (photographs.user >= 0).all():
            columns["client"] = photographs.user
        return columns


@dataclass(frozen=True)
class Photographs:
    """What the raw metadata say of one split, in the order of the images' numbers, which is not that of the file."""

    file: NDArray[np.object_]
    category: NDArray[np.int64]
    user: NDArray[np.int64]  # −1: unknown
    latitude: NDArray[np.float64]  # NaN: unknown
    longitude: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.file)

    def of(self, rows: NDArray[np.int64]) -> Photographs:
        return replace(self, **{field.name: getattr(self, field.name)[rows] for field in fields(self)})


def _photographs(folder: Path, split: Literal["train", "val"]) -> tuple[dict[int, str], Photographs]:
    """The names of categories, and the images with their category, photographer and coordinates."""
    place, content = _json(folder, f"{split}2017.json", "train_val2017.zip")
    where, locations = _json(folder, f"{split}2017_locations.json", "inat2017_locations.zip")
    try:
        files = {int(image["id"]): str(image["file_name"]) for image in content["images"]}
        categories = {int(category["id"]): str(category["name"]) for category in content["categories"]}
        category = {int(annotation["image_id"]): int(annotation["category_id"]) for annotation in content["annotations"]}
        counts = len(content["images"]), len(content["annotations"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{place} is no metadata of iNaturalist: {type(error).__name__} {error}") from error
    if counts != (len(files), len(category)) or files.keys() != category.keys() or not categories.keys() >= set(category.values()):
        raise ValueError(f"{place}: every image should be there once and have one annotation with one of the categories")
    try:
        located = {int(location["id"]): (location["user_id"], location["lat"], location["lon"]) for location in locations}
        found = [located.get(image, (None, None, None)) for image in sorted(files)]
        user = np.array([-1 if user is None else int(user) for user, _, _ in found], dtype=np.int64)
        coordinates = np.array([point[1:] if None not in point[1:] else (np.nan, np.nan) for point in found], dtype=np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{where} is no table of locations of iNaturalist: {type(error).__name__} {error}") from error
    latitude, longitude = coordinates.reshape(-1, 2).T
    ordered = sorted(files)
    return categories, Photographs(
        np.array([files[image] for image in ordered], dtype=object),
        np.array([category[image] for image in ordered], dtype=np.int64),
        user,
        latitude,
        longitude,
    )


def _json(folder: Path, file_name: str, bundle: str) -> tuple[Place, Any]:
    place = tables.find(folder, file_name)
    if place is None:
        raise FileNotFoundError(f"data.source.path: {file_name} is missing under {folder} (it comes in {bundle}, from {WHERE}, …))")
    try:
        with place.open() as file:
            return place, json.load(file)
    except (ValueError, *tables.READING) as error:
        raise ValueError(f"{place} cannot be read as JSON ({error}); truncated download?") from error


def _pictures(path: Path) -> Path:
    folder = path / PICTURES
    if not folder.is_dir():
        raise FileNotFoundError(f"data.source.path: {folder} is missing (unpack train_val_images.tar.gz there; from {WHERE}))")
    return folder


def _class_names(train: Rows, test: Rows, pictures: list[Path], folder: Path) -> tuple[str, ...]:
    """Of each class: the table's own label if that is a text, else the folder of its pictures, else its number.

    Whatever they are called, no class may be two species and no species two classes.
    """
    label = np.concatenate([train.label, test.label])
    names = {int(c): str(c) for c in np.unique(label)}
    kinds: Texts = np.array([os.path.dirname(path)[len(str(folder)) + 1 :] for path in pictures])
    by_folder = tables.names_of_classes(label, kinds, str(folder))
    names |= {c: kind.rpartition("/")[2] for c, kind in by_folder.items()}
    if train.original is not None and test.original is not None:
        original = np.concatenate([train.original, test.original])
        by_table = tables.names_of_classes(label, original, str(train.place))
        if not np.issubdtype(tables.identities(original).dtype, np.integer):
            names |= by_table
    return tuple(names[c] for c in range(len(names)))
