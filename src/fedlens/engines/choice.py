"""Which engine carries a run's plans out, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Protocol, TypeAlias

import torch

from fedlens.algorithms.local_rules import LocalRule
from fedlens.algorithms.local_work import Plan
from fedlens.algorithms.updates import Updates
from fedlens.data.population import Federation
from fedlens.engines.lanes import Lanes
from fedlens.engines.sequential import Sequential
from fedlens.engines.workers import Workers
from fedlens.state import State
from fedlens.tasks import Sums

EngineName: TypeAlias = Literal["auto", "sequential", "lanes", "workers"]


class Engine(Protocol):
    """Trains the clients of a plan, and measures a state."""

    name: str
    device: torch.device
    fill: float  # of the last round's slots, the share that held an image

    def begin(self) -> State: ...

    def prepare(self, plan: Plan, rule: LocalRule) -> Any:
        """What `run` takes, once; it can be made while the device trains another round."""

    def run(self, work: Any, state: State, rule: LocalRule, learning_rate: float) -> Iterator[Updates]: ...

    def evaluate(self, state: State, federation: Federation, batch_size: int | None = None) -> Sums: ...


def choose(wanted: EngineName, reference: Sequential, rule: LocalRule, alone: bool) -> tuple[Engine, str]:
    """The engine that was asked for, or with 'auto' the faster one that applies; and the reason, for people to read."""
    if wanted == "sequential":
        return reference, "as asked"
    if wanted == "workers":
        return Workers(reference), "as asked"
    if wanted == "auto" and reference.device.type != "cuda":
        return reference, "no GPU"
    if wanted == "auto" and alone:
        return reference, "one client at a time"
    try:
        for part in (rule, reference.task):
            if not part.in_lanes:
                raise ValueError(f"{part.name} trains one client at a time")
        return Lanes(reference), "as asked" if wanted == "lanes" else "many clients at once"
    except ValueError as error:
        if wanted == "lanes":
            raise ValueError(f"engine: lanes cannot be used: {error}; use engine=sequential") from error
        return reference, str(error)
