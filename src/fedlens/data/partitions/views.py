"""Skew of what is seen, not of who holds it: images cut up among parties, and images that look different at each client.

On uint8 images [N, height, width, channels]. `divide` gives each party of vertical federated learning its part of every image, for
your own code. The others change images as the client of each would have taken them; a recipe's `data.shift` names one.

How a client's images differ is drawn from (seed, client) alone, so that it is the same in every call, whatever else is in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedlens import random
from fedlens.data.examples import Examples
from fedlens.data.population import Assignment, Indices

Images = NDArray[np.uint8]  # [N, H, W, C]

AXES = {"height": 1, "width": 2, "channels": 3}
TOGETHER = 1024  # images that are changed at a time

Shift: TypeAlias = Literal["rotated", "recoloured", "blurred", "noisy"]


def divide(images: Images, parties: int, along: Literal["height", "width", "channels"] = "width") -> list[Images]:
    """Give each party a strip of every image, or some of its channels: views, which share the images' memory.

    Where the pixels do not divide, the first parties have one more.
    """
    _require_images(images)
    pixels = images.shape[AXES[along]]
    if not 1 <= parties <= pixels:
        raise ValueError(f"{parties} parties cannot share the {pixels} pixels or channels along the {along} of an image")
    return np.array_split(images, parties, axis=AXES[along])


def rotated(images: Images, client: Indices, seed: int) -> Images:
    """Turn each client's images by 0, 90, 180 or 270 degrees against the clock, each as likely."""
    _require_images(images, client)
    if images.shape[1] != images.shape[2]:
        raise ValueError(f"only square images keep their shape when turned; these are {images.shape[1]} × {images.shape[2]}")
    turns = random.bits(seed, "rotation", client) >> np.uint64(62)
    shifted = images.copy()
    for quarter in (1, 2, 3):
        chosen = turns == quarter
        shifted[chosen] = np.rot90(images[chosen], quarter, axes=(1, 2))
    return shifted


def recoloured(images: Images, client: Indices, seed: int, strength: float = 0.3) -> Images:
    """Multiply each channel by a factor of the client's camera, even between 1 − strength and 1 + strength."""
    _require_images(images, client)
    channel = np.arange(images.shape[3])
    factors = 1 + strength * (2 * random.uniform(seed, "colour", client[:, None], channel) - 1)  # [N, C]
    return _to_bytes(images * factors[:, None, None, :])


def blurred(images: Images, client: Indices, seed: int, most: float = 2.0) -> Images:
    """Blur by a Gaussian whose width of the client's lens is even between 0 and `most` pixels; edges are continued."""
    _require_images(images, client)
    widths = np.maximum(most * random.uniform(seed, "blur", client), 1e-3)
    reach = int(np.ceil(3 * most))
    steps = np.arange(-reach, reach + 1)
    kernels = np.exp(-0.5 * (steps / widths[:, None]) ** 2)  # [N, 2 reach + 1]
    kernels = (kernels / kernels.sum(axis=1, keepdims=True)).astype(np.float32)
    shifted = images.astype(np.float32)
    for axis in (1, 2):
        places = np.arange(images.shape[axis])
        source = shifted
        shifted = np.zeros_like(source)
        for step, weight in zip(steps, kernels.T, strict=True):
            neighbour = np.clip(places + step, 0, len(places) - 1)
            shifted += weight[:, None, None, None] * np.take(source, neighbour, axis=axis)
    return _to_bytes(shifted)


def noisy(images: Images, client: Indices, example: Indices, seed: int, most: float = 25.0) -> Images:
    """Add Gaussian noise whose deviation of the client's sensor is even between 0 and `most` of 255; each example has its own."""
    _require_images(images, client)
    deviations = most * random.uniform(seed, "sensor", client)
    pixel = np.arange(images[0].size) if len(images) else np.arange(0)
    first, second = (random.uniform(seed, "noise", client[:, None], example[:, None], pixel, half) for half in (0, 1))
    normal = np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second)  # Box and Muller
    return _to_bytes(images + deviations[:, None, None, None] * normal.reshape(images.shape))


def shifted(data: Examples, clients: Assignment, shift: Shift, seed: int) -> Examples:
    """Examples whose images look different at each client; what nobody holds stays as it is."""
    change: Callable[[Images, Indices, Indices], Images] = {
        "rotated": lambda images, client, example: rotated(images, client, seed),
        "recoloured": lambda images, client, example: recoloured(images, client, seed),
        "blurred": lambda images, client, example: blurred(images, client, seed),
        "noisy": lambda images, client, example: noisy(images, client, example, seed),
    }[shift]
    images, client = np.array(data.column("image")), clients.client_of_each()
    for start in range(0, len(client), TOGETHER):
        part = slice(start, start + TOGETHER)
        ids = clients.examples[part]
        images[ids] = change(images[ids], client[part], ids)
    return replace(data, columns={**data.columns, "image": images})


def _to_bytes(images: NDArray[np.floating]) -> Images:
    return np.clip(np.rint(images), 0, 255).astype(np.uint8)


def _require_images(images: Images, client: Indices | None = None) -> None:
    if images.dtype != np.uint8 or images.ndim != 4:
        raise ValueError(f"images must be uint8 [N, height, width, channels]; got {images.dtype} {images.shape}")
    if client is not None and client.shape != images.shape[:1]:
        raise ValueError(f"there must be a client for each of {len(images)} images; got {client.shape}")
