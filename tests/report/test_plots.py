"""Pictures show the numbers, and stay small."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlens.data import Assignment, Examples, Federation
from fedlens.data.statistics import LabelCounts, PixelDistances
from fedlens.report import plots
from fedlens.report.data_page import data_plots
from fedlens.report.drawing import DARK, LIGHT, edges, gradient, places, specification, spread_out
from fedlens.report.page import svg


def federation(*clients: list[int], names: list[str] | None = None, classes: tuple[str, ...] = (), **columns) -> Federation:
    """Clients given by the labels of their examples."""
    labels = np.array([label for client in clients for label in client], dtype=np.int64)
    assignment = Assignment(np.cumsum([0, *map(len, clients)]), np.arange(len(labels)), names)
    return Federation(Examples({"label": labels, **columns}, class_names=classes), assignment)


def counts(*clients: list[int], **settings) -> LabelCounts:
    return LabelCounts.of(federation(*clients, **settings))


def rows(plot, field: str = "") -> list[dict]:
    """The data of a plot and of its layers and panels: those rows that have a field."""

    def values(part: dict) -> list[dict]:
        inner = part.get("layer", []) + part.get("hconcat", [])
        return part.get("data", {}).get("values", []) + [row for piece in inner for row in values(piece)]

    return [row for row in values(specification(plot)) if field in row or not field]


def subtitle(plot) -> str:
    return specification(plot)["title"]["subtitle"]


@given(st.lists(st.integers(0, 99) | st.integers(0, 10**5), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_every_client_that_holds_anything_stands_in_one_bin(sizes):
    clients = Assignment(np.cumsum([0, *sizes]), np.broadcast_to(np.int64(0), (sum(sizes),)))
    plot = plots.client_sizes(Federation(Examples({"label": np.zeros(1, dtype=int)}), clients))
    held = [size for size in sizes if size]
    bins = rows(plot)
    assert sum(found["clients"] for found in bins) == len(held)
    assert len(bins) <= 40
    for found in bins:
        assert sum(found["from"] <= size < found["to"] for size in held) == found["clients"] > 0
    assert ("without any" in subtitle(plot)) == (len(held) < len(sizes))


def test_equal_clients_are_one_bar_over_their_size():
    assert rows(plots.client_sizes(federation([0] * 5, [1] * 5))) == [{"from": 4.5, "to": 5.5, "clients": 2, "range": "5"}]


def test_skewed_sizes_get_a_logarithmic_axis():
    def scale(*sizes: int) -> str:
        return specification(plots.client_sizes(federation(*([0] * size for size in sizes))))["encoding"]["x"]["scale"]["type"]

    assert (scale(1, 1, 20), scale(1, 1, 21)) == ("linear", "log")


@pytest.mark.parametrize("skewed", [False, True])
def test_bins_are_whole_numbers_that_hold_the_smallest_and_the_largest(skewed):
    for values in ([3], [1, 2, 40], [1, 41], [1, 10**6]):
        found = edges(np.array(values), skewed)
        assert found[0] <= values[0]
        assert found[-1] > values[-1]
        assert (np.diff(found) >= 1).all()


def test_the_largest_hold_what_they_hold():
    found = rows(plots.cumulative_size(federation([0], [0] * 3, [], [0] * 4)), "count")
    assert [(row["clients"], row["examples"]) for row in found] == [(0, 0), (0.25, 0.5), (0.5, 0.875), (0.75, 1), (1, 1)]


def test_labels_come_by_how_frequent_they_are_with_the_share_of_clients_that_hold_them():
    plot = plots.label_counts(counts([1, 1, 0], [1], [], classes=("cat", "dog", "newt")))
    assert rows(plot) == [
        {"label": "dog", "rank": 1, "examples": 3, "clients": 1.0},
        {"label": "cat", "rank": 2, "examples": 1, "clients": 0.5},
    ]
    assert subtitle(plot) == "2 labels, the most frequent first; 1 label nobody holds"


def test_many_labels_come_by_rank():
    plot = plots.label_counts(counts(list(range(81)), [7]))
    assert specification(plot)["hconcat"][0]["encoding"]["x"]["field"] == "rank"
    assert [row["rank"] for row in rows(plot)] == list(range(1, 82))
    assert rows(plot)[0] == {"label": "7", "rank": 1, "examples": 2, "clients": 1.0}


def test_a_heat_map_has_a_cell_for_what_a_client_holds_and_none_for_what_it_does_not():
    plot = plots.heat_map(counts([1, 1, 0], [2], [], names=["a", "b", "c"], classes=("cat", "dog", "newt")))
    assert {(row["client"], row["label"]): row["examples"] for row in rows(plot)} == {
        ("a", "cat"): 1,
        ("a", "dog"): 2,
        ("b", "newt"): 1,
    }
    assert specification(plot)["encoding"]["x"]["sort"] == ["a", "b"]
    assert specification(plots.heat_map(counts([0, 1, 1])))["encoding"]["y"]["sort"] == ["0", "1"]


def test_few_clients_share_a_label_by_name():
    plot = plots.class_shares(counts([0, 0, 0, 1], [0, 1], [1, 1], names=["a", "b", "c"]))
    shares = {(row["label"], row["holder"]): row["share"] for row in rows(plot)}
    assert shares == {("0", "a"): 0.75, ("0", "b"): 0.25, ("1", "a"): 0.25, ("1", "b"): 0.25, ("1", "c"): 0.5}


def test_many_clients_share_a_label_by_rank():
    """Holders of 30, 29, … 1 examples: 465 in all."""
    found = {row["holder"]: row["examples"] for row in rows(plots.class_shares(counts(*([0] * size for size in range(1, 31)))))}
    assert found == {
        "the largest holder": 30,
        "2nd to 5th": 29 + 28 + 27 + 26,
        "6th to 20th": sum(range(11, 26)),
        "all others": 55,
    }


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=11, max_size=30).filter(any))
@settings(max_examples=40, deadline=None)
def test_shares_of_a_label_and_of_a_client_add_up_to_all_of_it(clients):
    found = counts(*clients)
    for plot, field in ((plots.class_shares(found), "label"), (plots.client_proportions(found), "client")):
        sums: dict[str, float] = {}
        for row in rows(plot):
            sums[row[field]] = sums.get(row[field], 0) + row["share"]
        assert list(sums.values()) == pytest.approx([1] * len(sums), abs=1e-5)


def test_clients_stand_at_their_distance_and_the_line_at_the_mean():
    """Distances 1.5 and 0.5, weighted mean 0.75 (specs/hsu-and-datasets.md 3.7)."""
    plot = plots.client_distances(counts([0] * 10, [], [1] * 30))
    assert [(row["from"], row["clients"]) for row in rows(plot, "clients")] == [(0.5, 1), (1.5, 1)]
    assert rows(plot, "mean") == [{"mean": 0.75}]
    assert "0.7500" in subtitle(plot)


def test_every_two_clients_stand_at_their_distance():
    found = {
        (row["client"], row["other"]): row for row in rows(plots.client_pairs(counts([0, 0], [0, 1], [1], names=["a", "b", "c"])))
    }
    assert len(found) == 9
    assert {key: row["l1"] for key, row in found.items() if key[0] <= key[1]} == {
        ("a", "a"): 0, ("b", "b"): 0, ("c", "c"): 0, ("a", "b"): 1, ("b", "c"): 1, ("a", "c"): 2
    }  # fmt: skip
    assert all(row["jensen_shannon"] == found[other, client]["jensen_shannon"] for (client, other), row in found.items())


def test_a_curve_rises_to_all_clients():
    plot = plots.pixel_curves(PixelDistances(held=np.array([3.0, 1.0]), dealt_anew=np.array([0.5, 0.25])))
    assert [(row["images"], row["distance"], row["clients"]) for row in rows(plot)] == [
        ("as they are held", 1, 0.5),
        ("as they are held", 3, 1),
        ("dealt out at random", 0.25, 0.5),
        ("dealt out at random", 0.5, 1),
    ]


@given(st.lists(st.integers(0, 9), max_size=50), st.integers(1, 50))
@settings(max_examples=60, deadline=None)
def test_a_sample_is_spread_from_the_largest_to_the_smallest(sizes, most):
    sizes = np.array(sizes, dtype=np.int64)
    chosen, words = spread_out(sizes, most, "client")
    nonempty = np.count_nonzero(sizes)
    assert len(np.unique(chosen)) == len(chosen) == min(most, nonempty)
    assert (np.diff(sizes[chosen]) <= 0).all()
    if len(chosen) > 1:
        assert (sizes[chosen[0]], sizes[chosen[-1]]) == (sizes.max(), sizes[sizes > 0].min())
    assert words.startswith(f"{most} of {nonempty} clients" if nonempty > most else f"{nonempty} client")


@given(st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_a_curve_has_its_ends_and_not_too_many_points(last):
    found = places(last)
    assert (found[0], found[-1]) == (0, last)
    assert (np.diff(found) > 0).all()
    assert len(found) <= 201


def test_a_gradient_goes_from_dark_to_light():
    assert gradient(9) == ["#482878", "#3e4a89", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"]
    assert len(set(gradient(200))) == 200
    assert gradient(1) == ["#482878"]


@pytest.fixture(scope="module")
def large() -> Federation:
    """20,000 clients of very different sizes, who hold 1,203 labels."""
    generator = np.random.default_rng(0)
    sizes = np.minimum(generator.pareto(1, 20_000) * 3, 2000).astype(int)
    labels = np.minimum(generator.pareto(0.8, sizes.sum()) * 20, 1202).astype(int)
    clients = Assignment(np.cumsum([0, *sizes]), np.arange(sizes.sum()), [f"photographer number {k}" for k in range(20_000)])
    names = tuple(f"species number {c}" for c in range(1203))
    return Federation(Examples({"label": labels}, class_names=names), clients)


def test_a_large_federation_is_drawn_small_and_the_pictures_say_of_whom(large):
    drawn = data_plots(large)
    assert "pairwise-distances" not in drawn
    drawn["pairwise-distances"] = plots.client_pairs(LabelCounts.of(large))
    sizes = {name: len(json.dumps(specification(plot))) for name, plot in drawn.items()}
    assert max(sizes.values()) < 300_000, sizes
    for name in ("client-proportions", "heat-map", "pairwise-distances"):
        assert "clients, spread over all sizes" in subtitle(drawn[name])
    assert "80 of 1,203 labels" in subtitle(drawn["label-shares"])
    for plot in drawn.values():
        assert len(svg(plot)) < 2_000_000


PICTURES = {"image": np.arange(6 * 12, dtype=np.uint8).reshape(6, 2, 2, 3)}
FEDERATIONS = {
    "a few clients": federation([0, 1, 2], [2], [0, 1], **PICTURES),
    "one client": federation([0, 1, 2, 2, 0, 1], **PICTURES),
    "empty clients": federation([], [0, 1, 2, 2, 0, 1], [], **PICTURES),
    "one example each": federation([0], [0], [0], [0], [0], [0], **PICTURES),
    "one example": federation([0]),
    "more clients than colours": federation(*([k % 13] for k in range(30))),
    "no labels": Federation(Examples(PICTURES), Assignment(np.array([0, 2, 6]), np.arange(6))),
    "several labels": Federation(Examples({"labels": np.eye(4, dtype=np.uint8)}), Assignment(np.array([0, 1, 4]), np.arange(4))),
    "labels that nobody has": Federation(Examples({"labels": np.zeros((4, 3), dtype=np.uint8)}), Assignment.pooled(4)),
}


@pytest.mark.parametrize("name", FEDERATIONS)
def test_whatever_there_is_can_be_drawn(name):
    drawn = data_plots(FEDERATIONS[name])
    assert {"sizes", "cumulative-sizes"} <= set(drawn)
    assert ("heat-map" in drawn) == (name not in ("no labels", "labels that nobody has"))
    assert ("pairwise-distances" in drawn) == (
        name in ("a few clients", "one example each", "more clients than colours", "several labels")
    )
    assert ("pixel-distances" in drawn) == ("image" in FEDERATIONS[name].data.columns)
    for plot in drawn.values():
        picture = svg(plot)
        assert picture.startswith("<svg")
        assert "NaN" not in picture
        assert specification(plot)["title"]["text"].split("'")[0] in picture


def test_nothing_is_drawn_of_nothing():
    assert (
        data_plots(Federation(Examples({"label": np.zeros(3, dtype=int)}), Assignment(np.array([0, 0]), np.array([], dtype=int))))
        == {}
    )


def test_colours_are_the_pages_not_the_plots():
    plot = plots.client_sizes(FEDERATIONS["a few clients"])
    assert "config" not in specification(plot)
    assert specification(plot, DARK)["config"]["mark"] != specification(plot, LIGHT)["config"]["mark"]
