"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 32 × 32 colour pictures of ten or a hundred kinds of things."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedlens.data.examples import Examples
from fedlens.data.sources.base import SOURCES, About, Files, Sources
from fedlens.data.sources.checks import Expect, require_counts

PUBLISHED = {"train": 50_000, "test": 10_000}  # pictures, of either
ROW = 3 * 32 * 32  # a picture's bytes: all red ones, then green, then blue
# All that the official pickles, and later ones of the same arrays, are made of; anything else might run code.
HARMLESS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.numeric", "_frombuffer"),
    ("_codecs", "encode"),
}


@SOURCES.register("cifar10", paper="Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images")
class CIFAR10(Files):
    """50,000 + 10,000 pictures from the official Python version: PATH/cifar-10-batches-py, or that folder itself.

    expect=any takes files with other than these counts.
    """

    expect: Expect = "official"

    about: ClassVar[About] = About(
        contents="60,000 images of 32 × 32, 10 classes",
        licence="none stated; for research, cite the report",
        where="cs.toronto.edu/~kriz/cifar.html, or torchvision.datasets.CIFAR10(PATH, download=True)",
        gigabytes=0.2,
        files=("cifar-10-batches-py/data_batch_1",),
    )

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        return (_place(folder, "cifar-10-batches-py") / "data_batch_1").is_file()

    def load(self) -> Sources:
        folder = _folder(self.path, "cifar-10-batches-py", "CIFAR10")
        names = _names(folder / "batches.meta", "label_names")
        batches = [_read(folder / f"data_batch_{number}", {"label": "labels"}) for number in range(1, 6)]
        columns = {name: np.concatenate([batch[name] for batch in batches]) for name in ("image", "label")}
        facts: dict[str, Any] = {"mean": (0.4914, 0.4822, 0.4465), "standard_deviation": (0.2470, 0.2435, 0.2616)}
        test = _read(folder / "test_batch", {"label": "labels"})
        splits = {"train": Examples(columns, "CIFAR-10", names, **facts), "test": Examples(test, "CIFAR-10", names, **facts)}
        return _checked("CIFAR-10", self.expect, splits)


@SOURCES.register("cifar100", paper="Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images")
class CIFAR100(Files):
    """50,000 + 10,000 pictures from the official Python version: PATH/cifar-100-python, or that folder itself.

    `label` is one of 100 classes, `coarse_label` one of the 20 groups that they belong to. expect=any takes files with other than
    these counts.
    """

    expect: Expect = "official"

    about: ClassVar[About] = About(
        contents="60,000 images of 32 × 32, 100 classes in 20 groups",
        licence="none stated; for research, cite the report",
        where="cs.toronto.edu/~kriz/cifar.html, or torchvision.datasets.CIFAR100(PATH, download=True)",
        gigabytes=0.2,
        files=("cifar-100-python/train",),
    )

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        return (_place(folder, "cifar-100-python") / "train").is_file()

    def load(self) -> Sources:
        folder = _folder(self.path, "cifar-100-python", "CIFAR100")
        names = _names(folder / "meta", "fine_label_names")
        kinds = {"label": "fine_labels", "coarse_label": "coarse_labels"}
        facts: dict[str, Any] = {"mean": (0.5071, 0.4865, 0.4409), "standard_deviation": (0.2673, 0.2564, 0.2762)}
        splits = {split: Examples(_read(folder / split, kinds), "CIFAR-100", names, **facts) for split in PUBLISHED}
        return _checked("CIFAR-100", self.expect, splits)


def _checked(name: str, expect: Expect, splits: dict[str, Examples]) -> Sources:
    require_counts(name, expect, {f"{split} pictures": (len(splits[split]), PUBLISHED[split]) for split in PUBLISHED})
    return Sources(**splits)


def _place(path: Path, name: str) -> Path:
    """A folder in a path, or the path if it is called so itself."""
    return path if path.name == name else path / name


def _folder(path: Path, name: str, torchvision_name: str) -> Path:
    found = _place(path, name)
    if not found.is_dir():
        raise FileNotFoundError(
            f"data.source.path: {found} is missing (torchvision.datasets.{torchvision_name}(PATH, download=True) puts it there)"
        )
    return found


def _read(path: Path, kinds: dict[str, str]) -> dict[str, NDArray[Any]]:
    """The columns of one batch: pictures [N, 32, 32, 3], and labels by the names that we give them."""
    content = _unpickled(path)
    data = content.get("data")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != ROW:
        got = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise ValueError(f"{path}: 'data' should be pictures, uint8 [N, {ROW}]; it is {got}")
    columns: dict[str, NDArray[Any]] = {"image": np.ascontiguousarray(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))}
    for ours, theirs in kinds.items():
        values = content.get(theirs)
        if not isinstance(values, list) or len(values) != len(data):
            raise ValueError(f"{path}: '{theirs}' should be a list of {len(data):,} labels")
        columns[ours] = np.asarray(values, dtype=np.int64)
    return columns


def _names(path: Path, key: str) -> tuple[str, ...]:
    names = _unpickled(path).get(key)
    if not isinstance(names, list):
        raise ValueError(f"{path}: '{key}' should be a list of names")
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)


def _unpickled(path: Path) -> dict[str, Any]:
    """A pickled table of arrays, lists and texts, by an unpickler that can make nothing else."""
    if not path.is_file():
        raise FileNotFoundError(f"data.source.path: {path} is missing; the folder is not complete")
    try:
        content = _Harmless(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except Forbidden as error:
        raise ValueError(f"{path} is no CIFAR file: {error}") from error
    except Exception as error:  # whatever a torn pickle raises
        raise ValueError(f"{path} cannot be read as a pickle ({type(error).__name__}: {error}): truncated download?") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds {type(content).__name__}, not a table")
    return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in content.items()}


class Forbidden(ValueError):
    """A pickle asks for something that CIFAR's files do not need."""


class _Harmless(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        place = module.replace("numpy.core", "numpy._core"), name
        if place not in HARMLESS:
            raise Forbidden(f"it asks for {module}.{name}")
        return super().find_class(*place)
