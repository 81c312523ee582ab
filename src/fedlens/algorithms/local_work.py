"""What each client of a cohort does in a round: a plan of index batches, made in NumPy before any training.

Examples are shuffled anew for each pass, keyed by (seed, round, client, pass): one vectorised sort for the whole
cohort, no loop over clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedlens import random
from fedlens.registry import Part, Registry

LOCAL_WORK: Registry[type[LocalWork]] = Registry("local work")

Indices: TypeAlias = NDArray[np.int64]
Draw: TypeAlias = Callable[..., NDArray[np.uint64]]  # (purpose, slot, *words) -> 64 bits keyed by round and client too
Positive = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class Plan:
    """A round's work: slot s trains client `clients[s]` on batches batch_of_slot[s] … batch_of_slot[s + 1] − 1.

    Batch b holds examples[start_of_batch[b] : start_of_batch[b + 1]]. `sizes` is what a client weighs in the average:
    how many examples of its own it uses, 0 if it does nothing. `place` counts a slot's examples from 0: together with
    round and client it is the key of whatever is random about one example.
    """

    round: int
    clients: Indices  # [m]
    sizes: Indices  # [m]
    examples: Indices  # [n]
    place: Indices  # [n]
    start_of_batch: Indices  # [b + 1]
    batch_of_slot: Indices  # [m + 1]

    @property
    def client_of_each(self) -> Indices:
        """For each planned example the client that trains on it."""
        return np.repeat(self.clients, np.diff(self.start_of_batch[self.batch_of_slot]))

    def part(self, first: int, last: int) -> Plan:
        """The work of slots first … last − 1."""
        batches = slice(int(self.batch_of_slot[first]), int(self.batch_of_slot[last]))
        starts = self.start_of_batch[batches.start : batches.stop + 1]
        examples = slice(int(starts[0]), int(starts[-1]))
        return Plan(
            round=self.round,
            clients=self.clients[first:last],
            sizes=self.sizes[first:last],
            examples=self.examples[examples],
            place=self.place[examples],
            start_of_batch=starts - starts[0],
            batch_of_slot=self.batch_of_slot[first : last + 1] - self.batch_of_slot[first],
        )


@dataclass(frozen=True)
class Amounts:
    """How much clients of given sizes train, each an array [m]."""

    total: Indices  # examples trained on, counted with repetition
    per_pass: Indices  # how many of them before the client shuffles its examples anew
    unit: Indices  # after how many of them a batch ends though it is not full


class LocalWork(Part):
    """How much a client trains in a round, in batches of `batch_size`.

    With `max_examples`, a client uses at most so many of its examples, drawn anew each round.
    """

    batch_size: Positive = 20
    max_examples: Positive | None = None

    def amounts(self, sizes: Indices) -> Amounts:
        raise NotImplementedError

    def ranks(self, sizes: Indices, amounts: Amounts, slot: Indices, place: Indices, draw: Draw) -> Indices:
        """Which of its n_k examples a slot takes at each place: by default pass after pass, each in a random order."""
        passes = -(-amounts.total // np.maximum(amounts.per_pass, 1))
        row_slot, row_pass = np.repeat(np.arange(len(sizes)), passes), ranges(passes)
        order, first = _shuffle(sizes[row_slot], lambda row: draw("shuffle", row_slot[row], row_pass[row]))
        row = (np.cumsum(passes) - passes)[slot] + place // amounts.per_pass[slot]
        return order[first[row] + place % amounts.per_pass[slot]]

    def smallest(self, offsets: Indices, examples: Indices, among: Indices, most: int) -> Plan:
        """One batch of the client, of those `among` whom it is, whose last batch is the smallest, cut to `most` examples.

        A plan to try things out on.
        """
        held = offsets[among + 1] - offsets[among]
        amounts = self.amounts(self.used(held))
        last = np.where(amounts.total > 0, (amounts.unit - 1) % self.batch_size + 1, np.iinfo(np.int64).max)
        if not amounts.total.any():
            raise ValueError(f"local_work: no client holds enough for a batch of {self.batch_size}, so nothing would be learnt")
        slot = int(last.argmin())
        client, count = int(among[slot]), min(most, int(last[slot]))
        return Plan(
            round=0,
            clients=np.array([client]),
            sizes=np.array([count]),
            examples=examples[offsets[client] + np.arange(count) % held[slot]],
            place=np.arange(count),
            start_of_batch=np.array([0, count]),
            batch_of_slot=np.array([0, 1]),
        )

    def used(self, held: Indices) -> Indices:
        """n_k, how many of the examples that it holds each client uses in a round."""
        return held if self.max_examples is None else np.minimum(held, self.max_examples)

    def plan(self, offsets: Indices, examples: Indices, cohort: Indices, seed: int, round: int) -> Plan:
        """Lay out the round for a cohort of clients that hold examples[offsets[k] : offsets[k + 1]]."""

        def draw(purpose: str, slot: Indices, *words: Indices) -> NDArray[np.uint64]:
            return random.bits(seed, purpose, round, cohort[slot], *words)

        held = offsets[cohort + 1] - offsets[cohort]
        sizes = self.used(held)
        amounts = self.amounts(sizes)
        slot, place = np.repeat(np.arange(len(cohort)), amounts.total), ranges(amounts.total)
        rank = self.ranks(sizes, amounts, slot, place, draw)
        if (held > sizes).any():  # the members of a capped client: the first n_k of all it holds, in a random order
            order, first = _shuffle(held, lambda row: draw("cap", row))
            rank = order[first[slot] + rank]
        starts = np.flatnonzero(place % amounts.unit[slot] % self.batch_size == 0)
        batches = np.bincount(slot[starts], minlength=len(cohort))
        return Plan(
            round=round,
            clients=cohort,
            sizes=np.where(amounts.total > 0, sizes, 0),
            examples=examples[offsets[cohort][slot] + rank],
            place=place,
            start_of_batch=np.append(starts, len(slot)),
            batch_of_slot=np.concatenate(([0], np.cumsum(batches))),
        )


@LOCAL_WORK.register("epochs", paper="McMahan et al. 2017, Communication-Efficient Learning (FedAvg)")
class Epochs(LocalWork):
    """E passes over the client's examples: E ⌈n_k / B⌉ batches, or E ⌊n_k / B⌋ if a last batch that is not full is dropped."""

    epochs: Positive = 1
    last_batch: Literal["keep", "drop"] = "keep"

    def amounts(self, sizes: Indices) -> Amounts:
        per_pass = sizes if self.last_batch == "keep" else sizes // self.batch_size * self.batch_size
        return Amounts(total=self.epochs * per_pass, per_pass=per_pass, unit=per_pass)


@LOCAL_WORK.register("steps")
class Steps(LocalWork):
    """Exactly `steps` full batches, whatever the client's size: pass follows on pass, and batches run across them."""

    steps: Positive = 10

    def amounts(self, sizes: Indices) -> Amounts:
        total = np.where(sizes > 0, self.steps * self.batch_size, 0)
        return Amounts(total=total, per_pass=sizes, unit=total)


@LOCAL_WORK.register("resampled", paper="Hsu, Qi and Brown 2020 (FedVC's virtual clients)")
class Resampled(LocalWork):
    """Exactly `examples` of the client's own, drawn anew each round: without replacement if it holds so many, else with."""

    examples: Positive = 256

    def amounts(self, sizes: Indices) -> Amounts:
        total = np.where(sizes > 0, self.examples, 0)
        return Amounts(total=total, per_pass=total, unit=total)

    def ranks(self, sizes: Indices, amounts: Amounts, slot: Indices, place: Indices, draw: Draw) -> Indices:
        enough = sizes >= self.examples
        rank = (draw("resample", slot, place) % np.maximum(sizes[slot], 1).astype(np.uint64)).astype(np.int64)
        if enough.any():
            order, first = _shuffle(sizes, lambda row: draw("shuffle", row))
            rank = np.where(enough[slot], order[np.where(enough[slot], first[slot] + place, 0)], rank)
        return rank


def ranges(lengths: Indices) -> Indices:
    """Count 0 … l − 1 for each length l, one after another: ranges([2, 3]) = [0, 1, 0, 1, 2]."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)


def _shuffle(sizes: Indices, draw: Callable[[Indices], NDArray[np.uint64]]) -> tuple[Indices, Indices]:
    """A random order of 0 … n − 1 for each row of size n, one after another, and where each row begins."""
    row, first = np.repeat(np.arange(len(sizes)), sizes), np.cumsum(sizes) - sizes
    place = ranges(sizes)
    # one key a row and place: mixed once more with the place, so that a row costs one keyed draw, not one an example
    keys = random.bits(0, "place", draw(np.arange(len(sizes)))[row].view(np.int64), place)
    return place[np.lexsort((keys, row))], first
