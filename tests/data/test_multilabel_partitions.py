"""Divisions of images that show several classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlens import random
from fedlens.data import PARTITIONS, Assignment, Examples
from fedlens.data.partitions import (
    CocoGreedy,
    DominantClassLDA,
    FirstClassLDA,
    RarestClassLDA,
    class_dirichlet,
    coco_greedy,
    dominant_class,
    first_class,
    rarest_class,
)

LDA = [FirstClassLDA, RarestClassLDA, DominantClassLDA]
SMALL = np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]], dtype=np.uint8)


def shown(count: int, classes: int = 20, seed: int = 0) -> np.ndarray:
    """Images that each show a class or more: the last class, as person, is on two of five; others are seldom."""
    generator = np.random.default_rng(seed)
    labels = generator.random((count, classes)) < 0.05
    labels[:, -1] = generator.random(count) < 0.4
    labels[np.arange(count), generator.integers(0, classes, count)] |= ~labels.any(axis=1)
    return labels.astype(np.uint8)


def owner_of_each(clients: Assignment, count: int) -> np.ndarray:
    owner = np.full(count, -1)
    owner[clients.examples] = clients.client_of_each()
    return owner


def test_an_image_s_class_is_the_first_the_rarest_or_the_one_of_which_it_shows_most():
    assert first_class(SMALL).tolist() == [0, 1, 2, 1, -1, 1]
    assert rarest_class(SMALL).tolist() == [0, 2, 2, 3, 4, 1]  # 1, 4, 2 and 1 images show them; 4 is the class of nothing
    boxes = np.array([[1, 3, 0, 0], [0, 5, 5, 0], [0, 0, 1, 0], [0, 2, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]])
    assert dominant_class(boxes).tolist() == [1, 2, 2, 1, 4, 1]
    assert dominant_class(boxes * 0.25).tolist() == [1, 2, 2, 1, 4, 1]  # areas as well as numbers


@pytest.mark.parametrize("background", [0, 3])
def test_a_background_on_every_image_is_no_class_of_any(background):
    masks = np.insert(SMALL, background, 1, axis=1)
    without = first_class(SMALL)
    assert first_class(masks).tolist() != first_class(masks, background).tolist()
    assert first_class(masks, background).tolist() == np.where(without >= background, without + 1, without).tolist()


@given(seed=st.integers(0, 50), classes=st.integers(1, 7))
@settings(max_examples=50, deadline=None)
def test_the_chosen_class_is_shown_and_the_rarest_does_not_depend_on_how_classes_are_numbered(seed, classes):
    generator = np.random.default_rng(seed)
    labels = (generator.random((60, classes)) < generator.random(classes)).astype(np.uint8)
    counts, some = labels.sum(axis=0), labels.any(axis=1)
    for choose in (first_class, rarest_class, dominant_class):
        chosen = choose(labels)
        assert labels[some, chosen[some]].all()
        assert set(chosen[~some]) <= {-1, classes}
    rarest, order = rarest_class(labels), generator.permutation(classes)
    assert (counts[rarest[some]] == np.where(labels, counts, 61).min(axis=1)[some]).all()
    renumbered = np.append(order, classes)[rarest_class(labels[:, order])]
    if len(set(counts)) == classes:
        assert np.array_equal(renumbered, rarest)


@pytest.mark.parametrize("part", LDA)
@pytest.mark.parametrize("alpha", [0.1, 0.5, 100.0])
def test_every_image_has_one_owner_and_every_client_ten_images_and_not_far_above_its_share(part, alpha):
    data = Examples({"labels": shown(3_000)})
    clients = part(clients=8, alpha=alpha).assign(data, seed=0)
    assert sorted(clients.examples) == list(range(3_000))
    assert clients.sizes.min() >= 10
    largest_class = 1_000
    assert clients.sizes.max() < 3_000 / 8 + largest_class
    again, other = (part(clients=8, alpha=alpha).assign(data, seed=seed) for seed in (0, 1))
    assert np.array_equal(clients.examples, again.examples)
    assert not np.array_equal(clients.examples, other.examples)


@pytest.mark.parametrize("part", LDA)
def test_a_small_concentration_skews_the_classes_by_which_images_are_divided(part):
    labels = shown(4_000)
    shares = []
    for alpha in (0.1, 100.0):
        owner = owner_of_each(part(clients=8, alpha=alpha).assign(Examples({"labels": labels}), seed=0), 4_000)
        rarest = labels.sum(axis=0).argmin()
        held = np.bincount(owner[labels[:, rarest] == 1], minlength=8)
        shares.append(held.max() / held.sum())
    assert shares[0] > 1.5 * shares[1]


def test_by_the_rarest_class_every_class_is_as_skewed_as_asked_and_by_the_first_the_last_ones_are_not():
    """Of the images of the last class, only what shows nothing before it is divided by its own draw."""
    labels = np.zeros((3_000, 3), dtype=np.uint8)
    labels[:1_500, 0] = labels[1_500:, 1] = labels[::50, 2] = 1  # all images of the rare class show one before it
    assert (first_class(labels) != 2).all()
    assert ((rarest_class(labels) == 2) == labels[:, 2].astype(bool)).all()
    data = Examples({"labels": labels})
    skews = []
    for part in (FirstClassLDA, RarestClassLDA):
        held = [np.bincount(owner_of_each(part(clients=4, alpha=0.3).assign(data, s), 3_000)[::50], minlength=4) for s in range(20)]
        own = [np.bincount(owner_of_each(part(clients=4, alpha=0.3).assign(data, s), 3_000), minlength=4) for s in range(20)]
        # how far the rare class lies from what its clients' sizes alone would give
        skews.append(np.mean([np.abs(a / a.sum() - b / b.sum()).sum() for a, b in zip(held, own, strict=True)]))
    assert skews[1] > 2 * skews[0]


def test_the_first_class_rule_is_fedcv_s_capped_division_with_an_empty_pool_for_the_background():
    """21 columns as in its VOC; the background's empty pool takes its draw from the generator before the first class does."""
    masks = np.insert(shown(2_000), 0, 1, axis=1)
    masks[:25, 1:] = 0  # background only: nobody's, but counted in N
    clients = FirstClassLDA(clients=4, alpha=0.5, background=0).assign(Examples({"labels": masks}), seed=7)
    assert sorted(clients.examples) == list(range(25, 2_000))
    chosen = np.where(masks[:, 1:].any(axis=1), masks[:, 1:].argmax(axis=1) + 1, -1)
    oracle = fedcv(chosen, 4, 0.5, random.generator(7, "partition"))
    assert [sorted(clients.of_client(k)) for k in range(4)] == oracle


def fedcv(chosen: np.ndarray, clients: int, alpha: float, generator: np.random.Generator) -> list[list[int]]:
    """The rule as FedML's code goes through it, one class after the other, from the same draws."""
    held: list[list[int]] = [[]]
    while min(map(len, held)) < 10:
        held = [[] for _ in range(clients)]
        order = np.lexsort((generator.random(len(chosen)), chosen))
        for c in range(int(chosen.max()) + 1):
            pool = order[chosen[order] == c]
            q = generator.dirichlet(np.full(clients, alpha))
            q = np.array([share * (len(mine) < len(chosen) / clients) for share, mine in zip(q, held, strict=True)])
            cuts = (np.cumsum(q / q.sum()) * len(pool)).astype(int)[:-1]
            for mine, more in zip(held, np.split(pool, cuts), strict=True):
                mine += more.tolist()
    return [sorted(mine) for mine in held]


def test_what_is_dominant_is_counted_where_there_are_counts():
    labels = shown(500, 5)
    generator = np.random.default_rng(0)
    boxes = labels * generator.integers(1, 9, labels.shape)
    by_count = DominantClassLDA(clients=5).assign(Examples({"labels": labels, "label_counts": boxes}), seed=0)
    by_rarity = DominantClassLDA(clients=5).assign(Examples({"labels": labels}), seed=0)
    expected = class_dirichlet(dominant_class(boxes), 5, 0.5, random.generator(0, "partition"), least=10, capped=True)
    assert np.array_equal(by_count.examples, expected.examples)
    assert not np.array_equal(by_count.examples, by_rarity.examples)
    assert np.array_equal(by_rarity.examples, RarestClassLDA(clients=5).assign(Examples({"labels": labels}), seed=0).examples)


def test_the_greedy_division_gives_away_one_category_after_the_other():
    clients = coco_greedy(SMALL, 3)
    assert [clients.of_client(k).tolist() for k in range(3)] == [
        [0, 1, 3, 5],
        [2],
        [4],
    ]  # class 1 on four, then class 2 on one, the rest
    assert CocoGreedy(clients=1).assign(Examples({"labels": SMALL}), 0).sizes.tolist() == [6]


@given(seed=st.integers(0, 30), clients=st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_the_greedy_division_is_that_of_the_words_of_the_paper(seed, clients):
    labels = shown(80, 6, seed)
    there, expected = set(range(80)), []
    for _ in range(clients - 1):
        counts = [sum(labels[image, c] for image in there) for c in range(6)]
        expected.append({image for image in there if labels[image, counts.index(max(counts))]})
        there -= expected[-1]
    if not all(expected) or not there:
        with pytest.raises(ValueError, match="take fewer clients"):
            coco_greedy(labels, clients)
        return
    divided = coco_greedy(labels, clients)
    assert [set(divided.of_client(k)) for k in range(clients)] == [*expected, there]


def test_the_greedy_division_refuses_more_clients_than_there_are_categories():
    with pytest.raises(ValueError, match="no category is left for client 3 of 9"):
        coco_greedy(SMALL, 9)
    with pytest.raises(ValueError, match="no image is left for the last of 3 clients"):
        coco_greedy(SMALL[:3], 3)


@pytest.mark.parametrize(
    ("part", "columns", "message"),
    [
        (RarestClassLDA(), {"labels": np.zeros(5)}, r"'labels' must hold a number for each class, \[N, C\]; got \(5,\)"),
        (CocoGreedy(), {"labels": np.full((5, 2), -1)}, "'labels' must hold no number below 0"),
        (DominantClassLDA(), {"label_counts": np.full((5, 2), np.nan)}, "'label_counts' must hold no number below 0 and no NaN"),
        (FirstClassLDA(background=2), {"labels": SMALL[:, :2]}, r"there is no class 2 to be the background, only 0…1"),
        (FirstClassLDA(clients=1), {"labels": np.zeros((5, 2), dtype=np.uint8)}, "no image shows a class"),
    ],
)
def test_columns_that_do_not_fit_are_refused(part, columns, message):
    with pytest.raises(ValueError, match=message):
        part.assign(Examples(columns, "photos"), seed=0)
    with pytest.raises(KeyError, match="photos has no column 'labels'"):
        part.assign(Examples({"label": np.zeros(3, dtype=np.int64)}, "photos"), seed=0)


@pytest.mark.parametrize("name", ["first_class_lda", "rarest_class_lda", "dominant_class_lda", "coco_greedy"])
def test_recipes_find_them_by_name(name):
    assert PARTITIONS.build({"name": name, "clients": 3}).clients == 3
