"""Describe a federation in numbers: how much its clients hold, and how far their labels and images lie from the whole's."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from fedlens import random
from fedlens.data.examples import Examples
from fedlens.data.partitions.base import require_classes
from fedlens.data.population import Federation, Indices, Population

QUANTILES = {"min": 0.0, "q10": 0.1, "q25": 0.25, "median": 0.5, "q75": 0.75, "q90": 0.9, "max": 1.0}
LARGEST = (1, 5, 10, 25, 50)  # per cent of the clients whose share of all examples is told
PAIRED_CLIENTS = 200  # at most so many are compared with each other
LABEL_COLUMNS = ("label", "labels")  # one of C classes [N]; any of C labels, as zeros and ones [N, C]
BLOCK = 2**24  # cells of a column that are read at once
GRID = 64  # pixels of an image that are looked at, along each side

Values = NDArray[np.float64]


def describe(population: Population, columns: Sequence[str] = LABEL_COLUMNS) -> dict[str, Any]:
    """Of the training clients in full, of the evaluation sets what they hold.

    `columns` may be any columns; the first that holds labels is the one described.
    """
    train = population.train
    return {
        "name": train.data.name,
        **held(train),
        **labels(train, columns),
        "evaluation": {name: held(federation) for name, federation in population.evaluations().items()},
        "fingerprint": population.fingerprint(),
    }


def held(federation: Federation) -> dict[str, Any]:
    """How many clients and examples there are, and how the examples are spread."""
    sizes = federation.clients.sizes
    return {
        "clients": len(sizes),
        "examples": int(sizes.sum()),
        "sizes": spread(sizes),
        "largest_tenth_holds": held_by_largest(sizes, 10),
        "largest_hold": {f"{percent}%": held_by_largest(sizes, percent) for percent in LARGEST},
    }


def labels(federation: Federation, columns: Sequence[str] = LABEL_COLUMNS) -> dict[str, Any]:
    """How labels are spread over clients, where the examples have any."""
    counts = LabelCounts.of(federation, columns)
    if counts is None:
        return {}
    per_client, distances = counts.classes_per_client, counts.earth_movers_distances
    found = {
        "classes": len(counts.names),
        "classes_per_client": spread(per_client[per_client > 0]),
        "mean_earth_movers_distance": counts.mean_earth_movers_distance,
        "earth_movers_distances": spread(distances[per_client > 0]),
        "label_counts": dict(zip(counts.names, counts.per_label.tolist(), strict=True)),
        "label_held_by": dict(zip(counts.names, counts.share_of_holders.tolist(), strict=True)),
    }
    if 2 <= np.count_nonzero(per_client) <= PAIRED_CLIENTS:
        pairs = pairwise_distances(counts.proportions(np.flatnonzero(per_client)))
        found["pairwise_label_distances"] = {name: spread(distances) for name, distances in pairs.items()}
    return found


def spread(values: NDArray[Any]) -> dict[str, float]:
    """Quantiles and mean of numbers."""
    if not len(values):
        return {}
    found = np.quantile(values, list(QUANTILES.values()))
    return {**dict(zip(QUANTILES, found.tolist(), strict=True)), "mean": float(values.mean())}


def held_by_largest(sizes: Indices, percent: int) -> float:
    """The share of all examples that the largest `percent` % of the clients hold: one client at least."""
    count = max(1, len(sizes) * percent // 100)
    return float(np.sort(sizes)[-count:].sum() / max(1, sizes.sum()))


def cumulative_sizes(sizes: Indices) -> Values:
    """Share of all examples that the largest 0, 1, … K clients hold together, [K + 1]."""
    return np.concatenate(([0], np.cumsum(np.sort(sizes)[::-1]))) / max(1, sizes.sum())


@dataclass(frozen=True)
class LabelCounts:
    """How often each client holds each label; only pairs that occur, so that many clients and many labels fit.

    client[i] holds label[i] count[i] times; sorted by client, then by label. An example with several labels counts for each.
    """

    federation: Federation
    client: Indices
    label: Indices
    count: Indices
    names: tuple[str, ...]  # of the labels

    @classmethod
    def of(cls, federation: Federation, columns: Sequence[str] = LABEL_COLUMNS) -> LabelCounts | None:
        """Count the first of these columns that holds labels."""
        data = federation.data
        column = next((name for name in columns if name in data.columns and _holds_labels(data.columns[name])), None)
        return None if column is None else cls._of(federation, column, _classes(data, data.columns[column]))

    @classmethod
    def _of(cls, federation: Federation, column: str, classes: int) -> LabelCounts:
        clients, values = federation.clients, federation.data.column(column)
        if values.ndim == 1:
            pairs = clients.client_of_each() * classes + values[clients.examples].astype(np.int64)
        else:
            rows, label = _ones(values, clients.examples)
            pairs = clients.client_of_each()[rows] * classes + label
        found, count = np.unique(pairs, return_counts=True)
        return cls(federation, found // classes, found % classes, count, _names(federation.data, classes))

    @property
    def total(self) -> int:
        """n, how many labels all clients hold."""
        return int(self.count.sum())

    @property
    def per_client(self) -> Indices:
        """n_k, how many labels each client holds, [K]."""
        return np.bincount(self.client, self.count, len(self.federation.clients)).astype(np.int64)

    @property
    def per_label(self) -> Indices:
        """How often each label occurs, [C]."""
        return np.bincount(self.label, self.count, len(self.names)).astype(np.int64)

    @property
    def classes_per_client(self) -> Indices:
        """How many different labels each client holds, [K]."""
        return np.bincount(self.client, minlength=len(self.federation.clients))

    @property
    def share_of_holders(self) -> Values:
        """The share of the clients with examples that hold each label, [C]."""
        clients = int((self.federation.clients.sizes > 0).sum())
        return np.bincount(self.label, minlength=len(self.names)) / max(1, clients)

    @property
    def earth_movers_distances(self) -> Values:
        """‖q_k − p‖₁ of each client, from 0 to 2, [K]; NaN for one without labels.

        q_k is the label distribution of client k, p that of all clients together (Hsu, Qi and Brown 2020: L1 distance
        without the factor ½). As the labels that a client lacks add p_c each, the sum is 1 + Σ_{c of k} (|q_kc − p_c| − p_c).
        """
        sizes, everything = self.per_client, self.per_label / max(1, self.total)
        expected = everything[self.label]
        beyond = np.abs(self.count / sizes[self.client] - expected) - expected
        distances = 1 + np.bincount(self.client, beyond, len(sizes))
        return np.where(sizes > 0, distances.clip(0, 2), np.nan)

    @property
    def mean_earth_movers_distance(self) -> float:
        """Σ_k (n_k / n) ‖q_k − p‖₁: how non-identical the clients are."""
        weights = self.per_client / max(1, self.total)
        return float((weights * np.nan_to_num(self.earth_movers_distances)).sum())

    def table(self, clients: Indices) -> Indices:
        """The counts of some clients, [k, C]."""
        place = np.full(len(self.federation.clients), -1)
        place[clients] = np.arange(len(clients))
        kept = place[self.client] >= 0
        table = np.zeros((len(clients), len(self.names)), dtype=np.int64)
        table[place[self.client[kept]], self.label[kept]] = self.count[kept]
        return table

    def proportions(self, clients: Indices) -> Values:
        """q_k of some clients, [k, C]; zeros for one without labels."""
        table = self.table(clients)
        return table / np.maximum(table.sum(axis=1, keepdims=True), 1)


def mean_earth_movers_distance(federation: Federation, classes: int, column: str = "label") -> float:
    """How non-identical the clients are, from 0 to 2: Σ_k (n_k / n) ‖q_k − p‖₁, see `LabelCounts`."""
    return LabelCounts._of(federation, column, classes).mean_earth_movers_distance


def pairwise_distances(proportions: Values) -> dict[str, Values]:
    """Between the label distributions of every two clients: ‖q_i − q_j‖₁, and Jensen and Shannon's in bits, [k (k − 1) / 2].

    Jensen–Shannon is the distance, from 0 to 1: the root of the divergence.
    """
    jensen_shannon = np.nan_to_num(pdist(proportions, "jensenshannon"))  # the root of a rounding error below 0 is NaN
    return {"l1": pdist(proportions, "cityblock"), "jensen_shannon": jensen_shannon / math.sqrt(math.log(2))}


@dataclass(frozen=True)
class PixelDistances:
    """How far the brightness of clients' images lies from the whole's, in grey levels of 255, [k] each."""

    held: Values
    dealt_anew: Values  # the same images dealt out at random to clients of the same sizes


def pixel_distances(federation: Federation, seed: int = 0, clients: int = 200, images: int = 10) -> PixelDistances | None:
    """Whether clients' images look different, beyond what chance does to clients this small.

    Earth mover's distance Σ_v |F_k(v) − F(v)| between the pixel values of a client and of all, mean over channels, of up to
    `images` images of up to `clients` clients drawn at random; of large images a grid of pixels.
    """
    nonempty = np.flatnonzero(federation.clients.sizes)
    if "image" not in federation.data.columns or not len(nonempty):
        return None
    generator = random.generator(seed, "pixel distances")
    chosen = generator.permutation(nonempty)[:clients]
    groups = [generator.permutation(federation.clients.of_client(client))[:images] for client in chosen]
    sizes = np.array([len(group) for group in groups])
    shares = _cumulative_histograms(federation.data.column("image"), np.concatenate(groups))
    return PixelDistances(*(_distances_to_all(order, sizes) for order in (shares, generator.permutation(shares))))


def _distances_to_all(shares: Values, sizes: Indices) -> Values:
    """Mean over channels of Σ_v |F_k(v) − F(v)|, with client after client in the first axis of `shares`, [k]."""
    sums = np.add.reduceat(shares, np.cumsum(sizes) - sizes)
    of_client = sums / sizes[:, None, None]
    return np.abs(of_client - shares.mean(axis=0)).sum(axis=2).mean(axis=1)


def _cumulative_histograms(images: NDArray[np.uint8], ids: Indices) -> Values:
    """F(v), the share of an image's pixels at most v, [n, channels, 256]."""
    _, height, width, channels = images.shape
    down, across = -(-height // GRID), -(-width // GRID)
    step = max(1, BLOCK // (GRID * GRID * channels))
    found = np.empty((len(ids), channels, 256))
    for start in range(0, len(ids), step):
        block = images[ids[start : start + step], ::down, ::across]  # [b, h, w, channels]
        place = np.arange(len(block))[:, None, None, None] * channels + np.arange(channels)
        counts = np.bincount((place * 256 + block).ravel(), minlength=len(block) * channels * 256)
        found[start : start + step] = counts.reshape(len(block), channels, 256) / (block.shape[1] * block.shape[2])
    return found.cumsum(axis=2)


def _holds_labels(values: NDArray[Any]) -> bool:
    """One class of each example, or any labels as zeros and ones."""
    whole = bool(np.issubdtype(values.dtype, np.integer))
    return whole if values.ndim == 1 else values.ndim == 2 and (whole or values.dtype == bool)


def _classes(data: Examples, values: NDArray[Any]) -> int:
    if values.ndim == 2:
        return int(values.shape[1])
    require_classes(values)
    return max(len(data.class_names), int(values.max(initial=0)) + 1)


def _names(data: Examples, classes: int) -> tuple[str, ...]:
    """The classes' names, or their numbers; a name that two have gets its number."""
    names = data.class_names if len(data.class_names) == classes else tuple(str(c) for c in range(classes))
    times = Counter(names)
    return tuple(f"{name} ({c})" if times[name] > 1 else name for c, name in enumerate(names))


def _ones(values: NDArray[Any], ids: Indices) -> tuple[Indices, Indices]:
    """Row in `ids` and column of every label that is there, read in blocks."""
    classes = values.shape[1]
    step = max(1, BLOCK // max(1, classes))
    found = [np.empty(0, dtype=np.int64)]
    for start in range(0, len(ids), step):
        found.append(np.flatnonzero(values[ids[start : start + step]] != 0) + start * classes)
    cells = np.concatenate(found)
    return cells // max(1, classes), cells % max(1, classes)
