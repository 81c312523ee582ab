"""What clients send back: a chunk of the cohort's updates as a matrix [m, P], with what belongs to each row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Updates:
    """Rows of updates Δ_k and, row by row, whose they are and what they weigh.

    `statistics` are the rows' floating-point buffers after training, `counters` their integer ones: they travel beside the
    vector. `loss` is the sum of the losses of the `trained` examples; `kept` is what a client keeps until its next turn.
    """

    clients: NDArray[np.int64]  # [m]
    sizes: Tensor  # [m] float32, n_k
    vectors: Tensor  # [m, P]
    statistics: Tensor  # [m, B] float32
    counters: Tensor  # [m, C] int64
    loss: Tensor  # [m]
    trained: NDArray[np.int64]  # [m]
    kept: Mapping[str, Tensor] = field(default_factory=dict)  # [m, P] each

    @property
    def sent_bytes(self) -> int:
        """What travels: the vector, the buffers and the weight."""
        return sum(values.nbytes for values in (self.vectors, self.statistics, self.counters, self.sizes))


@dataclass(frozen=True)
class Combined:
    """What an aggregator makes of a cohort: the mean update, and the buffers to go on with."""

    vector: Tensor  # [P]
    statistics: Tensor  # [B]
    counters: Tensor  # [C]
    weight: Tensor  # [] the sum of the weights; nothing was learnt if it is 0
