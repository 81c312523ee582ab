"""Parquet and Arrow files as Hugging Face writes them: a table in several files, and what its columns mean.

Rows are read when they are asked for, by whichever process asks: only names of files are handed to it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlens.data.pictures import MissingPicture

KINDS = (".parquet", ".arrow")


class TablePictures(Sequence[Any]):
    """The pictures in a column of some files: their bytes, or paths that lead to them from there."""

    def __init__(self, files: Sequence[Path], column: str):
        self.files, self.column = tuple(files), column
        self._here = threading.local()  # what each thread read last, for the next row is most often in it, too

    def __reduce__(self) -> tuple[Any, ...]:
        return TablePictures, (self.files, self.column)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, row: Any) -> Any:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        number = int(np.searchsorted(self._ends, row, side="right")) - 1
        path, part = self._parts[number]
        if getattr(self._here, "number", None) != number:
            self._here.number, self._here.values = number, _read_part(path, part, self.column)
        value = self._here.values[int(row - self._ends[number])].as_py()
        content, name = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
        if content is not None:
            return content
        if name is None:
            raise MissingPicture(f"{path}: '{self.column}' of row {row} is empty")
        return path.parent / name

    @cached_property
    def _parts(self) -> list[tuple[Path, int]]:
        return [(path, part) for path in self.files for part in range(len(_part_sizes(path)))]

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum([0, *(rows for path in self.files for rows in _part_sizes(path))])


def read_columns(files: Sequence[Path], columns: Sequence[str]) -> Any:
    """Some columns of all files, one table after the other."""
    import pyarrow  # type: ignore[import-untyped]

    tables = [_open(path).read(columns) if path.suffix == ".parquet" else _open(path).select(columns) for path in files]
    try:
        return pyarrow.concat_tables(tables)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{files[0].parent}: the files' columns are not of the same types ({error})") from error


def read_schema(path: Path) -> tuple[Any, dict[str, Any]]:
    """A file's columns with their types, and what the metadata of `datasets` say of them, by column."""
    opened = _open(path)
    schema = opened.schema_arrow if path.suffix == ".parquet" else opened.schema
    features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    return schema, features


def class_names(feature: Any) -> tuple[str, ...] | None:
    """The names of a ClassLabel, or of a list of them, however the version of `datasets` wrote it."""
    if isinstance(feature, list) and len(feature) == 1:
        return class_names(feature[0])
    if not isinstance(feature, dict):
        return None
    if feature.get("_type") == "ClassLabel":
        return tuple(feature["names"])
    return class_names(feature.get("feature"))


def require_pyarrow() -> None:
    if find_spec("pyarrow") is None:
        raise ImportError("Parquet and Arrow files need the package pyarrow (pip install 'fedlens[hub]')")


def require_columns(path: Path, schema: Any, wanted: Iterable[str]) -> None:
    for name in wanted:
        if name not in schema.names:
            raise ValueError(f"{path} has no column '{name}'; it has: {', '.join(schema.names)}")


def _part_sizes(path: Path) -> list[int]:
    """Rows of each part that is read at once: a row group of Parquet; the whole of an Arrow file, which is mapped into memory."""
    opened = _open(path)
    if path.suffix == ".arrow":
        return [opened.num_rows]
    return [opened.metadata.row_group(part).num_rows for part in range(opened.num_row_groups)]


def _read_part(path: Path, part: int, column: str) -> Any:
    opened = _open(path)
    return opened[column] if path.suffix == ".arrow" else opened.read_row_group(part, columns=[column])[column]


def _open(path: Path) -> Any:
    """A Parquet file of which only the footer was read, or an Arrow file's table, mapped into memory."""
    import pyarrow
    import pyarrow.parquet  # type: ignore[import-untyped]

    try:
        if path.suffix == ".parquet":
            return pyarrow.parquet.ParquetFile(path)
        return pyarrow.ipc.open_stream(pyarrow.memory_map(str(path))).read_all()
    except FileNotFoundError as error:
        raise FileNotFoundError(f"data.source.path: {path} is missing") from error
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path} cannot be read as a table ({error}): truncated download?") from error
