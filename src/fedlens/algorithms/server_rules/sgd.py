"""FedAvg's server: take the mean update as it is, or scaled."""

from __future__ import annotations

from torch import Tensor

from fedlens.algorithms.server_rules.base import SERVER_RULES, Memory, ServerRule


@SERVER_RULES.register("sgd", paper="McMahan et al. 2017, Communication-Efficient Learning (FedAvg, η = 1)")
class ServerSGD(ServerRule):
    """x ← x + η Δ; with η = 1 the new model is the mean of the clients'."""

    def step(self, x: Tensor, update: Tensor, memory: Memory, learning_rate: float) -> tuple[Tensor, Memory]:
        return x.add(update, alpha=learning_rate), memory
