"""FedAdam's server, in the three conventions that go by this name."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedlens.algorithms.server_rules.base import SERVER_RULES, Floor, Memory, Moment, Rate, ServerRule


@SERVER_RULES.register("adam", paper="Reddi et al. 2021, Adaptive Federated Optimization (FedAdam)")
class ServerAdam(ServerRule):
    """m ← β₁ m + (1 − β₁) Δ,   v ← β₂ v + (1 − β₂) Δ²,   c₁ = 1 − β₁ᵗ,   c₂ = 1 − β₂ᵗ, and then by `convention`

        torch         x ← x + η (m / c₁) / (√(v / c₂) + ε)          ε is compared with the corrected √v; v₀ = 0
        epsilon_hat   x ← x + η (√c₂ / c₁) m / (√v + ε)             Keras and the FLAIR paper: ε with the raw √v; v₀ = 0
        uncorrected   x ← x + η m / (√v + ε)                        Reddi et al., who call ε τ; v₀ = τ²

    They agree for ε → 0 and t → ∞ and differ most in the first rounds: with a large ε and β₂ near 1, `epsilon_hat` warms up.
    """

    learning_rate: Rate = 0.01
    beta1: Moment = 0.9
    beta2: Moment = 0.99
    epsilon: Floor = 1e-3
    convention: Literal["torch", "epsilon_hat", "uncorrected"] = "uncorrected"

    def begin(self, x: Tensor) -> Memory:
        floor = self.epsilon**2 if self.convention == "uncorrected" else 0.0
        # counted on the device, so that no round waits for it; float64, because 1 − 0.999ᵗ loses digits in float32
        steps = torch.zeros((), dtype=torch.float64, device=x.device)
        return {"m": torch.zeros_like(x), "v": torch.full_like(x, floor), "steps": steps}

    def step(self, x: Tensor, update: Tensor, memory: Memory, learning_rate: float) -> tuple[Tensor, Memory]:
        m = memory["m"].lerp(update, 1 - self.beta1)
        v = memory["v"].mul(self.beta2).addcmul_(update, update, value=1 - self.beta2)
        steps = memory["steps"] + 1
        correction1, correction2 = 1 - self.beta1**steps, 1 - self.beta2**steps
        match self.convention:
            case "torch":
                direction = (m / correction1) / ((v / correction2).sqrt_() + self.epsilon)
            case "epsilon_hat":
                direction = (correction2.sqrt() / correction1) * m / (v.sqrt() + self.epsilon)
            case "uncorrected":
                direction = m / (v.sqrt() + self.epsilon)
        return x.add(direction, alpha=learning_rate), {"m": m, "v": v, "steps": steps}
