"""What becomes of a picture, whatever the file is like."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageOps

from fedlens.data.pictures import VOID, BrokenPicture, MissingPicture, Placement, decode, decode_mask


def gradient(width: int, height: int) -> np.ndarray:
    """Red grows to the right, green downwards: one sees how it was turned and cut."""
    across, down = np.linspace(0, 255, width), np.linspace(0, 255, height)
    image = np.zeros((height, width, 3), dtype=np.uint8)
    image[..., 0], image[..., 1] = across[None], down[:, None]
    return image


def encoded(picture: Image.Image, kind: str, **settings) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **settings)
    return file.getvalue()


def test_pixels_of_the_right_size_stay_as_they_are():
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    for given in (pixels, encoded(Image.fromarray(pixels), "PNG")):
        np.testing.assert_array_equal(decode(given, 16, "crop")[0], pixels)


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
@pytest.mark.parametrize(("width", "height"), [(60, 40), (40, 60), (50, 50), (120, 40)])
def test_a_pixel_comes_to_lie_where_the_placement_says(fit, width, height):
    image, placement = decode(gradient(width, height), 20, fit)
    corners = placement.boxes(np.array([[0, 0, width, height]], dtype=np.float32))[0]
    left, top, right, bottom = corners.round().astype(int)
    expected = {"crop": (0, 0, 20, 20), "stretch": (0, 0, 20, 20)}.get(fit)
    if expected is None:  # what is padded keeps its shape and lies in the middle
        assert max(right - left, bottom - top) == 20
        assert (image[:top] == 0).all()
        assert (image[:, right:] == 0).all()
    else:
        assert (left, top, right, bottom) == expected
    inside = image[top:bottom, left:right].astype(float)
    kept = placement.box
    for axis, channel, extent in ((1, 0, width), (0, 1, height)):
        values = inside[..., channel].mean(axis=1 - axis)
        low, high = (255 * edge / extent for edge in (kept[axis == 0], kept[2 + (axis == 0)]))
        if len(values) > 4:
            assert values[0] == pytest.approx(low + (high - low) / len(values) / 2, abs=6)
            assert values[-1] == pytest.approx(high - (high - low) / len(values) / 2, abs=6)


def test_boxes_move_with_the_picture_and_end_at_its_edge():
    placement = Placement.of(60, 40, 20, "crop")  # x from 10 to 50, by half
    boxes = np.array([[10, 0, 30, 40], [0, 10, 20, 20], [0, 0, 8, 8]], dtype=np.float32)
    np.testing.assert_allclose(placement.boxes(boxes), [[0, 0, 10, 20], [0, 5, 5, 10], [0, 0, 0, 4]])


def test_a_photograph_taken_on_its_side_stands_upright():
    upright = gradient(60, 40)
    tags = Image.Exif()
    tags[0x0112] = 6  # turn by 90 degrees to the right
    lying = Image.fromarray(np.rot90(upright).copy())
    for size in (12, 40):  # small enough to be decoded at a fraction of its size, and not
        image, placement = decode(encoded(lying, "JPEG", quality=95, exif=tags), size, "crop")
        expected, same = decode(upright, size, "crop")
        assert placement == same
        assert np.abs(image.astype(int) - expected).mean() < 4


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_way_to_hold_a_camera(orientation):
    stored, tags = Image.fromarray(gradient(60, 40)), Image.Exif()
    tags[0x0112] = orientation
    found, placement = decode(encoded(stored, "PNG", exif=tags), 16, "crop")
    held = Image.open(io.BytesIO(encoded(stored, "PNG", exif=tags)))
    expected, same = decode(np.asarray(ImageOps.exif_transpose(held)), 16, "crop")
    np.testing.assert_array_equal(found, expected)
    assert placement == same


@pytest.mark.parametrize("tag", [0x0128, 0x011A, 0x0213, 0x0112])  # resolution's unit, resolution, chroma's place, orientation
def test_tags_of_the_wrong_kind_do_no_harm(tag):
    number = struct.pack("<HHI4s", 0x0112, 3, 1, struct.pack("<I", 3)) if tag != 0x0112 else b""  # turned by 180 degrees
    text = struct.pack("<HHI4s", tag, 2, 4, b"two\0")
    entries = [entry for entry in sorted([number, text], key=lambda entry: entry[:2][::-1]) if entry]
    tags = b"Exif\0\0II*\0" + struct.pack("<IH", 8, len(entries)) + b"".join(entries) + struct.pack("<I", 0)
    upright = gradient(40, 40)
    stored = Image.fromarray(np.rot90(upright, 2).copy() if number else upright)
    found, _ = decode(encoded(stored, "JPEG", exif=tags, quality=95), 16, "crop")
    assert np.abs(found.astype(int) - decode(upright, 16, "crop")[0]).mean() < 4


def test_what_is_transparent_lies_on_white_and_what_is_not_in_colour_becomes_so():
    half = np.zeros((8, 8, 4), dtype=np.uint8)
    half[:4, :, 3] = 255  # black above, transparent below
    image, _ = decode(encoded(Image.fromarray(half), "PNG"), 8, "crop")
    assert (image[:4] == 0).all()
    assert (image[4:] == 255).all()
    grey = np.full((8, 8), 77, dtype=np.uint8)
    assert (decode(encoded(Image.fromarray(grey), "JPEG"), 8, "crop")[0] == 77).all()
    assert (decode(grey, 8, "crop")[0] == 77).all()
    assert (decode(grey[..., None], 8, "crop")[0] == 77).all()
    red = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    assert decode(encoded(red, "JPEG"), 8, "crop")[0].mean(axis=(0, 1)) == pytest.approx([255, 0, 0], abs=8)
    palette = Image.fromarray(np.full((8, 8, 3), (200, 10, 10), dtype=np.uint8)).convert("P")
    assert int(decode(encoded(palette, "PNG"), 8, "crop")[0][0, 0, 0]) == pytest.approx(200, abs=12)


def test_sixteen_bits_become_eight():
    deep = np.array([[0, 257 * 100], [257 * 200, 65_535]], dtype=np.uint16)
    image, _ = decode(encoded(Image.fromarray(deep), "PNG"), 2, "crop")
    np.testing.assert_array_equal(image[..., 0], [[0, 100], [200, 255]])


def test_a_large_photograph_decoded_small_looks_as_if_it_had_been_decoded_whole():
    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 256, (30, 40, 3), dtype=np.uint8)
    photograph = Image.fromarray(coarse).resize((800, 600), Image.Resampling.BICUBIC)
    small, placement = decode(encoded(photograph, "JPEG", quality=95), 64, "crop")
    whole, _ = decode(np.asarray(photograph), 64, "crop")
    assert placement == Placement.of(800, 600, 64, "crop")
    assert np.abs(small.astype(int) - whole).mean() < 3


@pytest.mark.parametrize("cut", [10, 400, -50])
def test_a_truncated_file_is_broken(tmp_path, cut):
    file = tmp_path / "cut.jpg"
    file.write_bytes(encoded(Image.fromarray(gradient(64, 64)), "JPEG", quality=95)[:cut])
    with pytest.raises(BrokenPicture, match=r"cut\.jpg"):
        decode(file, 8, "crop")


def test_a_file_that_is_none_is_missing_and_one_that_holds_text_is_broken(tmp_path):
    with pytest.raises(MissingPicture, match=r"gone\.jpg is missing"):
        decode(tmp_path / "gone.jpg", 8, "crop")
    (tmp_path / "text.jpg").write_text("<html>not found</html>")
    with pytest.raises(BrokenPicture, match=r"text\.jpg is no picture"):
        decode(tmp_path / "text.jpg", 8, "crop")
    with pytest.raises(BrokenPicture, match="a picture is no picture that can be read"):
        decode(b"", 8, "crop")


def test_a_mask_keeps_classes_and_is_void_beyond_the_picture():
    mask = np.zeros((40, 60), dtype=np.uint8)
    mask[:, 30:] = 7
    palette = Image.fromarray(mask, mode="P")
    palette.putpalette([value for index in range(256) for value in (index, 255 - index, 0)])
    for given in (mask, encoded(palette, "PNG")):
        found = decode_mask(given, Placement.of(60, 40, 20, "crop"), 20)
        assert (found[:, :10] == 0).all()
        assert (found[:, 10:] == 7).all()
    padded = decode_mask(mask, Placement.of(60, 40, 30, "pad"), 30)
    assert (padded[:5] == VOID).all()
    assert (padded[5:25, 15:] == 7).all()
    with pytest.raises(BrokenPicture, match="is no mask"):
        decode_mask(gradient(4, 4), Placement.of(4, 4, 4, "crop"), 4)
