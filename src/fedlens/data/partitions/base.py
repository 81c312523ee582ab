"""Divide a data set among clients: what every partition answers, and the plainest ones."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedlens import random
from fedlens.data.examples import Examples
from fedlens.data.partitions.views import Shift, shifted
from fedlens.data.population import Assignment, Federation, Indices, Population
from fedlens.data.sources.base import Sources
from fedlens.registry import Part, Registry

PARTITIONS: Registry[type[Partition]] = Registry("partition")

Aside: TypeAlias = Literal["examples", "clients"]
MOST_CLASSES = 10**6  # tables have a column for each

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


def federate(
    sources: Sources,
    partition: Partition,
    validation: float = 0.0,
    seed: int = 0,
    test: float = 0.0,
    aside: Aside = "examples",
    shift: Shift | None = None,
) -> Population:
    """Divide a data set's training examples among clients, and keep shares of them aside for what it has no split of its own for.

    aside    of the examples of every client, or of the clients, with all that they hold
    shift    how the images of one client look different from those of another; evaluation sets of their own stay as they are
    """
    assignment = partition.assign(sources.train, seed)
    train = sources.train if shift is None else shifted(sources.train, assignment, shift, seed)
    evaluations: dict[str, Federation | None] = {}
    left = 1.0
    for name, share, own in (("validation", validation, sources.validation), ("test", test, sources.test)):
        evaluations[name] = None if own is None else Federation(own, partition.group(own))
        if share > 0:
            if own is not None:
                raise ValueError(f"{sources.train.name} has a {name} split of its own; set data.{name} to 0")
            split = assignment.hold_out if aside == "examples" else assignment.hold_out_clients
            assignment, held = split(share / left, seed, "hold out" if name == "validation" else f"hold out for {name}")
            evaluations[name] = Federation(train, held)
            left -= share
    if not len(assignment):
        raise ValueError(f"{sources.train.name}: all clients are kept aside, none is left to train")
    return Population(Federation(train, assignment), **evaluations)


def require_enough(count: int, clients: int, least: int = 1) -> None:
    if clients * least > count:
        needs = "one" if least == 1 else f"{least:,}"
        raise ValueError(f"cannot divide {count:,} examples among {clients:,} clients: each needs {needs} at least")


def require_classes(labels: Indices) -> None:
    """Each example is of a class, and classes are counted from 0: one far beyond would make a table too large for any memory."""
    low, high = int(labels.min(initial=0)), int(labels.max(initial=0))
    if low < 0 or high >= MOST_CLASSES:
        wrong = low if low < 0 else high
        row = int((labels == wrong).argmax())
        limits = f"classes are counted from 0, up to {MOST_CLASSES - 1:,} at most"
        raise ValueError(f"example {row:,} has the label {wrong}: {limits}; number them anew, and leave out what is of no class")


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
