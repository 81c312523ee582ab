"""MNIST (LeCun et al. 1998) and EMNIST (Cohen et al. 2017): handwritten digits and letters, 28 × 28, bright ink on black."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedlens.data.examples import Examples
from fedlens.data.sources.base import SOURCES, About, Files, Sources
from fedlens.data.sources.characters import CHARACTERS, DIGITS, character_examples
from fedlens.data.sources.checks import Expect, folder_with, require_counts
from fedlens.data.sources.idx import read_idx

ALIKE = "cijklmopsuvwxyz"  # small letters that look like the capital ones, with which some splits of EMNIST merge them
MERGED = tuple(name for name in CHARACTERS if name not in ALIKE)
CLASSES = {
    "byclass": CHARACTERS,
    "bymerge": MERGED,
    "balanced": MERGED,
    "letters": tuple(string.ascii_lowercase),
    "digits": DIGITS,
    "mnist": DIGITS,
}
PUBLISHED = {  # pictures to train and to test on
    "byclass": (697_932, 116_323),
    "bymerge": (697_932, 116_323),
    "balanced": (112_800, 18_800),
    "letters": (124_800, 20_800),
    "digits": (240_000, 40_000),
    "mnist": (60_000, 10_000),
}


@SOURCES.register("mnist", paper="LeCun et al. 1998, Gradient-Based Learning Applied to Document Recognition")
class MNIST(Files):
    """60,000 + 10,000 digits, from the folder in which torchvision keeps them: PATH/MNIST/raw/*-ubyte, or that folder itself.

    expect=any takes files with other than these counts.
    """

    expect: Expect = "official"

    about: ClassVar[About] = About(
        contents="60,000 + 10,000 pictures of 28 × 28, 10 classes",
        licence="CC BY-SA 3.0",
        where="http://yann.lecun.com/exdb/mnist, or torchvision.datasets.MNIST(PATH, download=True)",
        gigabytes=0.06,
        files=("train-images-idx3-ubyte", "t10k-images-idx3-ubyte"),
    )

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        return super().is_in(_folder(folder, "train-images-idx3-ubyte", "MNIST"))

    def load(self) -> Sources:
        folder = _folder(self.path, "train-images-idx3-ubyte", "MNIST")
        facts: dict[str, Any] = {"mean": (0.1307,), "standard_deviation": (0.3081,)}
        splits = {}
        for split, prefix in (("train", "train"), ("test", "t10k")):
            image, label = _read(folder, prefix, "MNIST")
            splits[split] = Examples({"image": image[..., None], "label": label}, "MNIST", DIGITS, **facts)
        return _checked("MNIST", self.expect, splits, PUBLISHED["mnist"])


@SOURCES.register("emnist", paper="Cohen et al. 2017, EMNIST: Extending MNIST to Handwritten Letters")
class EMNIST(Files):
    """One split of EMNIST, where torchvision keeps it: PATH/EMNIST/raw/emnist-SPLIT-*-ubyte, or that folder itself.

    byclass (62 classes, 697,932 + 116,323 pictures), bymerge (47, as many), balanced (47, 112,800 + 18,800), letters (26,
    124,800 + 20,800), digits (10, 240,000 + 40,000) or mnist (10, 60,000 + 10,000). The files hold each picture transposed; here
    it stands upright. They do not say who wrote what: for that, take FEMNIST from LEAF or TensorFlow Federated.
    expect=any takes files with other than these counts.
    """

    split: Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"] = "balanced"
    expect: Expect = "official"

    about: ClassVar[About] = About(
        contents="up to 697,932 + 116,323 pictures of 28 × 28, up to 62 classes",
        licence="public domain (NIST Special Database 19)",
        where="www.nist.gov/itl/products-and-services/emnist-dataset, or torchvision.datasets.EMNIST(PATH, SPLIT, download=True)",
        gigabytes=2.1,
        files=("emnist-*-train-images-idx3-ubyte", "emnist-*-test-images-idx3-ubyte"),
    )

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        return super().is_in(_folder(folder, "emnist-*-train-images-idx3-ubyte", "EMNIST"))

    def load(self) -> Sources:
        folder = _folder(self.path, f"emnist-{self.split}-train-images-idx3-ubyte", "EMNIST")
        train = self._examples(folder, "train", None)
        splits = {"train": train, "test": self._examples(folder, "test", train)}
        return _checked(f"EMNIST {self.split}", self.expect, splits, PUBLISHED[self.split])

    def _examples(self, folder: Path, part: str, like: Examples | None) -> Examples:
        image, label = _read(folder, f"emnist-{self.split}-{part}", "EMNIST")
        upright = np.ascontiguousarray(image.transpose(0, 2, 1))[..., None]
        first = 1 if self.split == "letters" else 0  # there, classes count from 1
        return character_examples(f"EMNIST {self.split}", {"image": upright, "label": label - first}, CLASSES[self.split], like)


def _folder(path: Path, file: str, name: str) -> Path:
    return folder_with(file, path, f"{name}/raw", "raw")


def _checked(name: str, expect: Expect, splits: dict[str, Examples], published: tuple[int, int]) -> Sources:
    counts = zip(splits.items(), published, strict=True)
    require_counts(name, expect, {f"{split} pictures": (len(examples), count) for (split, examples), count in counts})
    return Sources(**splits)


def _read(folder: Path, prefix: str, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    image = read_idx(folder / f"{prefix}-images-idx3-ubyte", 3, name)
    label = read_idx(folder / f"{prefix}-labels-idx1-ubyte", 1, name)
    return image, label.astype(np.int64)
