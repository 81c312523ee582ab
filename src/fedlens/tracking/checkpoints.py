"""A run's state on disk: one safetensors file, written atomically, that knows whether it is whole.

The tensors are those of `State`, flat: x, statistics, counters, server/NAME, client/ID/NAME. The rest is JSON in the
file's metadata, with a digest over both. `write` goes to a temporary file, is flushed to the disk and renamed; the file
that had the name becomes 'previous', so that at every instant one of the two is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors

from fedlens.state import Best, State

SCHEMA = 1
METADATA = "fedlens"  # the only key: safetensors writes several in an order that changes from run to run


class BadCheckpoint(ValueError):
    """A checkpoint that is truncated, altered, or of another version."""


def save_state(folder: Path, state: State) -> None:
    """Make `state` the last checkpoint of a folder, and the one before it the previous."""
    tensors = {"x": state.x, "statistics": state.statistics, "counters": state.counters}
    tensors |= {f"server/{name}": value for name, value in state.memory.items()}
    tensors |= {f"client/{client}/{name}": value for client, kept in state.kept.items() for name, value in kept.items()}
    arrays = _arrays(tensors)
    facts = {"schema": SCHEMA, "round": state.round, "best": asdict(state.best) if state.best else None}
    text = json.dumps(facts, sort_keys=True)
    metadata = {METADATA: json.dumps([text, _digest(arrays, text)])}

    def rotate(path: Path) -> None:
        if path.exists():
            os.replace(path, folder / "previous.safetensors")

    write(folder / "last.safetensors", lambda temporary: save_file(arrays, temporary, metadata), rotate)


def load_state(path: Path, device: torch.device) -> State:
    """Read a checkpoint, or refuse it."""
    try:
        with safe_open(path, framework="np") as file:
            text, digest = json.loads(file.metadata()[METADATA])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except Exception as error:  # of safetensors, the operating system, or for want of the metadata
        raise BadCheckpoint(f"{path} cannot be read: {error}") from error
    if digest != _digest(arrays, text):
        raise BadCheckpoint(f"{path} is damaged: its digest does not match its content")
    facts = json.loads(text)
    if facts["schema"] != SCHEMA:
        raise BadCheckpoint(f"{path} is of schema {facts['schema']}; this version of fedlens reads schema {SCHEMA}")
    tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    memory: dict[str, torch.Tensor] = {}
    kept: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        kind, *rest = name.split("/")
        if kind == "server":
            memory[rest[0]] = value
        elif kind == "client":
            kept.setdefault(int(rest[0]), {})[rest[1]] = value
    best = Best(**facts["best"]) if facts["best"] else None
    return State(facts["round"], tensors["x"], tensors["statistics"], tensors["counters"], memory, kept, best)


def load_newest(folder: Path, device: torch.device, warn: Callable[[str], None]) -> State | None:
    """The last state, or the previous one if the last is damaged; None if nothing was saved yet.

    A damaged last one is set aside, or the next checkpoint would put it in the place of the good one.
    """
    last = folder / "last.safetensors"
    found = [path for path in (last, folder / "previous.safetensors") if path.exists()]
    for path in found:
        try:
            state = load_state(path, device)
        except BadCheckpoint as error:
            warn(str(error))
            continue
        if path != last and last.exists():
            os.replace(last, folder / "damaged.safetensors")
        return state
    if found:
        raise BadCheckpoint(f"no checkpoint in {folder} is whole; start anew with another --out")
    return None


def save_weights(path: Path, weights: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Write a model's state dict, for any program: `model.load_state_dict(safetensors.torch.load_file(path))`.

    Tensors keep their types. What is no tensor (a module's `get_extra_state`) was not trained and is not written: a model
    that has such a thing reads the file with `strict=False`.
    """
    # each with memory of its own: safetensors takes no tensors that share it, as tied weights do
    tensors = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors_in(weights)}
    text = json.dumps({**facts, "digest": _digest_of(tensors)}, sort_keys=True)
    write(path, lambda temporary: save_tensors(tensors, temporary, {METADATA: text}))


def is_whole(path: Path) -> bool:
    """Whether a file that `save_weights` wrote is there and as it was written."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()[METADATA])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except Exception:  # of safetensors, the operating system, or for want of the metadata
        return False
    return bool(facts.get("digest") == _digest_of(tensors))


def tensors_in(state_dict: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a state dict by name, without what modules may have put beside them."""
    return ((name, value) for name, value in state_dict.items() if isinstance(value, torch.Tensor))


def write(path: Path, fill: Callable[[Path], object], before: Callable[[Path], None] | None = None) -> None:
    """Replace a file as a whole or not at all, and have it on the disk when this returns."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        fill(temporary)
        _flush(temporary)
        if before is not None:
            before(path)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _flush(path.parent)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, NDArray[Any]]:
    return {name: value.detach().cpu().contiguous().numpy() for name, value in tensors.items()}


def _digest_of(tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=32)
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _digest(arrays: Mapping[str, NDArray[Any]], text: str) -> str:
    digest = hashlib.blake2b(text.encode(), digest_size=32)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
