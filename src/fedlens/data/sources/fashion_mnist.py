"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017): 28 × 28 grey pictures of ten kinds of clothing."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlens.data.examples import Examples
from fedlens.data.sources.base import SOURCES, Source, Sources

CLASS_NAMES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
FILES = {"train": "train", "test": "t10k"}


@SOURCES.register("fashion_mnist_mini")
class FashionMNISTMini(Source):
    """10,000 + 2,000 pictures of Fashion-MNIST, the first 1,000 + 200 of each class: part of the package, no download."""

    def load(self) -> Sources:
        with as_file(files("fedlens.data.sources") / "fashion_mnist_mini" / "images.npz") as path, np.load(path) as arrays:
            splits = {split: (arrays[f"{split}_image"], arrays[f"{split}_label"]) for split in FILES}
        return Sources(**{split: _examples("Fashion-MNIST mini", *arrays) for split, arrays in splits.items()})


@SOURCES.register("fashion_mnist")
class FashionMNIST(Source):
    """All 60,000 + 10,000 pictures, from the folder in which torchvision keeps them: PATH/FashionMNIST/raw/*-ubyte."""

    path: Path

    def load(self) -> Sources:
        folder = self.path / "FashionMNIST" / "raw"
        return Sources(**{split: _read(folder, prefix) for split, prefix in FILES.items()})


def _read(folder: Path, prefix: str) -> Examples:
    image = _read_idx(folder / f"{prefix}-images-idx3-ubyte", dimensions=3)
    label = _read_idx(folder / f"{prefix}-labels-idx1-ubyte", dimensions=1)
    return _examples("Fashion-MNIST", image[..., None], label)


def _examples(name: str, image: NDArray[np.uint8], label: NDArray[np.uint8]) -> Examples:
    columns: dict[str, NDArray[Any]] = {"image": image, "label": label.astype(np.int64)}
    return Examples(columns, name, CLASS_NAMES, mean=(0.2860,), standard_deviation=(0.3530,))


def _read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Map an IDX file of bytes: two zeros, type 8, the number of dimensions, each as a big-endian int32, then the values."""
    if not path.is_file():
        raise FileNotFoundError(
            f"data.source.path: {path} is missing (torchvision.datasets.FashionMNIST(PATH, download=True) puts it there)"
        )
    header = np.fromfile(path, dtype=">i4", count=1 + dimensions)
    if len(header) != 1 + dimensions or header[0] != 0x0800 + dimensions:
        raise ValueError(f"{path} is no IDX file of bytes with {dimensions} dimensions")
    shape, start = tuple(int(extent) for extent in header[1:]), header.nbytes
    expected = start + int(np.prod(shape))
    if path.stat().st_size != expected:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes; its header promises {expected:,}: truncated download?")
    return np.memmap(path, dtype=np.uint8, mode="r", offset=start, shape=shape)
