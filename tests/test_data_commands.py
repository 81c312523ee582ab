"""`fedlens data list` and `fedlens data prepare`, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedlens.cli import app
from fedlens.data import SOURCES, Examples, Natural, Packed, federate
from fedlens.data.listing import Listing
from fedlens.data.sources.base import About, PictureFiles, Sources


def call(*arguments):
    return CliRunner().invoke(app, ["data", *(str(argument) for argument in arguments)])


@pytest.fixture
def colours(tmp_path, monkeypatch):
    """A data set of pictures on the disk, registered for the time of a test."""
    monkeypatch.setattr(SOURCES, "entries", dict(SOURCES.entries))

    @SOURCES.register("colours")
    class Colours(PictureFiles):
        """Pictures of one colour each."""

        about = About("few", "none", "here", files=("colours/*.png",))
        part: str = "all"

        def listings(self):
            files = sorted((self.path / "colours").glob("*.png"))
            columns = {"label": np.arange(len(files)) % 2, "client": np.array([f"c{row % 3}" for row in range(len(files))])}
            return {
                "train": Listing(files, columns, "colours", keys=[self.part] * len(files)),
                "test": Listing(files[:2], {}, "colours"),
            }

    (tmp_path / "colours").mkdir()
    for row in range(9):
        Image.new("RGB", (10 + row, 20), (row, 0, 0)).save(tmp_path / "colours" / f"{row}.png")
    return tmp_path


def test_every_data_set_says_what_it_is_where_it_comes_from_and_whether_it_is_there(colours, monkeypatch):
    found = {row["name"]: row for row in json.loads(call("list", "--from", colours, "--json").stdout)}
    assert list(found) == list(SOURCES.entries)
    for row in found.values():
        assert row["contents"]
        assert row["licence"]
        assert row["where"]
    assert found["colours"]["here"] is True
    assert found["cifar10"]["here"] is False
    assert found["fashion_mnist_mini"]["here"] is None
    text = call("list", "--from", colours).stdout
    assert "cifar10" in text
    assert str(colours) in text.replace("\n", "")
    monkeypatch.setenv("FEDLENS_DATA", str(colours / "elsewhere"))
    assert json.loads(call("list", "--json").stdout)[list(found).index("colours")]["here"] is False


def test_prepared_pictures_are_a_packed_data_set(colours):
    result = call("prepare", "colours", "--from", colours, "--size", 8)
    assert result.exit_code == 0, result.output
    assert f"in a recipe: data.source={{name: packed, path: {colours / 'colours-8'}}}" in result.stdout.replace("\n", "")
    sources = Packed(path=colours / "colours-8").load()
    assert sources.train.column("image")[:, 0, 0, 0].tolist() == list(range(9))
    assert sources.train.categories["client"].tolist() == ["c0", "c1", "c2"]
    assert len(sources.test) == 2
    assert call("prepare", "colours", "--from", colours, "--size", 8).exit_code == 0  # nothing is left to do
    again = call("prepare", "colours", "part=other", "--from", colours, "--size", 8)
    assert again.exit_code == 2
    assert "begun with other settings or files" in again.output


def test_what_cannot_be_decoded_is_refused_or_skipped_and_said(colours):
    (colours / "colours" / "4.png").write_text("nothing")
    result = call("prepare", "colours", "--from", colours, "--to", colours / "to")
    assert result.exit_code == 2
    assert "1 of 9 pictures cannot be used: 0 missing, 1 broken; 1 clients lack some (c1: 1)" in result.output
    result = call("prepare", "colours", "--from", colours, "--to", colours / "to", "--missing", "skip")
    assert result.exit_code == 0
    assert "train: 1 of 9 pictures" in result.output
    assert len(Packed(path=colours / "to").load().train) == 8


def test_a_data_set_is_described_by_its_name(colours):
    by_user = json.loads(call("describe", "colours", f"path={colours}", "size=8", "--json").stdout)
    assert (by_user["clients"], by_user["examples"], by_user["evaluation"]["test"]["clients"]) == (3, 9, 1)
    divided = json.loads(call("describe", "colours", f"path={colours}", "partition=iid", "partition.clients=9", "--json").stdout)
    assert divided["clients"] == 9
    pooled = json.loads(call("describe", "fashion_mnist_mini", "--json").stdout)
    assert pooled["clients"] == 1
    page = colours / "page.html"
    assert call("describe", "colours", f"path={colours}", "--html", page).exit_code == 0
    assert "its own clients" in page.read_text()
    gone = call("describe", "colours", f"path={colours / 'nowhere'}")
    assert gone.exit_code == 2
    assert f"data colours: there is no picture to train on in {colours / 'nowhere'}" in gone.output.replace("\n", "")
    Examples({"label": np.array([0, 10**9])}).save(colours / "odd" / "train")
    odd = call("describe", "packed", f"path={colours / 'odd'}")
    assert odd.exit_code == 2
    assert "data packed: " in odd.output
    assert "partition: is a recipe's to say" in call("prepare", "colours", "partition=iid").output


def test_arrays_are_packed_too(tmp_path):
    assert call("prepare", "fashion_mnist_mini", "--to", tmp_path / "to").exit_code == 0
    packed, mini = Packed(path=tmp_path / "to").load(), SOURCES.get("fashion_mnist_mini")().load()
    assert packed.train.fingerprint() == mini.train.fingerprint()
    assert packed.test.fingerprint() == mini.test.fingerprint()
    assert "is there already" in call("prepare", "fashion_mnist_mini", "--to", tmp_path / "to").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("colour",), "did you mean 'colours'?"),
        (("colours", "--size", "2"), "size: "),
        (("colours", "--fit", "squeeze"), "fit: "),
        (("colours", "sice=3"), "sice: unknown key"),
        (("colours", "part"), "not of the form"),
    ],
)
def test_wrong_usage_is_explained(colours, arguments, message):
    result = call("prepare", *arguments)
    assert result.exit_code == 2
    assert f"data {arguments[0]}: " in result.output
    assert message in result.output


def test_evaluation_sets_with_users_are_measured_by_user(tmp_path):
    data = Examples({"label": np.arange(4), "client": np.array(["b", "a", "b", "c"])})
    other = Examples({"label": np.arange(2), "client": np.array(["x", "x"])})
    nameless = Examples({"label": np.arange(2)})
    population = federate(Sources(data, other, nameless), Natural(), 0.0, 0)
    assert list(population.train.clients.names) == ["a", "b", "c"]
    assert list(population.validation.clients.names) == ["x"]
    assert len(population.test.clients) == 1
    data.save(tmp_path / "train")
    assert list(federate(Packed(path=tmp_path).load(), Natural(), 0.0, 0).train.clients.names) == ["a", "b", "c"]


def test_a_data_set_too_large_to_decode_at_each_start_is_refused_with_what_to_do(colours, monkeypatch):
    monkeypatch.setattr("fedlens.data.sources.base.MOST_BYTES", 1e-9)
    with pytest.raises(ValueError, match="fedlens data prepare colours --to FOLDER"):
        SOURCES.get("colours")(path=Path(colours)).load()
    monkeypatch.setattr("fedlens.data.sources.base.MOST_BYTES", 0.5)
    assert len(SOURCES.get("colours")(path=Path(colours), size=8).load().train) == 9
