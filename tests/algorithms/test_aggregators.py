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


def updates(rows, sizes=SIZES, vectors=VECTORS):
    rows = torch.as_tensor(rows)
    return Updates(
        clients=rows.numpy(),
        sizes=sizes[rows],
        vectors=vectors[rows] * (sizes[rows] > 0)[:, None],
        statistics=vectors[rows, :2],
        counters=torch.arange(5)[rows, None] + 1,
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
