"""What each example weighs."""

from __future__ import annotations

import numpy as np
import pytest

from fedlens.data import Examples, Federation
from fedlens.tasks.example_weights import EXAMPLE_WEIGHTS, ByClass


def federation(*labels: int) -> Federation:
    return Federation.pooled(Examples({"label": np.array(labels)}))


def test_by_class_weighs_an_example_by_its_class_whoever_holds_it():
    weights = ByClass(weights=(0.5, 0.0, 3.0)).weigh(federation(2, 0, 1, 2), np.array([3, 1, 0, 2, 3]), np.array([0, 0, 1, 1, 2]))
    assert weights.tolist() == [3.0, 0.5, 3.0, 0.0, 3.0]
    assert weights.dtype == np.float32


def test_every_class_needs_a_weight():
    with pytest.raises(ValueError, match=r"task\.example_weights: 2 weights for labels up to 2"):
        ByClass(weights=(1.0, 1.0)).weigh(federation(0, 2), np.array([0]), np.array([0]))


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_is_finite_and_not_negative(weight):
    with pytest.raises(ValueError, match="weights"):
        EXAMPLE_WEIGHTS.build({"name": "by_class", "weights": [1.0, weight]})
