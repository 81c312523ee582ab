"""The world of shapes: what is drawn is what the columns say, and users differ."""

from __future__ import annotations

import time
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlens.data import Federation, Natural, mean_earth_movers_distance
from fedlens.data.sources.shape_drawing import CELLS, EXTENT, SHAPES, _distances, _reach, distance
from fedlens.data.sources.shapes import FILLS, FINE, Looks, Shapes, World

CIRCLE, SQUARE = SHAPES.index("circle"), SHAPES.index("square")


@pytest.fixture(scope="module")
def world():
    return Shapes(users=50, images=1_500, size=48, mask=True).load()


def splits(sources):
    return {"train": sources.train, "validation": sources.validation, "test": sources.test}


def same(one, other) -> bool:
    return all(np.array_equal(values, other.columns[name]) for name, values in one.columns.items())


def test_the_same_seed_gives_the_same_bits_and_another_seed_another_world():
    first, again, other = (splits(Shapes(users=20, images=300, mask=True, seed=seed).load()) for seed in (5, 5, 6))
    for name, examples in first.items():
        assert examples.fingerprint() == again[name].fingerprint()
        assert same(examples, again[name])
        assert examples.fingerprint() != other[name].fingerprint()


def test_pictures_do_not_depend_on_how_many_are_drawn_at_a_time(monkeypatch):
    monkeypatch.setattr("fedlens.data.sources.shape_drawing.PIXELS", 1)
    one_by_one = Shapes(users=20, images=200, mask=True).load().train
    monkeypatch.setattr("fedlens.data.sources.shape_drawing.PIXELS", 1 << 20)
    assert same(one_by_one, Shapes(users=20, images=200, mask=True).load().train)


def test_blocks_join_without_a_seam(monkeypatch):
    monkeypatch.setattr("fedlens.data.sources.shapes.BLOCK", 64)
    settings = Shapes(users=20, images=300)
    examples = splits(settings.load())
    whole = World(settings).pictures(0, 300, None)["image"]
    np.testing.assert_array_equal(np.concatenate([each.column("image") for each in examples.values()]), whole)


def test_every_picture_belongs_to_one_user_and_every_user_to_one_split(world):
    users = {name: set(examples.column("client").tolist()) for name, examples in splits(world).items()}
    assert users == {"train": set(range(40)), "validation": set(range(40, 45)), "test": set(range(45, 50))}
    assert sum(len(examples) for examples in splits(world).values()) == 1_500


@given(users=st.integers(10, 60), more=st.integers(0, 500), exponent=st.floats(1.05, 5), seed=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_every_user_has_a_picture_and_all_have_as_many_as_were_asked_for(users, more, exponent, seed):
    sizes = np.diff(World(Shapes(users=users, images=users + more, exponent=exponent, seed=seed)).offsets)
    assert sizes.sum() == users + more
    assert sizes.min() >= 1


@pytest.mark.parametrize("exponent", [1.8, 2.2, 3.0])
def test_sizes_follow_the_power_law(exponent):
    sizes = np.diff(World(Shapes(users=20_000, images=4_000_000, exponent=exponent, pictures=False)).offsets)
    large = sizes[sizes >= np.quantile(sizes, 0.9)]
    estimated = 1 + len(large) / np.log(large / (large.min() - 0.5)).sum()  # Clauset, Shalizi and Newman 2009, eq. 3.7
    assert estimated == pytest.approx(exponent, abs=0.1)


def test_the_smaller_the_concentration_the_fewer_shapes_a_user_likes():
    distances, extreme = [], []
    for concentration in (1e-4, 1.0, 100.0, 1e5):
        train = Shapes(users=200, images=20_000, exponent=5, concentration=concentration, pictures=False).load().train
        distances.append(mean_earth_movers_distance(Federation(train, Natural().assign(train, 0)), len(SHAPES)))
        extreme.append(2 - 2 * ((np.bincount(train.column("label")) / len(train)) ** 2).sum())
    assert distances == sorted(distances, reverse=True)
    assert distances[0] == pytest.approx(extreme[0])  # one shape each: 2 Σ p (1 − p)
    assert distances[-1] < 0.3  # what is left is chance


def test_each_shape_is_as_usual_as_the_next_over_all_users():
    label = Shapes(users=5_000, images=50_000, exponent=6, pictures=False).load().train.column("label")
    assert np.bincount(label, minlength=len(SHAPES)) / len(label) == pytest.approx(0.1, abs=0.015)


def test_labels_agree_with_boxes_at_both_levels(world):
    for examples in splits(world).values():
        box_label, labels = examples.column("box_label"), examples.column("labels")
        there = box_label >= 0
        for c in range(1, 1 + len(SHAPES)):
            np.testing.assert_array_equal(labels[:, c], (box_label == c).any(axis=1))
        np.testing.assert_array_equal(examples.column("label"), box_label[:, 0])
        fine = examples.column("fine_labels").reshape(len(examples), len(SHAPES), len(FILLS))
        np.testing.assert_array_equal(fine.any(axis=2), labels[:, 1:])
        assert (fine.sum(axis=(1, 2)) <= there.sum(axis=1)).all()
        assert (examples.column("boxes")[~there] == 0).all()
        assert labels[:, 0].max() == 0  # the background is in every picture, and in no label
    assert FINE[SQUARE * len(FILLS)] == "plain red square"


def test_masks_hold_what_boxes_surround(world):
    train = world.train
    mask, boxes, box_label = train.column("mask"), train.column("boxes"), train.column("box_label")
    assert train.class_names == ("background", *SHAPES)
    for row, place in np.argwhere(box_label >= 0)[:1_000]:
        left, top, right, bottom = boxes[row, place]
        assert 0 <= left < right <= 48
        assert 0 <= top < bottom <= 48
        inside = mask[row, max(0, int(top) - 1) : int(bottom) + 2, max(0, int(left) - 1) : int(right) + 2] == box_label[row, place]
        down, across = np.nonzero(inside)
        assert across.max() - across.min() + 1 == pytest.approx(right - left, abs=3)  # tips are thinner than pixels
        assert down.max() - down.min() + 1 == pytest.approx(bottom - top, abs=3)
    shown = np.array([np.isin(np.arange(11), picture) for picture in mask])
    np.testing.assert_array_equal(shown[:, 1:], train.column("labels")[:, 1:])


def test_objects_do_not_cover_each_other(world):
    boxes, there = world.train.column("boxes"), world.train.column("box_label") >= 0
    for one, other in ((0, 1), (0, 2), (1, 2)):
        both = there[:, one] & there[:, other]
        assert both.any()
        a, b = boxes[both, one], boxes[both, other]
        overlap = np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2])
        area = np.where((overlap > 0).all(axis=1), overlap.prod(axis=1), 0)
        assert (area / (b[:, 2:] - b[:, :2]).prod(axis=1)).max() < 0.35  # of corners of boxes, where the shapes are not


def test_the_first_object_is_the_largest(world):
    boxes, there = world.train.column("boxes"), world.train.column("box_label") >= 0
    largest = np.maximum(boxes[..., 2] - boxes[..., 0], boxes[..., 3] - boxes[..., 1])
    assert (largest[:, 0] >= largest[:, 1:].max(axis=1))[there[:, 1]].mean() > 0.99


@pytest.mark.parametrize(
    ("shape", "x", "y", "expected"),
    [
        ("circle", 0.0, 0.0, -0.9),
        ("circle", 3.0, 4.0, 4.1),
        ("ring", 0.7, 0.0, -0.24),
        ("ring", 0.0, 0.0, 0.46),
        ("square", 0.0, 0.0, -0.7),
        ("square", 1.7, 0.0, 1.0),
        ("square", 0.7 + 3.0, 0.7 + 4.0, 5.0),
        ("bar", 0.0, 0.1, -0.2),
        ("cross", 0.0, 0.0, -np.hypot(0.3, 0.3)),
        ("triangle", 0.0, 0.0, -0.5),
        ("triangle", 0.0, -2.0, 1.0),
        ("star", 0.0, -1.5, 0.5),
        ("moon", 0.5, 0.0, 0.8),
    ],
)
def test_signed_distances_are_those_of_plane_geometry(shape, x, y, expected):
    assert distance(shape, np.array([x]), np.array([y]))[0] == pytest.approx(expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_distances_change_no_faster_than_points_move_and_shapes_lie_in_the_unit_circle(shape):
    place = (np.arange(CELLS) + 0.5) * (2 * EXTENT / CELLS) - EXTENT
    table = _distances().reshape(len(SHAPES), CELLS, CELLS)[SHAPES.index(shape)]
    for axis in (0, 1):
        assert np.abs(np.diff(table, axis=axis)).max() <= 2 * EXTENT / CELLS + 1e-5
    inside = np.hypot(*np.meshgrid(place, place))[table < 0]
    assert inside.max() < 1.01
    assert 0.25 < (table < 0).sum() * (2 * EXTENT / CELLS) ** 2 < np.pi


def test_a_circle_reaches_equally_far_and_a_square_farthest_along_its_diagonals():
    np.testing.assert_allclose(_reach()[CIRCLE], 0.9, atol=0.02)
    assert np.argmax(_reach()[SQUARE]) % 64 == pytest.approx(32, abs=1)
    assert _reach()[SQUARE].max() == pytest.approx(0.7 * np.sqrt(2), abs=0.03)


def test_users_look_different_and_each_like_itself():
    settings = Shapes(users=60, images=3_000, exponent=6)
    train = settings.load().train
    client, means = train.column("client"), train.column("image").mean(axis=(1, 2))  # the mean colour of each picture
    of_user = np.stack([means[client == user].mean(axis=0) for user in range(48)])
    within = np.mean([means[client == user].std(axis=0).mean() for user in range(48)])
    assert of_user.std(axis=0).mean() > 2 * within
    assert len(np.unique(Looks.of(settings).texture)) == 5


def test_the_stated_mean_and_deviation_are_those_of_the_pictures():
    train = Shapes(users=1_000, images=5_000).load().train
    shares = train.column("image") / 255
    np.testing.assert_allclose(shares.mean(axis=(0, 1, 2)), train.mean, atol=0.03)
    np.testing.assert_allclose(shares.std(axis=(0, 1, 2)), train.standard_deviation, atol=0.03)


def test_without_masks_there_is_no_background(world):
    plain = Shapes(users=50, images=1_500, size=48).load().train
    assert plain.class_names == SHAPES
    assert "mask" not in plain.columns
    for name in ("label", "box_label"):
        np.testing.assert_array_equal(plain.column(name), np.maximum(world.train.column(name) - 1, -1))
    np.testing.assert_array_equal(plain.column("image"), world.train.column("image"))


def test_without_pictures_a_hundred_thousand_users_are_there_at_once():
    begun = time.process_time()
    sources = Shapes(users=100_000, images=200_000, pictures=False).load()
    assert time.process_time() - begun < 5  # a quarter of a second on an idle core
    assert "image" not in sources.train.columns
    with_pictures, without = (Shapes(users=20, images=200, pictures=pictures).load().train for pictures in (True, False))
    assert all(np.array_equal(values, with_pictures.column(name)) for name, values in without.columns.items())


def test_pictures_drawn_into_a_folder_are_mapped_and_not_drawn_again(tmp_path, monkeypatch):
    settings = {"users": 20, "images": 300, "mask": True}
    cached, drawn = (splits(Shapes(**settings, cache=folder).load()) for folder in (tmp_path, None))
    assert all(same(examples, cached[name]) for name, examples in drawn.items())
    assert isinstance(cached["train"].column("image"), np.memmap)
    monkeypatch.setattr(World, "__init__", lambda self, settings: pytest.fail("drawn again"))
    assert Shapes(**settings, cache=tmp_path).load().train.fingerprint() == drawn["train"].fingerprint()
    monkeypatch.undo()
    Shapes(**settings, seed=1, cache=tmp_path).load()
    assert len(list(tmp_path.iterdir())) == 2


def test_what_was_interrupted_is_drawn_anew(tmp_path):
    first = Shapes(users=20, images=300, cache=tmp_path).load().train
    (folder,) = tmp_path.iterdir()
    (folder / "train" / "examples.json").unlink()
    np.lib.format.open_memmap(folder / "train" / "image.npy", mode="r+")[:] = 0
    assert Shapes(users=20, images=300, cache=tmp_path).load().train.column("image").max() > 0
    assert len(first) > 0


def test_too_many_pictures_are_refused_before_any_is_drawn(tmp_path):
    with pytest.raises(ValueError, match=r"pictures do not fit in memory; let data\.source\.cache name a folder"):
        Shapes(users=10**5, images=10**9).load()
    with pytest.raises(ValueError, match=rf"pictures do not fit in {tmp_path}"):
        Shapes(users=10**5, images=10**9, size=512, cache=tmp_path).load()


def test_each_user_needs_a_picture():
    with pytest.raises(ValueError, match=r"data\.source\.images: 99 pictures for 100 users: each needs one at least"):
        Shapes(users=100, images=99).load()


def test_shapes_can_be_told_apart_by_a_small_network():
    torch = import_module("torch")
    torch.manual_seed(0)
    sources = Shapes(users=100, images=6_000, exponent=6, concentration=1e5).load()

    def tensors(examples):
        image = torch.from_numpy(examples.column("image")).permute(0, 3, 1, 2).float() / 128 - 1
        return image, torch.from_numpy(examples.column("label"))

    layers = [torch.nn.Conv2d(3, 16, 5, 2), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3, 2), torch.nn.ReLU(), torch.nn.Flatten()]
    network = torch.nn.Sequential(*layers, torch.nn.Linear(32 * 36, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimiser = torch.optim.Adam(network.parameters(), 2e-3)
    image, label = tensors(sources.train)
    for _ in range(4):
        for batch in torch.randperm(len(label)).split(32):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(network(image[batch]), label[batch]).backward()
            optimiser.step()
    image, label = tensors(sources.test)
    assert (network(image).argmax(1) == label).float().mean() > 0.5  # a tenth by chance


def test_fine_labels_have_their_names():
    assert Shapes(users=10, images=100).load().train.categories["fine_labels"].tolist() == list(FINE)
