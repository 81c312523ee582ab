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
from PIL import Image, ImageOps

Fit: TypeAlias = Literal["crop", "pad", "stretch"]
Encoded: TypeAlias = Path | bytes | NDArray[np.uint8]  # a file, a file's content, or pixels [H, W, 3], [H, W, 1] or [H, W]
Pictures: TypeAlias = Sequence[Encoded]

VOID = 255  # in a mask: no class, as beyond a picture's edge
SUPERSAMPLED = 2  # JPEGs are decoded at no less than this multiple of the size in which they are kept
ORIENTATION, ON_THEIR_SIDE = 0x0112, (5, 6, 7, 8)  # a tag of cameras, and its values where the picture has to be turned
DEEP = ("I;16", "I;16B", "I;16L", "I")  # modes of pictures with 16 bits a channel


class MissingPicture(ValueError):
    """There is no such file."""


class BrokenPicture(ValueError):
    """There is one, but no picture can be read from it."""


@dataclass(frozen=True)
class Placement:
    """Where the pixel (x, y) of a picture comes to lie: (x · scale_x + left, y · scale_y + top)."""

    box: tuple[float, float, float, float]  # the part that is kept, in the picture's pixels: left, top, right, bottom
    inner: tuple[int, int, int, int]  # where it goes in the square: left, top, width, height

    @classmethod
    def of(cls, width: int, height: int, size: int, fit: Fit) -> Placement:
        """crop: the largest square in the middle;   pad: all of it, with margins;   stretch: all of it, distorted."""
        if fit == "crop":
            side = min(width, height)
            left, top = (width - side) / 2, (height - side) / 2
            return cls((left, top, left + side, top + side), (0, 0, size, size))
        if fit == "stretch":
            return cls((0, 0, width, height), (0, 0, size, size))
        scale = size / max(width, height)
        inner = max(1, round(width * scale)), max(1, round(height * scale))
        return cls((0, 0, width, height), ((size - inner[0]) // 2, (size - inner[1]) // 2, *inner))

    def boxes(self, boxes: NDArray[np.float32]) -> NDArray[np.float32]:
        """Boxes [M, 4] (left, top, right, bottom) as they lie in the square, cut off at the edges of what is kept."""
        left, top, right, bottom = self.box
        x, y, width, height = self.inner
        scale = np.array([width / (right - left), height / (bottom - top)] * 2, dtype=np.float32)
        moved = (boxes - np.array([left, top] * 2, dtype=np.float32)) * scale + np.array([x, y] * 2, dtype=np.float32)
        return np.clip(moved, np.array([x, y] * 2), np.array([x + width, y + height] * 2)).astype(np.float32)


def decode(encoded: Encoded, size: int, fit: Fit) -> tuple[NDArray[np.uint8], Placement]:
    """A picture as pixels [size, size, 3], and how they lie in it."""
    picture, width, height = _opened(encoded, size)
    try:
        if picture.getexif().get(ORIENTATION) in ON_THEIR_SIDE:
            width, height = height, width
        placement, colour = Placement.of(width, height, size, fit), _colour(ImageOps.exif_transpose(picture))
        across, down = colour.width / width, colour.height / height  # less than 1 where a JPEG was decoded small
        box = tuple(edge * scale for edge, scale in zip(placement.box, (across, down, across, down), strict=True))
        left, top, *inner = placement.inner
        square = colour.resize((inner[0], inner[1]), Image.Resampling.BILINEAR, box=box)  # type: ignore[arg-type]
        if (left, top, *inner) != (0, 0, size, size):
            whole = Image.new("RGB", (size, size))
            whole.paste(square, (left, top))
            square = whole
        return np.asarray(square, dtype=np.uint8), placement
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # truncated files raise the first two
        raise BrokenPicture(f"{_called(encoded)} cannot be decoded: {error}") from error


def decode_mask(encoded: Encoded, placement: Placement, size: int) -> NDArray[np.uint8]:
    """The classes of a picture's pixels [size, size], nearest ones; a palette's indices, not its colours."""
    picture, _, _ = _opened(encoded, None)
    try:
        values = np.asarray(picture)
    except (OSError, SyntaxError) as error:
        raise BrokenPicture(f"{_called(encoded)} cannot be decoded: {error}") from error
    if values.ndim != 2:
        raise BrokenPicture(f"{_called(encoded)} is no mask: it has {picture.mode} pixels, not one class for each")
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
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BrokenPicture(f"{_called(encoded)} is no picture that can be read: {error}") from error
    width, height = picture.size
    if size is not None:
        shrunk = SUPERSAMPLED * size / min(width, height)
        if shrunk < 1:
            picture.draft("RGB", (int(width * shrunk), int(height * shrunk)))
    return picture, width, height


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
