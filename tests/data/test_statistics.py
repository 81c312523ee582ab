"""How far clients lie from the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlens.data import Assignment, Examples, Federation, mean_earth_movers_distance


def distance(*clients: list[int], classes: int, dtype: type = np.int64) -> float:
    labels = np.array([label for client in clients for label in client], dtype=dtype)
    offsets = np.cumsum([0, *map(len, clients)])
    return mean_earth_movers_distance(Federation(Examples({"label": labels}), Assignment(offsets, np.arange(len(labels)))), classes)


def test_two_clients_of_one_class_each():
    """n = (10, 30), q = (1, 0) and (0, 1): p = (¼, ¾), distances 1.5 and 0.5, weighted 0.75 (specs/hsu-and-datasets.md 3.7)."""
    assert distance([0] * 10, [1] * 30, classes=2) == pytest.approx(0.75)


def test_clients_with_m_classes_of_uniform_c_lie_at_two_times_one_minus_m_over_c():
    assert distance([0, 1], [2, 3], [4, 5], [6, 7], classes=8) == pytest.approx(2 * (1 - 2 / 8))
    assert distance([0, 1], [1, 0], classes=2) == 0


def test_examples_of_nobody_do_not_count():
    data = Examples({"label": np.array([0, 1, 1, 1, 1])})
    assert mean_earth_movers_distance(Federation(data, Assignment(np.array([0, 1, 2]), np.array([0, 1]))), 2) == 1.0


@given(
    st.lists(st.lists(st.integers(0, 199), max_size=8), min_size=1, max_size=5).filter(any), st.sampled_from([np.uint8, np.int64])
)
@settings(max_examples=50, deadline=None)
def test_it_is_the_definition_client_by_client(clients, dtype):
    everything = [label for client in clients for label in client]

    def share(labels: list[int], label: int) -> float:
        return labels.count(label) / len(labels)

    expected = sum(
        len(client) / len(everything) * sum(abs(share(client, label) - share(everything, label)) for label in set(everything))
        for client in clients
        if client
    )
    assert distance(*clients, classes=200, dtype=dtype) == pytest.approx(expected)
