"""Cells of the S2 geometry, clients that are places, and clients that are groups of ids."""

from __future__ import annotations

import re
import warnings
from importlib import import_module

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedlens.data import Examples, federate
from fedlens.data.partitions import PARTITIONS, Geographic, GroupedNatural, grouped_natural, natural, s2_adaptive, s2_cells
from fedlens.data.sources import Sources

GOLDEN = [  # computed with s2cell, whose own tests are those of Google's library
    (-10.490091, 105.641318, 3383782026967071427, "3 2ec 2ef5 2ef59b 2ef59bd352b93ac3"),
    (37.7749, -122.4194, 9260949627242122337, "9 80c 8085 808581 8085809e8e8d8c61"),
    (51.5074, -0.1278, 5221366101706051497, "5 484 4877 487605 487604ce36748fa9"),
    (0, 0, 1152921504606846977, "1 104 1001 100001 1000000000000001"),
    (-33.8688, 151.2093, 7715420701375135829, "7 6b4 6b13 6b12af 6b12ae3ff6290055"),
    (89.9, 10, 4995994163539129101, "5 454 4555 455557 45555638c9acb30d"),
]


def on_earth(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Latitudes and longitudes of points spread evenly over the sphere."""
    drawn = np.random.default_rng(seed).uniform(-1, 1, (2, count))
    return np.degrees(np.arcsin(drawn[0])), 180 * drawn[1]


def photographs(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Latitudes and longitudes around a few towns, some large and dense."""
    generator = np.random.default_rng(seed)
    towns = np.stack(on_earth(40, seed))
    town = np.minimum(generator.geometric(0.1, count) - 1, 39)
    spread = generator.normal(0, 10.0 ** generator.uniform(-3, 0.5, count), (2, count))
    return np.clip(towns[0, town] + spread[0], -90, 90), np.clip(towns[1, town] + spread[1], -180, 180)


@pytest.mark.parametrize(("latitude", "longitude", "leaf", "names"), GOLDEN)
def test_cells_and_tokens_are_the_golden_ones(latitude, longitude, leaf, names):
    cells = s2_cells.leaf_cells([latitude], [longitude])
    assert cells.tolist() == [leaf]
    around = [s2_cells.parents(cells, level) for level in (0, 3, 6, 10, 30)]
    assert [s2_cells.tokens(cell)[0] for cell in around] == names.split()
    assert [int(s2_cells.levels(cell)[0]) for cell in around] == [0, 3, 6, 10, 30]


def test_cells_are_those_of_s2cell_all_over_the_earth_and_on_the_edges_of_its_faces():
    """But for the corners of the cube, at ±35.26°: of equal axes s2cell takes the first, Google's library and ours the last."""
    s2cell = import_module("s2cell")
    edges = [-90, -89.9999, -45, -1e-12, 0, 1e-9, 30, 45, 60, 90], [-180, -135, -90, -45, -1e-12, 0.0, 45, 90, 135, 180]
    everywhere = zip(np.stack(on_earth(20_000)), np.meshgrid(*edges), strict=True)
    latitude, longitude = (np.concatenate([points, grid.reshape(-1)]) for points, grid in everywhere)
    cells = s2_cells.leaf_cells(latitude, longitude)
    points = list(zip(latitude.tolist(), longitude.tolist(), strict=True))
    assert cells.tolist() == [s2cell.lat_lon_to_cell_id(*point) for point in points]
    for level in (0, 7, 29):
        assert s2_cells.tokens(s2_cells.parents(cells[-300:], level)) == [s2cell.lat_lon_to_token(*p, level) for p in points[-300:]]


def test_of_equally_near_faces_a_corner_lies_on_the_last_as_in_google_s_library():
    latitude, longitude = np.radians([35.264389682754654]), np.radians([45.0])
    x, z = np.cos(latitude) * np.cos(longitude), np.sin(latitude)
    if x != z:
        pytest.skip("here the cosine is rounded otherwise")
    assert s2_cells.tokens(s2_cells.parents(s2_cells.leaf_cells([35.264389682754654], [45.0]), 0)) == ["5"]  # face 2


@given(level=st.integers(0, 29), seed=st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_a_cell_s_children_lie_in_it_side_by_side_and_one_of_them_holds_the_point(level, seed):
    leaf = s2_cells.leaf_cells(*on_earth(1, seed))
    cell = s2_cells.parents(leaf, level)
    four = s2_cells.children(int(cell[0]))
    assert (s2_cells.levels(four) == level + 1).all()
    assert (s2_cells.parents(four, level) == cell).all()
    assert s2_cells.parents(leaf, level + 1)[0] in four
    assert len(set(np.diff(four.astype(object)))) == 1
    assert s2_cells.tokens(four) == sorted(s2_cells.tokens(four))


def test_points_that_are_nowhere_and_levels_that_are_not_there_are_refused():
    for latitude, longitude, message in (
        ([0, np.nan], [0, 0], "latitudes must lie in −90…90 degrees; row 1 has nan"),
        ([0, 0], [0, np.nan], "longitudes must lie in −180…180 degrees; row 1 has nan"),
        ([90.1, 0], [0, 0], "row 0 has 90.1"),
        ([0, 0], [0, -180.5], "row 1 has -180.5"),
        ([0, np.inf], [0, 0], "row 1 has inf"),
        ([0, 0], [0], "as many longitudes as latitudes"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            s2_cells.leaf_cells(latitude, longitude)
    leaf = s2_cells.leaf_cells([0], [0])
    with pytest.raises(ValueError, match="levels go from 0 to 30; got 31"):
        s2_cells.parents(leaf, 31)
    with pytest.raises(ValueError, match="a cell of level 3 has no parent at level 4"):
        s2_cells.parents(s2_cells.parents(leaf, 3), 4)
    with pytest.raises(ValueError, match="is a leaf and has no children"):
        s2_cells.children(int(leaf[0]))


@given(most=st.integers(1, 400), least=st.integers(1, 30), seed=st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_clients_are_the_largest_cells_that_are_small_enough(most, least, seed):
    assume(least <= most)
    latitude, longitude = photographs(1_000, seed)
    leaves = s2_cells.leaf_cells(latitude, longitude)
    clients = s2_adaptive(latitude, longitude, most, least)
    assert least <= clients.sizes.min() <= clients.sizes.max() <= most
    assert len(np.unique(clients.examples)) == len(clients.examples)
    cells = np.array([int(token.ljust(16, "0"), 16) for token in clients.names], dtype=np.uint64)
    assert (np.diff(cells.astype(object)) > 0).all()
    for cell, level, k in zip(cells[:, None], s2_cells.levels(cells), range(len(clients)), strict=True):
        assert set(clients.of_client(k)) == set(np.flatnonzero(s2_cells.parents(leaves, level) == cell))
        if level:
            around = s2_cells.parents(cell, level - 1)
            assert (s2_cells.parents(leaves, level - 1) == around).sum() > most
    nobodys = np.setdiff1d(np.arange(len(leaves)), clients.examples)
    for leaf in leaves[nobodys[:20]][:, None]:  # around each there is a cell that is small enough, and it is too small
        held = ((s2_cells.parents(leaves, level) == s2_cells.parents(leaf, level)).sum() for level in range(31))
        assert next(count for count in held if count <= most) < least


def test_by_default_a_client_has_a_hundredth_of_the_most_at_least():
    # 350 on the face around (0, 0), 3 on the one to the east of it, 2 at the pole
    latitude, longitude = (
        np.repeat([0.0, 0.0, 90.0], [350, 3, 2]),
        np.concatenate([np.linspace(-40, 40, 350), [90.0] * 3, [0.0] * 2]),
    )
    assert s2_adaptive(latitude, longitude, most=350).names == ["1"]  # 4 are wanted
    assert sorted(s2_adaptive(latitude, longitude, most=300).sizes) == [3, 175, 175]
    assert sorted(s2_adaptive(latitude, longitude, most=201).sizes) == [3, 175, 175]  # 2 are fewer than 2.01
    assert sorted(s2_adaptive(latitude, longitude, most=200).sizes) == [2, 3, 175, 175]
    assert s2_adaptive(latitude, longitude, most=100).sizes.sum() == 355
    assert sorted(s2_adaptive(latitude, longitude, most=200, least=3).sizes) == [3, 175, 175]


def test_examples_without_coordinates_are_nobody_s():
    latitude, longitude = on_earth(500)
    latitude[::7], longitude[::11] = np.nan, np.nan
    clients = s2_adaptive(latitude, longitude, most=100)
    unknown = np.isnan(latitude) | np.isnan(longitude)
    assert sorted(clients.examples) == np.flatnonzero(~unknown).tolist()
    with pytest.raises(ValueError, match="none of 3 examples has coordinates"):
        s2_adaptive(np.full(3, np.nan), np.zeros(3), most=100)
    with pytest.raises(ValueError, match="no cell holds 200 examples, the largest"):
        s2_adaptive(latitude, longitude, most=100, least=200)


def test_coordinates_off_the_earth_are_named_by_their_row_of_the_data():
    with pytest.raises(ValueError, match=r"latitudes must lie in −90…90 degrees; row 2 has 91\.0 \(1 such rows in all\)"):
        s2_adaptive(np.array([np.nan, 0, 91, 0]), np.zeros(4), most=100)


def test_more_photographs_of_one_spot_than_a_client_may_hold_stay_together_with_a_warning():
    latitude, longitude = np.array([10.0] * 12 + [10.0, -50.0]), np.array([20.0] * 12 + [21.0, 100.0])
    with pytest.warns(UserWarning, match="1 places hold more than 10 examples with the same coordinates, up to 12"):
        clients = s2_adaptive(latitude, longitude, most=10)
    assert sorted(clients.sizes) == [1, 1, 12]
    assert clients.names[clients.sizes.argmax()] == s2_cells.tokens(s2_cells.leaf_cells([10], [20]))[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        s2_adaptive(latitude, longitude, most=12)


def test_finer_partitions_have_more_clients():
    """As iNaturalist's: 11, 135, 368 and 3,606 clients with at most 30,000, 3,000, 1,000 and 100 images."""
    data = Examples(dict(zip(("north", "east"), photographs(20_000), strict=True)))
    names = {"latitude": "north", "longitude": "east"}
    clients = [len(Geographic(most=most, **names).assign(data, seed=0)) for most in (5_000, 500, 50)]
    assert 6 <= clients[0] < clients[1] / 3 < clients[2] / 9
    assert PARTITIONS.build({"name": "geographic", "most": 50, **names}) == Geographic(most=50, **names)
    with pytest.raises(KeyError, match="has no column 'latitude'"):
        Geographic().assign(data, seed=0)


IDS = np.array(["d", "b", "a", "d", "c", "e", "b", "e", "e"])


@pytest.mark.parametrize(
    ("size", "mode", "order", "groups"),
    [
        (2, "allow-smaller", "sorted", ["ab", "cd", "e"]),
        (2, "allow-smaller", "appearance", ["db", "ac", "e"]),
        (2, "allow-bigger", "sorted", ["abc", "de"]),
        (2, "allow-bigger", "appearance", ["dba", "ce"]),
        (2, "drop-remainder", "sorted", ["ab", "cd"]),
        (5, "strict", "sorted", ["abcde"]),
        (9, "allow-smaller", "sorted", ["abcde"]),
        (3, "allow-bigger", "sorted", ["abcde"]),
    ],
)
def test_groups_of_ids_are_clients(size, mode, order, groups):
    clients = GroupedNatural(column="user", group_size=size, mode=mode, order=order).assign(Examples({"user": IDS}), seed=0)
    assert ["".join(sorted(set(IDS[clients.of_client(k)]))) for k in range(len(clients))] == ["".join(sorted(g)) for g in groups]
    assert clients.names == [group if len(group) == 1 else f"{group[0]}…{group[-1]}" for group in groups]
    assert len(clients.examples) == np.isin(IDS, list("".join(groups))).sum()


def test_groups_of_one_are_the_natural_clients():
    ids = np.random.default_rng(0).integers(0, 50, 500)
    grouped, alone = grouped_natural(ids, 1), natural(ids)
    assert grouped.names == alone.names
    assert np.array_equal(grouped.examples, alone.examples)


@pytest.mark.parametrize(
    ("size", "mode", "message"),
    [
        (2, "strict", "5 ids do not divide into groups of 2, 1 are left"),
        (6, "strict", "5 ids do not fill a group of 6"),
        (6, "drop-remainder", "5 ids do not fill a group of 6"),
        (6, "allow-bigger", "5 ids do not fill a group of 6"),
    ],
)
def test_groups_that_cannot_be_are_refused(size, mode, message):
    with pytest.raises(ValueError, match=message):
        grouped_natural(IDS, size, mode)


@pytest.mark.parametrize("mode", ["allow-smaller", "allow-bigger", "drop-remainder", "strict"])
def test_evaluation_sets_are_grouped_by_their_own_ids_and_all_of_them_count(mode):
    partition = GroupedNatural(column="user", group_size=2, mode=mode)
    test = Examples({"user": np.array(["z", "x", "y", "x"])})
    clients = partition.group(test)
    assert clients.names == ["x…y", "z"]
    assert [sorted(clients.of_client(k).tolist()) for k in (0, 1)] == [[1, 2, 3], [0]]
    train = Examples({"user": np.array(list("aabbcd"))})
    population = federate(Sources(train, test=test), partition)
    assert population.test is not None
    assert population.test.clients.names == ["x…y", "z"]
    assert partition.group(Examples({"label": np.zeros(3)})).names == ["all"]
