"""Who takes part in a round: functions from the clients' sizes to a sorted cohort, keyed by (seed, round)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedlens import random
from fedlens.registry import Part, Registry

SAMPLERS: Registry[type[Sampler]] = Registry("sampler")

Indices = NDArray[np.int64]


class Sampler(Part):
    """Draws the cohort of a round; it is sorted, because the order of a cohort means nothing."""

    def sample(self, sizes: Indices, cohort_size: int, seed: int, round: int) -> Indices:
        raise NotImplementedError

    def check(self, sizes: Indices, cohort_size: int) -> None:
        """Refuse, before training starts, a cohort that cannot be drawn."""
        if cohort_size > len(sizes):
            raise ValueError(f"cohort_size: {cohort_size} clients cannot be drawn from a population of {len(sizes)}")


@SAMPLERS.register("uniform", paper="McMahan et al. 2017, Communication-Efficient Learning (FedAvg)")
class Uniform(Sampler):
    """Exactly `cohort_size` distinct clients, every cohort equally likely."""

    def sample(self, sizes: Indices, cohort_size: int, seed: int, round: int) -> Indices:
        chosen = random.generator(seed, "sample", round).choice(len(sizes), cohort_size, replace=False, shuffle=False)
        return np.sort(chosen)


@SAMPLERS.register("poisson", paper="the sampling that accounting by amplification assumes; Mironov et al. 2019")
class Poisson(Sampler):
    """Every client by itself with probability q = cohort_size / K: cohorts differ in size and may be empty."""

    def sample(self, sizes: Indices, cohort_size: int, seed: int, round: int) -> Indices:
        return np.flatnonzero(random.generator(seed, "sample", round).random(len(sizes)) < cohort_size / len(sizes))


@SAMPLERS.register("proportional", paper="Hsu, Qi and Brown 2020 (FedVC's selection)")
class Proportional(Sampler):
    """Exactly `cohort_size` distinct clients, drawn one after another with probability ∝ n_k among those left."""

    def sample(self, sizes: Indices, cohort_size: int, seed: int, round: int) -> Indices:
        generator = random.generator(seed, "sample", round)
        return np.sort(generator.choice(len(sizes), cohort_size, replace=False, p=sizes / sizes.sum()))

    def check(self, sizes: Indices, cohort_size: int) -> None:
        if cohort_size > np.count_nonzero(sizes):
            raise ValueError(
                f"cohort_size: {cohort_size} clients cannot be drawn in proportion to their examples: "
                f"only {np.count_nonzero(sizes)} of {len(sizes)} have any"
            )


@SAMPLERS.register("all")
class All(Sampler):
    """Every client in every round, as in a federation of a few institutions; `cohort_size` must say so."""

    def sample(self, sizes: Indices, cohort_size: int, seed: int, round: int) -> Indices:
        return np.arange(len(sizes))

    def check(self, sizes: Indices, cohort_size: int) -> None:
        if cohort_size != len(sizes):
            raise ValueError(f"cohort_size: sampler 'all' takes all {len(sizes)} clients; cohort_size says {cohort_size}")
