"""What sources ask of the files that they are given: that they are there, and that they are all of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias

Expect: TypeAlias = Literal["official", "any"]  # all official files with the published counts, or a part of them


def folder_with(file: str, path: Path, *places: str) -> Path:
    """The folder that holds a file (or what a pattern finds): the path itself or a place in it; where it belongs if none does."""
    candidates = [path / place for place in places] + [path]
    return next((folder for folder in candidates if next(folder.glob(file), None) is not None), candidates[0])


def require_file(path: Path, how: str) -> Path:
    """A file that has to be there; `how` says how it gets there."""
    if not path.is_file():
        raise FileNotFoundError(f"data.source.path: {path} is missing ({how})")
    return path


def require_counts(name: str, expect: Expect, counts: Mapping[str, tuple[int, int]]) -> None:
    """Each count, as (found, published), is the published one, unless any are accepted."""
    wrong = [f"{found:,} {what} instead of {published:,}" for what, (found, published) in counts.items() if found != published]
    if expect == "official" and wrong:
        raise ValueError(f"{name}: {', '.join(wrong)}; the files are not complete (data.source.expect=any takes them as they are)")
