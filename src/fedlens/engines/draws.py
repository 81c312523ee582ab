"""What is random or weighted about the examples of a plan: drawn for a whole round at once, the same for every engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedlens import random
from fedlens.algorithms.local_work import Plan
from fedlens.data.population import Federation
from fedlens.tasks import Task


@dataclass(frozen=True)
class Draws:
    """Keyed by (round, client, place), so that neither engine nor packing changes them."""

    uniform: NDArray[np.float32] | None  # [n, k] for the transforms of each example
    weights: NDArray[np.float32] | None  # [n] of each example
    keys: NDArray[np.int64]  # [b] for the dropout of each batch

    @classmethod
    def of(cls, plan: Plan, task: Task, federation: Federation, seed: int) -> Draws:
        client, uniform, weights = plan.client_of_each, None, None
        count = np.arange(sum(transform.draws for transform in task.train_transforms))
        if len(count):
            uniform = random.uniform(seed, "transform", plan.round, client[:, None], plan.place[:, None], count[None])
        if task.example_weights is not None:
            weights = task.example_weights.weigh(federation, plan.examples, client)
        first = plan.start_of_batch[:-1]
        keys = random.bits(seed, "dropout", plan.round, client[first], plan.place[first])
        return cls(uniform, weights, keys.view(np.int64))
