"""How examples are divided among clients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedlens.data import (
    IID,
    Assignment,
    ClassDirichlet,
    Examples,
    FedCVLDA,
    Federation,
    HsuDirichlet,
    Natural,
    Pachinko,
    Pathological,
    Quantity,
    Shards,
    federate,
    mean_earth_movers_distance,
)
from fedlens.data.partitions import class_dirichlet, hsu_dirichlet, iid, natural, pachinko, pathological, shards
from fedlens.data.partitions.dirichlet import _apportion
from fedlens.data.partitions.quantity import sizes
from fedlens.data.sources import Sources

ALPHAS = [0.0, 1e-300, 1e-6, 0.05, 1.0, 100.0, 1e9, float("inf")]


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def balanced(classes: int, each: int) -> np.ndarray:
    return np.random.default_rng(99).permutation(np.repeat(np.arange(classes), each))


def class_counts(clients: Assignment, labels: np.ndarray) -> np.ndarray:
    return np.stack([np.bincount(labels[clients.of_client(k)], minlength=labels.max() + 1) for k in range(len(clients))])


def emd(clients: Assignment, labels: np.ndarray) -> float:
    return mean_earth_movers_distance(Federation(Examples({"label": labels}), clients), int(labels.max()) + 1)


@given(count=st.integers(1, 60), clients=st.integers(1, 60), seed=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_iid_deals_every_example_out_once_to_clients_whose_sizes_differ_by_one_at_most(count, clients, seed):
    if clients > count:
        with pytest.raises(ValueError, match=f"cannot divide {count} examples among {clients} clients"):
            iid(count, clients, generator(seed))
        return
    dealt = iid(count, clients, generator(seed))
    assert sorted(dealt.examples) == list(range(count))
    assert len(dealt) == clients
    assert dealt.sizes.max() - dealt.sizes.min() <= 1


@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    clients=st.integers(1, 12),
    alpha=st.sampled_from(ALPHAS),
    seed=st.integers(0, 3),
)
@settings(max_examples=150, deadline=None)
def test_hsu_dirichlet_gives_equal_sizes_and_no_example_twice(labels, clients, alpha, seed):
    """Whatever the classes (some absent, some rare), the concentration and the remainder."""
    labels = np.array(labels)
    if clients > len(labels):
        with pytest.raises(ValueError, match="cannot divide"):
            hsu_dirichlet(labels, clients, alpha, generator(seed))
        return
    divided = hsu_dirichlet(labels, clients, alpha, generator(seed))
    assert divided.sizes.tolist() == [len(labels) // clients] * clients
    assert len(np.unique(divided.examples)) == len(divided.examples)


def test_hsu_dirichlet_uses_every_example_where_the_sizes_divide():
    labels = balanced(10, 50)
    for alpha in ALPHAS:
        assert sorted(hsu_dirichlet(labels, 20, alpha, generator()).examples) == list(range(500))


def test_hsu_dirichlet_shuffles_the_examples_of_a_class():
    first, other = (hsu_dirichlet(np.zeros(40, dtype=np.int64), 2, 1.0, generator(seed)).of_client(0) for seed in (0, 1))
    assert set(first) != set(other)
    assert set(first) != set(range(20))


@pytest.mark.parametrize("alpha", [0.0, 1e-300])
def test_without_concentration_a_client_has_one_class_and_every_class_its_share_of_clients(alpha):
    counts = class_counts(hsu_dirichlet(balanced(10, 100), 20, alpha, generator()), balanced(10, 100))
    assert (np.sort(counts, axis=1)[:, :-1] == 0).all()
    assert ((counts > 0).sum(axis=0) == 2).all()


def test_with_infinite_concentration_every_client_has_the_proportions_of_the_whole():
    labels = np.repeat(np.arange(3), [100, 60, 40])
    counts = class_counts(hsu_dirichlet(labels, 10, float("inf"), generator()), labels)
    assert (counts == [10, 6, 4]).all()


@pytest.mark.parametrize(
    ("classes", "alpha", "published", "deviation", "classes_per_client"),
    [
        (10, 0.05, 1.761, 0.005, 1.34),
        (10, 0.1, 1.736, 0.008, 1.63),
        (10, 0.5, 1.579, 0.018, 3.33),
        (10, 1.0, 1.437, 0.026, 4.77),
        (10, 10.0, 0.726, 0.020, 9.54),
        (10, 100.0, 0.259, 0.007, 9.87),
        (100, 0.5, 1.915, 0.002, 5.04),
        (100, 10.0, 1.521, 0.006, 33.7),
        (100, 1000.0, 0.266, 0.003, 98.6),
    ],
)
def test_hsu_dirichlet_is_as_far_from_identical_as_the_specification_measured(
    classes, alpha, published, deviation, classes_per_client
):
    """specs/hsu-and-datasets.md, table of section 3.6, quota + redraw: mean and deviation of 20 seeds; here the mean of 4."""
    labels = balanced(classes, 50_000 // classes)
    divided = [hsu_dirichlet(labels, 100, alpha, generator(seed)) for seed in range(4)]
    assert np.mean([emd(clients, labels) for clients in divided]) == pytest.approx(published, abs=2.2 * deviation)  # 4 σ of both
    present = np.mean([(class_counts(clients, labels) > 0).sum(axis=1).mean() for clients in divided])
    assert present == pytest.approx(classes_per_client, rel=0.08)


@pytest.mark.parametrize(("classes", "expected"), [(10, 1.8), (100, 1.98)])
def test_one_class_a_client_has_the_distance_of_the_closed_form(classes, expected):
    labels = balanced(classes, 50_000 // classes)
    assert emd(hsu_dirichlet(labels, 100, 0.0, generator()), labels) == pytest.approx(expected)


def test_natural_has_a_client_for_each_id_named_by_it_in_sorted_order():
    ids = np.array(["zoe", "ann", "zoe", "bob", "ann"])
    clients = natural(ids)
    assert clients.names == ["ann", "bob", "zoe"]
    assert [clients.of_client(k).tolist() for k in range(3)] == [[1, 4], [3], [0, 2]]


def test_natural_takes_numbers_and_columns_of_one():
    for ids in (np.array([30, 7, 30]), np.array([[30], [7], [30]])):
        clients = natural(ids)
        assert clients.names == ["7", "30"]
        assert [clients.of_client(k).tolist() for k in range(2)] == [[1], [0, 2]]


@pytest.mark.parametrize("partition", [IID(clients=7), HsuDirichlet(clients=7, alpha=0.3)])
def test_a_seed_always_gives_the_same_partition_and_another_seed_another(partition):
    data = Examples({"label": balanced(10, 20)})
    first, again, other = (partition.assign(data, seed).examples.tolist() for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_parts_divide_as_their_functions_do():
    data = Examples({"label": balanced(4, 25), "user": np.arange(100) // 30})
    assert IID(clients=8).assign(data, 0).sizes.tolist() == [13, 13, 13, 13, 12, 12, 12, 12]
    assert HsuDirichlet(clients=8, alpha=0).assign(data, 0).sizes.tolist() == [12] * 8
    assert Natural(column="user").assign(data, 0).sizes.tolist() == [30, 30, 30, 10]
    with pytest.raises(KeyError, match="has no column 'client'"):
        Natural().assign(data, 0)


def test_federate_holds_validation_out_of_every_client_and_pools_the_test_set():
    data, test = Examples({"label": balanced(4, 25)}), Examples({"label": np.zeros(9, dtype=np.int64)})
    population = federate(Sources(data, test=test), IID(clients=10), validation=0.2, seed=3)
    whole = IID(clients=10).assign(data, 3)
    assert population.train.clients.sizes.tolist() == [8] * 10
    for k in range(10):
        both = np.concatenate([part.clients.of_client(k) for part in (population.train, population.validation)])
        assert sorted(both) == sorted(whole.of_client(k))
    assert population.test.clients.sizes.tolist() == [9]


def test_federate_takes_the_validation_split_that_is_there_and_refuses_to_make_another():
    data, own = Examples({"label": balanced(4, 25)}, "mine"), Examples({"label": np.zeros(9, dtype=np.int64)})
    population = federate(Sources(data, validation=own), IID(clients=10), validation=0.0, seed=3)
    assert population.validation.data is own
    assert population.train.clients.sizes.sum() == 100
    assert federate(Sources(data), IID(clients=10), validation=0.0, seed=3).evaluations() == {}
    with pytest.raises(ValueError, match="mine has a validation split of its own"):
        federate(Sources(data, validation=own), IID(clients=10), validation=0.1, seed=3)


@given(total=st.integers(0, 500), weights=st.lists(st.floats(0, 1), min_size=1, max_size=8).filter(lambda drawn: sum(drawn) > 1e-3))
@settings(max_examples=100, deadline=None)
def test_apportioned_counts_sum_to_the_total_and_lie_within_one_of_the_quotas(total, weights):
    proportions = np.array(weights) / sum(weights)
    counts = _apportion(total, proportions)
    assert counts.sum() == total
    assert (np.abs(counts - total * proportions) < 1 + 1e-9).all()


@pytest.mark.parametrize("how", ["iid", "natural"])
def test_a_million_examples_of_a_hundred_thousand_clients_are_slices_of_one_array(how):
    count, clients = 1_000_000, 100_000
    ids = np.random.default_rng(0).permutation(count) % clients
    divided = iid(count, clients, generator()) if how == "iid" else natural(ids)
    assert (divided.sizes == 10).all()
    assert np.array_equal(np.sort(divided.examples), np.arange(count))
    assert divided.examples.dtype == divided.offsets.dtype == np.int64
    if how == "natural":
        assert np.array_equal(ids[divided.examples], divided.client_of_each())
    for client in (0, 4_711, clients - 1):
        mine = divided.of_client(client)
        assert np.shares_memory(mine, divided.examples)
        assert mine.ctypes.data == divided.examples.ctypes.data + 10 * client * 8
    kept, aside = divided.hold_out(0.2, 0)
    assert (kept.sizes == 8).all()
    assert (aside.sizes == 2).all()
    assert np.array_equal(np.sort(np.concatenate([kept.examples, aside.examples])), np.arange(count))


LABELS = np.repeat(np.arange(100), 500)  # as in CIFAR-100


def divided(assignment, count):
    """Every example is held once; the table of how many of each class each client holds."""
    assert sorted(assignment.examples) == list(range(count))
    client = assignment.client_of_each()
    table = np.zeros((len(assignment), 100), dtype=int)
    np.add.at(table, (client, LABELS[assignment.examples]), 1)
    return table


@pytest.mark.parametrize(
    ("alpha", "smallest", "largest", "classes"),
    [(0.1, (150, 350), (640, 860), (30, 34)), (0.5, (310, 430), (530, 680), (71, 75)), (100, (440, 470), (500, 515), (100, 100))],
)
def test_the_capped_dirichlet_gives_the_sizes_and_classes_that_fedcv_s_gives(alpha, smallest, largest, classes):
    """Measured with the original's rule on CIFAR-100 with 100 clients: 191–728 images and 33 classes at α = 0.1, and so on."""
    table = divided(class_dirichlet(LABELS, 100, alpha, np.random.default_rng(0), least=10, capped=True), 50_000)
    held = table.sum(axis=1)
    assert smallest[0] <= held.min() <= smallest[1]
    assert largest[0] <= held.max() <= largest[1]
    assert classes[0] <= np.median((table > 0).sum(axis=1)) <= classes[1]


def test_without_a_cap_sizes_are_as_skewed_as_labels():
    generator = np.random.default_rng(0)
    draws = [class_dirichlet(LABELS, 100, 0.1, generator, capped=capped) for capped in (False, True)]
    free, capped = (divided(draw, 50_000).sum(axis=1) for draw in draws)
    assert free.std() > 1.3 * capped.std()


@pytest.mark.parametrize("alpha", [1e-12, 1e-3, 1e6])
@pytest.mark.parametrize("capped", [False, True])
def test_extreme_concentrations_are_no_trouble(alpha, capped):
    table = divided(class_dirichlet(LABELS, 50, alpha, np.random.default_rng(1), capped=capped), 50_000)
    assert (table > 0).sum() >= 100
    if alpha == 1e6 and not capped:
        assert (table.min(), table.max()) in ((10, 10), (9, 11))  # 500 / 50, but for what a cut rounds away


def test_the_two_dirichlets_over_clients_differ_by_the_cap():
    data = Examples({"label": LABELS})
    free, capped = (part(clients=100, alpha=0.1).assign(data, seed=0).sizes for part in (ClassDirichlet, FedCVLDA))
    assert free.std() > 1.3 * capped.std()


def test_a_least_size_that_cannot_be_reached_is_an_error(monkeypatch):
    monkeypatch.setattr("fedlens.data.partitions.dirichlet.RETRIES", 3)
    with pytest.raises(ValueError, match="3 draws gave no partition in which each of 100 clients holds 400"):
        class_dirichlet(LABELS, 100, 0.05, np.random.default_rng(0), least=400)


def test_shards_give_each_client_equally_many_images_of_few_classes():
    table = divided(shards(LABELS, 100, 5, np.random.default_rng(0)), 50_000)
    assert (table.sum(axis=1) == 500).all()
    assert (table > 0).sum(axis=1).max() == 5
    left_out = shards(np.arange(103) % 3, 10, 2, np.random.default_rng(0))
    assert len(set(left_out.examples)) == len(left_out.examples) == 100


@pytest.mark.parametrize(("clients", "classes"), [(100, 2), (7, 30), (50, 2), (10, 100)])
def test_pathological_clients_hold_exactly_so_many_classes_which_are_shared_evenly(clients, classes):
    table = divided(pathological(LABELS, clients, classes, np.random.default_rng(0)), 50_000)
    assert ((table > 0).sum(axis=1) == classes).all()
    holders = (table > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    shares = [column[column > 0] for column in table.T]
    assert max(share.max() - share.min() for share in shares) <= 1


@pytest.mark.parametrize(("clients", "classes", "message"), [(10, 101, "101 classes of 100"), (3, 2, "leave some of 100 classes")])
def test_pathological_divisions_that_cannot_be_are_refused(clients, classes, message):
    with pytest.raises(ValueError, match=message):
        pathological(LABELS, clients, classes, np.random.default_rng(0))


def test_quantities_follow_their_law_and_sum_to_all():
    exact = sizes(1_000, np.arange(1, 11) ** -1.0, least=0)
    assert exact.sum() == 1_000
    np.testing.assert_allclose(exact, 1_000 * np.arange(1, 11) ** -1.0 / (np.arange(1, 11) ** -1.0).sum(), atol=1)
    assert sizes(100, np.array([1e-300, 1.0, 1e-300]), least=5).tolist() == [5, 90, 5]
    data = Examples({"label": LABELS})
    for law, skew in (("dirichlet", 1e-9), ("lognormal", 2.0), ("power", 1.5)):
        assignment = Quantity(clients=50, law=law, skew=skew, least=3).assign(data, seed=1)
        divided(assignment, 50_000)
        assert assignment.sizes.min() >= 3
        assert assignment.sizes.std() > 500


def test_a_million_examples_and_a_hundred_thousand_clients_are_divided_in_seconds():
    labels = np.random.default_rng(0).integers(0, 10, 1_000_000)
    for part in (
        ClassDirichlet(clients=100_000, alpha=1.0, least=0),
        Shards(clients=100_000),
        Pathological(clients=100_000),
        Quantity(clients=100_000),
    ):
        assert len(part.assign(Examples({"label": labels}), seed=0)) == 100_000


GROUPS = np.arange(100) // 5  # of CIFAR-100's 100 classes


def test_pachinko_fills_equal_clients_with_few_groups_of_classes():
    """As TFF's CIFAR-100: 500 clients of 100, every image once."""
    table = divided(pachinko(LABELS, GROUPS[LABELS], 500, 100, 0.1, 10.0, np.random.default_rng(0)), 50_000)
    assert (table.sum(axis=1) == 100).all()
    by_group = table.reshape(500, 20, 5).sum(axis=2)
    assert 5.5 <= (by_group > 0)[:200].sum(axis=1).mean() <= 8  # 20 (1 − E(1 − q)¹⁰⁰) with q ~ Beta(0.1, 1.9) is 6.9
    known = by_group.argmax(axis=1)
    inside = table.reshape(500, 20, 5)[np.arange(500), known][:300]  # the later ones get what is left
    assert ((inside > 0).sum(axis=1) >= 4).mean() > 0.9  # Dir(10) within a group is nearly even


def test_pachinko_with_even_groups_is_even_and_needs_whole_groups():
    table = divided(pachinko(LABELS, GROUPS[LABELS], 10, 5_000, 1e6, 1e6, np.random.default_rng(0)), 50_000)
    assert abs(table[:5] - 50).max() < 40  # the last ones get what the first have left
    with pytest.raises(ValueError, match="every class must lie in one group"):
        pachinko(np.array([0, 0, 1]), np.array([0, 1, 1]), 1, 3, 0.1, 10.0, np.random.default_rng(0))


@pytest.mark.parametrize("aside", ["examples", "clients"])
def test_validation_and_test_are_kept_aside_of_every_client_or_of_the_clients(aside):
    data = Examples({"label": balanced(4, 250)})
    population = federate(Sources(data), IID(clients=10), validation=0.2, seed=3, test=0.3, aside=aside)
    parts = population.train, population.validation, population.test
    assert [len(part.clients.examples) for part in parts] == [500, 200, 300]
    assert sorted(np.concatenate([part.clients.examples for part in parts])) == list(range(1000))
    whole = IID(clients=10).assign(data, 3)
    if aside == "examples":
        assert [part.clients.sizes.tolist() for part in parts] == [[50] * 10, [20] * 10, [30] * 10]
        same = federate(Sources(data), IID(clients=10), validation=0.2, seed=3)
        np.testing.assert_array_equal(same.validation.clients.examples, population.validation.clients.examples)
    else:
        assert [part.clients.sizes.tolist() for part in parts] == [[100] * 5, [100] * 2, [100] * 3]
        for part in parts:
            for k, name in enumerate(part.clients.names):
                np.testing.assert_array_equal(part.clients.of_client(k), whole.of_client(int(name)))
    with pytest.raises(ValueError, match="has a test split of its own"):
        federate(Sources(data, test=data), IID(clients=10), test=0.1)


def test_some_client_is_left_to_train():
    with pytest.raises(ValueError, match="none is left to train"):
        federate(Sources(Examples({"label": np.zeros(4, dtype=np.int64)})), IID(clients=2), validation=0.8, aside="clients")


@pytest.mark.parametrize("part", [ClassDirichlet, FedCVLDA])
def test_more_than_there_is_is_refused_at_once(part, monkeypatch):
    monkeypatch.setattr("fedlens.data.partitions.dirichlet.RETRIES", 0)  # whoever draws ends with another error
    data = Examples({"label": LABELS})
    with pytest.raises(ValueError, match="cannot divide 50,000 examples among 100 clients: each needs 501 at least"):
        part(clients=100, least=501).assign(data, seed=0)
    with pytest.raises(ValueError, match="0 draws gave no partition"):
        part(clients=100, least=500).assign(data, seed=0)
    with pytest.raises(ValueError, match="cannot divide 40 examples among 5 clients: each needs 10 at least"):  # −1 are nobody's
        class_dirichlet(np.repeat([-1, 0], [60, 40]), 5, 1.0, np.random.default_rng(0), least=10)


def test_quantities_of_any_skew_are_numbers():
    data = Examples({"label": LABELS})
    for law in ("dirichlet", "lognormal", "power"):
        for skew in (1e-300, 1e3, 1e6):
            divided(Quantity(clients=50, law=law, skew=skew).assign(data, seed=1), 50_000)
        with pytest.raises(ValidationError, match="less than or equal"):
            Quantity(law=law, skew=1e308)
    largest = Quantity(clients=50, law="lognormal", skew=1e3).assign(data, seed=1).sizes.max()
    assert largest == 50_000 - 49


LABELLED = [
    HsuDirichlet(clients=2),
    ClassDirichlet(clients=2, least=0),
    FedCVLDA(clients=2, least=0),
    Pachinko(clients=2, size=2),
]


@pytest.mark.parametrize("partition", LABELLED, ids=lambda partition: partition.name)
@pytest.mark.parametrize("wrong", [-1, -2, 10**9])
def test_labels_that_are_no_classes_are_named(partition, wrong):
    labels = np.array([0, 1, 2, 0, 1, wrong, 2, 1])
    with pytest.raises(ValueError, match=f"example 5 has the label {wrong}: classes are counted from 0, up to 999,999"):
        partition.assign(Examples({"label": labels, "coarse_label": np.zeros(8, dtype=np.int64)}), seed=0)


def test_groups_of_classes_are_counted_from_nought_too():
    data = Examples({"label": np.zeros(8, dtype=np.int64), "coarse_label": np.full(8, -1)})
    with pytest.raises(ValueError, match="example 0 has the label -1"):
        Pachinko(clients=2, size=2).assign(data, seed=0)
