"""Keyed randomness: every draw is a pure function of (seed, purpose, round, client, …).

A key stands for a place in the run, so no draw depends on which engine, which device or which order asks for it, and
resuming needs no generator state: round 17 draws what it would have drawn. No global generator is read or set.

    bits(seed, purpose, a, b, …) = mix(… mix(mix(seed ⊕ hash(purpose)) ⊕ mix(a)) ⊕ mix(b) …)      (mix: SplitMix64's)
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Word: TypeAlias = "int | NDArray[np.integer]"

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def _mix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's step and finaliser (Steele, Lea and Flood 2014): a bijection of 64 bits that flips about half of them."""
    word = word + _GOLDEN
    word = (word ^ (word >> np.uint64(30))) * _FIRST
    word = (word ^ (word >> np.uint64(27))) * _SECOND
    return word ^ (word >> np.uint64(31))


def _words(word: Word) -> NDArray[np.uint64]:
    if isinstance(word, int):
        return np.array([word & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64)
    return np.atleast_1d(word).astype(np.uint64, copy=False)  # 0-dim arithmetic would warn of overflow


def bits(seed: int, purpose: str, *words: Word) -> NDArray[np.uint64]:
    """Draw 64 random bits for each key; words are integers or arrays, broadcast against each other."""
    name = int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little")
    state = _mix(_words(seed) ^ np.uint64(name))
    for word in words:
        state = _mix(state ^ _mix(_words(word)))
    return state


def uniform(seed: int, purpose: str, *words: Word) -> NDArray[np.float32]:
    """Draw from [0, 1) for each key: 24 bits, as many as float32 holds exactly."""
    return (bits(seed, purpose, *words) >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)


def generator(seed: int, purpose: str, *words: int) -> np.random.Generator:
    """A NumPy generator for draws that are more than bits: permutations, Dirichlet vectors, binomials."""
    key = bits(seed, purpose, *words)[0], bits(seed, purpose + "/2", *words)[0]
    return np.random.Generator(np.random.Philox(key=np.array(key, dtype=np.uint64)))


def torch_seed(seed: int, purpose: str, *words: int) -> int:
    """A seed for a private torch.Generator, or for code that seeds itself."""
    return int(bits(seed, purpose, *words)[0] >> np.uint64(1))
