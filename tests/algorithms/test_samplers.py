import numpy as np
import pytest
from scipy.stats import chisquare

from fedlens.algorithms.samplers import SAMPLERS, All, Poisson, Proportional, Uniform

SIZES = np.array([5, 0, 1, 10, 4])


def counts(sampler, sizes, cohort_size, rounds=4000):
    drawn = [sampler.sample(sizes, cohort_size, 0, t) for t in range(rounds)]
    return np.bincount(np.concatenate(drawn), minlength=len(sizes))


@pytest.mark.parametrize("name", [entry.name for entry in SAMPLERS])
def test_cohorts_are_sorted_distinct_and_a_function_of_seed_and_round(name):
    sampler, size = SAMPLERS.get(name)(), 20 if name == "all" else 6
    sizes = np.arange(1, 21)
    cohorts = [sampler.sample(sizes, size, 3, t) for t in range(30)]
    assert all((np.diff(cohort) > 0).all() for cohort in cohorts)
    again = [sampler.sample(sizes, size, 3, t) for t in reversed(range(30))][::-1]
    assert all(np.array_equal(one, other) for one, other in zip(cohorts, again, strict=True))
    if name != "all":
        assert len({tuple(cohort) for cohort in cohorts}) > 20
        assert any(not np.array_equal(sampler.sample(sizes, size, 4, t), cohorts[t]) for t in range(30))


def test_uniform_takes_every_client_equally_often():
    assert chisquare(counts(Uniform(), SIZES, 2)).pvalue > 0.001


def test_poisson_takes_every_client_with_the_same_probability_and_independently():
    draws = np.array([np.isin(np.arange(5), Poisson().sample(SIZES, 2, 0, t)) for t in range(4000)])
    assert abs(draws.mean(axis=0) - 0.4).max() < 4 * np.sqrt(0.24 / 4000)
    correlation = np.corrcoef(draws.T)[np.triu_indices(5, 1)]
    assert abs(correlation).max() < 4 / np.sqrt(4000)
    assert (draws.sum(axis=1) == 0).any()


def test_proportional_takes_single_clients_in_proportion_to_their_sizes_and_never_an_empty_one():
    found = counts(Proportional(), SIZES, 1)
    assert found[1] == 0
    assert chisquare(found[SIZES > 0], 4000 * SIZES[SIZES > 0] / SIZES.sum()).pvalue > 0.001


def test_all_takes_all():
    assert All().sample(SIZES, 5, 0, 0).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("sampler", "cohort_size", "message"),
    [(Uniform(), 6, "population of 5"), (Proportional(), 5, "only 4 of 5 have any"), (All(), 4, "takes all 5 clients")],
)
def test_impossible_cohorts_are_refused(sampler, cohort_size, message):
    with pytest.raises(ValueError, match=message):
        sampler.check(SIZES, cohort_size)
