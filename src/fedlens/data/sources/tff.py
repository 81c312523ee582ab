"""The image data sets of TensorFlow Federated, with the clients that its users know, from the files that it downloads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from fedlens.data.examples import Examples
from fedlens.data.listing import Listing, coded
from fedlens.data.sources.base import SOURCES, About, Files, Sources
from fedlens.data.sources.celeba import ATTRIBUTES, Attribute, class_names
from fedlens.data.sources.characters import CHARACTERS, DIGITS, Ink, character_examples, inked
from fedlens.data.sources.checks import Expect, folder_with, require_counts, require_file
from fedlens.data.sources.tff_files import Columns, Shapes, read_database, read_hdf5, unpacked

DOWNLOADS = "https://storage.googleapis.com/tff-datasets-public"
CELEBA = {name: name.lower().replace("5", "five") for name in ATTRIBUTES}  # what TensorFlow Federated calls the attributes
# clients and examples of the training split, and of the test split
CIFAR100_COUNTS = (500, 50_000, 100, 10_000)
EMNIST_COUNTS = {"digits_only": (3_383, 341_873, 3_383, 40_832), "all": (3_400, 671_585, 3_400, 77_483)}
CELEBA_COUNTS = {"clients": (8_408, 180_429, 935, 19_859), "examples": (9_343, 177_457, 9_343, 22_831)}


def _either(*names: str) -> str:
    """One of several files, in PATH or in PATH/tff."""
    return " | ".join(f"{place}{name}" for name in names for place in ("", "tff/"))


@SOURCES.register("tff_cifar100", paper="Reddi et al. 2021, Adaptive Federated Optimization")
class TFFCIFAR100(Files):
    """CIFAR-100 with TensorFlow Federated's clients of 100 pictures each: 500 that train, and 100 others to test on.

    From PATH/cifar100.sqlite, or .sqlite.lzma, or the older fed_cifar100_train.h5 and fed_cifar100_test.h5. The clients are those
    of a Pachinko allocation over the 20 groups of classes (`coarse_label`). Both splits number their clients from 0.
    expect=any takes files with other than the published counts.
    """

    expect: Expect = "official"

    about: ClassVar[About] = About(
        contents="50,000 + 10,000 pictures of 32 × 32, 500 + 100 clients, 100 classes",
        licence="none stated",
        where=f"{DOWNLOADS}/cifar100.sqlite.lzma",
        gigabytes=0.15,
        files=(_either("cifar100.sqlite", "cifar100.sqlite.lzma", "fed_cifar100_train.h5"),),
    )

    def load(self) -> Sources:
        shapes: Shapes = {"image": (32, 32, 3), "label": (), "coarse_label": ()}
        splits = _read(self.path, "cifar100", {"train": "train", "test": "test"}, "fed_cifar100", shapes)
        _check("TensorFlow Federated's CIFAR-100", self.expect, splits, CIFAR100_COUNTS)
        names = tuple(str(c) for c in range(100))  # the files do not say more
        facts: dict[str, Any] = {"mean": (0.5071, 0.4865, 0.4409), "standard_deviation": (0.2673, 0.2564, 0.2762)}
        tables = {split: coded(columns) for split, columns in splits.items()}
        return Sources(**{
            split: Examples(columns, "TFF CIFAR-100", names, **facts, categories=categories)
            for split, (columns, categories) in tables.items()
        })  # fmt: skip


@SOURCES.register("tff_emnist", paper="Caldas et al. 2018, LEAF: A Benchmark for Federated Settings")
class TFFEMNIST(Files):
    """Federated EMNIST as TensorFlow Federated has it: 3,400 writers of 62 characters, or 3,383 of 10 digits (`only_digits`).

    From PATH/emnist_all.sqlite, or .sqlite.lzma, or the older fed_emnist_train.h5 and fed_emnist_test.h5 (of digits
    fed_emnist_digitsonly_*.h5). All writers are in both splits, each with about nine tenths of the examples in the first. Ink is
    dark on white paper as in these files and in LEAF's; ink=bright gives the negative, as MNIST and EMNIST are.
    expect=any takes files with other than the published counts.
    """

    only_digits: bool = False
    ink: Ink = "dark"
    expect: Expect = "official"

    about: ClassVar[About] = About(
        contents="671,585 + 77,483 pictures of 28 × 28, 3,400 clients, 62 classes; of digits 341,873 + 40,832, 3,383 clients",
        licence="none stated (from NIST Special Database 19, which is public)",
        where=f"{DOWNLOADS}/emnist_all.sqlite.lzma",
        gigabytes=0.17,
        files=(_either("emnist_all.sqlite", "emnist_all.sqlite.lzma", "fed_emnist_train.h5"),),
    )

    def load(self) -> Sources:
        kind, classes = ("digits_only", DIGITS) if self.only_digits else ("all", CHARACTERS)
        older = "fed_emnist_digitsonly" if self.only_digits else "fed_emnist"
        names = {"train": f"{kind}_train", "test": f"{kind}_test"}
        splits = _read(self.path, "emnist_all", names, older, {"pixels": (28, 28), "label": ()})
        _check("TensorFlow Federated's EMNIST", self.expect, splits, EMNIST_COUNTS[kind])
        train = character_examples("TFF EMNIST", self._columns(splits["train"]), classes, None)
        return Sources(train, test=character_examples("TFF EMNIST", self._columns(splits["test"]), classes, train))

    def _columns(self, found: Columns) -> Columns:
        return {"image": inked(found["pixels"], self.ink)[..., None], "label": found["label"], "client": found["client"]}


@SOURCES.register("tff_celeba", paper="Caldas et al. 2018, LEAF: A Benchmark for Federated Settings")
class TFFCelebA(Files):
    """CelebA as TensorFlow Federated has it: 9,343 celebrities with five pictures or more, of 84 × 84, as LEAF prepares them.

    From PATH/celeba.sqlite, or .sqlite.lzma. The test split has other celebrities (split_by=clients: 8,408 and 935 of them) or
    other pictures of the same (examples). `label` is one `attribute`, by default LEAF's task; `attributes` has all 40, in CelebA's
    order.
    expect=any takes files with other than the published counts.
    """

    split_by: Literal["clients", "examples"] = "clients"
    attribute: Attribute = "Smiling"
    expect: Expect = "official"

    about: ClassVar[About] = About(
        contents="200,288 portraits of 84 × 84, 9,343 clients, 40 attributes",
        licence="non-commercial research only (CelebA's agreement)",
        where=f"{DOWNLOADS}/celeba.sqlite.lzma",
        files=(_either("celeba.sqlite", "celeba.sqlite.lzma"),),
    )

    def load(self) -> Sources:
        names = {split: f"split_by_{self.split_by}_{split}" for split in ("train", "test")}
        shapes: Shapes = {"image": (84, 84, 3)} | dict.fromkeys(CELEBA.values(), ())
        splits = _read(self.path, "celeba", names, None, shapes)
        _check("TensorFlow Federated's CelebA", self.expect, splits, CELEBA_COUNTS[self.split_by])
        return Sources(**{split: self._examples(columns) for split, columns in splits.items()})

    def _examples(self, found: Columns) -> Examples:
        attributes = np.stack([found[name] for name in CELEBA.values()], axis=1).astype(np.uint8)
        columns, categories = coded(
            {"image": found["image"], "label": found[CELEBA[self.attribute]], "attributes": attributes, "client": found["client"]}
        )
        names = class_names(self.attribute)
        return Examples(columns, "TFF CelebA", names, Listing.mean, Listing.standard_deviation, categories)


def _read(path: Path, database: str, splits: Mapping[str, str], older: str | None, shapes: Shapes) -> dict[str, Columns]:
    """Each split, from the database if there is one, or else from the older files."""
    for name in (f"{database}.sqlite", f"{database}.sqlite.lzma"):
        if (file := folder_with(name, path, "tff") / name).is_file():
            with unpacked(file) as readable:
                return {split: read_database(readable, theirs, shapes) for split, theirs in splits.items()}
    how = f"get it from {DOWNLOADS}/{database}.sqlite.lzma"
    folder = folder_with(f"{older}_*.h5", path, "tff")
    if older is None or not (folder / f"{older}_train.h5").is_file():
        require_file(folder / f"{database}.sqlite.lzma", how)
    return {split: read_hdf5(require_file(folder / f"{older}_{split}.h5", how), shapes) for split in splits}


def _check(name: str, expect: Expect, splits: Mapping[str, Columns], published: tuple[int, ...]) -> None:
    counts = [count for columns in splits.values() for count in (len(set(columns["client"].tolist())), len(columns["client"]))]
    what = ("training clients", "training examples", "test clients", "test examples")
    require_counts(name, expect, dict(zip(what, zip(counts, published, strict=True), strict=True)))
