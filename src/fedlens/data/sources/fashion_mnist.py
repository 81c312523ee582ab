"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017): 28 × 28 grey pictures of ten kinds of clothing."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedlens.data.examples import Examples
from fedlens.data.sources.base import SOURCES, About, Files, Source, Sources
from fedlens.data.sources.checks import Expect, require_counts
from fedlens.data.sources.idx import read_idx

CLASS_NAMES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
FILES = {"train": "train", "test": "t10k"}
PUBLISHED = {"train": 60_000, "test": 10_000}  # pictures


@SOURCES.register("fashion_mnist_mini")
class FashionMNISTMini(Source):
    """10,000 + 2,000 pictures of Fashion-MNIST, the first 1,000 + 200 of each class: part of the package, no download."""

    about: ClassVar[About] = About("12,000 images of 28 × 28, 10 classes", "MIT", "comes with fedlens")

    def load(self) -> Sources:
        with as_file(files("fedlens.data.sources") / "fashion_mnist_mini" / "images.npz") as path, np.load(path) as arrays:
            splits = {split: (arrays[f"{split}_image"], arrays[f"{split}_label"]) for split in FILES}
        return Sources(**{split: _examples("Fashion-MNIST mini", *arrays) for split, arrays in splits.items()})


@SOURCES.register("fashion_mnist")
class FashionMNIST(Files):
    """All 60,000 + 10,000 pictures, from the folder in which torchvision keeps them: PATH/FashionMNIST/raw/*-ubyte.

    expect=any takes files with other than these counts.
    """

    expect: Expect = "official"

    about: ClassVar[About] = About(
        contents="70,000 images of 28 × 28, 10 classes",
        licence="MIT",
        where="github.com/zalandoresearch/fashion-mnist, or torchvision.datasets.FashionMNIST(PATH, download=True)",
        gigabytes=0.05,
        files=("FashionMNIST/raw/train-images-idx3-ubyte",),
    )

    def load(self) -> Sources:
        folder = self.path / "FashionMNIST" / "raw"
        splits = {split: _read(folder, prefix) for split, prefix in FILES.items()}
        counts = {f"{split} pictures": (len(splits[split]), PUBLISHED[split]) for split in PUBLISHED}
        require_counts("Fashion-MNIST", self.expect, counts)
        return Sources(**splits)


def _read(folder: Path, prefix: str) -> Examples:
    image = read_idx(folder / f"{prefix}-images-idx3-ubyte", 3, "FashionMNIST")
    label = read_idx(folder / f"{prefix}-labels-idx1-ubyte", 1, "FashionMNIST")
    return _examples("Fashion-MNIST", image[..., None], label)


def _examples(name: str, image: NDArray[np.uint8], label: NDArray[np.uint8]) -> Examples:
    columns: dict[str, NDArray[Any]] = {"image": image, "label": label.astype(np.int64)}
    return Examples(columns, name, CLASS_NAMES, mean=(0.2860,), standard_deviation=(0.3530,))
