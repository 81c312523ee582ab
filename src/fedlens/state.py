"""All that a run carries from round to round; a checkpoint is exactly this, and resuming needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedlens.algorithms.server_rules import Memory


@dataclass(frozen=True)
class Best:
    """The best evaluation so far."""

    round: int
    metric: str
    value: float


@dataclass(frozen=True)
class State:
    """The global model and everything that goes with it, after `round` rounds; never changed in place."""

    round: int
    x: Tensor  # [P] trainable parameters
    statistics: Tensor  # [B] floating-point buffers
    counters: Tensor  # [C] integer buffers
    memory: Memory = field(default_factory=dict)  # the server rule's
    kept: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)  # what clients keep, by client
    best: Best | None = None

    @property
    def sent_bytes(self) -> int:
        """What the server sends to each client of a cohort: the vector and the buffers."""
        return self.x.nbytes + self.statistics.nbytes + self.counters.nbytes
