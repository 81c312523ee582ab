"""Every planned batch is launched once and in order, whatever the clients' sizes and the limits."""

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlens.algorithms.local_work import Epochs
from fedlens.engines.packing import Limits, pack

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=30)
LIMITS = st.builds(Limits, st.integers(1, 200), st.integers(1, 40), st.integers(0, 50), st.integers(0, 60))


def plan_of(sizes, **work):
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    clients = np.arange(len(sizes))
    return Epochs(**work).plan(offsets, np.arange(offsets[-1]), clients, seed=0, round=0)


@settings(deadline=None, max_examples=200)
@given(SIZES, LIMITS, st.integers(1, 9), st.integers(1, 3), st.booleans())
def test_what_is_launched_is_what_was_planned(sizes, limits, batch_size, epochs, exact):
    plan = plan_of(sizes, batch_size=batch_size, epochs=epochs)
    packing = pack(plan, limits, exact)
    assert sorted(packing.slot_of_lane) == list(range(len(sizes)))
    done = np.zeros(len(sizes), dtype=np.int64)  # batches, by lane
    for launch in packing.launches:
        lanes = np.arange(len(sizes))[launch.lanes]
        slots = packing.slot_of_lane[lanes]
        batches = packing.batch[launch.batches]
        assert (batches == plan.batch_of_slot[slots] + done[lanes]).all()  # the next of each lane
        assert launch.first == (done[lanes] == 0).all() == (done[lanes] == 0).any()
        done[lanes] += 1
        held = packing.example[launch.slots].reshape(launch.width, launch.batch_size)
        real = packing.real[launch.slots].reshape(launch.width, launch.batch_size)
        for row, batch in enumerate(batches):
            first, last = plan.start_of_batch[batch : batch + 2]
            assert held[row][real[row]].tolist() == list(range(first, last))
            assert ((held[row] >= first) & (held[row] < last)).all()  # an empty slot repeats an example of its own batch
    assert (done == np.diff(plan.batch_of_slot)[packing.slot_of_lane]).all()
    assert packing.working == (done > 0).sum()
    assert packing.real.sum() == len(plan.examples)
    if exact:
        assert packing.fill == 1


@settings(deadline=None)
@given(SIZES, LIMITS, st.integers(1, 9))
def test_launches_keep_to_the_limits(sizes, limits, batch_size):
    packing = pack(plan_of(sizes, batch_size=batch_size), limits)
    for launch in packing.launches:
        assert launch.width <= limits.lanes
        assert launch.width == 1 or launch.width * launch.batch_size <= limits.slots


@settings(deadline=None)
@given(SIZES, LIMITS, st.integers(1, 9))
def test_the_tail_shares_no_lane_with_the_others_so_that_both_can_run_at_once(sizes, limits, batch_size):
    launches = pack(plan_of(sizes, batch_size=batch_size, epochs=2), limits).launches
    of = {
        tail: {lane for launch in launches if launch.tail == tail for lane in range(*launch.lanes.indices(99))} for tail in (0, 1)
    }
    assert not of[0] & of[1]


def test_launches_of_the_tail_are_spread_among_the_others():
    plan = plan_of([160, *[16] * 40], batch_size=16)
    launches = pack(plan, Limits(slots=64, narrow=16)).launches
    assert [launch.tail for launch in launches] == [True, False] * 10
    assert all(launch.lanes == slice(0, 1) for launch in launches if launch.tail)


def test_equal_clients_take_one_launch_a_step_and_waste_nothing():
    packing = pack(plan_of([50] * 200, batch_size=10), Limits(slots=16_384))
    assert [(launch.width, launch.batch_size) for launch in packing.launches] == [(200, 10)] * 5
    assert packing.fill == 1


@pytest.mark.parametrize("cohort", [50, 200, 1000])
def test_most_slots_hold_an_image_where_sizes_are_as_ragged_as_people_s(cohort):
    """Lognormal, median 2.5, mean 8.4, as the users of FLAIR."""
    spread = np.sqrt(2 * np.log(8.4 / 2.5))
    sizes = np.rint(2.5 * np.exp(spread * np.array([NormalDist().inv_cdf((k + 0.5) / cohort) for k in range(cohort)])))
    packing = pack(plan_of(np.clip(sizes, 1, 512).astype(int), batch_size=16, epochs=2), Limits(334, 95, 16, 83))
    assert packing.fill > 0.8


def test_a_cohort_of_nobody_needs_no_launch():
    packing = pack(plan_of([0, 0], batch_size=4), Limits())
    assert (packing.launches, packing.fill, packing.working) == ((), 1.0, 0)
