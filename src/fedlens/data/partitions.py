"""Divide a data set among clients: pure functions from labels or ids to an `Assignment`, and the parts that name them."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedlens import random
from fedlens.data.examples import Examples
from fedlens.data.population import Assignment, Federation, Indices, Population
from fedlens.data.sources.base import Sources
from fedlens.registry import Part, Registry

PARTITIONS: Registry[type[Partition]] = Registry("partition")

Clients = Annotated[int, Field(ge=1, le=10**8)]


class Partition(Part):
    """Which client holds which of the training examples."""

    def assign(self, data: Examples, seed: int) -> Assignment:
        raise NotImplementedError


def iid(count: int, clients: int, generator: np.random.Generator) -> Assignment:
    """Deal all examples out at random; sizes differ by one at most."""
    _require_enough(count, clients)
    sizes = np.full(clients, count // clients)
    sizes[: count % clients] += 1
    return Assignment(np.concatenate(([0], np.cumsum(sizes))), generator.permutation(count))


def hsu_dirichlet(labels: Indices, clients: int, alpha: float, generator: np.random.Generator) -> Assignment:
    """Give each client equally many examples, with class proportions of its own.

    q_k ~ Dir(α p), p the class frequencies of the data, so that α is the *total* concentration and each class has α p_c
    (Hsu, Qi and Brown 2019 and 2020, appendix B). Clients are filled one after another with quotas n q_k; where a class
    runs out, the rest is drawn anew from Dir(α p) over the classes that are left. α = 0: one class a client; α = ∞: q_k = p.
    """
    _require_enough(len(labels), clients)
    pools = [generator.permutation(np.flatnonzero(labels == c)) for c in range(int(labels.max()) + 1)]
    left = np.array([len(pool) for pool in pools])
    prior = left / left.sum()
    size = len(labels) // clients
    counts = np.zeros((clients, len(pools)), dtype=np.int64)
    for k in range(clients):
        while (missing := size - counts[k].sum()) > 0:
            proportions = _dirichlet(alpha * prior if math.isfinite(alpha) else None, prior, left, generator)
            taken = np.minimum(_apportion(missing, proportions), left)
            counts[k] += taken
            left -= taken
    ends = np.cumsum(counts, axis=0)
    members = [pools[c][ends[k, c] - counts[k, c] : ends[k, c]] for k in range(clients) for c in range(len(pools))]
    return Assignment(np.arange(clients + 1) * size, np.concatenate(members))


def natural(ids: NDArray[np.generic]) -> Assignment:
    """One client for each distinct id, in sorted order, named by it."""
    names, client = np.unique(ids, return_inverse=True)
    return Assignment.from_clients(client.reshape(-1), len(names), [str(name) for name in names])


@PARTITIONS.register("iid")
class IID(Partition):
    """Examples dealt out at random to equally large clients."""

    clients: Clients = 100

    def assign(self, data: Examples, seed: int) -> Assignment:
        return iid(len(data), self.clients, random.generator(seed, "partition"))


@PARTITIONS.register("hsu_dirichlet", paper="Hsu, Qi and Brown 2020, Federated Visual Classification, appendix B")
class HsuDirichlet(Partition):
    """Equally large clients whose class proportions are drawn from Dir(α p): small α, strong label skew.

    α is the total concentration (the papers'); code that gives each class α uses α · classes in these terms.
    """

    clients: Clients = 100
    alpha: Annotated[float, Field(ge=0, allow_inf_nan=True)] = 1.0

    def assign(self, data: Examples, seed: int) -> Assignment:
        labels = data.column("label")
        return hsu_dirichlet(labels, self.clients, self.alpha, random.generator(seed, "partition"))


@PARTITIONS.register("natural")
class Natural(Partition):
    """One client for each value of a column, such as the user who took the photograph."""

    column: str = "client"

    def assign(self, data: Examples, seed: int) -> Assignment:
        return natural(data.column(self.column))


def federate(sources: Sources, partition: Partition, validation: float, seed: int) -> Population:
    """Divide a data set's training examples among clients, and hold out `validation` of each client's if it has no such split."""
    assignment = partition.assign(sources.train, seed)
    validate = Federation.pooled(sources.validation) if sources.validation is not None else None
    if validation > 0:
        if validate is not None:
            raise ValueError(f"{sources.train.name} has a validation split of its own; set data.validation to 0")
        assignment, aside = assignment.hold_out(validation, seed)
        validate = Federation(sources.train, aside)
    test = Federation.pooled(sources.test) if sources.test is not None else None
    return Population(Federation(sources.train, assignment), validate, test)


def _dirichlet(
    concentration: NDArray[np.float64] | None, prior: NDArray[np.float64], left: Indices, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Draw class proportions over the classes that still have examples; no concentration means the prior itself."""
    available = np.flatnonzero(left)
    proportions = np.zeros(len(left))
    if concentration is None:
        proportions[available] = prior[available] / prior[available].sum()
        return proportions
    if (concentration[available] > 0).all():
        drawn = generator.dirichlet(concentration[available])
        if np.isfinite(drawn).all() and drawn.sum() > 0:
            proportions[available] = drawn
            return proportions
    # α = 0, or so small that every gamma draw underflows: the limit is a single class
    proportions[generator.choice(available, p=prior[available] / prior[available].sum())] = 1.0
    return proportions


def _apportion(total: int, proportions: NDArray[np.float64]) -> Indices:
    """Whole numbers that sum to `total` and lie nearest to total · proportions: the largest remainders round up."""
    exact = total * proportions
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: total - counts.sum()]] += 1
    return counts


def _require_enough(count: int, clients: int) -> None:
    if clients > count:
        raise ValueError(f"cannot divide {count:,} examples among {clients:,} clients: each needs one at least")
