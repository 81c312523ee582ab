"""Learning rates that change from round to round: η_t = η · factor(t, T)."""

from __future__ import annotations

import math
from typing import Annotated, Protocol

from pydantic import Field

from fedlens.registry import Part, Registry

SCHEDULES: Registry[type[Schedule]] = Registry("schedule")

HIGHEST_RATE = 1e30  # with the highest end of a schedule it stays below what float32 holds, about 3e38
Final = Annotated[float, Field(ge=0, le=1e6)]


class Schedule(Part):
    """The factor by which a learning rate is multiplied in a round; rounds count from 0, T is how many there are.

    During the first `warmup_rounds` rounds the factor also rises linearly: (t + 1) / warmup_rounds.
    """

    warmup_rounds: Annotated[int, Field(ge=0)] = 0

    def factor(self, round: int, rounds: int) -> float:
        warmth = min(1.0, (round + 1) / self.warmup_rounds) if self.warmup_rounds else 1.0
        span = max(1, rounds - self.warmup_rounds - 1)
        return warmth * self.shape(max(0, round - self.warmup_rounds), min(1.0, max(0, round - self.warmup_rounds) / span))

    def shape(self, round: int, progress: float) -> float:
        """The factor after warm-up: `round` from its end, `progress` from 0 in the first such round to 1 in the last."""
        raise NotImplementedError


class Scheduled(Protocol):
    """A rule with a learning rate that follows a schedule."""

    @property
    def learning_rate(self) -> float: ...

    @property
    def schedule(self) -> Schedule: ...


def learning_rate(rule: Scheduled, round: int, rounds: int) -> float:
    """η_t, the learning rate of a rule in round t of T."""
    return rule.learning_rate * rule.schedule.factor(round, rounds)


@SCHEDULES.register("constant")
class Constant(Schedule):
    """The same learning rate in every round."""

    def shape(self, round: int, progress: float) -> float:
        return 1.0


@SCHEDULES.register("exponential", paper="He et al. 2021, FedCV, section 4")
class Exponential(Schedule):
    """Multiplied by `decay` after every round: decay^t."""

    decay: Annotated[float, Field(gt=0, le=1)] = 0.999

    def shape(self, round: int, progress: float) -> float:
        return self.decay**round


@SCHEDULES.register("linear")
class Linear(Schedule):
    """Down a straight line from 1 to `final` in the last round."""

    final: Final = 0.0

    def shape(self, round: int, progress: float) -> float:
        return 1 + (self.final - 1) * progress


@SCHEDULES.register("cosine", paper="Loshchilov and Hutter 2017, SGDR (without restarts)")
class Cosine(Schedule):
    """Down half a cosine wave from 1 to `final` in the last round."""

    final: Final = 0.0

    def shape(self, round: int, progress: float) -> float:
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2
