"""How far clients lie from the whole."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlens.data import Assignment, Examples, Federation, Population, describe, mean_earth_movers_distance, statistics
from fedlens.data.statistics import (
    LabelCounts,
    cumulative_sizes,
    held_by_largest,
    pairwise_distances,
    pixel_distances,
    spread,
)


def multi_label(*clients: list[tuple[int, ...]], classes: int, names: tuple[str, ...] = ()) -> Federation:
    """Clients given by the labels of each of their examples."""
    everything = [labels for client in clients for labels in client]
    column = np.array([[c in labels for c in range(classes)] for labels in everything], dtype=np.uint8).reshape(-1, classes)
    offsets = np.cumsum([0, *map(len, clients)])
    return Federation(Examples({"labels": column}, class_names=names), Assignment(offsets, np.arange(len(everything))))


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


def test_each_client_has_a_distance_of_its_own():
    """The same two clients: 1.5 and 0.5; one without examples has none."""
    data = Examples({"label": np.repeat([0, 1], [10, 30])})
    counts = LabelCounts.of(Federation(data, Assignment(np.array([0, 10, 10, 40]), np.arange(40))))
    assert counts.earth_movers_distances == pytest.approx([1.5, np.nan, 0.5], nan_ok=True)
    assert counts.per_client.tolist() == [10, 0, 30]
    assert counts.classes_per_client.tolist() == [1, 0, 1]


def test_labels_of_which_an_example_has_several_count_each():
    """A holds {0, 1} and {0}, B {1}: q = (⅔, ⅓) and (0, 1), p = (½, ½); distances ⅓ and 1, weighted by 3 and 1 labels ½."""
    federation = multi_label([(0, 1), (0,)], [(1,)], classes=2)
    counts = LabelCounts.of(federation)
    assert counts.per_label.tolist() == [2, 2]
    assert counts.share_of_holders.tolist() == [0.5, 1.0]
    assert counts.earth_movers_distances == pytest.approx([1 / 3, 1])
    assert counts.mean_earth_movers_distance == pytest.approx(0.5)
    found = describe(Population(federation))
    assert (found["classes"], found["label_counts"], found["label_held_by"]) == (2, {"0": 2, "1": 2}, {"0": 0.5, "1": 1.0})
    assert found["classes_per_client"]["mean"] == 1.5


def test_an_example_without_labels_makes_no_label_but_its_client_counts_as_one_that_lacks_them():
    counts = LabelCounts.of(multi_label([()], [(1,), ()], classes=3))
    assert counts.share_of_holders.tolist() == [0, 0.5, 0]
    assert counts.earth_movers_distances == pytest.approx([np.nan, 0], nan_ok=True)
    found = describe(Population(multi_label([()], classes=2)))
    assert (found["mean_earth_movers_distance"], found["classes_per_client"], found["earth_movers_distances"]) == (0, {}, {})


@pytest.mark.parametrize("block", [statistics.BLOCK, 12])
def test_pairs_that_occur_say_as_much_as_the_whole_table(monkeypatch, block):
    """However many cells are read at once."""
    monkeypatch.setattr(statistics, "BLOCK", block)

    @given(st.lists(st.lists(st.sets(st.integers(0, 4)).map(tuple), max_size=5), min_size=1, max_size=5))
    @settings(max_examples=50, deadline=None)
    def check(clients):
        counts = LabelCounts.of(multi_label(*clients, classes=5))
        table = np.array([[sum(label in labels for labels in client) for label in range(5)] for client in clients])
        assert (counts.table(np.arange(len(clients))) == table).all()
        assert (counts.table(np.array([len(clients) - 1])) == table[-1:]).all()
        assert counts.per_label.tolist() == table.sum(axis=0).tolist()
        with np.errstate(invalid="ignore"):
            shares, everything = table / table.sum(axis=1, keepdims=True), table.sum(axis=0) / table.sum()
        assert counts.earth_movers_distances == pytest.approx(np.abs(shares - everything).sum(axis=1), nan_ok=True)

    check()


def test_the_first_column_that_holds_labels_is_described():
    columns = {
        "mask": np.zeros((4, 3, 3), dtype=np.uint8),
        "score": np.zeros(4),
        "labels": np.eye(4, dtype=bool),
        "label": np.zeros(4, dtype=int),
    }
    population = Population(Federation.pooled(Examples(columns)))
    assert describe(population)["classes"] == 1
    assert describe(population, ("mask", "nothing", "score", "labels", "label"))["classes"] == 4
    assert "classes" not in describe(population, ("mask", "score"))


def test_names_that_two_labels_share_are_told_apart():
    assert list(describe(Population(multi_label([(0, 1, 2)], classes=3, names=("mouse", "cat", "mouse"))))["label_counts"]) == [
        "mouse (0)", "cat", "mouse (2)"
    ]  # fmt: skip


def test_large_clients_hold_much():
    sizes = np.array([1, 3, 0, 4])
    assert cumulative_sizes(sizes).tolist() == [0, 0.5, 0.875, 1, 1]
    assert [held_by_largest(sizes, percent) for percent in (1, 25, 50, 100)] == [0.5, 0.5, 0.875, 1]
    assert held_by_largest(np.arange(1, 31), 10) == pytest.approx((28 + 29 + 30) / 465)
    assert cumulative_sizes(np.zeros(2, dtype=int)).tolist() == [0, 0, 0]


def test_quantiles_are_those_of_the_values():
    assert spread(np.arange(101)) == {"min": 0, "q10": 10, "q25": 25, "median": 50, "q75": 75, "q90": 90, "max": 100, "mean": 50}
    assert spread(np.array([])) == {}


def test_distances_between_two_clients():
    """(1, 0), (½, ½), (0, 1): L1 1 and 2; Jensen–Shannon of the first two √(½ log₂ 4/3 + ¼ log₂ 2/3 + ¼ log₂ 2), of the ends 1."""
    found = pairwise_distances(np.array([[1, 0], [0.5, 0.5], [0, 1], [0, 1]]))
    half = np.sqrt(np.log2(4 / 3) / 2 + np.log2(2 / 3) / 4 + 1 / 4)
    assert found["l1"] == pytest.approx([1, 2, 2, 1, 1, 0])
    assert found["jensen_shannon"] == pytest.approx([half, 1, 1, half, half, 0])


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=6))
@settings(max_examples=200, deadline=None)
def test_clients_of_all_but_equal_proportions_lie_all_but_nowhere_apart(weights):
    """Rounding must not make the root of what is a little less than nothing."""
    shares = np.array(weights) / sum(weights)
    for distances in pairwise_distances(np.stack([shares, np.nextafter(shares, 1)])).values():
        assert 0 <= distances[0] < 1e-7


@pytest.mark.parametrize(("clients", "compared"), [(1, False), (2, True), (200, True), (201, False)])
def test_every_two_clients_are_compared_where_they_are_few(clients, compared):
    data = Examples({"label": np.arange(clients)})
    found = describe(Population(Federation(data, Assignment(np.arange(clients + 1), np.arange(clients)))))
    assert ("pairwise_label_distances" in found) == compared
    if compared:
        assert found["pairwise_label_distances"]["l1"]["min"] == 2


def shaded(*greys: int, size: int = 3, channels: int = 3) -> Examples:
    """Pictures of one colour each."""
    return Examples(
        {"image": np.array(greys, dtype=np.uint8)[:, None, None, None].repeat(size, 1).repeat(size, 2).repeat(channels, 3)}
    )


@pytest.mark.parametrize(("size", "channels"), [(1, 1), (3, 3), (130, 4)])
def test_clients_whose_pictures_are_dark_and_bright_lie_half_the_difference_from_the_whole(size, channels):
    """Half of all pixels are 10 and half 110: moving a client's to them costs half of 100; dealt out at random, half or nothing."""
    data = shaded(10, 10, 110, 110, size=size, channels=channels)
    found = pixel_distances(Federation(data, Assignment(np.array([0, 2, 2, 4]), np.arange(4))))
    assert found.held == pytest.approx([50, 50])
    assert set(np.round(found.dealt_anew, 6)) <= {0.0, 50.0}
    chance = [
        pixel_distances(Federation(data, Assignment(np.array([0, 2, 4]), np.arange(4))), seed).dealt_anew[0] for seed in range(30)
    ]
    assert np.mean(chance) == pytest.approx(100 / 6, abs=13)  # of the three ways to pair four pictures, one keeps the pairs


def test_pixels_are_compared_on_a_sample_that_the_seed_decides():
    generator = np.random.default_rng(0)
    data = Examples({"image": generator.integers(0, 256, (600, 2, 2, 1), dtype=np.uint8)})
    federation = Federation(data, Assignment(np.arange(0, 601, 2), np.arange(600)))
    first, again, other = (pixel_distances(federation, seed, clients=20) for seed in (0, 0, 1))
    assert len(first.held) == len(first.dealt_anew) == 20
    assert (first.held == again.held).all()
    assert (first.dealt_anew == again.dealt_anew).all()
    assert (first.held != other.held).any()
    assert pixel_distances(Federation(Examples({"label": np.zeros(1)}), Assignment.pooled(1))) is None


def test_a_federation_without_clients_that_hold_anything_is_described_too():
    found = describe(Population(Federation(shaded(1), Assignment(np.array([0, 0, 0]), np.array([], dtype=int)))))
    assert (found["clients"], found["examples"], found["sizes"]["max"], found["largest_hold"]["50%"]) == (2, 0, 0, 0)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize("columns", ["label", "labels"])
def test_many_clients_are_described_at_once(columns):
    """400,000 examples of 50,000 clients, as many as FLAIR has: two seconds at most."""
    generator = np.random.default_rng(0)
    values = {"label": generator.integers(0, 1203, 400_000), "labels": generator.random((400_000, 17)) < 0.2}[columns]
    clients = Assignment.from_clients(generator.integers(0, 50_000, 400_000), 50_000)
    start = time.perf_counter()
    found = describe(Population(Federation(Examples({columns: values}), clients)))
    assert time.perf_counter() - start < 2
    assert sum(found["label_counts"].values()) == (values.sum() if columns == "labels" else 400_000)


@pytest.mark.parametrize("wrong", [-1, 10**9])
def test_labels_that_are_no_classes_are_refused_by_name(wrong):
    data = Examples({"label": np.array([0, 3, wrong, 1])})
    with pytest.raises(ValueError, match=f"example 2 has the label {wrong}: classes are counted from 0"):
        describe(Population(Federation.pooled(data)))


def test_a_column_of_more_classes_than_have_names_is_counted_in_full():
    data = Examples({"group": np.array([0, 4, 4, 1])}, class_names=("cat", "dog"))
    counts = LabelCounts.of(Federation(data, Assignment(np.array([0, 2, 4]), np.arange(4))), ["group"])
    assert counts.per_label.tolist() == [1, 1, 0, 0, 2]
    assert counts.per_client.tolist() == [2, 2]
