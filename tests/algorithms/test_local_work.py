from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedlens.algorithms.local_work import LOCAL_WORK, Epochs, Resampled, Steps

sizes_of_clients = st.lists(st.integers(0, 9), min_size=1, max_size=6)


def plan_for(work, sizes, cohort=None, seed=0, round=0):
    """A plan for clients of these sizes; client k holds 100 k, 100 k + 1, …"""
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    examples = np.concatenate([100 * k + np.arange(n) for k, n in enumerate(sizes)]).astype(np.int64)
    cohort = np.arange(len(sizes)) if cohort is None else np.array(cohort)
    return work.plan(offsets, examples, cohort, seed, round)


def batches(plan, slot):
    """The batches of a slot, as lists of examples."""
    first, last = plan.batch_of_slot[slot : slot + 2]
    return [plan.examples[plan.start_of_batch[b] : plan.start_of_batch[b + 1]].tolist() for b in range(first, last)]


def flat(lists):
    return list(chain.from_iterable(lists))


@given(sizes_of_clients, st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_epochs_show_every_example_once_a_pass_in_batches_that_do_not_cross_passes(sizes, batch_size, epochs):
    plan = plan_for(Epochs(epochs=epochs, batch_size=batch_size), sizes)
    for slot, size in enumerate(sizes):
        found = batches(plan, slot)
        assert len(found) == epochs * -(-size // batch_size)
        for epoch in range(epochs):
            part = found[epoch * len(found) // epochs : (epoch + 1) * len(found) // epochs]
            assert sorted(flat(part)) == list(range(100 * slot, 100 * slot + size))
    assert plan.sizes.tolist() == sizes


@given(sizes_of_clients, st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_dropped_last_batches_leave_only_full_ones(sizes, batch_size):
    plan = plan_for(Epochs(epochs=2, batch_size=batch_size, last_batch="drop"), sizes)
    for slot, size in enumerate(sizes):
        found = batches(plan, slot)
        assert [len(batch) for batch in found] == [batch_size] * (2 * (size // batch_size))
        assert plan.sizes[slot] == (size if size >= batch_size else 0)


@given(sizes_of_clients, st.integers(1, 4), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_steps_are_exactly_so_many_full_batches_that_use_examples_equally_often(sizes, batch_size, steps):
    plan = plan_for(Steps(steps=steps, batch_size=batch_size), sizes)
    for slot, size in enumerate(sizes):
        found = batches(plan, slot)
        assert [len(batch) for batch in found] == ([batch_size] * steps if size else [])
        if size:
            uses = np.bincount(np.array(flat(found)) - 100 * slot, minlength=size)
            assert uses.max() - uses.min() <= 1


def test_resampling_is_without_replacement_if_a_client_holds_enough_and_with_it_otherwise():
    plan = plan_for(Resampled(examples=8, batch_size=3), [20, 8, 3, 0])
    drawn = [flat(batches(plan, slot)) for slot in range(4)]
    assert [len(examples) for examples in drawn] == [8, 8, 8, 0]
    assert [len(set(examples)) for examples in drawn[:2]] == [8, 8]
    assert set(drawn[2]) <= {200, 201, 202}
    assert [len(batch) for batch in batches(plan, 0)] == [3, 3, 2]
    assert plan.sizes.tolist() == [20, 8, 3, 0]


def test_resampling_all_that_equal_clients_hold_is_one_epoch():
    sizes = [6, 6, 6]
    resampled, epoch = plan_for(Resampled(examples=6, batch_size=2), sizes), plan_for(Epochs(batch_size=2), sizes)
    for slot in range(3):
        assert sorted(flat(batches(resampled, slot))) == sorted(flat(batches(epoch, slot)))
    assert np.array_equal(resampled.start_of_batch, epoch.start_of_batch)


def test_resampling_with_replacement_is_uniform():
    drawn = [plan_for(Resampled(examples=50, batch_size=50), [7], round=t).examples for t in range(100)]
    assert chisquare(np.bincount(np.concatenate(drawn))).pvalue > 0.001


@pytest.mark.parametrize("name", [entry.name for entry in LOCAL_WORK])
def test_what_a_client_does_depends_on_nobody_else(name):
    work = LOCAL_WORK.get(name)(batch_size=3, max_examples=6)
    sizes = [5, 12, 0, 9, 2]
    full = plan_for(work, sizes, round=4)
    for cohort in ([3], [4, 1], [1, 3, 0]):
        plan = plan_for(work, sizes, cohort, round=4)
        for slot, client in enumerate(cohort):
            assert batches(plan, slot) == batches(full, client)


@pytest.mark.parametrize("name", [entry.name for entry in LOCAL_WORK])
def test_plans_change_from_round_to_round_and_with_the_seed(name):
    work = LOCAL_WORK.get(name)(batch_size=3)
    plans = [plan_for(work, [40], round=t, seed=s).examples.tolist() for t, s in ((0, 0), (1, 0), (0, 1), (0, 0))]
    assert plans[0] == plans[3]
    assert plans[0] != plans[1] != plans[2] != plans[0]


def test_a_cap_uses_other_examples_each_round_and_all_of_them_in_time():
    work = Epochs(epochs=2, batch_size=2, max_examples=4)
    seen = [set(plan_for(work, [10], round=t).examples.tolist()) for t in range(20)]
    assert all(len(examples) == 4 for examples in seen)
    assert set().union(*seen) == set(range(10))
    assert plan_for(work, [10, 3]).sizes.tolist() == [4, 3]


def test_places_count_each_client_s_examples_from_zero():
    plan = plan_for(Epochs(batch_size=2), [3, 0, 2])
    assert plan.place.tolist() == [0, 1, 2, 0, 1]
    assert plan.client_of_each.tolist() == [0, 0, 0, 2, 2]


@pytest.mark.parametrize("name", [entry.name for entry in LOCAL_WORK])
def test_an_empty_cohort_has_an_empty_plan(name):
    plan = plan_for(LOCAL_WORK.get(name)(), [3, 4], cohort=np.array([], dtype=np.int64))
    assert len(plan.clients) == len(plan.examples) == 0
    assert plan.batch_of_slot.tolist() == [0]


@pytest.mark.parametrize("name", [entry.name for entry in LOCAL_WORK])
def test_the_smallest_batch_is_one_of_the_client_s_own_examples(name):
    work, sizes = LOCAL_WORK.get(name)(batch_size=4), [4, 9, 0, 2, 8]
    offsets = np.cumsum([0, *sizes])
    owner = np.repeat(np.arange(5), sizes)
    examples = np.random.default_rng(0).permutation(len(owner))  # so that places are no examples
    held = {client: set(examples[owner == client]) for client in range(5)}
    for among in ([0, 1, 2, 3, 4], [4, 0], [2, 1], [3]):
        plan = work.smallest(offsets, examples, np.array(among), 3)
        client = int(plan.clients[0])
        assert client in among
        assert set(plan.examples.tolist()) <= held[client]
        assert 1 <= len(plan.examples) == plan.sizes[0] == plan.start_of_batch[-1] <= 3


def test_the_smallest_batch_is_the_last_one_of_some_client():
    offsets, examples = np.cumsum([0, 4, 9, 0, 6]), np.arange(19)
    plan = Epochs(batch_size=4).smallest(offsets, examples, np.arange(4), 3)  # batches of 4; 4, 4, 1; none; 4, 2
    assert (plan.clients.tolist(), len(plan.examples)) == ([1], 1)
    plan = Epochs(batch_size=4).smallest(offsets, examples, np.array([0, 2, 3]), 3)
    assert (plan.clients.tolist(), plan.examples.tolist()) == ([3], [13, 14])
    with pytest.raises(ValueError, match="no client holds enough for a batch of 4"):
        Epochs(batch_size=4).smallest(offsets, examples, np.array([2]), 3)
