"""Encoded pictures, and how each becomes a square of bytes.

    file, bytes or array → upright, RGB → part of it, resized → uint8 [size, size, 3]

Where that part lies is kept as a `Placement`, so that masks and boxes go the same way.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.Image import Transpose

Fit: TypeAlias = Literal["crop", "pad", "stretch"]
Encoded: TypeAlias = Path | bytes | NDArray[np.uint8]  # a file, a file's content, or pixels [H, W, 3], [H, W, 1] or [H, W]
Pictures: TypeAlias = Sequence[Encoded]

VOID = 255  # in a mask: no class, as beyond a picture's edge
SUPERSAMPLED = 2  # JPEGs are decoded at no less than this multiple of the size in which they are kept
ORIENTATION = 0x0112  # a camera's tag, and what its values ask for
TURNS = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
ON_THEIR_SIDE = tuple(TURNS[value] for value in (5, 6, 7, 8))
DEEP = ("I;16", "I;16B", "I;16L", "I")  # modes of pictures with 16 bits a channel


class MissingPicture(ValueError):
    """There is no such file."""


class BrokenPicture(ValueError):
    """There is one, but no picture can be read from it."""


@dataclass(frozen=True)
class Placement:
    """Where the pixel (x, y) of a picture comes to lie: (x · scale_x + left, y · scale_y + top)."""

    picture: tuple[int, int]  # its width and height
    box: tuple[float, float, float, float]  # the part that is kept, in its pixels: left, top, right, bottom
    inner: tuple[int, int, int, int]  # where it goes in the square: left, top, width, height

    @classmethod
    def of(cls, width: int, height: int, size: int, fit: Fit) -> Placement:
        """crop: the largest square in the middle;   pad: all of it, with margins;   stretch: all of it, distorted."""
        if fit == "crop":
            side = min(width, height)
            left, top = (width - side) / 2, (height - side) / 2
            return cls((width, height), (left, top, left + side, top + side), (0, 0, size, size))
        if fit == "stretch":
            return cls((width, height), (0, 0, width, height), (0, 0, size, size))
        scale = size / max(width, height)
        inner = max(1, round(width * scale)), max(1, round(height * scale))
        return cls((width, height), (0, 0, width, height), ((size - inner[0]) // 2, (size - inner[1]) // 2, *inner))

    def require(self, size: tuple[int, int], what: str) -> None:
        """What belongs to the picture has to be of its size."""
        if tuple(size) != self.picture:
            raise BrokenPicture(f"{what} is {size[0]} × {size[1]}, and its picture {self.picture[0]} × {self.picture[1]}")

    def boxes(self, boxes: NDArray[np.float32]) -> NDArray[np.float32]:
        """Boxes [M, 4] (left, top, right, bottom) as they lie in the square, cut off at the edges of what is kept."""
        left, top, right, bottom = self.box
        x, y, width, height = self.inner
        scale = np.array([width / (right - left), height / (bottom - top)] * 2, dtype=np.float32)
        moved = (boxes - np.array([left, top] * 2, dtype=np.float32)) * scale + np.array([x, y] * 2, dtype=np.float32)
        return np.clip(moved, np.array([x, y] * 2), np.array([x + width, y + height] * 2)).astype(np.float32)


def decode(encoded: Encoded, size: int, fit: Fit, upright: bool = True) -> tuple[NDArray[np.uint8], Placement]:
    """A picture as pixels [size, size, 3], and how they lie in it; `upright` turns it as its camera was held."""
    picture, width, height = _opened(encoded, size)
    try:
        turn = TURNS.get(_orientation(picture)) if upright else None
        if turn in ON_THEIR_SIDE:
            width, height = height, width
        colour = _colour(picture if turn is None else picture.transpose(turn))
        placement = Placement.of(width, height, size, fit)
        across, down = colour.width / width, colour.height / height  # less than 1 where a JPEG was decoded small
        box = tuple(edge * scale for edge, scale in zip(placement.box, (across, down, across, down), strict=True))
        left, top, *inner = placement.inner
        square = colour.resize((inner[0], inner[1]), Image.Resampling.BILINEAR, box=box)  # type: ignore[arg-type]
        if (left, top, *inner) != (0, 0, size, size):
            whole = Image.new("RGB", (size, size))
            whole.paste(square, (left, top))
            square = whole
        return np.asarray(square, dtype=np.uint8), placement
    except Exception as error:  # Pillow raises many kinds for a broken file
        raise BrokenPicture(f"{_called(encoded)} cannot be decoded: {error}") from error


def decode_mask(encoded: Encoded, placement: Placement, size: int) -> NDArray[np.uint8]:
    """The classes of a picture's pixels [size, size], nearest ones; a palette's indices, not its colours."""
    picture, _, _ = _opened(encoded, None)
    try:
        values = np.asarray(picture)
    except Exception as error:
        raise BrokenPicture(f"{_called(encoded)} cannot be decoded: {error}") from error
    if values.ndim != 2:
        raise BrokenPicture(f"{_called(encoded)} is no mask: it has {picture.mode} pixels, not one class for each")
    placement.require(picture.size, f"the mask {_called(encoded)}")
    left, top, width, height = placement.inner
    resized = Image.fromarray(values.astype(np.uint8)).resize((width, height), Image.Resampling.NEAREST, box=placement.box)
    whole = np.full((size, size), VOID, dtype=np.uint8)
    whole[top : top + height, left : left + width] = np.asarray(resized)
    return whole


def _opened(encoded: Encoded, size: int | None) -> tuple[Image.Image, int, int]:
    """A picture that is not decoded yet, with its full width and height; JPEGs that are much larger than `size` come smaller."""
    if isinstance(encoded, np.ndarray):
        pixels = encoded[..., 0] if encoded.ndim == 3 and encoded.shape[2] == 1 else encoded
        picture: Any = Image.fromarray(pixels)
        return picture, picture.width, picture.height
    try:
        picture = Image.open(io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingPicture(f"{encoded!s} is missing") from error
    except Exception as error:
        raise BrokenPicture(f"{_called(encoded)} is no picture that can be read: {error}") from error
    width, height = picture.size
    if size is not None:
        shrunk = SUPERSAMPLED * size / min(width, height)
        if shrunk < 1:
            picture.draft("RGB", (int(width * shrunk), int(height * shrunk)))
    return picture, width, height


def _orientation(picture: Image.Image) -> int:
    """How the camera was held; tags that cannot be read say nothing."""
    try:
        return int(picture.getexif().get(ORIENTATION, 1))
    except Exception:
        return 1


def _colour(picture: Image.Image) -> Image.Image:
    """Any picture in RGB: 16 bits become 8, what is transparent lies on white."""
    if picture.mode in DEEP:
        values = np.asarray(picture).astype(np.int64)
        picture = Image.fromarray((np.clip(values, 0, 65_535) // 257).astype(np.uint8))
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info:
        transparent = picture.convert("RGBA")
        picture = Image.new("RGBA", transparent.size, "white")
        picture.alpha_composite(transparent)
    return picture.convert("RGB")


def _called(encoded: Encoded) -> str:
    return str(encoded) if isinstance(encoded, Path) else "a picture"
