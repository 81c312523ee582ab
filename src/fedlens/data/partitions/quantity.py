"""Quantity skew: clients that see the same things, but some much more of them."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedlens import random
from fedlens.data.examples import Examples
from fedlens.data.partitions.base import PARTITIONS, Clients, Partition, require_enough
from fedlens.data.population import Assignment, Indices


def sizes(count: int, weights: NDArray[np.float64], least: int) -> Indices:
    """Whole numbers in proportion to the weights that sum to `count`, none below `least`: largest remainders round up."""
    exact = (count - least * len(weights)) * weights / weights.sum()
    whole = np.floor(exact).astype(np.int64)
    whole[np.argsort(whole - exact, kind="stable")[: count - least * len(weights) - whole.sum()]] += 1
    return whole + least


@PARTITIONS.register("quantity", paper="Li et al. 2022, Federated Learning on Non-IID Data Silos (quantity skew)")
class Quantity(Partition):
    """Examples dealt out at random, in numbers ∝ v_k: v ~ Dir(skew), log v ~ N(0, skew²), or v_k = rank^−skew.

    With `dirichlet`, a small `skew` is much skew; with `lognormal` and `power`, a large one.
    """

    clients: Clients = 100
    law: Literal["dirichlet", "lognormal", "power"] = "dirichlet"
    skew: Annotated[float, Field(gt=0, le=1e6)] = 0.5
    least: Annotated[int, Field(ge=0)] = 1

    def assign(self, data: Examples, seed: int) -> Assignment:
        require_enough(len(data), self.clients, max(1, self.least))
        generator = random.generator(seed, "partition")
        if self.law == "dirichlet":
            weights = np.maximum(generator.dirichlet(np.full(self.clients, self.skew)), 1e-300)  # a draw may underflow to nothing
        elif self.law == "lognormal":
            logarithms = generator.normal(0, self.skew, self.clients)
            weights = np.exp(logarithms - logarithms.max())  # the largest is 1, and none overflows
        else:
            weights = generator.permutation(np.arange(1, self.clients + 1) ** -self.skew)
        ends = np.cumsum(sizes(len(data), weights, self.least))
        return Assignment(np.concatenate(([0], ends)), generator.permutation(len(data)))
