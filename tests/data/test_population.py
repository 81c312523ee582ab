"""Who holds which examples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlens.data import Assignment, Examples, Federation, Population

CLIENTS = st.integers(1, 6).flatmap(lambda k: st.tuples(st.just(k), st.lists(st.integers(-1, k - 1), max_size=40)))


def assignment(*sizes: int) -> Assignment:
    ids = np.random.default_rng(0).permutation(sum(sizes))
    return Assignment(np.concatenate(([0], np.cumsum(sizes))), ids, [f"client {k}" for k in range(len(sizes))])


def examples(count: int) -> Examples:
    return Examples({"label": np.arange(count) % 4})


@given(CLIENTS)
@settings(max_examples=60, deadline=None)
def test_from_clients_groups_the_examples_and_leaves_out_minus_one(drawn):
    clients, client_of = drawn
    grouped = Assignment.from_clients(np.array(client_of, dtype=np.int64), clients)
    assert len(grouped) == clients
    for k in range(clients):
        assert grouped.of_client(k).tolist() == [example for example, client in enumerate(client_of) if client == k]
    assert grouped.sizes.tolist() == [client_of.count(k) for k in range(clients)]
    assert np.array_equal(np.array(client_of, dtype=np.int64)[grouped.examples], grouped.client_of_each())


@pytest.mark.parametrize("client", [[0, 2], [-2, 0], [0, 1, 100]])
def test_from_clients_refuses_clients_that_are_not_there(client):
    with pytest.raises(ValueError, match=r"clients must lie in 0…1, or be −1; found"):
        Assignment.from_clients(np.array(client), 2)


@pytest.mark.parametrize("offsets", [[1, 3], [0, 2], [0, 4], [0, 2, 1, 3]])
def test_offsets_that_do_not_rise_from_zero_to_the_end_are_refused(offsets):
    with pytest.raises(ValueError, match="offsets must rise from 0"):
        Assignment(np.array(offsets), np.arange(3))


def test_there_must_be_a_name_for_each_client():
    with pytest.raises(ValueError, match="1 names for 2 clients"):
        Assignment(np.array([0, 1, 2]), np.arange(2), ["one"])


def test_clients_have_names_of_their_own():
    for names in (["a", "b", "a"], ["1", "x", 1]):
        with pytest.raises(ValueError, match=f"two clients are called '{names[0]}'"):
            Assignment(np.array([0, 1, 2, 3]), np.arange(3), names)


def test_the_examples_of_a_client_are_a_view():
    clients = assignment(3, 0, 4)
    assert all(np.shares_memory(clients.of_client(k), clients.examples) for k in (0, 2))
    assert len(clients.of_client(1)) == 0


def test_only_is_one_client_with_its_name_and_its_own_examples_as_a_view():
    clients = assignment(3, 0, 4)
    for k in range(3):
        alone = clients.only(k)
        assert (len(alone), alone.client_name(0)) == (1, f"client {k}")
        assert np.array_equal(alone.examples, clients.of_client(k))
    assert np.shares_memory(clients.only(2).examples, clients.examples)


def test_without_names_a_client_is_called_by_its_number():
    nameless = Assignment(np.array([0, 1, 2]), np.arange(2))
    assert [nameless.client_name(1), nameless.only(1).client_name(0)] == ["1", "1"]


@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    fraction=st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.5, 0.9, 1.0]),
    seed=st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_hold_out_splits_every_client_into_two_with_a_rounded_share_aside(sizes, fraction, seed):
    clients = assignment(*sizes)
    kept, aside = clients.hold_out(fraction, seed)
    assert kept.names == aside.names == clients.names
    for k, size in enumerate(sizes):
        assert len(aside.of_client(k)) == round(fraction * size)  # Python and NumPy both round half to even
        both = np.concatenate([kept.of_client(k), aside.of_client(k)])
        assert sorted(both) == sorted(clients.of_client(k))


def test_hold_out_is_a_function_of_the_seed_and_independent_of_the_order_of_examples_and_clients():
    clients = Assignment(np.array([0, 40, 100]), np.arange(100))
    shuffled = Assignment(np.array([0, 40, 100]), np.concatenate([np.arange(40)[::-1], np.arange(40, 100)[::-1]]))
    aside = [set(part.hold_out(0.3, seed)[1].examples) for part, seed in ((clients, 1), (clients, 1), (shuffled, 1), (clients, 2))]
    assert aside[0] == aside[1] == aside[2]
    assert aside[0] != aside[3]


def test_hold_out_takes_every_example_equally_often():
    clients = Assignment(np.array([0, 10, 20]), np.arange(20))
    taken = np.zeros(20)
    for seed in range(400):
        taken[clients.hold_out(0.3, seed)[1].examples] += 1
    assert np.abs(taken - 120).max() < 4.5 * np.sqrt(400 * 0.3 * 0.7)


def test_a_federation_refuses_examples_that_are_not_there():
    with pytest.raises(ValueError, match=r"example ids must lie in 0…3; found 0…4"):
        Federation(examples(4), Assignment.pooled(5))


def test_pooled_is_one_client_that_holds_everything_in_order():
    pooled = Federation.pooled(examples(5)).clients
    assert (len(pooled), pooled.client_name(0), pooled.examples.tolist()) == (1, "all", [0, 1, 2, 3, 4])


def test_the_pool_of_a_population_holds_what_its_clients_hold_and_is_evaluated_alike():
    data = examples(10)
    clients = Assignment(np.array([0, 2, 5]), np.array([9, 1, 4, 0, 3]))
    population = Population(Federation(data, clients), test=Federation.pooled(examples(3)))
    pool = population.pool()
    assert (len(population), len(pool)) == (2, 1)
    assert pool.train.clients.examples.tolist() == [0, 1, 3, 4, 9]
    assert pool.evaluations() == population.evaluations() == {"test": population.test}


def test_the_fingerprint_of_a_population_tells_who_holds_what_and_what_it_is_measured_on():
    data, other = examples(4), Examples({"label": np.array([1, 1, 1, 1])})
    two, moved = Assignment(np.array([0, 2, 4]), np.arange(4)), Assignment(np.array([0, 1, 4]), np.arange(4))
    swapped = Assignment(np.array([0, 2, 4]), np.array([2, 3, 0, 1]))
    populations = [
        *(Population(Federation(data, who)) for who in (two, moved, swapped)),
        Population(Federation(other, two)),
        Population(Federation(data, two), test=Federation.pooled(data)),
        Population(Federation(data, two), validation=Federation.pooled(data)),
    ]
    assert len({population.fingerprint() for population in populations}) == len(populations)
    assert Population(Federation(examples(4), two)).fingerprint() == populations[0].fingerprint()


@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    share=st.sampled_from([0.0, 0.25, 0.5, 0.9]),
    seed=st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_clients_are_kept_aside_whole_and_under_their_names(sizes, share, seed):
    clients = assignment(*sizes)
    kept, aside = clients.hold_out_clients(share, seed)
    assert len(aside) == round(share * len(sizes))
    found = {name: part.of_client(k).tolist() for part in (kept, aside) for k, name in enumerate(part.names)}
    assert len(found) == len(kept) + len(aside)
    assert found == {clients.client_name(k): clients.of_client(k).tolist() for k in range(len(clients))}
