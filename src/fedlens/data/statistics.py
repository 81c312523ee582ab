"""Describe a federation in numbers: how much its clients hold, and how far their labels lie from the whole's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlens.data.population import Federation, Population

QUANTILES = {"min": 0.0, "q10": 0.1, "q25": 0.25, "median": 0.5, "q75": 0.75, "q90": 0.9, "max": 1.0}


def describe(population: Population) -> dict[str, Any]:
    """Of the training clients in full, of the evaluation sets what they hold."""
    train = population.train
    return {
        "name": train.data.name,
        **held(train),
        **labels(train),
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
        "largest_tenth_holds": largest_tenth(sizes),
    }


def labels(federation: Federation) -> dict[str, Any]:
    """How classes are spread, where every example has one label."""
    column = federation.data.columns.get("label")
    if column is None or column.ndim != 1 or not np.issubdtype(column.dtype, np.integer):
        return {}
    names = federation.data.class_names
    classes = len(names) or int(column.max(initial=0)) + 1
    table = label_table(federation, classes)
    counts = table.sum(axis=0)
    shown = names if len(names) == classes else tuple(str(c) for c in range(classes))
    return {
        "classes": classes,
        "classes_per_client": spread((table > 0).sum(axis=1)[table.sum(axis=1) > 0]),
        "mean_earth_movers_distance": mean_earth_movers_distance(federation, classes),
        "label_counts": dict(zip(shown, counts.tolist(), strict=True)),
    }


def spread(values: NDArray[np.int64]) -> dict[str, float]:
    """Quantiles and mean of numbers."""
    if not len(values):
        return {}
    found = {name: float(np.quantile(values, share)) for name, share in QUANTILES.items()}
    return {**found, "mean": float(values.mean())}


def largest_tenth(sizes: NDArray[np.int64]) -> float:
    """The share of all examples that the largest tenth of the clients holds."""
    count = max(1, len(sizes) // 10)
    return float(np.sort(sizes)[-count:].sum() / max(1, sizes.sum()))


def label_table(federation: Federation, classes: int, column: str = "label") -> NDArray[np.int64]:
    """How many examples of each class each client holds, [K, C]."""
    clients = federation.clients
    labels = np.asarray(federation.data.column(column))[clients.examples]
    cells = clients.client_of_each() * classes + labels
    return np.bincount(cells, minlength=len(clients) * classes).reshape(len(clients), classes)


def mean_earth_movers_distance(federation: Federation, classes: int, column: str = "label") -> float:
    """How non-identical the clients are, from 0 to 2.

    Σ_k (n_k / n) ‖q_k − p‖₁ with q_k the label distribution of client k and p that of all clients together
    (Hsu, Qi and Brown 2020; L1 distance without the factor ½).
    """
    counts = label_table(federation, classes, column)
    sizes, total = counts.sum(axis=1, keepdims=True), counts.sum()
    distances = np.abs(counts / np.maximum(sizes, 1) - counts.sum(axis=0) / total).sum(axis=1)
    return float((sizes[:, 0] / total * distances).sum())
