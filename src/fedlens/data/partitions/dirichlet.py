"""Label skew by Dirichlet distributions, in the forms that the literature calls by the same name and that differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedlens import random
from fedlens.data.examples import Examples
from fedlens.data.partitions.base import (
    PARTITIONS,
    Clients,
    Partition,
    by_class,
    from_slices,
    require_classes,
    require_enough,
)
from fedlens.data.population import Assignment, Indices

RETRIES = 1000  # draws before a partition with a least size gives up
BLOCK = 1024  # clients whose proportions are drawn at once
TINY = float(np.finfo(np.float64).tiny)  # below, numbers lose digits

Counts = Literal["quota", "multinomial"]
OnExhaust = Literal["redraw", "renormalize"]

Concentration = Annotated[float, Field(gt=0)]


def hsu_dirichlet(
    labels: Indices,
    clients: int,
    alpha: float,
    generator: np.random.Generator,
    counts: Counts = "quota",
    on_exhaust: OnExhaust = "redraw",
    size: int | None = None,
    prior: Sequence[float] | None = None,
) -> Assignment:
    """Give each client equally many examples, with class proportions of its own.

    q_k ~ Dir(α p), so that α is the *total* concentration and class c has α p_c (Hsu, Qi and Brown 2019 and 2020, appendix B).
    Most other code gives each of C classes an α of its own: where p is even, theirs is α / C, and ours C times theirs.
    p (`prior`) is the class frequencies of the data unless given. α = 0: one class a client; α = ∞: q_k = p.

    Clients are filled one after another with `size` = ⌊N / K⌋ examples, in numbers nearest to size · q_k (`quota`) or drawn one by
    one (`multinomial`). Where a class runs out, what is missing is taken by a new draw of Dir(α p) over the classes that are
    left (`redraw`), or by q̃ ∝ q_k on those (`renormalize`, equation 5); classes that weigh nothing are then taken as they are left.
    Quota and redraw reproduce the published CIFAR partitions; multinomial and renormalize are what the appendix says.

    Memory is clients × classes of int64, several times over: a million examples of 1,000 classes take 100,000 clients 4.7 GB, and
    16 seconds.
    """
    require_enough(len(labels), clients)
    require_classes(labels)
    size = len(labels) // clients if size is None else size
    if clients * size > len(labels):
        raise ValueError(f"{clients:,} clients with {size:,} examples each need more than the {len(labels):,} there are")
    pools = [generator.permutation(np.flatnonzero(labels == c)) for c in range(int(labels.max()) + 1)]
    left = whole = np.array([len(pool) for pool in pools])
    p = _normalized(whole if prior is None else prior, len(pools))
    held = np.zeros((clients, len(pools)), dtype=np.int64)
    for k in range(clients):
        if renormalize := on_exhaust == "renormalize" and alpha > 0:  # without concentration, the one class is one that is left
            proportions = _dirichlet(alpha, p, whole, generator)
        while (missing := size - held[k].sum()) > 0:
            q = _restricted(proportions, left) if renormalize else _dirichlet(alpha, p, left, generator)
            # Draws of a class that has run out are void, which is how one draws from the others
            wanted = _apportion(missing, q) if counts == "quota" else generator.multinomial(missing, q)
            taken = np.minimum(wanted, left)
            held[k] += taken
            left = left - taken
    ends = np.cumsum(held, axis=0)
    return from_slices(pools, [np.concatenate(([0], ends[:, c])) for c in range(len(pools))], clients)


def class_dirichlet(
    labels: Indices, clients: int, alpha: float, generator: np.random.Generator, least: int = 0, capped: bool = False
) -> Assignment:
    """Divide each class among the clients by q ~ Dir(α 1_K): α for each client, and sizes differ as much as labels.

    Repeated until every client holds `least` examples. `capped`: who already holds N / K or more gets nothing of the next class.
    Examples with the label −1 are nobody's.
    """
    require_enough(len(labels), clients)
    require_enough(int((labels >= 0).sum()), clients, least)  # or else it would draw and draw
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
    require_enough(len(fine), clients, size)
    for labels in (fine, coarse):
        require_classes(labels)
    pools = by_class(fine, generator)
    classes = _classes_of_groups(fine, coarse, len(pools))  # [G, W]: W of the widest group, the others end with −1
    left = np.where(classes >= 0, np.array([len(pool) for pool in pools])[classes], 0)
    held = np.zeros((clients, *classes.shape), dtype=np.int32)
    for first in range(0, clients, BLOCK):
        block = min(BLOCK, clients - first)
        of_group = _dirichlets(alpha, np.ones((block, len(classes)), dtype=bool), generator)
        of_class = _dirichlets(beta, np.broadcast_to(classes >= 0, (block, *classes.shape)), generator)
        for k in range(block):
            missing, wanted = size, np.zeros(len(classes), dtype=np.int64)
            while missing:
                there = left > 0
                open_groups = left.sum(axis=1) > 0
                wanted = wanted * open_groups  # draws of a group or class that has run out are void, and made again
                wanted += generator.multinomial(missing - wanted.sum(), _among(of_group[k], open_groups))
                drawn = np.minimum(generator.multinomial(wanted, _among(of_class[k], there)), left)
                held[first + k] += drawn
                left -= drawn
                wanted -= drawn.sum(axis=1)
                missing -= drawn.sum()
    taken = np.zeros((clients + 1, len(pools)), dtype=np.int64)
    taken[1:, classes[classes >= 0]] = held[:, classes >= 0]
    return from_slices(pools, list(np.cumsum(taken, axis=0).T), clients)


def _classes_of_groups(fine: Indices, coarse: Indices, classes: int) -> Indices:
    """For each group the classes in it, filled up with −1 to equally many."""
    group_of = np.full(classes, -1)
    group_of[fine] = coarse
    if (group_of[fine] != coarse).any():
        raise ValueError("every class must lie in one group; some examples of a class have different coarse labels")
    members = [np.flatnonzero(group_of == group) for group in range(int(coarse.max()) + 1)]
    widest = max(len(own) for own in members)
    return np.stack([np.pad(own, (0, widest - len(own)), constant_values=-1) for own in members])


def _dirichlets(concentration: float, there: NDArray[np.bool_], generator: np.random.Generator) -> NDArray[np.float64]:
    """Draw from Dir(α, …, α) over those that are there in each row, by gamma variables in logarithms, which no α underflows.

    Γ(α) = Γ(α + 1) · U^(1 / α)
    """
    logarithms = np.log(generator.standard_gamma(concentration + 1, there.shape))
    logarithms += np.log1p(-generator.random(there.shape)) / concentration
    logarithms[~there] = -np.inf
    largest = logarithms.max(axis=-1, keepdims=True)
    weights = np.exp(logarithms - np.where(np.isfinite(largest), largest, 0))
    return weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1)  # the largest is 1; a group of no classes stays empty


def _among(weights: NDArray[np.float64], there: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Proportions by weight of those that are there; where all of them weigh nothing, even ones."""
    weights = weights * there
    weights = np.where(weights.sum(axis=-1, keepdims=True) > TINY, weights, there)
    return weights / np.maximum(weights.sum(axis=-1, keepdims=True), TINY)


@PARTITIONS.register("hsu_dirichlet", paper="Hsu, Qi and Brown 2020, Federated Visual Classification, appendix B")
class HsuDirichlet(Partition):
    """Equally large clients whose class proportions are drawn from Dir(α p): small α, strong label skew.

    α is the total concentration (the papers'); code that gives each class α uses α · classes in these terms. As it stands, it is
    the rule of the published CIFAR partitions; `counts: multinomial` and `on_exhaust: renormalize` are the appendix to the letter.
    """

    clients: Clients = 100
    alpha: Annotated[float, Field(ge=0, allow_inf_nan=True)] = 1.0
    counts: Counts = "quota"
    on_exhaust: OnExhaust = "redraw"
    size: Annotated[int, Field(ge=1)] | None = None
    prior: tuple[float, ...] | None = None

    def assign(self, data: Examples, seed: int) -> Assignment:
        generator = random.generator(seed, "partition")
        rules = self.counts, self.on_exhaust, self.size, self.prior
        return hsu_dirichlet(data.column("label"), self.clients, self.alpha, generator, *rules)


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
        labels = data.column("label")
        require_classes(labels)
        return class_dirichlet(labels, self.clients, self.alpha, generator, self.least, self.capped)


@PARTITIONS.register("fedcv_lda", paper="He et al. 2021, FedCV (as FedML and NIID-Bench do it)")
class FedCVLDA(ClassDirichlet):
    """As `class_dirichlet`, but a client that holds its share N / K gets no more: labels skewed, sizes nearly equal."""

    capped: ClassVar[bool] = True


def _normalized(prior: Sequence[float] | Indices, classes: int) -> NDArray[np.float64]:
    """Class frequencies that sum to one."""
    p = np.asarray(prior)
    if p.shape != (classes,) or not (np.isfinite(p) & (p >= 0)).all() or not p.sum() > 0:
        raise ValueError(f"the prior must be a weight of 0 or more for each of {classes} classes, not all 0; got {p.tolist()}")
    return p / p.sum()


def _restricted(proportions: NDArray[np.float64], left: Indices) -> NDArray[np.float64]:
    """Equation 5: the same proportions among classes that still have examples; where those weigh nothing, as they are left."""
    weights = proportions * (left > 0)
    weights = weights if weights.sum() > TINY else left.astype(np.float64)
    return weights / weights.sum()


def _dirichlet(alpha: float, prior: NDArray[np.float64], left: Indices, generator: np.random.Generator) -> NDArray[np.float64]:
    """Draw class proportions over the classes that still have examples; without bound of concentration, the prior itself."""
    available = np.flatnonzero((left > 0) & (prior > 0))
    if not len(available):  # what is left are classes that the prior leaves out
        return left / left.sum()
    proportions = np.zeros(len(left))
    frequencies = prior[available] / prior[available].sum()
    concentration = (alpha * prior)[available] if math.isfinite(alpha) else None
    if concentration is None:
        proportions[available] = frequencies
        return proportions
    if (concentration > 0).all():
        drawn = generator.dirichlet(concentration)
        if np.isfinite(drawn).all() and drawn.sum() > 0:
            proportions[available] = drawn
            return proportions
    # α = 0, or so small that every gamma draw underflows: the limit is a single class
    proportions[generator.choice(available, p=frequencies)] = 1.0
    return proportions


def _apportion(total: int, proportions: NDArray[np.float64]) -> Indices:
    """Whole numbers that sum to `total` and lie nearest to total · proportions: the largest remainders round up."""
    exact = total * proportions
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: total - counts.sum()]] += 1
    return counts
