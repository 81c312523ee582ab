"""Cells of the S2 geometry in NumPy: the sphere as six squares, each quartered thirty times along a Hilbert curve.

id = face (3 bits) · position on the curve (2 bits for each level) · 1 · zeros               (uint64: faces 4 and 5 overflow int64)

A cell at level L has its lowest 1 at bit 2 (30 − L); the numbers of all that lie in it surround its own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEAF = 30  # level of the smallest cells, about a centimetre wide

Cells = NDArray[np.uint64]
Floats = NDArray[np.float64]

# Which quarter of the curve a square's quarter (2 i + j) is, and how the curve is turned there, for each of four orientations.
_POSITION = np.array([[0, 1, 3, 2], [0, 3, 1, 2], [2, 3, 1, 0], [2, 1, 3, 0]])
_TURN = np.array([1, 0, 0, 3])  # 1: i and j change places, 2: both are mirrored


def leaf_cells(latitude: ArrayLike, longitude: ArrayLike) -> Cells:
    """The leaf cell in which each point lies, given in degrees."""
    latitude, longitude = np.asarray(latitude, dtype=np.float64), np.asarray(longitude, dtype=np.float64)
    if latitude.shape != longitude.shape or latitude.ndim != 1:
        raise ValueError(f"there must be as many longitudes as latitudes, in one row each; got {latitude.shape}, {longitude.shape}")
    require_on_earth(latitude, longitude)
    face, u, v = _faces(np.radians(latitude), np.radians(longitude))
    return _along_the_curve(face, _steps(u), _steps(v))


def require_on_earth(latitude: Floats, longitude: Floats) -> None:
    """Refuse what other libraries silently wrap around."""
    for what, degrees, bound in (("latitude", latitude, 90), ("longitude", longitude, 180)):
        wrong = np.flatnonzero(~(np.abs(degrees) <= bound))  # NaN is not within either
        if len(wrong):
            raise ValueError(
                f"{what}s must lie in −{bound}…{bound} degrees; row {wrong[0]} has {degrees[wrong[0]]} ({len(wrong):,} such rows "
                "in all): leave out points whose coordinates are unknown, and see whether the columns are the right ones"
            )


def parents(cells: Cells, level: int) -> Cells:
    """The cells of a level that hold these cells, which must lie at that level or below it."""
    if not 0 <= level <= LEAF:
        raise ValueError(f"levels go from 0 to {LEAF}; got {level}")
    if len(cells) and (highest := int(levels(cells).min())) < level:
        raise ValueError(f"a cell of level {highest} has no parent at level {level}, which is further down")
    lowest = np.uint64(1 << 2 * (LEAF - level))
    return (cells & ~(lowest - np.uint64(1))) | lowest


def children(cell: int) -> Cells:
    """The four cells of the next level that a cell consists of, in the order of the curve."""
    lowest = cell & -cell
    if lowest == 1:
        raise ValueError(f"cell {cell} is a leaf and has no children")
    return np.array([cell - lowest + (2 * quarter + 1) * (lowest // 4) for quarter in range(4)], dtype=np.uint64)


def levels(cells: Cells) -> NDArray[np.int64]:
    """How often the sphere's faces are quartered to give each cell: 0 for a face, 30 for a leaf."""
    lowest = cells & (~cells + np.uint64(1))
    return LEAF - (np.frexp(lowest.astype(np.float64))[1] - 1).astype(np.int64) // 2


def tokens(cells: Cells) -> list[str]:
    """Names of cells: sixteen hexadecimal digits without the zeros at the end."""
    return [f"{cell:016x}".rstrip("0") for cell in cells.tolist()]


def _faces(latitude: Floats, longitude: Floats) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Project the sphere onto the cube around it: the face that each point meets, and where on it, in −1…1."""
    x, y, z = np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)
    ax, ay, az = np.abs(x), np.abs(y), np.abs(z)
    axis = np.where(ax > ay, np.where(ax > az, 0, 2), np.where(ay > az, 1, 2))  # of equals, the later one
    face = axis + 3 * (np.choose(axis, (x, y, z)) < 0)
    u = np.choose(face, (y, -x, -x, z, z, -y)) / np.choose(face, (x, y, z, x, y, z))
    v = np.choose(face, (z, z, -y, y, -x, -x)) / np.choose(face, (x, y, z, x, y, z))
    return face, u, v


def _steps(u: Floats) -> NDArray[np.int64]:
    """The row or column, of 2³⁰ on a face, in which a coordinate lies; the quadratic makes cells nearly equal in area."""
    root = 0.5 * np.sqrt(1 + 3 * np.abs(u))
    share = np.where(u >= 0, root, 1 - root)
    return np.clip(np.floor(share * 2**LEAF), 0, 2**LEAF - 1).astype(np.int64)


def _along_the_curve(face: NDArray[np.int64], i: NDArray[np.int64], j: NDArray[np.int64]) -> Cells:
    """Walk down the thirty levels and note at each which quarter of the curve comes next."""
    orientation = face & 1
    position = face.astype(np.uint64)
    for bit in range(LEAF - 1, -1, -1):
        quarter = _POSITION[orientation, (i >> bit & 1) << 1 | j >> bit & 1]
        position = position << np.uint64(2) | quarter.astype(np.uint64)
        orientation ^= _TURN[quarter]
    return position << np.uint64(1) | np.uint64(1)
