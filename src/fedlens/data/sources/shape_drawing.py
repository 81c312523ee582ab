"""Draw shapes on textured grounds, many pictures at a time: signed distances, looked up where a pixel lies in a shape's own frame.

    coverage = ½ − distance / softness, between 0 and 1;      picture = Σ_layers coverage · colour of the layer

Coverages and colours are whole numbers whose products sum to less than 2²⁴: float32 holds that exactly in whatever order a
library sums it up, and so the pictures are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlens import random

Floats = NDArray[np.float32]

SHAPES = ("circle", "ring", "moon", "heart", "triangle", "square", "bar", "cross", "star", "arrow")
CELLS, EXTENT = 128, 1.6  # a table of distances has CELLS² of them, for points up to EXTENT radii from the middle
DIRECTIONS = 256  # in which the extent of a shape is known
STRIPES, DARKER = 1.6, 0.6  # of striped shapes: how many to a radius, and how much darker every other one is
NOISE, FINENESS = 1 << 16, 64  # values that the noise of all pictures is cut from; their standard deviation
FULL = 127  # the whole of a pixel
PIXELS = 1 << 16  # drawn at a time, so that what is worked on stays in the processor's cache


@dataclass(frozen=True)
class Scenes:
    """What n pictures show. Lengths are in widths of the picture, angles in radians, J objects at most."""

    shape: NDArray[np.int64]  # [n, J], −1 where there are fewer objects
    centre: Floats  # [n, J, 2]: x, y
    radius: Floats  # [n, J]
    angle: Floats  # [n, J]
    striped: NDArray[np.bool_]  # [n, J]
    colours: Floats  # [n, 3 + J, 3], whole numbers: the ground's two, the noise's strength (see `noise_weight`), the objects'
    waves: Floats  # [n, 2, 3]: two waves of the ground, each p = x · w₀ + y · w₁ + w₂
    texture: Floats  # [n, 4]: their weights, see `_ground`
    softness: Floats  # [n]: of all edges
    noise_place: NDArray[np.int64]  # [n]

    def rows(self, start: int, stop: int) -> Scenes:
        return replace(self, **{field.name: getattr(self, field.name)[start:stop] for field in fields(self)})


def noise_weight(grey_levels: Floats) -> Floats:
    """What stands in `Scenes.colours` for noise of a standard deviation."""
    return np.rint(grey_levels * np.float32(FULL**2 / FINENESS))


def extents(shape: NDArray[np.int64], centre: Floats, radius: Floats, angle: Floats) -> Floats:
    """Boxes [n, J, 4] around objects: left, top, right, bottom."""
    turn = np.rint(angle * np.float32(DIRECTIONS / (2 * np.pi))).astype(np.int64)
    outwards = DIRECTIONS // 4 * np.array([2, 3, 0, 1]) - turn[..., None]  # to the left, the top, the right, the bottom
    reach = np.take(_reach(), shape[..., None] * DIRECTIONS + outwards % DIRECTIONS) * radius[..., None]
    edges: Floats = np.tile(centre, 2) + reach * np.array([-1, -1, 1, 1], dtype=np.float32)
    return edges


def draw(scenes: Scenes, size: int, image: NDArray[np.uint8], mask: NDArray[np.uint8] | None) -> None:
    """Draw into `image` [n, size, size, 3], and into `mask` [n, size, size] the shape that each pixel shows, from 1; 0 for none."""
    step = max(1, PIXELS // size**2)
    for start in range(0, len(image), step):
        part = slice(start, start + step)
        _draw(scenes.rows(start, start + step), size, image[part], None if mask is None else mask[part])


def _draw(scenes: Scenes, size: int, image: NDArray[np.uint8], mask: NDArray[np.uint8] | None) -> None:
    count, objects = scenes.shape.shape
    layers = np.zeros((count, 3 + objects, size, size), dtype=np.float32)  # two of the ground, noise, objects
    hidden = np.zeros((count, size, size), dtype=np.float32)
    for j in range(objects):
        here = slice(None) if j == 0 else np.flatnonzero(scenes.shape[:, j] >= 0)  # every picture has a first object
        covered, shade = _object(scenes, here, j, size)
        hidden[here] += covered
        layers[here, 3 + j] = FULL * shade
        if mask is not None:
            mask[here] += (covered > FULL // 2) * (scenes.shape[here, j, None, None] + 1).astype(np.uint8)
    seen, second = FULL - hidden, _ground(scenes, size)
    np.multiply(seen, second, out=layers[:, 1])
    np.subtract(FULL * seen, layers[:, 1], out=layers[:, 0])
    noise = np.lib.stride_tricks.sliding_window_view(_noise(size), size**2)[scenes.noise_place]
    layers[:, 2] = noise.reshape(count, size, size)
    colour = layers.reshape(count, 3 + objects, -1).transpose(0, 2, 1) @ scenes.colours  # [n, size², 3]: whole numbers, exact
    colour *= np.float32(1 / FULL**2)
    np.clip(colour, 0, 255, out=colour)
    image[...] = colour.reshape(image.shape)


def _object(scenes: Scenes, here: slice | NDArray[np.int64], j: int, size: int) -> tuple[Floats, Floats]:
    """How far an object covers each pixel [m, size, size], from 0 to FULL, and how much of its colour is seen there."""
    radius, angle, centre = scenes.radius[here, j], scenes.angle[here, j], scenes.centre[here, j]
    scale = CELLS / (2 * EXTENT) / radius  # from picture to table
    cosine, sine = np.cos(angle) * scale, np.sin(angle) * scale
    place = _middles(size)
    x, y = place - centre[:, :1], place - centre[:, 1:]  # [m, size]
    u = (cosine[:, None] * x + np.float32(CELLS / 2))[:, None, :] + (sine[:, None] * y)[:, :, None]
    v = (-sine[:, None] * x + np.float32(CELLS / 2))[:, None, :] + (cosine[:, None] * y)[:, :, None]
    for axis in (u, v):
        np.clip(axis, 0, CELLS - 1, out=axis)
    np.floor(v, out=v)
    v *= CELLS
    v += np.floor(u, out=u)
    cell = v.astype(np.intp)
    covered = np.take(_distances(), cell + (scenes.shape[here, j] * CELLS**2)[:, None, None], mode="clip")
    covered *= (-FULL * radius / scenes.softness[here])[:, None, None]
    covered += np.float32(FULL / 2)
    np.clip(covered, 0, FULL, out=covered)
    np.rint(covered, out=covered)
    striped = np.flatnonzero(scenes.striped[here, j])
    shade = covered.copy()
    shade[striped] = np.floor(covered[striped] * np.take(_stripes(), cell[striped], mode="clip"))
    return covered, shade


def _ground(scenes: Scenes, size: int) -> Floats:
    """How much of the ground's second colour is seen [n, size, size], from 0 to FULL.

    t₀ + t₁ a + t₂ b + t₃ a b   of two triangular waves a and b
    """
    place = _middles(size)
    waves = []
    for across, down, shift in scenes.waves.transpose(1, 2, 0):
        wave = (across[:, None] * place + shift[:, None])[:, None, :] + (down[:, None] * place)[:, :, None]
        wave -= np.rint(wave)
        np.abs(wave, out=wave)
        wave -= np.float32(0.25)
        waves.append(wave)
    a, b = waves
    constant, of_a, of_b, of_both = (FULL * weight[:, None, None] for weight in scenes.texture.T)
    total = of_both * a
    total += of_b
    total *= b
    a *= of_a
    total += a
    total += constant
    np.clip(total, 0, FULL, out=total)
    return np.floor(total, out=total)


@cache
def _middles(size: int) -> Floats:
    """Where the middles of pixels lie, in widths of the picture."""
    middles: Floats = (np.arange(size, dtype=np.float32) + np.float32(0.5)) / np.float32(size)
    return middles


def _frame() -> tuple[NDArray[Any], NDArray[Any]]:
    """The points x, y of a table [CELLS, CELLS], in radii."""
    place = (np.arange(CELLS) + 0.5) * (2 * EXTENT / CELLS) - EXTENT
    x, y = np.meshgrid(place, place)
    return x, y


@cache
def _stripes() -> Floats:
    """How much of its colour is seen in each place of a striped shape [CELLS²]."""
    wave = _frame()[0] * STRIPES
    return np.where(wave - np.floor(wave) < 0.5, 1 - DARKER, 1).astype(np.float32).ravel()


@cache
def _distances() -> Floats:
    """Signed distances of all shapes [shapes · CELLS²], in radii: negative inside."""
    x, y = _frame()
    return np.stack([distance(shape, x, y) for shape in SHAPES]).astype(np.float32).ravel()


@cache
def _reach() -> Floats:
    """How far each shape reaches from its middle in each direction [shapes, DIRECTIONS], in radii."""
    points = np.stack(_frame(), axis=-1).reshape(-1, 2)
    angles = np.arange(DIRECTIONS) * (2 * np.pi / DIRECTIONS)
    along = np.stack([np.cos(angles), np.sin(angles)])
    inside = (points[distances <= 0] @ along for distances in _distances().reshape(len(SHAPES), -1))
    return np.stack([reached.max(axis=0) for reached in inside]).astype(np.float32)


@cache
def _noise(size: int) -> Floats:
    """Normal noise in whole numbers, of standard deviation FINENESS, from which each picture takes a stretch."""
    return np.rint(FINENESS * random.generator(0, "shapes: noise").standard_normal(NOISE + size**2)).astype(np.float32)


def distance(shape: str, x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """From points to the edge of a shape of radius 1 around the origin; y points down."""
    from_middle = np.hypot(x, y)
    if shape == "circle":
        return from_middle - 0.9
    if shape == "ring":
        return np.abs(from_middle - 0.7) - 0.24
    if shape == "moon":
        return np.maximum(from_middle - 0.98, 0.8 - np.hypot(x - 0.5, y))
    return _polygon(_corners(shape), x, y)


def _corners(shape: str) -> NDArray[Any]:
    """A polygon's corners [c, 2]."""
    if shape == "heart":
        t = np.linspace(0, 2 * np.pi, 48, endpoint=False)
        across, up = 16 * np.sin(t) ** 3, 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
        return np.stack([across, -up - 2.5], axis=-1) / 18.2
    if shape in ("triangle", "star"):
        count = 3 if shape == "triangle" else 5
        turns = np.arange(2 * count) * (np.pi / count) - np.pi / 2
        lengths = np.where(np.arange(2 * count) % 2, 0.5 if shape == "triangle" else 0.4, 1.0)
        return np.stack([np.cos(turns), np.sin(turns)], axis=-1) * lengths[:, None]
    a, b = 0.95, 0.3
    corners: dict[str, Sequence[tuple[float, float]]] = {
        "square": [(-0.7, -0.7), (0.7, -0.7), (0.7, 0.7), (-0.7, 0.7)],
        "bar": [(-a, -b), (a, -b), (a, b), (-a, b)],
        "cross": [(-b, -a), (b, -a), (b, -b), (a, -b), (a, b), (b, b), (b, a), (-b, a), (-b, b), (-a, b), (-a, -b), (-b, -b)],
        "arrow": [(0.98, 0), (0.2, -0.75), (0.2, -b), (-0.9, -b), (-0.9, b), (0.2, b), (0.2, 0.75)],
    }
    return np.array(corners[shape])


def _polygon(corners: NDArray[Any], x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """Signed distance to a polygon: to its nearest side, negative where a ray to the right crosses an odd number of sides."""
    nearest, inside = np.full(x.shape, np.inf), np.zeros(x.shape, dtype=bool)
    for (ax, ay), (bx, by) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        along = np.clip(((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / ((bx - ax) ** 2 + (by - ay) ** 2), 0, 1)
        nearest = np.minimum(nearest, np.hypot(x - ax - along * (bx - ax), y - ay - along * (by - ay)))
        if ay != by:
            inside ^= ((ay > y) != (by > y)) & (x < (bx - ax) * (y - ay) / (by - ay) + ax)
    return np.where(inside, -nearest, nearest)
