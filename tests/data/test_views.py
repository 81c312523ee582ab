"""Images cut up among parties, and images that look different at each client."""

from __future__ import annotations

import numpy as np
import pytest

from fedlens.data import Assignment, Examples, Partition, federate
from fedlens.data.partitions.views import blurred, divide, noisy, recoloured, rotated
from fedlens.data.sources import Sources

CLIENTS = np.arange(60) % 20
SHIFTS = {
    "rotated": rotated,
    "recoloured": recoloured,
    "blurred": blurred,
    "noisy": lambda images, client, seed: noisy(images, client, 100 + np.arange(len(images)), seed),
}


def pictures(count: int = 60, height: int = 8, width: int = 8, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(60, 196, (count, height, width, channels), dtype=np.uint8)


@pytest.mark.parametrize(
    ("along", "parties", "shapes"),
    [
        ("height", 2, [(4, 7, 3), (4, 7, 3)]),
        ("width", 3, [(8, 3, 3), (8, 2, 3), (8, 2, 3)]),
        ("channels", 3, [(8, 7, 1)] * 3),
        ("width", 1, [(8, 7, 3)]),
    ],
)
def test_parties_hold_parts_of_every_image_that_make_up_the_whole_and_are_no_copies(along, parties, shapes):
    images = pictures(5, 8, 7)
    parts = divide(images, parties, along)
    assert [part.shape[1:] for part in parts] == shapes
    assert all(np.shares_memory(part, images) for part in parts)
    assert np.array_equal(np.concatenate(parts, axis={"height": 1, "width": 2, "channels": 3}[along]), images)


def test_parties_are_given_a_strip_each_or_refused():
    for parties, along in ((4, "channels"), (0, "width"), (9, "height")):
        with pytest.raises(ValueError, match=f"{parties} parties cannot share the . pixels or channels along the {along}"):
            divide(pictures(2), parties, along)


@pytest.mark.parametrize("shift", SHIFTS.values(), ids=SHIFTS)
def test_a_client_s_shift_depends_on_the_seed_and_the_client_alone(shift):
    images = np.repeat(pictures(1), 60, axis=0)  # the same picture everywhere
    shifted, other = shift(images, CLIENTS, 1), shift(images, CLIENTS, 2)
    assert shifted.dtype == np.uint8
    assert shifted.shape == images.shape
    assert np.array_equal(shifted, shift(images, CLIENTS, 1))
    assert not np.array_equal(shifted, other)
    few = slice(20, 37)
    if shift is not SHIFTS["noisy"]:
        assert np.array_equal(shifted[few], shift(images[few], CLIENTS[few], 1))
        assert np.array_equal(shifted[:20], shifted[20:40])
    assert len(np.unique(shifted[:20], axis=0)) > (3 if shift is rotated else 15)


@pytest.mark.parametrize("shift", SHIFTS.values(), ids=SHIFTS)
def test_images_that_do_not_fit_are_refused_and_none_are_fine(shift):
    with pytest.raises(ValueError, match=r"must be uint8 \[N, height, width, channels\]; got float64"):
        shift(pictures().astype(float), CLIENTS, 0)
    with pytest.raises(ValueError, match="a client for each of 60 images"):
        shift(pictures(), CLIENTS[:5], 0)
    assert shift(pictures()[:0], CLIENTS[:0], 0).shape == (0, 8, 8, 3)


def test_rotations_are_quarter_turns_that_are_all_as_likely():
    images = pictures(1)
    many = rotated(np.repeat(images, 2_000, axis=0), np.arange(2_000), 0)
    turned = [np.rot90(images[0], quarter) for quarter in range(4)]
    counts = [sum(np.array_equal(image, turn) for image in many) for turn in turned]
    assert sum(counts) == 2_000
    assert min(counts) > 430
    with pytest.raises(ValueError, match="only square images keep their shape when turned; these are 8 × 6"):
        rotated(pictures(2, 8, 6), np.arange(2), 0)


def test_colours_are_factors_of_each_channel_within_their_bounds():
    grey = np.full((500, 4, 4, 3), 100, dtype=np.uint8)
    shifted = recoloured(grey, np.arange(500), 0, strength=0.3)
    assert (shifted.std(axis=(1, 2)) == 0).all()
    for channel in range(3):
        values = shifted[:, 0, 0, channel]
        assert 70 <= values.min() <= 72
        assert 128 <= values.max() <= 130
        assert values.mean() == pytest.approx(100, abs=3)
    assert abs(np.corrcoef(shifted[:, 0, 0].T) - np.eye(3)).max() < 0.15
    assert (recoloured(np.full((9, 2, 2, 3), 250, dtype=np.uint8), np.arange(9), 0) <= 255).all()
    assert np.array_equal(recoloured(grey, np.arange(500), 0, strength=0), grey)


def test_a_blur_spreads_a_point_as_a_gaussian_of_the_client_s_width():
    point = np.zeros((200, 31, 31, 1), dtype=np.uint8)
    point[:, 15, 15] = 255
    spread = blurred(point, np.arange(200), 0, most=1.0)[..., 0].astype(float)
    assert np.array_equal(spread, spread.transpose(0, 2, 1))
    assert np.array_equal(spread, spread[:, ::-1])
    widest = spread[spread[:, 15, 15].argmin()]
    assert widest[15, 15] == pytest.approx(255 / (2 * np.pi), rel=0.05)  # σ = 1
    assert widest[15, 16] / widest[15, 15] == pytest.approx(np.exp(-0.5), rel=0.05)
    assert (spread[:, 15, 15] == 255).any()  # and σ near 0 changes nothing
    flat = np.full((3, 5, 9, 2), 77, dtype=np.uint8)
    assert np.array_equal(blurred(flat, np.arange(3), 0), flat)
    assert np.array_equal(blurred(pictures(3), np.arange(3), 0, most=0.0), pictures(3))


def test_noise_is_normal_with_a_deviation_of_the_client_s_and_anew_for_each_example():
    grey = np.full((400, 16, 16, 3), 128, dtype=np.uint8)
    client, example = np.arange(400) // 2, np.arange(400)
    shifted = noisy(grey, client, example, 0, most=30.0).astype(float) - 128
    deviations = shifted.std(axis=(1, 2, 3))
    np.testing.assert_allclose(deviations[::2], deviations[1::2], rtol=0.2, atol=0.2)
    assert not np.array_equal(shifted[0], shifted[1])
    assert deviations.max() == pytest.approx(30, abs=1.5)
    assert deviations.mean() == pytest.approx(15, abs=2)
    loud = shifted[deviations > 10] / deviations[deviations > 10][:, None, None, None]
    assert abs(loud.mean()) < 0.02
    assert (abs(loud) < 1).mean() == pytest.approx(0.6827, abs=0.02)
    some = [7, 300, 12]
    assert np.array_equal(noisy(grey[some], client[some], example[some], 0, most=30.0).astype(float) - 128, shifted[some])


@pytest.mark.parametrize("shift", ["rotated", "recoloured", "blurred", "noisy"])
def test_a_recipe_s_shift_changes_what_clients_hold_and_nothing_else(shift, monkeypatch):
    monkeypatch.setattr("fedlens.data.partitions.views.TOGETHER", 7)
    images = np.random.default_rng(0).integers(0, 256, (40, 6, 6, 3), dtype=np.uint8)
    data, test = (Examples({"image": images, "label": np.arange(40) % 4}) for _ in range(2))
    client = np.repeat([0, 1, 2, -1], 10)
    held = Assignment.from_clients(client, 3)

    class Given(Partition):
        def assign(self, data: Examples, seed: int) -> Assignment:
            return held

    population = federate(Sources(data, test=test), Given(), validation=0.2, seed=5, shift=shift)
    found = population.data.column("image")
    assert population.validation.data is population.train.data
    assert population.test.data is test
    np.testing.assert_array_equal(data.column("image"), images)  # what was given is not touched
    np.testing.assert_array_equal(found[30:], images[30:])
    for k in range(3):
        ids = held.of_client(k)
        of = np.full(len(ids), k)
        alone = noisy(images[ids], of, ids, 5) if shift == "noisy" else SHIFTS[shift](images[ids], of, 5)
        np.testing.assert_array_equal(found[ids], alone)
    assert (found[:30] != images[:30]).any()
