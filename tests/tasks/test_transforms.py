"""Transforms of images against other implementations and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms.v2 import functional as torchvision

from fedlens import random
from fedlens.registry import BadSettings
from fedlens.tasks import TRANSFORMS
from fedlens.tasks.transforms import CenterCrop, HorizontalFlip, RandomCrop, RandomResizedCrop, Resize, VerticalFlip

LAST = 1 - 2**-24  # the largest draw below one
EXAMPLES = {
    "horizontal_flip": HorizontalFlip(),
    "vertical_flip": VerticalFlip(),
    "random_crop": RandomCrop(size=8, padding=2),
    "random_resized_crop": RandomResizedCrop(size=6),
    "resize": Resize(size=7),
    "center_crop": CenterCrop(size=6),
}
DRAW = st.floats(0, LAST, width=32)


def pictures(count: int = 5, height: int = 9, width: int = 12) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, height, width), generator=generator).float()


def draws(count: int, each: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(random.uniform(seed, "test", np.arange(count)[:, None], np.arange(each)))


def same_for_all(*uniform: float, count: int = 5) -> Tensor:
    return torch.tensor([uniform]).expand(count, -1)


@pytest.mark.parametrize("name", [entry.name for entry in TRANSFORMS])
def test_what_happens_to_an_image_does_not_depend_on_the_others_in_its_batch(name):
    transform, images = EXAMPLES[name], pictures()
    uniform = draws(len(images), transform.draws)
    together = transform.apply(images, uniform)
    alone = [transform.apply(images[i : i + 1], uniform[i : i + 1]) for i in range(len(images))]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-6, atol=1e-4)
    assert (together.dtype, together.shape[:2]) == (torch.float32, (5, 3))


@pytest.mark.parametrize("name", [entry.name for entry in TRANSFORMS])
def test_images_are_not_changed_in_place_and_the_global_generator_is_not_touched(name):
    transform, images = EXAMPLES[name], pictures()
    before = torch.get_rng_state()
    first = transform.apply(images, draws(5, transform.draws)).clone()
    assert torch.equal(images, pictures())
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(transform.apply(images, draws(5, transform.draws)), first)


@pytest.mark.parametrize("name", [entry.name for entry in TRANSFORMS])
def test_a_transform_is_random_if_and_only_if_it_says_that_it_takes_draws(name):
    transform, images = EXAMPLES[name], pictures(1).expand(40, -1, -1, -1)
    results = transform.apply(images, draws(40, transform.draws))
    assert (len(results.unique(dim=0)) > 1) == (transform.draws > 0)
    for column in range(transform.draws):  # and each of them counts
        changed = draws(40, transform.draws)
        changed[:, column] = 1 - changed[:, column].clamp(min=1e-6)
        assert not torch.equal(transform.apply(images, changed), results)


@pytest.mark.parametrize(
    ("transform", "flipped"),
    [(HorizontalFlip(probability=0.25), torchvision.hflip), (VerticalFlip(probability=0.25), torchvision.vflip)],
)
def test_an_image_is_flipped_if_its_draw_is_below_the_probability(transform, flipped):
    images = pictures(4)
    result = transform.apply(images, torch.tensor([[0.0], [0.2499], [0.25], [LAST]]))
    assert torch.equal(result, torch.cat([flipped(images[:2]), images[2:]]))


@pytest.mark.parametrize("kind", [HorizontalFlip, VerticalFlip])
def test_probability_zero_never_flips_and_one_always(kind):
    images, uniform = pictures(2), torch.tensor([[0.0], [LAST]])
    assert torch.equal(kind(probability=0).apply(images, uniform), images)
    assert torch.equal(kind(probability=1).apply(images, uniform), images.flip(3 if kind is HorizontalFlip else 2))


@given(size=st.integers(1, 9), padding=st.integers(0, 3), vertical=DRAW, horizontal=DRAW)
@settings(max_examples=60, deadline=None)
def test_a_random_crop_is_torchvisions_crop_of_the_padded_image_at_the_drawn_place(size, padding, vertical, horizontal):
    images = pictures(2)
    padded = torchvision.pad(images, padding)
    top, left = (
        int(np.float32(u) * np.float32(n - size + 1)) for u, n in zip((vertical, horizontal), padded.shape[2:], strict=True)
    )
    result = RandomCrop(size=size, padding=padding).apply(images, same_for_all(vertical, horizontal, count=2))
    assert torch.equal(result, torchvision.crop(padded, top, left, size, size))


def test_a_random_crop_reaches_every_place_equally_often():
    """The image says where it was cut."""
    places = torch.stack(torch.meshgrid(torch.arange(7.0), torch.arange(9.0), indexing="ij"))
    number = 6000
    corners = RandomCrop(size=5).apply(places.expand(number, -1, -1, -1), draws(number, 2))[:, :, 0, 0]
    cells, counts = (corners @ torch.tensor([10.0, 1.0])).unique(return_counts=True)
    assert cells.tolist() == [10 * top + left for top in range(3) for left in range(5)]
    chi_square = ((counts - number / 15) ** 2 / (number / 15)).sum()
    assert chi_square < 14 + 4 * np.sqrt(2 * 14)


def test_the_largest_draw_stays_inside_images_of_any_size():
    for side in range(1, 130):
        last = RandomCrop(size=1).apply(torch.arange(float(side)).expand(1, 1, side, side), same_for_all(LAST, LAST, count=1))
        assert last.item() == side - 1


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("size", [1, 5, 9, 12, 20])
@pytest.mark.parametrize(("height", "width"), [(9, 12), (16, 7)])
def test_resize_is_torchvisions(size, height, width, antialias):
    images = pictures(2, height, width)
    expected = torchvision.resize(images, [size, size], antialias=antialias)
    torch.testing.assert_close(Resize(size=size, antialias=antialias).apply(images, torch.empty(2, 0)), expected)


def test_resize_is_antialiased_unless_told_otherwise():
    images = pictures(2, 16, 16)
    expected = torchvision.resize(images, [7, 7], antialias=True)
    torch.testing.assert_close(Resize(size=7).apply(images, torch.empty(2, 0)), expected)
    assert not torch.allclose(Resize(size=7, antialias=False).apply(images, torch.empty(2, 0)), expected, atol=1)


def test_resize_of_256_to_224_is_torchvisions_of_bytes_up_to_its_rounding():
    images = pictures(2, 256, 256)
    expected = torchvision.resize(images.byte(), [224, 224], antialias=True).float()
    difference = (Resize(size=224).apply(images, torch.empty(2, 0)) - expected).abs()
    assert difference.max() < 1.1  # it rounds twice, after columns and after rows
    assert difference.mean() < 0.5


@pytest.mark.parametrize("size", [1, 3, 7, 9])
def test_a_center_crop_is_torchvisions_with_as_much_cut_off_on_both_sides(size):
    images = pictures(2, 9, 13)
    result = CenterCrop(size=size).apply(images, torch.empty(2, 0))
    assert torch.equal(result, torchvision.center_crop(images, [size, size]))


def test_where_the_middle_lies_between_pixels_the_center_crop_takes_the_upper_left():
    image = torch.arange(16.0).view(1, 1, 4, 4)
    assert CenterCrop(size=3).apply(image, torch.empty(1, 0)).flatten().tolist() == [0, 1, 2, 4, 5, 6, 8, 9, 10]


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (RandomCrop(size=10), r"random_crop: size 10 is larger than the image \(9 × 12 with padding\)"),
        (RandomCrop(size=12, padding=1), r"random_crop: size 12 is larger than the image \(11 × 14 with padding\)"),
        (CenterCrop(size=10), r"center_crop: size 10 is larger than the image \(9 × 12"),
    ],
)
def test_a_crop_larger_than_the_image_is_refused(transform, message):
    with pytest.raises(ValueError, match=message):
        transform.apply(pictures(), draws(5, transform.draws))


def test_a_random_resized_crop_of_the_whole_image_to_its_size_is_the_image():
    images = pictures(5, 8, 8)
    result = RandomResizedCrop(size=8, min_area=1, max_aspect=1).apply(images, draws(5, 4))
    torch.testing.assert_close(result, images, rtol=0, atol=1e-3)


@pytest.mark.parametrize("size", [5, 8, 16])
def test_a_random_resized_crop_of_the_whole_image_scales_it_to_its_border_as_torchvision_does(size):
    images = pictures(5, 8, 8)
    result = RandomResizedCrop(size=size, min_area=1, max_aspect=1).apply(images, draws(5, 4))
    torch.testing.assert_close(result, torchvision.resize(images, [size, size], antialias=False), rtol=0, atol=1e-2)


@pytest.mark.parametrize(("horizontal", "vertical"), [(0.0, 0.0), (0.5, 0.5), (0.25, 0.75), (1.0, 0.5)])
@pytest.mark.parametrize("size", [3, 4, 8, 11])
def test_a_random_resized_crop_is_torchvisions_of_the_same_rectangle(horizontal, vertical, size):
    """A quarter of 16 × 16 is 8 × 8; the draws place it."""
    images = pictures(5, 16, 16)
    transform = RandomResizedCrop(size=size, min_area=0.25, max_area=0.25, max_aspect=1)
    result = transform.apply(images, same_for_all(0.3, 0.3, horizontal, vertical))
    expected = torchvision.resized_crop(images, int(8 * vertical), int(8 * horizontal), 8, 8, [size, size], antialias=False)
    inner = (..., slice(1, -1), slice(1, -1))  # at its border torchvision repeats the rectangle's pixels, here the image goes on
    torch.testing.assert_close(result[inner], expected[inner], rtol=0, atol=1e-2)


@pytest.mark.parametrize(("aspect_draw", "expected"), [(0.0, (6.0, 12.0)), (0.5, (6 * 2**0.5, 6 * 2**0.5)), (LAST, (12.0, 6.0))])
def test_the_aspect_is_width_over_height_and_lies_between_the_bound_and_its_inverse(aspect_draw, expected):
    width, height, _, _ = rectangles(
        RandomResizedCrop(size=12, min_area=0.125, max_area=0.125, max_aspect=2), same_for_all(0.5, aspect_draw, 0.5, 0.5)
    )
    assert (width[0], height[0]) == pytest.approx(expected, rel=1e-3)


def rectangles(transform: RandomResizedCrop, uniform: Tensor, height: int = 24, width: int = 24) -> list[np.ndarray]:
    """Width, height, left and top of what is cut out, read off an image of coordinates: scaled, it is linear inside."""
    x, y = torch.arange(width).float() + 0.5, torch.arange(height).float() + 0.5
    image = torch.stack([x.expand(height, width), y[:, None].expand(height, width)])
    scaled = transform.apply(image.expand(len(uniform), -1, -1, -1), uniform).double().numpy()
    size = transform.size
    inside = np.arange(2, size - 2)
    across, down = scaled[:, 0, size // 2, inside], scaled[:, 1, inside, size // 2]
    steps = [(line[:, -1] - line[:, 0]) / (len(inside) - 1) for line in (across, down)]
    starts = [line[:, 0] - step * 2.5 for line, step in zip((across, down), steps, strict=True)]
    return [steps[0] * size, steps[1] * size, *starts]


@pytest.mark.parametrize("bounds", [{}, {"min_area": 0.5, "max_area": 0.6, "max_aspect": 1.5}])
@pytest.mark.parametrize(("image_height", "image_width"), [(24, 24), (20, 40)])
def test_rectangles_have_area_aspect_and_place_in_their_bounds(bounds, image_height, image_width):
    transform = RandomResizedCrop(size=12, **bounds)
    uniform = draws(800, 4)
    width, height, left, top = rectangles(transform, uniform, image_height, image_width)
    tolerance = 2e-3 * image_width
    assert left.min() > -tolerance
    assert top.min() > -tolerance
    assert (left + width).max() < image_width + tolerance
    assert (top + height).max() < image_height + tolerance
    whole = (width < image_width - tolerance) & (height < image_height - tolerance)  # not clipped to the image
    assert whole.mean() > 0.3
    area = transform.min_area + uniform[:, 0].numpy() * (transform.max_area - transform.min_area)
    np.testing.assert_allclose((width * height)[whole], area[whole] * image_height * image_width, rtol=5e-3)
    aspect = np.log(width / height)[whole] / np.log(transform.max_aspect)
    np.testing.assert_allclose(aspect, 2 * uniform[whole, 1].numpy() - 1, atol=2e-2)
    assert ((width * height)[~whole] <= area[~whole] * image_height * image_width * 1.005).all()


@pytest.mark.parametrize(
    ("name", "settings", "wrong"),
    [
        ("horizontal_flip", {"probability": 1.5}, "probability"),
        ("vertical_flip", {"probability": -0.1}, "probability"),
        ("random_crop", {"size": 0}, "size"),
        ("random_crop", {"size": 4, "padding": -1}, "padding"),
        ("random_resized_crop", {"size": 4, "min_area": 0}, "min_area"),
        ("random_resized_crop", {"size": 4, "max_aspect": 0.5}, "max_aspect"),
        ("resize", {}, "size"),
        ("center_crop", {"size": 4, "side": 3}, "side"),
    ],
)
def test_settings_out_of_bounds_are_refused(name, settings, wrong):
    with pytest.raises(BadSettings) as caught:
        TRANSFORMS.build({"name": name, **settings})
    assert [error["loc"] for error in caught.value.error.errors()] == [(wrong,)]
