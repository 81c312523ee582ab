"""What a client does with its gradients: a step on vectors, the same lines for one client [P] and for many [m, P]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias

import torch
from pydantic import Field
from torch import Tensor

from fedlens.algorithms.schedules import HIGHEST_RATE, SCHEDULES, Constant, Schedule
from fedlens.registry import Part, Registry, chosen_from

LOCAL_RULES: Registry[type[LocalRule]] = Registry("local rule")

Vectors: TypeAlias = dict[str, Tensor]  # a client's vectors beside its weights, by name
NonNegative = Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class Context:
    """What a client is told at the start of a round: the global vector x and the learning rate, a number or a vector."""

    x: Tensor  # [P]
    learning_rate: float | Tensor


class LocalRule(Part):
    """Stochastic gradient descent on w, started from x, with a hook for rules that bend the gradient.

        g ← clip(g),   g ← gradient(g, w),   g ← g + λ w,   v ← μ v + g,   w ← w − η_t v      (Nesterov: g + μ v for v)

    as torch.optim.SGD does it. Momentum starts at zero in every round, unless `keep_momentum` carries it on.
    `learning_rate_factors` multiplies η for the parameters whose names match a glob pattern.
    """

    in_lanes: ClassVar[bool] = True  # whether `step` and `update` take many clients' rows [m, P] as they take one vector

    learning_rate: Annotated[float, Field(ge=0, le=HIGHEST_RATE)] = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    nesterov: bool = False
    weight_decay: NonNegative = 0.0
    clip_gradient_norm: Annotated[float, Field(gt=0)] | None = None
    keep_momentum: bool = False
    schedule: Annotated[Schedule, chosen_from(SCHEDULES)] = Constant()
    learning_rate_factors: dict[str, NonNegative] = Field(default_factory=dict)

    def model_post_init(self, context: object) -> None:
        if self.momentum == 0 and (self.nesterov or self.keep_momentum):
            raise ValueError("nesterov and keep_momentum need momentum > 0")

    @property
    def vectors(self) -> tuple[str, ...]:
        """Names of the vectors that a client keeps beside w while it trains; they start at zero."""
        return ("momentum",) if self.momentum else ()

    @property
    def kept(self) -> tuple[str, ...]:
        """Which of them a client keeps until it takes part again."""
        return ("momentum",) if self.keep_momentum else ()

    def is_plain(self, context: Context) -> bool:
        """Whether a step and the update are the equations here and no more, with one rate for all: an engine may fuse them."""
        own = all(getattr(type(self), name) is getattr(LocalRule, name) for name in ("step", "gradient", "update"))
        return own and self.clip_gradient_norm is None and not isinstance(context.learning_rate, Tensor)

    def gradient(self, g: Tensor, w: Tensor, context: Context) -> Tensor:
        """Hook: bend the (clipped) gradient before the step."""
        return g

    def step(self, w: Tensor, g: Tensor, vectors: Vectors, context: Context) -> None:
        """One step of w, in place; g may be of lower precision, w and what stands beside it never are."""
        if self.clip_gradient_norm is not None:
            norm = torch.linalg.vector_norm(g, dim=-1, keepdim=True, dtype=w.dtype)
            g = g * (self.clip_gradient_norm / norm).clamp(max=1.0)  # 0/0 is no danger: ∞ clamps to 1
        g = self.gradient(g, w, context)
        if self.weight_decay:
            g = g.add(w, alpha=self.weight_decay)
        if self.momentum:
            v = vectors["momentum"].mul_(self.momentum).add_(g)
            g = g.add(v, alpha=self.momentum) if self.nesterov else v
        if isinstance(context.learning_rate, Tensor):
            w.addcmul_(g, context.learning_rate, value=-1)
        else:
            w.add_(g, alpha=-context.learning_rate)

    def update(self, w: Tensor, context: Context) -> Tensor:
        """What a client sends back: Δ = w − x."""
        return w - context.x
