"""What differential privacy costs: epsilon from the noise, or the noise from epsilon, before anybody trains.

Each of T rounds releases (Σ_{i in cohort} clip(Δ_i, S) + N(0, (zS)² I)) / C: clipping bound S, noise multiplier z, public cohort
size C of a population of N. What is protected is all that one user holds. dp-accounting does the sums: by privacy loss
distributions (PLD, tight) or by Rényi differential privacy (RDP, the "moments accountant", somewhat larger).
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from fedlens.registry import nearest

if TYPE_CHECKING:
    import dp_accounting

Accountant: TypeAlias = Literal["pld", "rdp"]
Sampling: TypeAlias = Literal["poisson", "uniform", "all"]  # the samplers' names
Accounting: TypeAlias = Literal["rounds", "flair2022"]

LEAST_NOISE, MOST_NOISE = 0.01, 1e6  # below, nothing is hidden; above, accountants measure their own rounding
LEAST_DELTA = 1e-13
MOST_EPSILON = 50.0  # e^50 is no promise, and PLD takes gigabytes to say so
# The orders that TensorFlow Privacy had in 2022, which the published FLAIR code was accounted with
ORDERS_2022 = (1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *map(float, range(5, 64)), 128.0, 256.0, 512.0)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Who takes part in how many noisy sums: all that the cost depends on except the noise.

    sampler     poisson: each user with probability q = C / N; uniform: exactly C of them; all: everybody, C = N
    accounting  rounds: T of them; flair2022: the ⌈T N / C⌉ that the published FLAIR code charges, having read T as epochs
    trained     the cohort that is trained in its place, with noise rescaled: a simulation, whose ε is that of cohort C
    count_noise standard deviation σ_b of the noise on how many of C lie within S: the price of adaptive clipping
    """

    population: int
    cohort_size: int
    rounds: int
    sampler: Sampling = "poisson"
    accounting: Accounting = "rounds"
    trained: int | None = None
    count_noise: float | None = None

    def __post_init__(self) -> None:
        _require_known("sampler", self.sampler, Sampling)
        _require_known("accounting", self.accounting, Accounting)
        for name, count in (("population", self.population), ("cohort", self.cohort_size), ("rounds", self.rounds)):
            if not count >= 1:
                raise ValueError(f"{name}: must be 1 or more, got {count}")
        if self.cohort_size > self.population:
            raise ValueError(f"cohort: {self.cohort_size:,} users cannot be drawn from a population of {self.population:,}")
        if self.sampler == "all" and self.cohort_size != self.population:
            raise ValueError(f"cohort: sampler 'all' takes all {self.population:,} users in each round, not {self.cohort_size:,}")
        if self.accounting == "flair2022" and self.sampler != "poisson":
            raise ValueError("accounting: 'flair2022' is what the published code computes, for sampler 'poisson' only")
        if self.trained is not None and not 1 <= self.trained <= self.cohort_size:
            raise ValueError(f"trained cohort: must be from 1 to the {self.cohort_size:,} it stands for, got {self.trained:,}")
        if self.count_noise is not None and not 0 < self.count_noise < math.inf:
            raise ValueError(f"count noise: must be a number above 0, got {self.count_noise}")

    @property
    def sampling_probability(self) -> float:
        return self.cohort_size / self.population

    @property
    def charged_rounds(self) -> int:
        return self.rounds if self.accounting == "rounds" else -(-self.rounds * self.population // self.cohort_size)

    @property
    def neighbours(self) -> str:
        """How two populations differ that the guarantee cannot tell apart."""
        return "replacing one user by another" if self.sampler == "uniform" else "adding or removing one user"

    @property
    def scale(self) -> float:
        """What noise of cohort C is multiplied by where fewer are trained: then it is the same on the mean, a coordinate."""
        return 1.0 if self.trained is None else self.trained / self.cohort_size


@dataclass(frozen=True, kw_only=True)
class Mechanism(Plan):
    """A plan with its noise: z is that of everything a round releases, the count of adaptive clipping included."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not LEAST_NOISE <= self.noise_multiplier <= MOST_NOISE:
            without = "; without noise, epsilon is infinite" if self.noise_multiplier == 0 else ""
            bounds = f"from {LEAST_NOISE} to {MOST_NOISE:,.0f}"
            raise ValueError(f"noise multiplier: must be {bounds}, got {self.noise_multiplier:g}{without}")
        if self.count_noise is not None and not self.noise_multiplier < 2 * self.count_noise:
            raise ValueError(
                f"count noise: {self.count_noise:g} alone costs more than noise multiplier {self.noise_multiplier:.6g} allows: "
                f"take more than {self.noise_multiplier / 2:.6g}; {self.cohort_size / 20:g}, a twentieth of the cohort, is usual"
            )

    @property
    def update_noise_multiplier(self) -> float:
        """z_Δ = (z⁻² − (2σ_b)⁻²)^(−1/2), what is left for the updates (Andrew et al. 2021, theorem 1).

        (Δ / S, b − ½) is one vector of one cohort: its noises (z_Δ, σ_b) cost as one multiplier z, the bit having sensitivity ½.
        """
        if self.count_noise is None:
            return self.noise_multiplier
        return (self.noise_multiplier**-2 - (2 * self.count_noise) ** -2) ** -0.5

    @property
    def noise_on_mean(self) -> float:
        """Standard deviation of the noise on a coordinate of the mean, in clipping bounds: z_Δ / C, whoever is trained."""
        return self.update_noise_multiplier / self.cohort_size


@dataclass(frozen=True)
class Guarantee:
    """What a mechanism promises, by which accountant, and for which cohort: a simulation's is the large one, never the trained."""

    epsilon: float
    delta: float
    accountant: Accountant
    neighbours: str
    holds_for_cohort: int
    simulated: bool


def delta_of(written: str | float, population: int) -> float:
    """A probability, or by name `N^-1.1`: of the population."""
    named = re.fullmatch(r"N\^-(\d+(\.\d*)?)", str(written).strip())
    try:
        delta = population ** -float(named[1]) if named else float(written)
    except ValueError:
        raise ValueError(f"delta: {written!r} is neither a number nor a power of the population, such as N^-1.1") from None
    if not 0 < delta < 1:
        raise ValueError(f"delta: must lie between 0 and 1, got {delta:g} (written {written})")
    return delta


def spent(mechanism: Mechanism, delta: float, accountant: Accountant = "pld") -> Guarantee:
    """What a mechanism costs when all its rounds are done."""
    delta = delta_of(delta, mechanism.population)
    _require_accountant(mechanism, accountant, delta)
    rough = _epsilon(mechanism, mechanism.noise_multiplier, delta, "rdp")
    if accountant == "pld" and rough > MOST_EPSILON:
        raise ValueError(
            f"noise multiplier {mechanism.noise_multiplier:g} gives epsilon {rough:,.0f} or so (by RDP), which protects nobody: "
            f"take more noise or fewer rounds; PLD is not computed above {MOST_EPSILON:.0f}"
        )
    epsilon = rough if accountant == "rdp" else _epsilon(mechanism, mechanism.noise_multiplier, delta, "pld")
    return Guarantee(epsilon, delta, accountant, mechanism.neighbours, mechanism.cohort_size, mechanism.trained is not None)


def calibrate(plan: Plan, epsilon: float, delta: float, accountant: Accountant = "pld") -> Mechanism:
    """The plan with the least noise, to 10⁻⁶, that costs no more than (ε, δ)."""
    delta = delta_of(delta, plan.population)
    _require_accountant(plan, accountant, delta)
    if not 0 < epsilon <= MOST_EPSILON:
        raise ValueError(f"epsilon: must lie above 0 and be at most {MOST_EPSILON:.0f}, more protects nobody; got {epsilon:g}")
    if 1 - (1 - plan.sampling_probability) ** plan.rounds <= delta:
        raise ValueError(
            f"delta: {delta:g} is no less than the chance of ever taking part, so any noise would do: take a smaller one"
        )
    noise_multiplier = _least_noise(plan, epsilon, delta, "rdp", 1.0, LEAST_NOISE)
    if accountant == "pld":  # nor where RDP says more than 50: PLD takes gigabytes there
        least = _least_noise(plan, MOST_EPSILON, delta, "rdp", 1.0, LEAST_NOISE)
        noise_multiplier = _least_noise(plan, epsilon, delta, "pld", 1.02 * noise_multiplier, least)
    return Mechanism(**{field.name: getattr(plan, field.name) for field in fields(Plan)}, noise_multiplier=noise_multiplier)


def _least_noise(plan: Plan, epsilon: float, delta: float, accountant: Accountant, guess: float, least: float) -> float:
    """Bracket the noise around a guess, then close in on it from above; where less than `least` would do, `least`."""
    import dp_accounting

    low, high, factor = guess, guess, 1.25 if accountant == "pld" else 2.0  # PLD is dear where there is little noise
    while _epsilon(plan, high, delta, accountant) > epsilon:
        low, high = high, high * factor
        if high > MOST_NOISE:
            out_of_reach = (
                f"epsilon {epsilon:g} at delta {delta:g} is out of reach in {plan.charged_rounds:,} rounds, with any noise"
            )
            raise ValueError(f"{out_of_reach} (by {accountant.upper()}): take a larger epsilon or delta, or fewer rounds")
    while low == high or _epsilon(plan, low, delta, accountant) <= epsilon:
        if low <= least:
            return low
        low, high = max(low / factor, least), low
    with _quiet():
        bracket = dp_accounting.ExplicitBracketInterval(low, high)
        found = dp_accounting.calibrate_dp_mechanism(
            lambda: _accountant(plan, accountant), lambda noise: _event(plan, noise), epsilon, delta, bracket, tol=1e-6
        )
    return float(found)


def _epsilon(plan: Plan, noise_multiplier: float, delta: float, accountant: Accountant) -> float:
    with _quiet():
        return float(_accountant(plan, accountant).compose(_event(plan, noise_multiplier)).get_epsilon(delta))


def _event(plan: Plan, noise_multiplier: float) -> dp_accounting.DpEvent:
    """One round, so many times. The count of adaptive clipping is within z already, its bits being of the same cohort."""
    import dp_accounting as dp

    once: dp.DpEvent = dp.GaussianDpEvent(noise_multiplier)
    if plan.sampler == "poisson":
        once = dp.PoissonSampledDpEvent(plan.sampling_probability, once)
    elif plan.sampler == "uniform":  # its multiplier is of the sensitivity: replacing a user moves the sum by up to 2S
        once = dp.SampledWithoutReplacementDpEvent(plan.population, plan.cohort_size, dp.GaussianDpEvent(noise_multiplier / 2))
    return dp.SelfComposedDpEvent(once, plan.charged_rounds)


def _accountant(plan: Plan, accountant: Accountant) -> dp_accounting.PrivacyAccountant:
    import dp_accounting as dp

    relation = dp.NeighboringRelation.REPLACE_ONE if plan.sampler == "uniform" else dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    if accountant == "pld":
        return dp.pld.PLDAccountant(relation, value_discretization_interval=1e-4)
    return dp.rdp.RdpAccountant(ORDERS_2022 if plan.accounting == "flair2022" else None, relation)


@contextmanager
def _quiet() -> Iterator[None]:
    """dp-accounting tells its log of every step of a search."""
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _require_accountant(plan: Plan, accountant: str, delta: float) -> None:
    _require_known("accountant", accountant, Accountant)
    if accountant == "pld" and delta < LEAST_DELTA:
        raise ValueError(f"delta: {delta:g} is less than the tails that PLD cuts off: take a larger one, or accountant 'rdp'")
    if plan.sampler == "uniform" and accountant == "pld":
        raise ValueError("accountant: only 'rdp' can account for cohorts of a fixed size; choose it, or the sampler 'poisson'")


def _require_known(setting: str, name: str, names: object) -> None:
    if name not in get_args(names):
        raise ValueError(f"{setting}: unknown '{name}'; {nearest(name, get_args(names))}")
