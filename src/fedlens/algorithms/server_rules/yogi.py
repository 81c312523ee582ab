"""FedYogi's server: Adam whose second moment moves by steps that do not depend on how far it is off."""

from __future__ import annotations

import torch
from torch import Tensor

from fedlens.algorithms.server_rules.base import SERVER_RULES, Floor, Memory, Moment, Rate, ServerRule


@SERVER_RULES.register("yogi", paper="Reddi et al. 2021, Adaptive Federated Optimization (FedYogi)")
class ServerYogi(ServerRule):
    """m ← β₁ m + (1 − β₁) Δ,   v ← v − (1 − β₂) Δ² sign(v − Δ²),   x ← x + η m / (√v + τ),   v₀ = τ²."""

    learning_rate: Rate = 0.01
    beta1: Moment = 0.9
    beta2: Moment = 0.99
    tau: Floor = 1e-3

    def begin(self, x: Tensor) -> Memory:
        return {"m": torch.zeros_like(x), "v": torch.full_like(x, self.tau**2)}

    def step(self, x: Tensor, update: Tensor, memory: Memory, learning_rate: float) -> tuple[Tensor, Memory]:
        m = memory["m"].lerp(update, 1 - self.beta1)
        square = update.square()
        v = memory["v"].addcmul(square, torch.sign(memory["v"] - square), value=self.beta2 - 1)
        return x.addcdiv(m, v.sqrt().add_(self.tau), value=learning_rate), {"m": m, "v": v}
