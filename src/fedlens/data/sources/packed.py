"""Examples packed by `Examples.save`: one folder with the splits `train`, and `validation` and `test` if there are any."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from fedlens.data.examples import Examples
from fedlens.data.sources.base import SOURCES, About, Files, Sources


@SOURCES.register("packed")
class Packed(Files):
    """Your own data, or prepared ones: PATH/train, PATH/validation and PATH/test, written by `data prepare` or `Examples.save`.

    Columns are mapped into memory: nothing is read until it is asked for.
    """

    about: ClassVar[About] = About(
        contents="whatever was packed",
        licence="yours",
        where="fedlens data prepare, or Examples.save",
        files=("train/examples.json",),
    )

    path: Path

    def load(self) -> Sources:
        if not (self.path / "train").is_dir():
            raise FileNotFoundError(f"data.source.path: {self.path / 'train'} is missing (write it with Examples.save)")
        splits = {name: self.path / name for name in ("train", "validation", "test")}
        return Sources(**{name: Examples.open(folder) for name, folder in splits.items() if folder.is_dir()})
