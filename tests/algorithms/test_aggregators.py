import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlens.algorithms.aggregators import AGGREGATORS, UniformMean, WeightedMean
from fedlens.algorithms.updates import Updates

GENERATOR = torch.Generator().manual_seed(0)
VECTORS = torch.randn(5, 8, generator=GENERATOR)
SIZES = torch.tensor([3.0, 0.0, 10.0, 1.0, 6.0])


def updates(rows, sizes=SIZES, vectors=VECTORS, **buffers):
    rows = torch.as_tensor(rows)
    return Updates(
        clients=rows.numpy(),
        sizes=sizes[rows],
        vectors=vectors[rows] * (sizes[rows] > 0)[:, None],
        statistics=buffers.get("statistics", vectors[:, :2])[rows],
        counters=buffers.get("counters", torch.arange(5)[:, None] + 1)[rows],
        loss=torch.zeros(len(rows)),
        trained=np.zeros(len(rows), dtype=np.int64),
    )


def test_weighted_mean_is_numpy_s_average():
    expected = np.average(VECTORS.numpy(), axis=0, weights=SIZES.numpy())
    np.testing.assert_allclose(WeightedMean().combine([updates(range(5))]).vector, expected, rtol=1e-5)


def test_uniform_mean_counts_whoever_trained():
    expected = VECTORS[SIZES > 0].mean(dim=0)
    torch.testing.assert_close(UniformMean().combine([updates(range(5))]).vector, expected)


@pytest.mark.parametrize("name", [entry.name for entry in AGGREGATORS])
@given(order=st.permutations(range(5)), cut=st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_order_and_chunks_change_rounding_only(name, order, cut):
    aggregator = AGGREGATORS.get(name)()
    whole = aggregator.combine([updates(range(5))])
    parts = aggregator.combine([updates(rows) for rows in (order[:cut], order[cut:]) if rows])
    torch.testing.assert_close(parts.vector, whole.vector)
    torch.testing.assert_close(parts.statistics, whole.statistics)
    assert torch.equal(parts.counters, whole.counters)


@pytest.mark.parametrize("name", [entry.name for entry in AGGREGATORS])
def test_clones_of_one_client_average_to_it(name):
    same = VECTORS[:1].expand(5, -1)
    combined = AGGREGATORS.get(name)().combine([updates(range(5), torch.full((5,), 2.0), same)])
    torch.testing.assert_close(combined.vector, VECTORS[0])


@pytest.mark.parametrize("name", [entry.name for entry in AGGREGATORS])
def test_nobody_with_examples_means_no_update(name):
    combined = AGGREGATORS.get(name)().combine([updates(range(5), torch.zeros(5))])
    assert combined.weight == 0
    assert torch.equal(combined.vector, torch.zeros(8))
    assert AGGREGATORS.get(name)().combine([]) is None


@pytest.mark.parametrize("name", [entry.name for entry in AGGREGATORS])
def test_buffers_that_all_agree_on_stay_to_the_bit(name):
    constant = torch.tensor([0.485, 0.456, 0.406, -np.inf, np.inf]).expand(5, -1)
    counters = torch.tensor([-1, 3, -7]).expand(5, -1)
    chunks = [updates(rows, statistics=constant, counters=counters) for rows in ([0, 1], [2, 3, 4])]
    combined = AGGREGATORS.get(name)().combine(chunks)
    assert torch.equal(combined.statistics, constant[0])
    assert torch.equal(combined.counters, counters[0])


@pytest.mark.parametrize("name", [entry.name for entry in AGGREGATORS])
def test_whoever_weighs_nothing_has_no_say_in_the_buffers(name):
    statistics, counters = VECTORS[:, :2].clone(), torch.full((5, 1), -4)
    expected = AGGREGATORS.get(name)().combine([updates([0, 2], statistics=statistics, counters=counters)])
    statistics[1], counters[1] = 100.0, 9  # client 1 has no examples
    combined = AGGREGATORS.get(name)().combine([updates([0, 1, 2], statistics=statistics, counters=counters)])
    torch.testing.assert_close(combined.statistics, expected.statistics)
    assert torch.equal(combined.counters, torch.tensor([-4]))
