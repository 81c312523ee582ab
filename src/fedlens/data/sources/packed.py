"""Examples packed by `Examples.save`: one folder with the splits `train`, and `validation` and `test` if there are any."""

from __future__ import annotations

from pathlib import Path

from fedlens.data.examples import Examples
from fedlens.data.sources.base import SOURCES, Source, Sources


@SOURCES.register("packed")
class Packed(Source):
    """Your own data: PATH/train, PATH/validation and PATH/test as written by `Examples.save`, mapped into memory."""

    path: Path

    def load(self) -> Sources:
        if not (self.path / "train").is_dir():
            raise FileNotFoundError(f"data.source.path: {self.path / 'train'} is missing (write it with Examples.save)")
        splits = {name: self.path / name for name in ("train", "validation", "test")}
        return Sources(**{name: Examples.open(folder) for name, folder in splits.items() if folder.is_dir()})
