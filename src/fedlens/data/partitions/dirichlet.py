"""Label skew by Dirichlet distributions, in the forms that the literature calls by the same name and that differ."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedlens import random
from fedlens.data.examples import Examples
from fedlens.data.partitions.base import PARTITIONS, Clients, Partition, by_class, from_slices, require_enough
from fedlens.data.population import Assignment, Indices

RETRIES = 1000  # draws before a partition with a least size gives up

Concentration = Annotated[float, Field(gt=0)]


def hsu_dirichlet(labels: Indices, clients: int, alpha: float, generator: np.random.Generator) -> Assignment:
    """Give each client equally many examples, with class proportions of its own.

    q_k ~ Dir(α p), p the class frequencies of the data, so that α is the *total* concentration and each class has α p_c
    (Hsu, Qi and Brown 2019 and 2020, appendix B). Clients are filled one after another with quotas n q_k; where a class
    runs out, the rest is drawn anew from Dir(α p) over the classes that are left. α = 0: one class a client; α = ∞: q_k = p.
    """
    require_enough(len(labels), clients)
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


def class_dirichlet(
    labels: Indices, clients: int, alpha: float, generator: np.random.Generator, least: int = 0, capped: bool = False
) -> Assignment:
    """Divide each class among the clients by q ~ Dir(α 1_K): α for each client, and sizes differ as much as labels.

    Repeated until every client holds `least` examples. `capped`: who already holds N / K or more gets nothing of the next class.
    """
    require_enough(len(labels), clients)
    share = len(labels) / clients
    for _ in range(RETRIES):
        held, cuts, pools = np.zeros(clients), [], by_class(labels, generator)
        for pool in pools:
            proportions = generator.dirichlet(np.full(clients, alpha))
            if capped and (held < share).any():
                proportions = proportions * (held < share)
            if not proportions.sum() > 0:  # every gamma draw underflowed, or fell to clients that are full
                proportions = np.eye(clients)[generator.choice(np.flatnonzero(held < share) if capped else clients)]
            ends = np.floor(np.cumsum(proportions / proportions.sum()) * len(pool)).astype(np.int64)
            ends[-1] = len(pool)  # what rounding left over
            cuts.append(np.concatenate(([0], ends)))
            held += np.diff(cuts[-1])
        if held.min() >= least:
            return from_slices(pools, cuts, clients)
    raise ValueError(
        f"{RETRIES} draws gave no partition in which each of {clients} clients holds {least} of {len(labels):,} examples: "
        "take fewer clients, a larger alpha or a lower least size"
    )


def pachinko(
    fine: Indices, coarse: Indices, clients: int, size: int, alpha: float, beta: float, generator: np.random.Generator
) -> Assignment:
    """Fill clients one after another by two draws an example: a group by Dir(α), then a class of it by Dir(β), own ones for each.

    Without replacement: a class that is used up, and a group that is, are out of the draw, for this client and all later ones.
    """
    require_enough(len(fine), clients * size)
    pools = by_class(fine, generator)
    left, groups = np.array([len(pool) for pool in pools]), int(coarse.max()) + 1
    group_of = np.full(len(pools), -1)
    group_of[fine] = coarse
    if (group_of[fine] != coarse).any():
        raise ValueError("every class must lie in one group; some examples of a class have different coarse labels")
    members = [np.flatnonzero(group_of == group) for group in range(groups)]
    taken = np.zeros(len(pools), dtype=np.int64)
    chosen = np.empty(clients * size, dtype=np.int64)
    for client in range(clients):
        of_group = generator.dirichlet(np.full(groups, alpha))
        of_class = np.zeros(len(pools))
        for own in members:
            of_class[own] = generator.dirichlet(np.full(len(own), beta))
        for place in range(client * size, (client + 1) * size):
            open_groups = np.array([left[own].any() for own in members])
            group = _one(of_group * open_groups, open_groups, generator)
            own = members[group]
            fine_class = own[_one(of_class[own] * (left[own] > 0), left[own] > 0, generator)]
            chosen[place] = pools[fine_class][taken[fine_class]]
            taken[fine_class] += 1
            left[fine_class] -= 1
    return Assignment(np.arange(clients + 1) * size, chosen)


def _one(weights: NDArray[np.float64], there: NDArray[np.bool_], generator: np.random.Generator) -> int:
    """Draw one of those that are there, by weight; where all of them weigh nothing, evenly."""
    weights = weights if weights.sum() > 0 else there.astype(np.float64)
    return int(np.searchsorted(np.cumsum(weights), generator.random() * weights.sum(), side="right").clip(max=len(weights) - 1))


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


@PARTITIONS.register(
    "pachinko", paper="Li and McCallum 2006; Reddi et al. 2021, Adaptive Federated Optimization, appendix F (CIFAR-100)"
)
class Pachinko(Partition):
    """Skew in two steps, over groups of classes and within each: equally large clients that know a few groups of things.

    `coarse` names the column that holds the group of each example, as CIFAR-100's `coarse_label` does.
    """

    clients: Clients = 500
    size: Annotated[int, Field(ge=1)] = 100
    alpha: Concentration = 0.1
    beta: Concentration = 10.0
    coarse: str = "coarse_label"

    def assign(self, data: Examples, seed: int) -> Assignment:
        generator = random.generator(seed, "partition")
        labels = data.column("label"), data.column(self.coarse)
        return pachinko(*labels, self.clients, self.size, self.alpha, self.beta, generator)


@PARTITIONS.register("class_dirichlet", paper="Yurochkin et al. 2019, Bayesian Nonparametric Federated Learning of Neural Networks")
class ClassDirichlet(Partition):
    """Each class divided among the clients by Dir(α), α for each client: sizes and labels skewed, no cap on either."""

    capped: ClassVar[bool] = False

    clients: Clients = 100
    alpha: Concentration = 0.5
    least: Annotated[int, Field(ge=0)] = 10

    def assign(self, data: Examples, seed: int) -> Assignment:
        generator = random.generator(seed, "partition")
        return class_dirichlet(data.column("label"), self.clients, self.alpha, generator, self.least, self.capped)


@PARTITIONS.register("fedcv_lda", paper="He et al. 2021, FedCV (as FedML and NIID-Bench do it)")
class FedCVLDA(ClassDirichlet):
    """As `class_dirichlet`, but a client that holds its share N / K gets no more: labels skewed, sizes nearly equal."""

    capped: ClassVar[bool] = True


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
