"""Change images on the device, image by image: [B, C, H, W] float32 in, the same out.

Random transforms take uniform draws u ∈ [0, 1)ᴮˣᵏ from outside, keyed by (round, client, place): which engine runs a
client, and what shares its batch, does not change its crops.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedlens.registry import Part, Registry

TRANSFORMS: Registry[type[Transform]] = Registry("transform")

Pixels = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Transform(Part):
    """A change of images, before they are normalised; `draws` is how many uniform numbers each image needs."""

    draws: ClassVar[int] = 0

    def apply(self, images: Tensor, uniform: Tensor) -> Tensor:
        raise NotImplementedError


@TRANSFORMS.register("horizontal_flip")
class HorizontalFlip(Transform):
    """Mirror left and right with probability `probability`."""

    draws: ClassVar[int] = 1
    probability: Fraction = 0.5

    def apply(self, images: Tensor, uniform: Tensor) -> Tensor:
        return torch.where(_each(uniform[:, 0] < self.probability), images.flip(3), images)


@TRANSFORMS.register("vertical_flip")
class VerticalFlip(Transform):
    """Mirror top and bottom with probability `probability`."""

    draws: ClassVar[int] = 1
    probability: Fraction = 0.5

    def apply(self, images: Tensor, uniform: Tensor) -> Tensor:
        return torch.where(_each(uniform[:, 0] < self.probability), images.flip(2), images)


@TRANSFORMS.register("random_crop")
class RandomCrop(Transform):
    """Cut out a square of `size` pixels at a random place, after padding each side with `padding` black pixels."""

    draws: ClassVar[int] = 2
    size: Pixels
    padding: Annotated[int, Field(ge=0)] = 0

    def apply(self, images: Tensor, uniform: Tensor) -> Tensor:
        images = F.pad(images, (self.padding,) * 4)
        _, _, height, width = images.shape
        _require_at_least("random_crop", self.size, height, width)
        top = (uniform[:, 0] * (height - self.size + 1)).long()
        left = (uniform[:, 1] * (width - self.size + 1)).long()
        extent = torch.arange(self.size, device=images.device)
        rows, columns = top[:, None] + extent, left[:, None] + extent  # [B, size]
        batch = torch.arange(len(images), device=images.device)
        cut = images.permute(0, 2, 3, 1)[batch[:, None, None], rows[:, :, None], columns[:, None, :]]
        return cut.permute(0, 3, 1, 2)


@TRANSFORMS.register("random_resized_crop", paper="Szegedy et al. 2015, Going Deeper with Convolutions, section 6")
class RandomResizedCrop(Transform):
    """Cut out a rectangle of random area and aspect and scale it to `size` pixels, bilinearly.

    Area is uniform in [min_area, max_area] of the image, the aspect's logarithm uniform in ± log(max_aspect); sides are
    clipped to the image, and the place is uniform among those where the rectangle fits.
    """

    draws: ClassVar[int] = 4
    size: Pixels
    min_area: Annotated[float, Field(gt=0, le=1)] = 0.08
    max_area: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_aspect: Annotated[float, Field(ge=1)] = 4 / 3

    def apply(self, images: Tensor, uniform: Tensor) -> Tensor:
        _, _, height, width = images.shape
        area = (self.min_area + uniform[:, 0] * (self.max_area - self.min_area)) * (height * width)
        aspect = torch.exp((2 * uniform[:, 1] - 1) * math.log(self.max_aspect))
        crop_width = (area * aspect).sqrt().clamp(max=width) / width  # as fractions of the image
        crop_height = (area / aspect).sqrt().clamp(max=height) / height
        theta = images.new_zeros(len(images), 2, 3)
        theta[:, 0, 0], theta[:, 0, 2] = crop_width, (2 * uniform[:, 2] - 1) * (1 - crop_width)
        theta[:, 1, 1], theta[:, 1, 2] = crop_height, (2 * uniform[:, 3] - 1) * (1 - crop_height)
        grid = F.affine_grid(theta, [len(images), images.shape[1], self.size, self.size], align_corners=False)
        return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


@TRANSFORMS.register("resize")
class Resize(Transform):
    """Scale to a square of `size` pixels, bilinearly: antialiased as torchvision does, or not, as Keras' layers do."""

    size: Pixels
    antialias: bool = True

    def apply(self, images: Tensor, uniform: Tensor) -> Tensor:
        return F.interpolate(images, size=(self.size, self.size), mode="bilinear", antialias=self.antialias, align_corners=False)


@TRANSFORMS.register("center_crop")
class CenterCrop(Transform):
    """Cut out the square of `size` pixels in the middle."""

    size: Pixels

    def apply(self, images: Tensor, uniform: Tensor) -> Tensor:
        _, _, height, width = images.shape
        _require_at_least("center_crop", self.size, height, width)
        top, left = (height - self.size) // 2, (width - self.size) // 2
        return images[:, :, top : top + self.size, left : left + self.size]


def _each(condition: Tensor) -> Tensor:
    return condition[:, None, None, None]


def _require_at_least(name: str, size: int, height: int, width: int) -> None:
    if size > min(height, width):
        raise ValueError(f"{name}: size {size} is larger than the image ({height} × {width} with padding)")
