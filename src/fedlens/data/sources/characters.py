"""What data sets of handwritten characters share: the names of their classes, and which of ink and paper is bright.

LEAF's and TensorFlow Federated's FEMNIST have dark ink (0) on white paper (1.0); MNIST and EMNIST have bright ink on black (0).
"""

from __future__ import annotations

import string
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedlens.data.examples import Examples
from fedlens.data.listing import coded

Ink: TypeAlias = Literal["dark", "bright"]
Columns: TypeAlias = dict[str, NDArray[Any]]

DIGITS = tuple(string.digits)
CHARACTERS = (*DIGITS, *string.ascii_uppercase, *string.ascii_lowercase)  # class c of EMNIST by class, LEAF and TFF alike
MEASURED = 10_000  # pictures, for the mean and the standard deviation


def inked(image: NDArray[np.uint8], ink: Ink) -> NDArray[np.uint8]:
    """Pictures with dark ink as they are, or, for bright ink, in negative: 255 − v, in place."""
    return np.subtract(255, image, out=image) if ink == "bright" else image


def mean_and_deviation(image: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of grey pictures, on the scale from 0 to 1: measured on evenly spaced ones."""
    counts = np.bincount(image[:: max(1, len(image) // MEASURED)].reshape(-1), minlength=256)
    values, weights = np.arange(256) / 255, counts / counts.sum()
    mean = weights @ values
    deviation = np.sqrt(weights @ (values - mean) ** 2)
    return (round(float(mean), 4),), (max(round(float(deviation), 4), 1e-4),)  # never 0: it is divided by


def character_examples(name: str, columns: Columns, classes: tuple[str, ...], like: Examples | None) -> Examples:
    """Examples of grey pictures, normalised like those of the training split; that itself by what is measured of it."""
    mean, deviation = (like.mean, like.standard_deviation) if like is not None else mean_and_deviation(columns["image"])
    coded_columns, categories = coded(columns)
    return Examples(coded_columns, name, classes, mean, deviation, categories)
