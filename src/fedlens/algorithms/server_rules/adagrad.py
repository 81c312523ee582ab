"""FedAdagrad's server: every coordinate slows down with what it has moved so far."""

from __future__ import annotations

import torch
from torch import Tensor

from fedlens.algorithms.server_rules.base import SERVER_RULES, Floor, Memory, Moment, Rate, ServerRule


@SERVER_RULES.register("adagrad", paper="Reddi et al. 2021, Adaptive Federated Optimization (FedAdagrad)")
class ServerAdagrad(ServerRule):
    """m ← β₁ m + (1 − β₁) Δ,   v ← v + Δ²,   x ← x + η m / (√v + τ),   v₀ = τ²."""

    learning_rate: Rate = 0.01
    beta1: Moment = 0.0
    tau: Floor = 1e-3

    def begin(self, x: Tensor) -> Memory:
        return {"m": torch.zeros_like(x), "v": torch.full_like(x, self.tau**2)}

    def step(self, x: Tensor, update: Tensor, memory: Memory, learning_rate: float) -> tuple[Tensor, Memory]:
        m = memory["m"].lerp(update, 1 - self.beta1)
        v = memory["v"].addcmul(update, update)
        return x.addcdiv(m, v.sqrt().add_(self.tau), value=learning_rate), {"m": m, "v": v}
