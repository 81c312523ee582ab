"""A small federation of real pictures, and a model small enough to train in milliseconds."""

from __future__ import annotations

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():  # without a GPU, Triton's interpreter runs the kernels; it is chosen at import
    os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from fedlens.data import Assignment, Examples, FashionMNISTMini, Federation, Population

torch.set_num_threads(1)  # more would spin against each other when tests run side by side

SIZES = (13, 4, 0, 1, 30, 7)  # ragged: smaller than a batch, empty, a single image, larger than the others


@pytest.fixture(scope="session")
def pictures() -> Examples:
    return FashionMNISTMini().load().train


@pytest.fixture(scope="session")
def population(pictures: Examples) -> Population:
    chosen = np.random.default_rng(0).permutation(len(pictures))
    ends = np.cumsum((0, *SIZES))
    clients = Assignment(ends, chosen[: ends[-1]], [f"client {letter}" for letter in "abcdef"])
    test = Assignment(np.array([0, 20, 60]), chosen[-60:], ["x", "y"])
    return Population(Federation(pictures, clients), test=Federation(pictures, test))


@pytest.fixture
def linear() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(49, 10))


@pytest.fixture
def quiet() -> Console:
    return Console(quiet=True)


@pytest.fixture(autouse=True)
def _full_precision():
    """A GPU would multiply with ten bits, which hides what is compared."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield
