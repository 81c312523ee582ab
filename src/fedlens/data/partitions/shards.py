"""Label skew by hand: clients that see only a few classes."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedlens import random
from fedlens.data.examples import Examples
from fedlens.data.partitions.base import PARTITIONS, Clients, Partition, by_class, from_slices, require_enough
from fedlens.data.population import Assignment, Indices

Few = Annotated[int, Field(ge=1)]


def shards(labels: Indices, clients: int, each: int, generator: np.random.Generator) -> Assignment:
    """Sort by label, cut into K · s equal shards and deal each client s of them; what does not fill a shard is left out."""
    require_enough(len(labels), clients * each)
    order = np.lexsort((generator.random(len(labels)), labels))
    size = len(labels) // (clients * each)
    cut = order[: clients * each * size].reshape(clients * each, size)
    dealt = cut[generator.permutation(clients * each)]
    return Assignment(np.arange(clients + 1) * each * size, dealt.reshape(-1))


def pathological(labels: Indices, clients: int, classes: int, generator: np.random.Generator) -> Assignment:
    """Each client holds exactly so many classes, and the clients of a class hold equally much of it.

    Classes are dealt out in turn, in a new random order each time round, so that all are held by equally many clients.
    """
    pools = by_class(labels, generator)
    there = [c for c, pool in enumerate(pools) if len(pool)]
    if classes > len(there):
        raise ValueError(f"a client cannot hold {classes} classes of {len(there)}")
    if clients * classes < len(there):
        raise ValueError(f"{clients} clients with {classes} classes each leave some of {len(there)} classes to nobody")
    wanted = np.zeros((clients, len(pools)), dtype=bool)
    bag: list[int] = []
    for client in range(clients):
        for _ in range(classes):
            if not any(not wanted[client, c] for c in bag):
                bag += generator.permutation(there).tolist()
            chosen = next(c for c in bag if not wanted[client, c])
            bag.remove(chosen)
            wanted[client, chosen] = True
    cuts = []
    for c, pool in enumerate(pools):
        holders = np.cumsum(wanted[:, c])
        ends = holders * len(pool) // max(1, holders[-1])
        cuts.append(np.concatenate(([0], ends)))
    return from_slices(pools, cuts, clients)


@PARTITIONS.register("shards", paper="McMahan et al. 2017, Communication-Efficient Learning (FedAvg)")
class Shards(Partition):
    """Sorted by label, cut into equal shards, `shards` of them to each client: most clients see that many classes."""

    clients: Clients = 100
    shards: Few = 2

    def assign(self, data: Examples, seed: int) -> Assignment:
        return shards(data.column("label"), self.clients, self.shards, random.generator(seed, "partition"))


@PARTITIONS.register("pathological", paper="Li et al. 2022, Federated Learning on Non-IID Data Silos (#C = k)")
class Pathological(Partition):
    """Exactly `classes` classes for each client, and each class divided equally among those who hold it."""

    clients: Clients = 100
    classes: Few = 2

    def assign(self, data: Examples, seed: int) -> Assignment:
        return pathological(data.column("label"), self.clients, self.classes, random.generator(seed, "partition"))
