"""What goes into a step: which examples, and what is random or weighted about them, as tensors on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from fedlens.data.feed import Columns, Feed
from fedlens.tasks import Facts, Task


@dataclass(frozen=True)
class Batch:
    """The inputs of a step, before anything is looked up: small tensors, the same for every engine.

    A step of many lanes has w · B slots; `real` says which of them hold an example, None that all do.
    """

    ids: Tensor  # [n] of examples
    keys: Tensor | None  # [] or [w], of dropout
    uniform: Tensor | None = None  # [n, k] for the transforms
    weights: Tensor | None = None  # [n] of the examples
    real: Tensor | None = None  # [n] 1 or 0
    gathered: Columns | None = None  # the examples, where they were gathered on the host

    def load(self, feed: Feed, task: Task, facts: Facts) -> tuple[Tensor, Any]:
        """Inputs and targets."""
        return task.prepare(feed.batch(self.ids, self.gathered), facts, task.train_transforms, self.uniform)

    def clone(self) -> Batch:
        return self._each(torch.clone)

    def copy_(self, other: Batch) -> None:
        for field in fields(self):
            mine, given = getattr(self, field.name), getattr(other, field.name)
            if mine is not None:
                mine.copy_(given)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        changed: dict[str, Any] = {name: value if value is None else change(value) for name, value in values.items()}
        return Batch(**changed)
