"""Pages that need nothing but a browser, whatever clients are called."""

from __future__ import annotations

import base64
import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedlens.cli import app
from fedlens.data import Assignment, Examples, Federation, Population, describe
from fedlens.report.data_page import data_page, data_plots, sample_images
from fedlens.report.page import figures, page

NASTY = "</script><script>alert('&\"')</script>"


class Reader(HTMLParser):
    """What a browser would see: elements with their attributes, the text of scripts, and all other text."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.cdata_elem == "script":
            self.scripts[-1] += data
        else:
            self.words += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def population() -> Population:
    """Three clients of one grey each, called something bad, one without examples."""
    images = np.repeat(np.array([10, 10, 200, 200], dtype=np.uint8), 4 * 4 * 3).reshape(4, 4, 4, 3)
    data = Examples({"image": images, "label": np.array([0, 0, 1, 1])}, NASTY, class_names=("a " + NASTY, "b " + NASTY))
    return Population(Federation(data, Assignment(np.array([0, 1, 4, 4]), np.arange(4), [NASTY, "<b>", "'"])))


@pytest.fixture(scope="module")
def read(population: Population) -> Reader:
    return Reader(data_page(population, describe(population), data_plots(population.train), "seed " + NASTY))


def test_a_page_loads_nothing(read):
    assert len(read.scripts) == 3
    assert all("src" not in attributes for attributes in read.all("script"))
    assert not read.all("link")
    assert not read.all("iframe")
    assert all(attributes["src"].startswith("data:image/png;base64,") for attributes in read.all("img"))
    policy = next(found["content"] for found in read.all("meta") if found.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


def test_names_are_text_wherever_they_stand(read):
    assert not read.all("b")
    assert NASTY in read.words
    assert "client <b>: 3 images" in read.words
    assert "seed " + NASTY in read.words
    assert f"client {NASTY}: 1 image" in [attributes.get("title") for attributes in read.all("span")]
    drawn = json.loads(read.scripts[0])["plots"]
    heat_map = next(plot for plot in drawn if plot["title"]["text"] == "Who holds which labels")
    assert {row["client"] for row in heat_map["data"]["values"]} == {NASTY, "<b>"}
    assert "alert" not in "".join(read.scripts[1:])


def test_every_plot_has_its_place_and_the_page_both_sets_of_colours(read, population):
    content = json.loads(read.scripts[0])
    places = [attributes["id"] for attributes in read.all("div") if attributes.get("class") == "plot"]
    assert len(content["plots"]) == len(places) == len(data_plots(population.train)) == 9
    assert places == [f"plot{place}" for place in range(9)]
    assert content["light"]["mark"]["color"] != content["dark"]["mark"]["color"]
    assert "vegaEmbed" in read.scripts[1]


def test_the_table_says_what_describe_found(read):
    assert re.search(r"clients\s*3", read.words)
    assert "mean EMD of labels" in read.words
    assert "EMD of a client's labels" in read.words


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_pictures_are_those_of_the_clients_large_ones_made_smaller(channels):
    images = np.arange(3 * channels, dtype=np.uint8).reshape(3, 1, 1, channels).repeat(200, 1).repeat(100, 2)
    federation = Federation(Examples({"image": images}), Assignment(np.array([0, 1, 3]), np.array([2, 0, 1])))
    found = Reader(sample_images(federation))
    assert re.findall(r"client \d: \d images?", found.words) == ["client 1: 2 images", "client 0: 1 image"]
    pictures = [Image.open(io.BytesIO(base64.b64decode(drawn["src"].partition(",")[2]))) for drawn in found.all("img")]
    assert [picture.size for picture in pictures] == [(32, 64)] * 3
    first = sorted(np.asarray(picture).reshape(32 * 64, -1)[0].tolist() for picture in pictures)
    shown = 3 if channels >= 3 else 1
    assert first == [images[example, 0, 0, :shown].tolist() for example in range(3)]


def test_a_page_of_data_without_pictures_or_labels_has_neither():
    data = Examples({"score": np.zeros(3)}, "scores")
    for offsets in ([0, 3], [0, 1, 3]):
        population = Population(Federation(data, Assignment(np.array(offsets), np.arange(3))))
        found = Reader(data_page(population, describe(population), data_plots(population.train), ""))
        assert not found.all("img")
        assert len(json.loads(found.scripts[0])["plots"]) == 2


def test_a_page_without_plots_is_a_table():
    found = Reader(page("nothing", "", {"<i>clients</i>": "<b>0</b>"}, [], footer="<u>"))
    assert json.loads(found.scripts[0])["plots"] == []
    assert all(words in found.words for words in ("<i>clients</i>", "<b>0</b>", "<u>"))


def test_figures_are_vectors_for_papers(population, tmp_path):
    drawn = data_plots(population.train)
    written = figures(drawn, tmp_path / "new" / "figures")
    assert sorted(written) == sorted((tmp_path / "new/figures").iterdir())
    assert {path.name for path in written} == {f"{name}.{kind}" for name in drawn for kind in ("svg", "pdf")}
    for path in written:
        content = path.read_bytes()
        assert content.startswith(b"<svg" if path.suffix == ".svg" else b"%PDF")
        assert path.suffix == ".pdf" or b'fill="white"' in content


def test_describe_writes_a_page_and_figures_beside_what_it_prints(tmp_path):
    arguments = ["data", "describe", "quickstart", "data.partition.alpha=0", "--json"]
    options = ["--html", str(tmp_path / "pages/quickstart.html"), "--figures", str(tmp_path / "figures")]
    result = CliRunner().invoke(app, arguments + options)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["mean_earth_movers_distance"] == pytest.approx(1.8)
    assert result.stderr == f"written: {tmp_path}/pages/quickstart.html\nwritten: {tmp_path}/figures\n"
    found = Reader((tmp_path / "pages/quickstart.html").read_text(encoding="utf-8"))
    assert "partition hsu_dirichlet, clients 100, alpha 0.0" in found.words
    assert len(list((tmp_path / "figures").glob("*.pdf"))) == len(json.loads(found.scripts[0])["plots"])
    assert len(found.all("img")) == 100
    refused = CliRunner().invoke(app, ["data", "describe", "quickstart", "--html", str(tmp_path)])
    assert (refused.exit_code, "Traceback" in refused.output) == (1, False)
