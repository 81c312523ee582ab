"""Epsilons and noise multipliers, against published and independently measured ones, closed forms, and each other."""

from __future__ import annotations

import math
from dataclasses import replace

import dp_accounting as dp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fedlens.privacy import Mechanism, Plan, calibrate, delta_of, spent

FLAIR = Plan(population=41_131, cohort_size=5_000, rounds=5_000)
DELTA = 8.402602224231827e-06
ALL = Plan(population=41_131, cohort_size=41_131, rounds=1, sampler="all")


def noisy(plan, noise_multiplier):
    return Mechanism(**vars(plan), noise_multiplier=noise_multiplier)


def epsilon(plan, noise_multiplier, delta=DELTA, accountant="pld"):
    return spent(noisy(plan, noise_multiplier), delta, accountant).epsilon


def epsilon_of_gaussian(noise_multiplier, delta):
    """The exact one: δ(ε) = Φ(1/2z − εz) − e^ε Φ(−1/2z − εz) (Balle and Wang 2018), inverted by bisection."""
    low, high = 0.0, 100.0
    for _ in range(100):
        middle = (low + high) / 2
        half, shift = 0.5 / noise_multiplier, middle * noise_multiplier
        more = norm.cdf(half - shift) - math.exp(middle + norm.logcdf(-half - shift)) > delta
        low, high = (middle, high) if more else (low, middle)
    return high


def test_flair_s_delta_and_sampling_probability():
    assert delta_of("N^-1.1", 41_131) == DELTA
    assert FLAIR.sampling_probability == pytest.approx(0.12156281150470448, abs=1e-16)


@pytest.mark.parametrize(
    ("plan", "delta", "accountant", "expected", "tolerance"),
    [
        (FLAIR, DELTA, "rdp", 18.667905, 2e-6),
        (FLAIR, DELTA, "pld", 17.333271, 2e-6),
        (replace(FLAIR, accounting="flair2022"), DELTA, "rdp", 53.4907, 2e-4),  # by the orders of that code
        (replace(FLAIR, cohort_size=200), DELTA, "rdp", 1.0237, 1e-4),
        (replace(FLAIR, population=10**7), 1e-5, "rdp", 0.6317, 2e-4),  # pfl-research's defaults
        (ALL, DELTA, "pld", 2.0124279, 1e-6),
        (replace(ALL, rounds=625), DELTA, "pld", 50.3107, 1e-4),
    ],
)
def test_noise_for_epsilon_two_is_what_was_measured(plan, delta, accountant, expected, tolerance):
    mechanism = calibrate(plan, 2.0, delta, accountant)
    assert mechanism.noise_multiplier == pytest.approx(expected, abs=tolerance)
    assert replace(mechanism, noise_multiplier=1.0) == noisy(plan, 1.0)  # nothing else has changed
    assert spent(mechanism, delta, accountant).epsilon <= 2.0


@pytest.mark.parametrize(
    ("plan", "delta", "noise_multiplier"),
    [
        (replace(FLAIR, cohort_size=200), DELTA, 0.9728),  # an honest epsilon of 2 for the cohort that was trained
        (replace(FLAIR, population=10**7), 1e-5, 0.5455),  # pfl-research's defaults
    ],
)
def test_measured_noise_costs_epsilon_two_where_calibrating_takes_seconds(plan, delta, noise_multiplier):
    assert epsilon(plan, noise_multiplier - 1e-4, delta) > 2.0 >= epsilon(plan, noise_multiplier, delta)


@pytest.mark.parametrize(
    ("plan", "noise_multiplier"),
    [
        (FLAIR, 17.362180),
        (replace(FLAIR, accounting="flair2022"), 50.3294),
        *[
            (replace(FLAIR, cohort_size=5_000 * bands, rounds=math.ceil(5_000 / bands)), noise_multiplier)
            for bands, noise_multiplier in enumerate(
                (17.3622, 24.5193, 30.0150, 34.6432, 38.7196, 42.4203, 45.8193, 48.9432), start=1
            )
        ],  # banded matrix factorisation: so many groups of users, each sampled more often in fewer rounds
    ],
)
def test_noise_measured_on_a_coarser_grid_is_enough_and_hardly_more(plan, noise_multiplier):
    assert 1.965 < epsilon(plan, noise_multiplier) <= 2.0


@pytest.mark.parametrize(("rho", "expected"), [(0.15, 3.4157), (0.0144, 0.9956)])
def test_one_gaussian_release_has_the_epsilon_of_its_zcdp(rho, expected):
    assert epsilon(ALL, (2 * rho) ** -0.5, 1e-10) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("noise_multiplier", "rounds"), [(1.5, 1), (10.0, 40), (60.0, 5_000)])
@pytest.mark.parametrize("sampler", ["all", "poisson"])
def test_without_sampling_rounds_compose_to_one_gaussian_of_the_root(sampler, noise_multiplier, rounds):
    found = epsilon(replace(ALL, sampler=sampler, rounds=rounds), noise_multiplier, 1e-6)
    exact = epsilon_of_gaussian(noise_multiplier / math.sqrt(rounds), 1e-6)
    assert exact <= found + 1e-9
    assert found == pytest.approx(exact, abs=5e-3)  # a grid of losses rounds up in each round


def test_rdp_without_sampling_converts_the_closed_form_curve():
    """RDP(α) = T α / 2z², ε = min over α of RDP + log((α − 1) / α) − (log δ + log α) / (α − 1) (Canonne et al. 2020)."""
    orders = [1 + tenths / 1000 for tenths in range(100, 60_000)]
    curve = (40 * a / (2 * 10.0**2) + math.log1p(-1 / a) - math.log(1e-6 * a) / (a - 1) for a in orders)
    assert epsilon(replace(ALL, rounds=40), 10.0, 1e-6, "rdp") == pytest.approx(min(curve), rel=1e-3)


def test_replacing_a_user_moves_the_sum_twice_as_far_as_adding_one():
    fixed = replace(ALL, sampler="uniform")
    assert epsilon(fixed, 6.0, accountant="rdp") == pytest.approx(epsilon(ALL, 3.0, accountant="rdp"))
    assert spent(noisy(fixed, 6.0), DELTA, "rdp").neighbours == "replacing one user by another"
    assert spent(noisy(ALL, 6.0), DELTA, "rdp").neighbours == "adding or removing one user"


def test_cohorts_of_a_fixed_size_cost_more_than_poisson_ones():
    """37.56 is measured in sensitivities, 2S where a user is replaced: 75.12 clipping bounds, the unit of a noise multiplier."""
    fixed = replace(FLAIR, sampler="uniform")
    assert epsilon(fixed, 2 * 37.560815, accountant="rdp") == pytest.approx(2.0, abs=1e-5)
    assert epsilon(fixed, 37.560815, accountant="rdp") > 4.0
    with pytest.raises(ValueError, match="only 'rdp' can account for cohorts of a fixed size"):
        spent(noisy(fixed, 40.0), DELTA, "pld")
    with pytest.raises(ValueError, match="only 'rdp'"):
        calibrate(fixed, 2.0, DELTA)


PLANS = st.builds(
    Plan, population=st.integers(1_000, 10**6), cohort_size=st.integers(1, 1_000), rounds=st.integers(1, 2_000)
)  # fmt: skip
NOISES = st.floats(0.7, 50)


@given(plan=PLANS, noise=NOISES, more=st.floats(1.01, 3))
@settings(max_examples=8, deadline=None)
def test_epsilon_falls_with_noise_and_rises_with_rounds_and_sampling(plan, noise, more):
    found = epsilon(plan, noise, accountant="rdp")
    assert epsilon(plan, noise * more, accountant="rdp") <= found + 1e-9
    assert epsilon(replace(plan, rounds=math.ceil(plan.rounds * more)), noise, accountant="rdp") >= found - 1e-9
    oftener = replace(plan, cohort_size=min(math.ceil(plan.cohort_size * more), plan.population))
    assert epsilon(oftener, noise, accountant="rdp") >= found - 1e-9


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_epsilon_strictly_falls_with_noise_and_rises_with_rounds_and_sampling(accountant):
    found = epsilon(FLAIR, 20.0, accountant=accountant)
    assert epsilon(FLAIR, 20.2, accountant=accountant) < found < epsilon(FLAIR, 19.8, accountant=accountant)
    assert found < epsilon(replace(FLAIR, rounds=5_100), 20.0, accountant=accountant)
    assert found < epsilon(replace(FLAIR, cohort_size=5_100), 20.0, accountant=accountant)
    assert found < epsilon(FLAIR, 20.0, DELTA / 2, accountant)


@given(plan=PLANS, target=st.floats(0.1, 20))
@settings(max_examples=3, deadline=None)
def test_calibration_and_accounting_are_inverse_and_never_beyond_the_budget(plan, target):
    mechanism = calibrate(plan, target, 1e-7, "rdp")
    assert spent(mechanism, 1e-7, "rdp").epsilon <= target
    less = replace(mechanism, noise_multiplier=mechanism.noise_multiplier - 3e-6)
    assert spent(less, 1e-7, "rdp").epsilon > target


@pytest.mark.parametrize("target", [0.05, 1.5])
def test_calibration_by_loss_distributions_gives_back_the_noise_it_came_from(target):
    mechanism = calibrate(FLAIR, target, 1e-5)
    assert target * (1 - 1e-4) < spent(mechanism, 1e-5).epsilon <= target


@pytest.mark.parametrize(
    ("cohort_size", "rounds", "noise"), [(5_000, 5_000, 17.0), (200, 500, 1.0), (41_131, 20, 6.0), (1, 1, 0.8)]
)
def test_loss_distributions_are_tighter_than_renyi(cohort_size, rounds, noise):
    plan = replace(FLAIR, cohort_size=cohort_size, rounds=rounds)
    assert epsilon(plan, noise) <= epsilon(plan, noise, accountant="rdp")


def test_the_published_code_charges_rounds_as_epochs():
    assert replace(FLAIR, accounting="flair2022").charged_rounds == 41_131
    assert replace(FLAIR, accounting="flair2022", rounds=10, cohort_size=4_999).charged_rounds == 83  # 82.28 rounded up
    assert FLAIR.charged_rounds == 5_000
    with pytest.raises(ValueError, match="for sampler 'poisson' only"):
        replace(ALL, accounting="flair2022")


def test_rescaled_noise_is_the_same_on_the_mean_and_never_has_an_epsilon_of_its_own():
    large = noisy(FLAIR, 17.333271)
    small = replace(large, trained=200)
    assert small.noise_multiplier * small.scale == pytest.approx(0.69333, abs=1e-5)
    assert small.noise_multiplier * small.scale / 200 == pytest.approx(large.noise_on_mean) == small.noise_on_mean
    alone, simulated = spent(large, DELTA), spent(small, DELTA)
    assert (alone.simulated, simulated.simulated) == (False, True)
    assert simulated.epsilon == alone.epsilon
    assert simulated.holds_for_cohort == 5_000
    assert epsilon(replace(FLAIR, cohort_size=200), 0.69333) > 2 * alone.epsilon  # what the small cohort costs
    with pytest.raises(ValueError, match="from 1 to the 5,000 it stands for, got 6,000"):
        replace(large, trained=6_000)


def test_noise_for_the_count_of_adaptive_clipping_is_taken_from_the_budget():
    mechanism = replace(noisy(FLAIR, 17.333271), count_noise=250.0)
    assert mechanism.update_noise_multiplier == pytest.approx(17.343696, abs=1e-6)
    assert mechanism.update_noise_multiplier / 17.333271 == pytest.approx(1.0006014, abs=1e-7)
    assert mechanism.noise_on_mean == pytest.approx(17.343696 / 5_000)
    small = Mechanism(population=41_131, cohort_size=200, rounds=1, noise_multiplier=17.333271 / 25, count_noise=10.0)
    assert small.update_noise_multiplier == pytest.approx(mechanism.update_noise_multiplier / 25)  # the rule is homogeneous
    assert small.update_noise_multiplier == pytest.approx(0.693748, abs=1e-6)


def test_the_count_costs_as_one_release_with_the_updates_and_not_as_another():
    """One sample carries both. As two samples they would cost less than they do."""
    mechanism = replace(noisy(FLAIR, 17.333271), count_noise=250.0)
    both = [dp.GaussianDpEvent(mechanism.update_noise_multiplier), dp.GaussianDpEvent(2 * 250.0)]

    def cost(*events):
        rounds = dp.SelfComposedDpEvent(dp.ComposedDpEvent([dp.PoissonSampledDpEvent(5_000 / 41_131, e) for e in events]), 5_000)
        return dp.rdp.RdpAccountant().compose(rounds).get_epsilon(DELTA)

    found = spent(mechanism, DELTA, "rdp").epsilon
    assert found == pytest.approx(cost(dp.ComposedDpEvent(both)), rel=1e-12)
    assert found == pytest.approx(2.1713673, abs=1e-7)
    assert cost(*both) == pytest.approx(2.1713547, abs=1e-7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cohort_size": 50_000}, "cohort: 50,000 users cannot be drawn from a population of 41,131"),
        ({"cohort_size": 0}, "cohort: must be 1 or more, got 0"),
        ({"rounds": 0}, "rounds: must be 1 or more"),
        ({"population": math.nan}, "population: must be 1 or more, got nan"),
        ({"sampler": "poison"}, "sampler: unknown 'poison'; did you mean 'poisson'?"),
        ({"sampler": "all"}, "takes all 41,131 users in each round, not 5,000"),
        ({"accounting": "flair"}, "accounting: unknown 'flair'"),
        ({"count_noise": 5.0}, "count noise: 5 alone costs more than noise multiplier 17 allows: take more than 8.5; 250"),
        ({"count_noise": math.nan}, "count noise: must be a number above 0"),
        ({"noise_multiplier": 0.0}, "got 0; without noise, epsilon is infinite"),
        ({"noise_multiplier": math.nan}, "noise multiplier: must be from 0.01 to 1,000,000, got nan"),
        ({"noise_multiplier": -1.0}, "got -1$"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(changes, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        replace(noisy(FLAIR, 17.0), **changes)


@pytest.mark.parametrize(
    ("epsilon", "delta", "message"),
    [
        (0.0, DELTA, "epsilon: must lie above 0"),
        (math.nan, DELTA, "epsilon: must lie above 0"),
        (math.inf, DELTA, "at most 50, more protects nobody"),
        (1e-6, DELTA, "out of reach in 5,000 rounds, with any noise"),
        (2.0, 0.0, "delta: must lie between 0 and 1, got 0"),
        (2.0, 1.0, "delta: must lie between 0 and 1"),
        (2.0, math.nan, "delta: must lie between 0 and 1, got nan"),
    ],
)
def test_targets_out_of_reach_are_refused(epsilon, delta, message):
    with pytest.raises(ValueError, match=message):
        calibrate(FLAIR, epsilon, delta)


def test_hardly_any_noise_is_refused_or_called_what_it_is():
    with pytest.raises(ValueError, match=r"gives epsilon 160,979 or so \(by RDP\), which protects nobody"):
        epsilon(FLAIR, 0.1)
    assert epsilon(FLAIR, 0.1, accountant="rdp") > 1e5
    with pytest.raises(ValueError, match="1e-30 is less than the tails that PLD cuts off"):
        epsilon(FLAIR, 18.0, 1e-30)
    assert epsilon(FLAIR, 18.0, 1e-13) < epsilon(FLAIR, 18.0, 1e-30, "rdp") < math.inf
    with pytest.raises(ValueError, match="accountant: unknown 'prv'"):
        epsilon(FLAIR, 18.0, accountant="prv")


@pytest.mark.parametrize(("written", "expected"), [("1e-6", 1e-6), (1e-6, 1e-6), ("N^-2", 1e-4), (" N^-1.5 ", 1e-3)])
def test_delta_is_a_number_or_a_power_of_the_population(written, expected):
    assert delta_of(written, 100) == pytest.approx(expected)


@pytest.mark.parametrize("written", ["N", "N^1.1", "n^-1.1", "tiny", "N^-0", "2"])
def test_anything_else_is_no_delta(written):
    with pytest.raises(ValueError, match="delta: "):
        delta_of(written, 100)


def test_where_one_hardly_ever_takes_part_no_noise_is_asked_for():
    rare = Plan(population=10**6, cohort_size=1, rounds=5)
    with pytest.raises(ValueError, match=r"0\.001 is no less than the chance of ever taking part"):
        calibrate(rare, 2.0, 1e-3)


def test_loss_distributions_are_not_asked_where_renyi_says_that_nobody_is_protected(monkeypatch):
    """They would take gigabytes to save some noise."""
    enough = calibrate(FLAIR, 2.0, DELTA, "rdp")
    monkeypatch.setattr("fedlens.privacy.accounting.MOST_EPSILON", 2.0)
    assert calibrate(FLAIR, 1.99, DELTA) == enough  # and not the 17.4 that would do
    assert spent(enough, DELTA).epsilon <= 1.99
