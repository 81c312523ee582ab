"""What the server does with the combined update: x ← x + η_t · (a direction made of Δ and the server's memory)."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field
from torch import Tensor

from fedlens.algorithms.schedules import HIGHEST_RATE, SCHEDULES, Constant, Schedule
from fedlens.registry import Part, Registry, chosen_from

SERVER_RULES: Registry[type[ServerRule]] = Registry("server rule")

Memory: TypeAlias = dict[str, Tensor]  # the server's vectors between rounds, by name
Moment = Annotated[float, Field(ge=0, lt=1)]
Rate = Annotated[float, Field(gt=0, le=HIGHEST_RATE)]
Floor = Annotated[float, Field(gt=0, le=1e15)]  # of √v; float32 holds its square too


class ServerRule(Part):
    """A step of the global vector along Δ = Σ p_k (w_k − x), which points downhill: −Δ plays the gradient's part.

    Rules are pure: they return a new x and a new memory, so an interrupted round leaves no trace.
    """

    learning_rate: Rate = 1.0
    schedule: Annotated[Schedule, chosen_from(SCHEDULES)] = Constant()

    def begin(self, x: Tensor) -> Memory:
        """The memory before the first round."""
        return {}

    def step(self, x: Tensor, update: Tensor, memory: Memory, learning_rate: float) -> tuple[Tensor, Memory]:
        raise NotImplementedError
