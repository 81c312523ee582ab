"""CIFAR's official pickles, and what is no such pickle."""

from __future__ import annotations

import pickle
import re
import struct
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torchvision

from fedlens import load_recipe, train
from fedlens.data import CIFAR10, CIFAR100

GENERATOR = np.random.default_rng(0)


class Python2(pickle._Pickler):
    """Writes bytes as Python 2 wrote its texts, and so as they stand in the official files."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_text(self, value: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    dispatch[bytes] = save_text


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        Python2(file, protocol=2).dump(content)


def batch(count: int, **classes: int) -> dict[bytes, object]:
    labels = {name.encode(): GENERATOR.integers(0, number, count).tolist() for name, number in classes.items()}
    data = GENERATOR.integers(0, 256, (count, 3072), dtype=np.uint8)
    return {b"batch_label": b"a batch", b"data": data, b"filenames": [b"picture"] * count, **labels}


@pytest.fixture
def ten(tmp_path) -> Path:
    folder = tmp_path / "cifar-10-batches-py"
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        write(folder / name, batch(8, labels=10))
    write(folder / "batches.meta", {b"label_names": [f"kind {k}".encode() for k in range(10)], b"num_vis": 3072})
    return folder


@pytest.fixture
def hundred(tmp_path) -> Path:
    folder = tmp_path / "cifar-100-python"
    for name in ("train", "test"):
        write(folder / name, batch(9, fine_labels=100, coarse_labels=20))
    write(folder / "meta", {b"fine_label_names": [f"kind {k}".encode() for k in range(100)], b"coarse_label_names": [b"x"] * 20})
    return folder


@pytest.mark.parametrize("itself", [False, True])
def test_cifar_10_is_read_as_torchvision_reads_it(ten, monkeypatch, itself):
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "_check_integrity", lambda self: True)  # it knows the official files' digests
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "_load_meta", lambda self: None)
    sources = CIFAR10(path=ten if itself else ten.parent, expect="any").load()
    for examples, training in ((sources.train, True), (sources.test, False)):
        theirs = torchvision.datasets.CIFAR10(ten.parent, train=training)
        np.testing.assert_array_equal(examples.column("image"), theirs.data)
        assert examples.column("label").tolist() == theirs.targets
        assert examples.class_names == tuple(f"kind {k}" for k in range(10))


def test_cifar_100_has_fine_and_coarse_labels(hundred):
    sources = CIFAR100(path=hundred.parent, expect="any").load()
    content = pickle.loads((hundred / "train").read_bytes(), encoding="bytes")
    assert sources.train.column("label").tolist() == content[b"fine_labels"]
    assert sources.train.column("coarse_label").tolist() == content[b"coarse_labels"]
    red, green, blue = content[b"data"][3].reshape(3, 32, 32)
    np.testing.assert_array_equal(sources.train.column("image")[3], np.stack([red, green, blue], -1))


def test_other_than_the_official_counts_are_refused_unless_they_are_expected(ten, hundred, monkeypatch):
    for source, path, counts in ((CIFAR10, ten, {"train": 40, "test": 8}), (CIFAR100, hundred, {"train": 9, "test": 9})):
        found = (
            rf"{counts['train']} train pictures instead of 50,000, {counts['test']} test pictures instead of 10,000; .*expect=any"
        )
        with pytest.raises(ValueError, match=found):
            source(path=path).load()
        monkeypatch.setattr("fedlens.data.sources.cifar.PUBLISHED", counts)
        assert len(source(path=path).load().train) == counts["train"]
        monkeypatch.undo()


def test_the_files_are_there_where_they_are_read(ten, hundred, tmp_path):
    for source, folder in ((CIFAR10, ten), (CIFAR100, hundred)):
        assert source.is_in(tmp_path)
        assert source.is_in(folder)
        assert not source.is_in(tmp_path / "elsewhere")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_any_age_are_read(ten, protocol):
    content = pickle.loads((ten / "test_batch").read_bytes(), encoding="bytes")
    (ten / "test_batch").write_bytes(pickle.dumps(content, protocol=protocol))
    np.testing.assert_array_equal(CIFAR10(path=ten, expect="any").load().test.column("label"), content[b"labels"])


class Malicious:
    def __init__(self, canary: Path):
        self.canary = canary

    def __reduce__(self):
        return (exec, (f"open({str(self.canary)!r}, 'w')",))


def test_a_pickle_that_runs_code_is_refused_and_runs_none(ten, tmp_path):
    write(ten / "data_batch_3", {b"data": Malicious(tmp_path / "canary")})
    with pytest.raises(ValueError, match=r"data_batch_3 is no CIFAR file: it asks for .*exec"):
        CIFAR10(path=ten, expect="any").load()
    assert not (tmp_path / "canary").exists()


BROKEN = {
    "no pictures": ({b"labels": [1]}, "'data' should be pictures, uint8 [N, 3072]; it is NoneType"),
    "pictures of another size": ({b"data": np.zeros((2, 784), np.uint8), b"labels": [1, 2]}, "it is uint8 (2, 784)"),
    "pictures of another type": ({b"data": np.zeros((2, 3072)), b"labels": [1, 2]}, "it is float64 (2, 3072)"),
    "a label too few": ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, "'labels' should be a list of 2 labels"),
    "no table": ([1, 2], "holds list, not a table"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_batch_is_refused_and_named(ten, what):
    content, message = BROKEN[what]
    write(ten / "data_batch_2", content)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        CIFAR10(path=ten, expect="any").load()
    assert str(ten / "data_batch_2") in str(caught.value)


def test_files_that_are_torn_or_missing_are_named(ten):
    file = ten / "data_batch_4"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=rf"{file} cannot be read as a pickle .*truncated"):
        CIFAR10(path=ten, expect="any").load()
    file.unlink()
    with pytest.raises(FileNotFoundError, match=rf"data\.source\.path: {file} is missing"):
        CIFAR10(path=ten, expect="any").load()
    with pytest.raises(FileNotFoundError, match=r"CIFAR100\(PATH, download=True\)"):
        CIFAR100(path=ten.parent, expect="any").load()


def test_a_recipe_trains_on_it(ten, quiet):
    changes = [
        "data.source={name: cifar10, expect: any, path: " + str(ten.parent) + "}",
        "data.partition.clients=4",
        "cohort_size=2",
        "rounds=1",
        "model=cnn_hsu",
    ]
    assert train(load_recipe("quickstart", changes), terminal=quiet).summary["parameters"]["parameters"] == 1_756_426
