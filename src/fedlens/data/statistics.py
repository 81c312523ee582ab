"""Describe a federation in numbers: sizes and how far clients' label distributions lie from the whole."""

from __future__ import annotations

import numpy as np

from fedlens.data.population import Federation


def mean_earth_movers_distance(federation: Federation, classes: int, column: str = "label") -> float:
    """How non-identical the clients are, from 0 to 2.

    Σ_k (n_k / n) ‖q_k − p‖₁ with q_k the label distribution of client k and p that of all clients together
    (Hsu, Qi and Brown 2020; L1 distance without the factor ½).
    """
    clients = federation.clients
    labels = np.asarray(federation.data.column(column))[clients.examples]
    cells = clients.client_of_each() * classes + labels
    counts = np.bincount(cells, minlength=len(clients) * classes).reshape(len(clients), classes)
    sizes, total = counts.sum(axis=1, keepdims=True), counts.sum()
    distances = np.abs(counts / np.maximum(sizes, 1) - counts.sum(axis=0) / total).sum(axis=1)
    return float((sizes[:, 0] / total * distances).sum())
