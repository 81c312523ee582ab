"""Who holds which examples: clients as slices of one index array, never as copies.

client k holds examples[offsets[k] : offsets[k + 1]]          (compressed sparse rows)
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedlens import random
from fedlens.data.examples import Examples

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Assignment:
    """Client → example ids, as offsets into one index array; names are optional and may be anything printable."""

    offsets: Indices  # [K + 1]
    examples: Indices  # [n]
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.examples) or (np.diff(self.offsets) < 0).any():
            raise ValueError("offsets must rise from 0 to the number of assigned examples")
        if self.names is not None and len(self.names) != len(self.offsets) - 1:
            raise ValueError(f"{len(self.names)} names for {len(self.offsets) - 1} clients")
        names = () if self.names is None else self.names
        if twice := [name for name, count in Counter(map(str, names)).items() if count > 1]:
            raise ValueError(f"two clients are called '{twice[0]}': each needs a name of its own, or none has one")

    @classmethod
    def from_clients(cls, client: Indices, clients: int, names: Sequence[str] | None = None) -> Assignment:
        """Group examples 0…n−1 by the client each belongs to; −1 leaves an example out."""
        if len(client) and (client.min() < -1 or client.max() >= clients):
            raise ValueError(f"clients must lie in 0…{clients - 1}, or be −1; found {client.min()}…{client.max()}")
        order = np.argsort(client, kind="stable")
        order = order[np.searchsorted(client, 0, sorter=order) :]
        sizes = np.bincount(client[order], minlength=clients)
        return cls(np.concatenate(([0], np.cumsum(sizes))), order, names)

    @classmethod
    def pooled(cls, count: int, name: str = "all") -> Assignment:
        """One client that holds everything."""
        return cls(np.array([0, count]), np.arange(count), [name])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Indices:
        """n_k, how many examples each client holds."""
        return np.diff(self.offsets)

    def client_name(self, client: int) -> str:
        """A client's name; an id that is not among the clients, as an update may bring it, is its own name."""
        if self.names is None or not 0 <= client < len(self):
            return str(client)
        return str(self.names[client])

    def of_client(self, client: int) -> Indices:
        """The examples of one client: a view."""
        return self.examples[self.offsets[client] : self.offsets[client + 1]]

    def only(self, client: int) -> Assignment:
        """One client by itself."""
        members = self.of_client(client)
        return Assignment(np.array([0, len(members)]), members, [self.client_name(client)])

    def client_of_each(self) -> Indices:
        """For each assigned example the client that holds it."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def hold_out(self, fraction: float, seed: int, purpose: str = "hold out") -> tuple[Assignment, Assignment]:
        """Split every client's examples at random into what it trains on and round(fraction · n_k) that it keeps aside."""
        client = self.client_of_each()
        order = np.lexsort((random.bits(seed, purpose, client, self.examples), client))
        rank = np.arange(len(order)) - self.offsets[client]  # place of each example in its client's random order
        aside = np.empty(len(order), dtype=bool)
        aside[order] = rank < np.rint(fraction * self.sizes).astype(np.int64)[client]
        return self._keep(~aside, client), self._keep(aside, client)

    def hold_out_clients(self, fraction: float, seed: int, purpose: str = "hold out") -> tuple[Assignment, Assignment]:
        """Split the clients at random into those that train and round(fraction · K) that are kept aside with all they hold."""
        aside = np.zeros(len(self), dtype=bool)
        order = np.argsort(random.bits(seed, purpose, np.arange(len(self))), kind="stable")
        aside[order[: round(fraction * len(self))]] = True
        return self.subset(np.flatnonzero(~aside)), self.subset(np.flatnonzero(aside))

    def subset(self, clients: Indices) -> Assignment:
        """Some clients, in rising order; they are numbered anew and keep their names."""
        chosen = np.zeros(len(self), dtype=bool)
        chosen[clients] = True
        names = [self.client_name(client) for client in clients.tolist()]
        return Assignment(
            np.concatenate(([0], np.cumsum(self.sizes[clients]))), self.examples[chosen[self.client_of_each()]], names
        )

    def _keep(self, kept: NDArray[np.bool_], client: Indices) -> Assignment:
        sizes = np.bincount(client[kept], minlength=len(self))
        return Assignment(np.concatenate(([0], np.cumsum(sizes))), self.examples[kept], self.names)


@dataclass(frozen=True)
class Federation:
    """Examples and who holds them: the training clients, or the examples of an evaluation, grouped by client or pooled."""

    data: Examples
    clients: Assignment

    def __post_init__(self) -> None:
        ids = self.clients.examples
        if len(ids) and (ids.min() < 0 or ids.max() >= len(self.data)):
            raise ValueError(f"{self.data.name}: example ids must lie in 0…{len(self.data) - 1}; found {ids.min()}…{ids.max()}")

    @classmethod
    def pooled(cls, data: Examples) -> Federation:
        return cls(data, Assignment.pooled(len(data)))


@dataclass(frozen=True)
class Population:
    """The clients that train, and what their model is measured on."""

    train: Federation
    validation: Federation | None = None
    test: Federation | None = None

    def __len__(self) -> int:
        return len(self.train.clients)

    @property
    def data(self) -> Examples:
        return self.train.data

    @property
    def sizes(self) -> Indices:
        return self.train.clients.sizes

    def evaluations(self) -> dict[str, Federation]:
        """The sets there are to evaluate on, by name."""
        named = {"validation": self.validation, "test": self.test}
        return {name: federation for name, federation in named.items() if federation is not None}

    def pool(self) -> Population:
        """The same training examples in one hand, for the centralised baseline."""
        ids = np.sort(self.train.clients.examples)
        one = Assignment(np.array([0, len(ids)]), ids, ["all"])
        return Population(Federation(self.data, one), self.validation, self.test)

    def fingerprint(self) -> str:
        """A digest of the data, of who holds what, and of the evaluation sets."""
        digest = hashlib.blake2b(digest_size=16)
        for name, federation in {"train": self.train, **self.evaluations()}.items():
            digest.update(f"{name} {federation.data.fingerprint()}".encode())
            digest.update(federation.clients.offsets.tobytes() + federation.clients.examples.tobytes())
        return digest.hexdigest()
