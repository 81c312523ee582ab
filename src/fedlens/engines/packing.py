"""Pack a cohort's ragged batches into rectangular launches: the lanes engine's schedule, made in NumPy for a whole round.

Every client has a lane. Lanes are sorted by how many steps they take, longest first, then by their examples; so at step t the
lanes that still work are a prefix, and neighbours have batches of about the same size. A launch is one step of some
neighbouring lanes, with a batch size B that holds the largest of their batches: [w, B] slots, of which `fill` hold an example.

The few lanes that go on when all others are done are the tail. Alone they would leave most of the device idle, so their
launches are kept apart from the first step on, and run beside those of the others.

The cost of a launch is fixed, not fitted to measured times: a schedule that depended on a clock would round differently from
run to run, and a resumed run would not end with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlens.algorithms.local_work import Plan
from fedlens.data.population import Indices


@dataclass(frozen=True)
class Limits:
    """How large a launch may be, how many slots' time it costs to have one more, and how few of them leave a device idle."""

    slots: int = 512
    lanes: int = 512
    overhead: int = 16
    narrow: int = 0


@dataclass(frozen=True)
class Launch:
    """One step of some neighbouring lanes."""

    lanes: slice
    batch_size: int  # B, of the widest batch
    slots: slice  # where its w · B slots lie among those of the round
    batches: slice  # where its w batches lie among those of the round
    first: bool  # whether the lanes still hold the global vector
    tail: bool  # whether it belongs to the lanes that go on longest

    @property
    def width(self) -> int:
        return self.lanes.stop - self.lanes.start


@dataclass(frozen=True)
class Packing:
    """A round's launches, in an order in which they can run, and what is in their slots.

    Launches of the tail and others do not wait for each other; they are mixed so that both last about as long.
    """

    slot_of_lane: Indices  # [m] which slot of the plan each lane trains
    launches: tuple[Launch, ...]
    example: Indices  # [slots] position among the plan's examples; where a slot is empty, that of some example of its batch
    real: NDArray[np.bool_]  # [slots] whether a slot holds an example
    batch: Indices  # [launched batches] which batch of the plan

    @property
    def working(self) -> int:
        """How many lanes take a step at all: the first so many."""
        return max((launch.lanes.stop for launch in self.launches), default=0)

    @property
    def fill(self) -> float:
        """The share of slots that hold an example."""
        return float(self.real.mean()) if len(self.real) else 1.0


def pack(plan: Plan, limits: Limits, exact: bool = False) -> Packing:
    """Pack a plan into launches.

    Batches of different sizes share a launch, unless `exact`: then no slot is empty (batch statistics would see it).
    """
    steps, sizes = np.diff(plan.batch_of_slot), np.diff(plan.start_of_batch)
    examples = np.diff(plan.start_of_batch[plan.batch_of_slot])
    lanes = np.lexsort((plan.clients, -examples, -steps))
    active = np.searchsorted(-steps[lanes], -np.arange(steps.max(initial=0)))  # at step t: how many take more than t steps
    tail = _tail(active, int(sizes.max(initial=1)), limits)
    launches: list[Launch] = []
    example, real, batches = [], [], []
    slots = launched = 0
    for step, working in enumerate(active.tolist()):
        batch = plan.batch_of_slot[lanes[:working]] + step
        held = sizes[batch]
        for first, last in [*_cut(held[:tail], limits, exact), *_cut(held[tail:], limits, exact, tail)]:
            chosen, rows = batch[first:last], held[first:last, None]
            extent = int(rows.max())
            place = np.arange(extent)[None]
            example.append((plan.start_of_batch[chosen][:, None] + np.minimum(place, rows - 1)).reshape(-1))
            real.append((place < rows).reshape(-1))
            batches.append(chosen)
            width, count = last - first, (last - first) * extent
            places = slice(slots, slots + count), slice(launched, launched + width)
            launches.append(Launch(slice(first, last), extent, *places, first=step == 0, tail=first < tail))
            slots, launched = slots + count, launched + width
    return Packing(lanes, _mixed(launches), _join(example), _join(real).astype(bool), _join(batches))


def _tail(active: Indices, batch_size: int, limits: Limits) -> int:
    """How many lanes are still at work when those at work have become too few to fill the device; 0 if that never is so."""
    few = active[active * batch_size <= limits.narrow]
    return int(few[0]) if len(few) else 0


def _mixed(launches: list[Launch]) -> tuple[Launch, ...]:
    """Launches of the tail spread evenly among the others."""
    place: dict[int, float] = {}
    for tail in (True, False):
        own = [number for number, launch in enumerate(launches) if launch.tail == tail]
        place |= {number: turn / len(own) for turn, number in enumerate(own)}
    return tuple(launches[number] for number in sorted(place, key=lambda number: (place[number], not launches[number].tail)))


def _cut(held: Indices, limits: Limits, exact: bool, start: int = 0) -> Iterator[tuple[int, int]]:
    """Cut lanes with batches of these sizes into launches, [first, last) each, at the least cost: empty slots and overheads.

    cost(j) = min over i < j of cost(i) + overhead + (lanes from i to j) · (largest batch among them)
    """
    if not len(held):
        return
    edges = np.concatenate(([0], np.flatnonzero(np.diff(held)) + 1, [len(held)]))
    largest = held[edges[:-1]]
    cost, back = np.zeros(len(edges)), np.zeros(len(edges), dtype=np.int64)
    for end in range(1, len(edges)):
        width = edges[end] - edges[:end]
        extent = np.maximum.accumulate(largest[:end][::-1])[::-1]
        total = cost[:end] + limits.overhead + width * extent
        back[end] = end - 1 if exact else int(np.argmin(total))
        cost[end] = total[back[end]]
    cuts, end = [], len(edges) - 1
    while end > 0:
        cuts.append((int(edges[back[end]]), int(edges[end])))
        end = int(back[end])
    for first, last in reversed(cuts):
        most = max(1, min(limits.lanes, limits.slots // int(held[first:last].max())))
        parts = -(-(last - first) // most)  # as many as needed, of equal width
        bounds = np.linspace(first, last, parts + 1).round().astype(int).tolist()
        yield from pairwise([start + bound for bound in bounds])


def _join(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
