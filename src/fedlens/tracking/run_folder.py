"""The folder of one run: its recipe, manifest, metrics, checkpoints and summary, used by one process at a time.

recipe.yaml        what was asked for, in full
manifest.json      what it ran on: versions, hardware, git, data, model, and each session that worked on it
metrics.jsonl      a line a round
checkpoints/       last and previous (everything needed to go on), best (a state dict)
model.safetensors  the final state dict
summary.json       how it ended
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from fedlens.tracking.checkpoints import write, write_json


class RunFolderError(RuntimeError):
    """A run folder that cannot be used for what was asked; the message says what to do."""


class RunFolder:
    """Holds the folder's lock, which the operating system takes back when the process ends, however it ends."""

    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._lock = _lock(path)
        self._metrics: Any = None

    @classmethod
    def create(cls, path: Path, recipe: str) -> RunFolder:
        """Make a new folder with its recipe in it: from then on it holds a run, and `open` takes it."""
        with _said_of(path):
            path.mkdir(parents=True, exist_ok=True)
            folder = cls(path)
        if (path / "recipe.yaml").is_file():
            folder.close()
            raise RunFolderError(
                f"{path} already holds a run: go on with `fedlens resume {shlex.quote(str(path))}`, or choose another --out"
            )
        if others := sorted(entry.name for entry in path.iterdir() if not entry.name.startswith(".")):
            folder.close()
            raise RunFolderError(f"{path} is not empty (it holds {others[0]}): choose another --out")
        write(path / "recipe.yaml", lambda temporary: temporary.write_text(recipe, encoding="utf-8"))
        folder.checkpoints.mkdir()
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Take a folder that holds a run, finished or not."""
        if not (path / "recipe.yaml").is_file():
            raise RunFolderError(f"{path} holds no run: it has no recipe.yaml")
        with _said_of(path):
            folder = cls(path)
            try:
                folder.checkpoints.mkdir(exist_ok=True)
            except OSError:
                folder.close()
                raise
        return folder

    def read(self, name: str) -> dict[str, Any] | None:
        """A JSON file of the folder, None if it was not written yet."""
        path = self.path / name
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_bytes())
            if not isinstance(content, dict):
                raise ValueError("it holds no keys and values")
            return content
        except ValueError as error:
            raise RunFolderError(f"{path} is damaged ({error}): put it back as it was, or start a new run") from error

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        write_json(self.path / name, content)

    def rows(self, until: int) -> list[dict[str, Any]]:
        """The metrics of rounds 1 … `until`; later ones, or a torn last line, are cut from the file: they come again."""
        path, rows = self.path / "metrics.jsonl", []
        for line in path.read_bytes().splitlines() if path.exists() else []:
            try:
                row = json.loads(line)
            except ValueError:  # no JSON, or torn inside a character
                break
            if not isinstance(row, dict) or not isinstance(row.get("round"), int) or row["round"] > until:
                break
            rows.append(row)
        if len(rows) != until:
            raise RunFolderError(f"{path} has {len(rows)} rounds, the checkpoint {until}: it was changed by hand")
        text = "".join(_line(row) for row in rows)
        write(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
        return rows

    def append(self, row: Mapping[str, Any]) -> None:
        if self._metrics is None:
            self._metrics = open(self.path / "metrics.jsonl", "a", encoding="utf-8")  # noqa: SIM115 (closed in `close`)
        self._metrics.write(_line(row))
        self._metrics.flush()

    def flush(self) -> None:
        """Have the metrics on the disk, as a checkpoint must not know of more rounds than they do."""
        if self._metrics is not None:
            os.fsync(self._metrics.fileno())

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
        os.close(self._lock)


def new_path(name: str, root: Path = Path("runs")) -> Path:
    """A path for a new run: runs/NAME/DATE-xxxx."""
    return root / name / f"{date.today().isoformat()}-{secrets.token_hex(2)}"


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


@contextmanager
def _said_of(path: Path) -> Iterator[None]:
    """What the operating system refuses, in one line."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"{path} cannot be used as a run's folder: {error}") from error


def _lock(path: Path) -> int:
    descriptor = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise RunFolderError(f"{path} is in use by process {holder}: wait for it, or end it first") from error
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor
