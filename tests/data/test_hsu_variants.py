"""Hsu's Dirichlet partition in its variants: quotas or single draws, what happens where a class runs out, sizes and priors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlens.data import Assignment, Examples, HsuDirichlet
from fedlens.data.partitions import hsu_dirichlet, pachinko
from fedlens.data.partitions.dirichlet import _among, _dirichlets, _restricted

RULES = [("quota", "redraw"), ("quota", "renormalize"), ("multinomial", "redraw"), ("multinomial", "renormalize")]
ALPHAS = [0.0, 1e-300, 1e-6, 0.05, 1.0, 1e9, float("inf")]


def cifar(classes: int) -> np.ndarray:
    return np.repeat(np.arange(classes), 50_000 // classes)


def table(clients: Assignment, labels: np.ndarray) -> np.ndarray:
    """How many examples of each class each client holds."""
    return np.stack([np.bincount(labels[clients.of_client(k)], minlength=labels.max() + 1) for k in range(len(clients))])


def distance(clients: Assignment, labels: np.ndarray) -> float:
    """Σ_k (n_k / n) ‖q_k − p‖₁ of equally large clients."""
    q = table(clients, labels) / clients.sizes[:, None]
    return float(np.abs(q - q.mean(axis=0)).sum(axis=1).mean())


@pytest.mark.parametrize(
    ("classes", "alpha", "counts", "mean", "deviation", "classes_per_client"),
    [
        (10, 0.05, "quota", 1.758, 0.012, 1.37),
        (10, 1.0, "quota", 1.447, 0.019, 4.74),
        (10, 100.0, "quota", 0.258, 0.006, 9.88),
        (100, 0.5, "quota", 1.931, 0.001, 3.91),
        (100, 10.0, "quota", 1.559, 0.008, 30.3),
        (100, 1000.0, "quota", 0.267, 0.003, 98.6),
        (10, 0.05, "multinomial", 1.754, 0.008, 1.38),
        (10, 1.0, "multinomial", 1.454, 0.023, 4.55),
        (10, 100.0, "multinomial", 0.284, 0.007, 9.84),
        (100, 0.5, "multinomial", 1.931, 0.002, 3.89),
        (100, 10.0, "multinomial", 1.568, 0.006, 29.0),
        (100, 1000.0, "multinomial", 0.455, 0.005, 95.9),
    ],
)
def test_equation_5_is_as_far_from_identical_as_was_measured(classes, alpha, counts, mean, deviation, classes_per_client):
    """Mean and deviation of 20 draws by another program (6 of single draws); here the mean of 4.

    Redrawing gives 1.915 ± 0.002 for 100 classes at α = 0.5, and quotas 0.267 at α = 1000: neither is taken for the other.
    """
    labels = cifar(classes)
    divided = [
        hsu_dirichlet(labels, 100, alpha, np.random.default_rng(seed), counts=counts, on_exhaust="renormalize") for seed in range(4)
    ]
    assert np.mean([distance(clients, labels) for clients in divided]) == pytest.approx(mean, abs=2.8 * deviation)
    present = np.mean([(table(clients, labels) > 0).sum(axis=1).mean() for clients in divided])
    assert present == pytest.approx(classes_per_client, rel=0.06)


@pytest.mark.parametrize("alpha", [0.05, 0.5])
def test_the_default_is_quotas_with_redraws_and_fits_the_published_partition(alpha):
    labels, published = cifar(10), {0.05: 1.7519, 0.5: 1.5616}[alpha]
    plain = hsu_dirichlet(labels, 100, alpha, np.random.default_rng(3))
    named = hsu_dirichlet(
        labels, 100, alpha, np.random.default_rng(3), counts="quota", on_exhaust="redraw", size=500, prior=[1] * 10
    )
    assert np.array_equal(plain.examples, named.examples)
    assert distance(plain, labels) == pytest.approx(published, abs=0.04)


def test_the_bits_of_the_default_stay_what_they_were():
    """Written down before there were variants: whoever published a partition by its seed gets it again."""
    clients = hsu_dirichlet(np.arange(60) % 4, 5, 1.0, np.random.default_rng(0))
    assert table(clients, np.arange(60) % 4).tolist() == [[5, 6, 1, 0], [0, 4, 8, 0], [7, 0, 5, 0], [1, 0, 1, 10], [2, 5, 0, 5]]
    assert clients.of_client(0).tolist() == [8, 44, 12, 40, 0, 9, 45, 57, 21, 49, 17, 50]


@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    clients=st.integers(1, 12),
    size=st.integers(1, 12),
    alpha=st.sampled_from(ALPHAS),
    rules=st.sampled_from(RULES),
    prior=st.none() | st.lists(st.sampled_from([0.0, 1e-12, 1.0, 7.0]), min_size=6, max_size=6),
    seed=st.integers(0, 3),
)
@settings(max_examples=300, deadline=None)
def test_every_variant_fills_clients_of_the_asked_size_and_gives_no_example_twice(labels, clients, size, alpha, rules, prior, seed):
    """Whatever the classes (some absent, some rare), the concentration, the prior and what is left over."""
    labels = np.array([*labels, 5])
    if clients > len(labels) or (prior is not None and not sum(prior)):
        return
    arguments = labels, clients, alpha, np.random.default_rng(seed), *rules, size, prior
    if clients * size > len(labels):
        with pytest.raises(ValueError, match="need more than the"):
            hsu_dirichlet(*arguments)
        return
    divided = hsu_dirichlet(*arguments)
    assert divided.sizes.tolist() == [size] * clients
    assert len(np.unique(divided.examples)) == clients * size


@pytest.mark.parametrize(("counts", "on_exhaust"), RULES)
def test_at_small_concentrations_nothing_is_divided_by_nothing(counts, on_exhaust):
    labels = cifar(10)[::10]
    for seed in range(50):
        clients = hsu_dirichlet(labels, 100, 0.05, np.random.default_rng(seed), counts=counts, on_exhaust=on_exhaust)
        assert sorted(clients.examples) == list(range(5_000))


def test_equation_5_is_the_proportions_that_are_left_and_where_nothing_is_what_is_left():
    q = np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(_restricted(q, np.array([0, 10, 10])), [0, 0.6, 0.4])
    np.testing.assert_allclose(_restricted(q, np.array([1, 1, 1])), q)
    np.testing.assert_allclose(_restricted(np.array([1.0, 0, 0]), np.array([0, 30, 10])), [0, 0.75, 0.25])
    np.testing.assert_allclose(_restricted(np.array([1.0, 5e-324, 0]), np.array([0, 30, 10])), [0, 0.75, 0.25])


def test_a_client_whose_only_class_has_run_out_takes_of_the_others_as_they_are_left():
    """α = 1e−300 draws one class a client. With p all on class 0, the second client finds none of it."""
    labels = np.repeat([0, 1, 2], [10, 30, 10])
    arguments = labels, 2, 1e-300, np.random.default_rng(0), "quota", "renormalize", 10, [1, 0, 0]
    assert table(hsu_dirichlet(*arguments), labels).tolist() == [
        [10, 0, 0],
        [0, 8, 2],
    ]  # 7.5 and 2.5: the first of equals rounds up
    arguments = labels, 5, 1e-300, np.random.default_rng(0), "multinomial", "redraw", 10, [1, 0, 0]
    assert table(hsu_dirichlet(*arguments), labels).sum(axis=0).tolist() == [10, 30, 10]


def test_equation_5_draws_among_all_classes_also_those_that_have_run_out():
    """Each of five clients draws one class: by equation 5, who draws one that is used up gets a mixture; by a redraw, nobody."""
    labels = np.repeat([0, 1, 2], [10, 30, 10])
    mixed = dict.fromkeys(("redraw", "renormalize"), 0)
    for on_exhaust in mixed:
        for seed in range(20):
            clients = hsu_dirichlet(labels, 5, 1e-300, np.random.default_rng(seed), on_exhaust=on_exhaust)
            mixed[on_exhaust] += ((table(clients, labels) > 0).sum(axis=1) > 1).any()
    assert mixed["redraw"] == 0
    assert mixed["renormalize"] > 2


@pytest.mark.parametrize(("counts", "on_exhaust"), RULES)
@pytest.mark.parametrize(("classes", "expected"), [(10, 1.8), (100, 1.98)])
def test_without_concentration_every_variant_gives_one_class_a_client(counts, on_exhaust, classes, expected):
    labels = cifar(classes)
    clients = hsu_dirichlet(labels, 100, 0.0, np.random.default_rng(0), counts=counts, on_exhaust=on_exhaust)
    assert distance(clients, labels) == pytest.approx(expected)
    held = table(clients, labels)
    assert ((held > 0).sum(axis=0) == 100 // classes).all()


def test_quotas_are_the_proportions_and_single_draws_vary_as_a_multinomial_does():
    labels = cifar(10)
    for counts, low, high in (("quota", 0, 0), ("multinomial", 35, 55)):  # 500 · 0.1 · 0.9 = 45
        clients = hsu_dirichlet(labels, 50, float("inf"), np.random.default_rng(0), counts=counts, size=500)
        assert low <= table(clients, labels).var() <= high


def test_a_prior_shifts_what_clients_hold():
    labels, prior = cifar(10), np.arange(10) / 45
    clients = hsu_dirichlet(labels, 20, float("inf"), np.random.default_rng(0), size=450, prior=prior.tolist())
    assert (table(clients, labels) == np.arange(10) * 10).all()
    part = HsuDirichlet(
        clients=20, alpha=float("inf"), size=450, prior=tuple(prior), counts="multinomial", on_exhaust="renormalize"
    )
    held = table(part.assign(Examples({"label": labels}), seed=0), labels)
    assert held.sum(axis=1).tolist() == [450] * 20
    np.testing.assert_allclose(held.mean(axis=0), np.arange(10) * 10, atol=8)


@pytest.mark.parametrize("prior", [[1.0], [0.0] * 10, [-1.0] + [1.0] * 9, [float("nan")] * 10])
def test_priors_that_are_none_are_refused(prior):
    with pytest.raises(ValueError, match="the prior must be a weight of 0 or more for each of 10 classes, not all 0"):
        hsu_dirichlet(cifar(10), 10, 1.0, np.random.default_rng(0), prior=prior)


def test_a_concentration_for_each_class_is_a_tenth_of_the_total_of_ten():
    """What other code calls α = 0.1 for each of ten classes is α = 1 here: E q_c² = (1 + α / C) / (1 + α) / C."""
    labels = cifar(10)
    for each_class in (0.1, 10.0):
        alpha = 10 * each_class
        clients = hsu_dirichlet(labels, 1, alpha, np.random.default_rng(0), size=5_000)
        many = [hsu_dirichlet(labels, 1, alpha, np.random.default_rng(seed), size=4_000) for seed in range(300)]
        squares = np.mean([(table(one, labels)[0] / 4_000) ** 2 for one in many])
        assert clients.sizes.tolist() == [5_000]
        assert squares == pytest.approx((1 + alpha / 10) / (1 + alpha) / 10, rel=0.08)


@pytest.mark.parametrize("concentration", [1e-9, 0.1, 1.0, 1e6])
def test_gamma_draws_in_logarithms_are_dirichlet(concentration):
    """Var q_i = (1/n)(1 − 1/n) / (nα + 1), down to where gamma variables themselves would all be nothing."""
    there = np.broadcast_to(np.array([True, True, False, True]), (20_000, 4))
    drawn = _dirichlets(concentration, there, np.random.default_rng(0))
    np.testing.assert_allclose(drawn.sum(axis=1), 1)
    assert (drawn[:, 2] == 0).all()
    np.testing.assert_allclose(drawn[:, [0, 1, 3]].mean(axis=0), 1 / 3, atol=0.015)
    np.testing.assert_allclose(drawn[:, [0, 1, 3]].var(axis=0), 2 / 9 / (3 * concentration + 1), rtol=0.05)
    assert (_dirichlets(concentration, np.zeros((2, 3), dtype=bool), np.random.default_rng(0)) == 0).all()


def test_of_those_that_weigh_nothing_each_is_as_likely():
    weights, there = np.array([[0.5, 0.5, 0], [0, 0, 1], [1, 1, 1]]), np.array([[1, 0, 1], [1, 1, 0], [0, 0, 0]], dtype=bool)
    assert _among(weights, there).tolist() == [[1, 0, 0], [0.5, 0.5, 0], [0, 0, 0]]


def test_pachinko_draws_the_group_first_and_then_a_class_that_is_left_in_it():
    """A group's share does not shrink with its classes: of the first, one class has one image, and it is half of all draws."""
    fine = np.repeat([0, 1, 2], [1, 4_000, 4_000])
    coarse = np.array([0, 0, 1])[fine]
    clients = pachinko(fine, coarse, 4, 1_000, 1e9, 1e9, np.random.default_rng(0))
    held = table(clients, fine)
    assert held[:, 0].sum() == 1
    np.testing.assert_allclose(held[:, 2], 500, atol=70)


@given(
    fine=st.lists(st.integers(0, 7), min_size=1, max_size=60),
    clients=st.integers(1, 6),
    alpha=st.sampled_from([1e-6, 0.1, 10.0, 1e9]),
    beta=st.sampled_from([1e-6, 0.1, 10.0, 1e9]),
    seed=st.integers(0, 3),
)
@settings(max_examples=150, deadline=None)
def test_pachinko_fills_every_client_whatever_is_there(fine, clients, alpha, beta, seed):
    fine = np.array(fine)
    size = len(fine) // clients
    if not size:
        return
    divided = pachinko(fine, np.array([0, 0, 0, 2, 2, 3, 3, 5])[fine], clients, size, alpha, beta, np.random.default_rng(seed))
    assert divided.sizes.tolist() == [size] * clients
    assert len(np.unique(divided.examples)) == clients * size
