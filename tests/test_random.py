"""Keyed randomness."""

from __future__ import annotations

import hashlib
import random as python_random
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlens import random

GOLDEN, MASK = 0x9E3779B97F4A7C15, 2**64 - 1
WORD = st.integers(-(2**63), 2**63 - 1)


def mix(word: int) -> int:
    """SplitMix64 in Python's integers, written from the paper's Java."""
    word = (word + GOLDEN) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def test_mix_is_splitmix64():
    """Outputs for seed 1234567 as in the published C code and Rosetta Code."""
    states = np.array([(1234567 + step * GOLDEN) & MASK for step in range(5)], dtype=np.uint64)
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert random._mix(states).tolist() == expected


@given(seed=st.integers(0, 2**64 - 1), purpose=st.text(max_size=8), words=st.lists(WORD, max_size=4))
@settings(max_examples=100, deadline=None)
def test_bits_are_the_documented_equation(seed, purpose, words):
    state = mix(seed ^ int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little"))
    for word in words:
        state = mix(state ^ mix(word & MASK))
    assert random.bits(seed, purpose, *words).tolist() == [state]


@given(rounds=st.lists(WORD, min_size=1, max_size=4), clients=st.lists(WORD, min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_drawing_many_at_once_is_drawing_one_by_one(rounds, clients):
    many = random.bits(3, "test", np.array(rounds)[:, None], np.array(clients))
    one_by_one = [[random.bits(3, "test", r, c)[0] for c in clients] for r in rounds]
    assert many.tolist() == np.array(one_by_one).tolist()


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint64, np.array])
def test_numbers_of_numpy_are_words_like_any_other(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert random.bits(kind(5), "test", kind(7), 1).tolist() == random.bits(5, "test", 7, 1).tolist()
        assert random.generator(5, "test", kind(7)).random() == random.generator(5, "test", 7).random()


def test_no_two_keys_of_a_run_draw_the_same():
    rounds, clients = np.arange(300), np.arange(300)
    drawn = [random.bits(seed, purpose, rounds[:, None], clients) for seed in (0, 1) for purpose in ("a", "b", "")]
    assert len(np.unique(drawn)) == 6 * 300 * 300


def test_order_and_number_of_words_matter():
    keys = [(), (0,), (0, 0), (1, 2), (2, 1), (3,), (1, 2, 0)]
    assert len({int(random.bits(0, "test", *key)[0]) for key in keys}) == len(keys)


@pytest.mark.parametrize("word", range(3))
def test_one_changed_bit_of_a_key_changes_half_of_the_bits_drawn(word):
    key = np.zeros((64, 3), dtype=np.uint64)
    key[:, word] = np.uint64(1) << np.arange(64, dtype=np.uint64)
    base = np.arange(50, dtype=np.uint64)[:, None]
    changed = random.bits(1, "test", *(key.T[:, None, :] ^ base)) ^ random.bits(1, "test", base, base, base)
    assert abs(np.bitwise_count(changed).mean() - 32) < 4 * 4 / np.sqrt(changed.size)  # a binomial's σ is 4


@pytest.mark.parametrize("axis", ["seed", "round", "client"])
def test_draws_along_every_axis_of_a_key_are_uniform_and_not_correlated(axis):
    index, number = np.arange(2**16), 2**16
    words = {"seed": (index, "test", 3, 4), "round": (3, "test", index, 4), "client": (3, "test", 4, index)}[axis]
    drawn = random.uniform(*words)
    counts = np.histogram(drawn, bins=256, range=(0, 1))[0]
    chi_square = ((counts - number / 256) ** 2 / (number / 256)).sum()
    assert abs(chi_square - 255) < 4 * np.sqrt(2 * 255)
    pairs = np.histogram2d(drawn[:-1], drawn[1:], bins=16, range=((0, 1), (0, 1)))[0]
    assert abs(((pairs - number / 256) ** 2 / (number / 256)).sum() - 255) < 4 * np.sqrt(2 * 255)


def test_uniform_draws_are_multiples_of_two_to_the_minus_24_below_one():
    drawn = random.uniform(0, "test", np.arange(2**20))
    assert drawn.dtype == np.float32
    assert 0 <= drawn.min() < 1e-5
    assert 1 - 1e-5 < drawn.max() < 1
    steps = drawn.astype(np.float64) * 2**24
    assert (steps == np.rint(steps)).all()
    assert (steps % 2).mean() == pytest.approx(0.5, abs=0.01)


def test_a_generator_repeats_for_its_key_and_differs_for_others():
    draws = {key: random.generator(*key).permutation(1000).tolist() for key in [(0, "a", 1), (0, "a", 2), (0, "b", 1), (1, "a", 1)]}
    assert len({tuple(drawn) for drawn in draws.values()}) == 4
    assert all(random.generator(*key).permutation(1000).tolist() == drawn for key, drawn in draws.items())


def test_torch_takes_every_seed():
    seeds = [random.torch_seed(seed, "test", client) for seed in (0, 2**63 - 1) for client in range(100)]
    drawn = {float(torch.rand((), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)) for seed in seeds}
    assert len(drawn) == 200


def test_no_global_generator_is_read_or_set():
    def draw() -> list[float]:
        return [
            *random.bits(1, "test", np.arange(3)).tolist(),
            *random.uniform(1, "test", np.arange(3)).tolist(),
            random.generator(1, "test", 2).random(),
            random.torch_seed(1, "test", 2),
        ]

    drawn = []
    for seed in (0, 1):
        np.random.seed(seed)  # noqa: NPY002 (the global state is the subject)
        torch.manual_seed(seed)
        python_random.seed(seed)
        before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), python_random.getstate()  # noqa: NPY002
        drawn.append(draw())
        assert before == (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), python_random.getstate())  # noqa: NPY002
    assert drawn[0] == drawn[1]
