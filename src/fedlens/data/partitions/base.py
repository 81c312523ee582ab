"""Divide a data set among clients: what every partition answers, and the plainest ones."""

from __future__ import annotations

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

    def group(self, data: Examples) -> Assignment:
        """Whose the examples for evaluation are: one hand's, unless they say it themselves."""
        return Assignment.pooled(len(data))


def iid(count: int, clients: int, generator: np.random.Generator) -> Assignment:
    """Deal all examples out at random; sizes differ by one at most."""
    require_enough(count, clients)
    sizes = np.full(clients, count // clients)
    sizes[: count % clients] += 1
    return Assignment(np.concatenate(([0], np.cumsum(sizes))), generator.permutation(count))


def natural(ids: NDArray[np.generic], names: NDArray[np.str_] | None = None) -> Assignment:
    """One client for each distinct id, in sorted order, named by it, or by what numbers stand for."""
    found, client = np.unique(ids, return_inverse=True)
    called = found if names is None else np.asarray(names)[found]
    return Assignment.from_clients(client.reshape(-1), len(found), called.astype(np.str_).tolist())


@PARTITIONS.register("iid")
class IID(Partition):
    """Examples dealt out at random to equally large clients."""

    clients: Clients = 100

    def assign(self, data: Examples, seed: int) -> Assignment:
        return iid(len(data), self.clients, random.generator(seed, "partition"))


@PARTITIONS.register("natural")
class Natural(Partition):
    """One client for each value of a column, such as the user who took the photograph; evaluation sets that have it too are
    measured by client.
    """

    column: str = "client"

    def assign(self, data: Examples, seed: int) -> Assignment:
        return natural(data.column(self.column), data.categories.get(self.column))

    def group(self, data: Examples) -> Assignment:
        return self.assign(data, 0) if self.column in data.columns else super().group(data)


def federate(sources: Sources, partition: Partition, validation: float, seed: int) -> Population:
    """Divide a data set's training examples among clients, and hold out `validation` of each client's if it has no such split."""
    assignment = partition.assign(sources.train, seed)
    validate, test = (
        None if split is None else Federation(split, partition.group(split)) for split in (sources.validation, sources.test)
    )
    if validation > 0:
        if validate is not None:
            raise ValueError(f"{sources.train.name} has a validation split of its own; set data.validation to 0")
        assignment, aside = assignment.hold_out(validation, seed)
        validate = Federation(sources.train, aside)
    return Population(Federation(sources.train, assignment), validate, test)


def require_enough(count: int, clients: int) -> None:
    if clients > count:
        raise ValueError(f"cannot divide {count:,} examples among {clients:,} clients: each needs one at least")


def by_class(labels: Indices, generator: np.random.Generator) -> list[Indices]:
    """The examples of each class 0 … C − 1, in a random order; those with label −1 are of no class."""
    order = np.lexsort((generator.random(len(labels)), labels))
    counts = np.bincount(labels.astype(np.int64) + 1)
    return np.split(order, np.cumsum(counts)[:-1])[1:]


def from_slices(pools: list[Indices], cuts: list[Indices], clients: int) -> Assignment:
    """Client k holds pool[cut[k] : cut[k + 1]] of each class's pool."""
    counts = np.stack([np.diff(cut) for cut in cuts], axis=1)  # [K, C]
    client = np.concatenate([np.repeat(np.arange(clients), counts[:, c]) for c in range(len(pools))])
    examples = np.concatenate([pool[: cut[-1]] for pool, cut in zip(pools, cuts, strict=True)])
    order = np.argsort(client, kind="stable")
    return Assignment(np.concatenate(([0], np.cumsum(counts.sum(axis=1)))), examples[order])
