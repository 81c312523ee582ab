"""FedAvgM's server: a heavy ball."""

from __future__ import annotations

import torch
from torch import Tensor

from fedlens.algorithms.server_rules.base import SERVER_RULES, Memory, Moment, ServerRule


@SERVER_RULES.register("momentum", paper="Hsu, Qi and Brown 2019 and 2020 (FedAvgM)")
class ServerMomentum(ServerRule):
    """v ← β v + Δ,   x ← x + η v: no damping, so the effective rate is η / (1 − β).   Nesterov: Δ + β v for v."""

    momentum: Moment = 0.9
    nesterov: bool = False

    def begin(self, x: Tensor) -> Memory:
        return {"momentum": torch.zeros_like(x)}

    def step(self, x: Tensor, update: Tensor, memory: Memory, learning_rate: float) -> tuple[Tensor, Memory]:
        v = update.add(memory["momentum"], alpha=self.momentum)
        direction = update.add(v, alpha=self.momentum) if self.nesterov else v
        return x.add(direction, alpha=learning_rate), {"momentum": v}
