"""Examples as columns: images as uint8 [N, height, width, channels], labels and whatever else, in memory or mapped from disk."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

SAMPLED_ROWS = 4096  # of a large column, for its fingerprint


@dataclass(frozen=True)
class Examples:
    """A data set: equally long columns, and what is known about them.

    `mean` and `standard_deviation` are those of the images' channels, on the scale from 0 to 1. Numbers in a column may stand for
    names, as those of clients do: then `categories` has them, the name of number c, or of label c of several, in place c.
    """

    columns: Mapping[str, NDArray[Any]]
    name: str = "examples"
    class_names: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    standard_deviation: tuple[float, ...] = ()
    categories: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)
    _length: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        lengths = {column: len(values) for column, values in self.columns.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"{self.name}: columns must be equally long, and there must be one: got {lengths}")
        image = self.columns.get("image")
        if image is not None and (image.dtype != np.uint8 or image.ndim != 4):
            raise ValueError(
                f"{self.name}: column 'image' must be uint8 [N, height, width, channels]; got {image.dtype} {image.shape}"
            )
        label = self.columns.get("label")
        if label is not None and self.class_names and label.ndim == 1 and len(label):
            low, high = int(label.min()), int(label.max())
            if low < 0 or high >= len(self.class_names):
                raise ValueError(f"{self.name}: labels must lie in 0…{len(self.class_names) - 1}; found {low if low < 0 else high}")
        object.__setattr__(self, "_length", next(iter(lengths.values())))

    def __len__(self) -> int:
        return self._length

    def column(self, name: str) -> NDArray[Any]:
        if name not in self.columns:
            raise KeyError(f"{self.name} has no column '{name}'; it has: {', '.join(self.columns)}")
        return self.columns[name]

    def named(self, name: str) -> NDArray[Any]:
        """A column with the names for which its numbers stand, if there are any."""
        values = self.column(name)
        return self.categories[name][values] if name in self.categories else values

    def fingerprint(self) -> str:
        """A digest that changes when the data do: everything but images in full, large columns by evenly spaced rows."""
        digest = hashlib.blake2b(digest_size=16)
        for name, values in sorted(self.columns.items()):
            digest.update(f"{name} {values.dtype} {values.shape}".encode())
            step = max(1, len(values) // SAMPLED_ROWS) if values.ndim > 1 else 1
            digest.update(np.ascontiguousarray(values[::step]).view(np.uint8).data)
        for name, values in sorted(self.categories.items()):
            digest.update("\n".join([name, *values.tolist()]).encode())
        return digest.hexdigest()

    def save(self, folder: str | Path) -> Path:
        """Write the columns as .npy files, which `Examples.open` maps into memory without reading them."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, values in self.columns.items():
            np.save(folder / f"{name}.npy", values, allow_pickle=False)
        self.save_facts(folder)
        return folder

    def save_facts(self, folder: Path) -> None:
        """Write what stands beside the columns; where it is there, the folder is complete."""
        for name, values in self.categories.items():
            np.save(folder / f"{name}.names.npy", np.asarray(values, dtype=np.str_), allow_pickle=False)
        facts = {
            "name": self.name,
            "columns": list(self.columns),
            "class_names": list(self.class_names),
            "mean": list(self.mean),
            "standard_deviation": list(self.standard_deviation),
            "categories": list(self.categories),
        }
        write_atomically(folder / "examples.json", json.dumps(facts, indent=1).encode())

    @classmethod
    def open(cls, folder: str | Path) -> Examples:
        """Map a folder written by `save`: nothing is read until an example is asked for."""
        folder = Path(folder)
        if not (folder / "examples.json").is_file():
            raise FileNotFoundError(f"{folder} holds no packed examples (examples.json is missing; write them with Examples.save)")
        path = folder / "examples.json"
        try:
            facts = _Facts.model_validate_json(path.read_bytes())
            columns, categories = {}, {}
            for name in facts.columns:
                path = folder / f"{name}.npy"
                columns[name] = np.lib.format.open_memmap(path, mode="r")
            for name in facts.categories:
                path = folder / f"{name}.names.npy"
                categories[name] = np.load(path, allow_pickle=False)
        except ValidationError as error:
            problem = error.errors()[0]
            where = "".join(f"{step}: " for step in problem["loc"])
            raise ValueError(f"{path} is damaged: {where}{problem['msg']}; write it anew with Examples.save") from error
        except Exception as error:  # NumPy raises many kinds for a broken file
            why = " ".join(str(error).split())
            raise ValueError(f"{path} is missing or damaged: {why}; write it anew with Examples.save") from error
        return cls(columns, facts.name, facts.class_names, facts.mean, facts.standard_deviation, categories)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that is there as a whole or not at all."""
    temporary = path.with_name(f"{path.name}.part")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


class _Facts(BaseModel):
    """What `Examples.save` writes beside the columns."""

    name: str
    columns: tuple[str, ...]
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    standard_deviation: tuple[float, ...]
    categories: tuple[str, ...] = ()
