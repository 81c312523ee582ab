"""What each example weighs in its batch's loss: Σ w_i ℓ_i / Σ w_i over the batch."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedlens.data.population import Federation, Indices
from fedlens.registry import Part, Registry

EXAMPLE_WEIGHTS: Registry[type[ExampleWeights]] = Registry("example weighting")


class ExampleWeights(Part):
    """Weights of the examples of a plan, made with it on the host; only their ratios within a batch matter."""

    def weigh(self, federation: Federation, examples: Indices, clients: Indices) -> NDArray[np.float32]:
        """For each planned example [n] and the client [n] that trains on it, its weight."""
        raise NotImplementedError


@EXAMPLE_WEIGHTS.register("by_class")
class ByClass(ExampleWeights):
    """A weight for each class, the same for every client: for classes that are rare or dear."""

    weights: tuple[Annotated[float, Field(ge=0)], ...]

    def weigh(self, federation: Federation, examples: Indices, clients: Indices) -> NDArray[np.float32]:
        labels = federation.data.column("label")
        if int(labels.max(initial=0)) >= len(self.weights):
            raise ValueError(f"task.example_weights: {len(self.weights)} weights for labels up to {labels.max()}")
        return np.asarray(self.weights, dtype=np.float32)[labels[examples]]
