"""Where examples come from."""

from __future__ import annotations

import struct
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torchvision

from fedlens.data import Examples, FashionMNIST, FashionMNISTMini, Packed


def write_idx(path: Path, values: np.ndarray, magic: int | None = None) -> None:
    header = struct.pack(f">{1 + values.ndim}i", 0x0800 + values.ndim if magic is None else magic, *values.shape)
    path.write_bytes(header + values.tobytes())


@pytest.fixture
def raw(tmp_path) -> Path:
    """A folder like torchvision's, with few random pictures."""
    folder = tmp_path / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for prefix, count in (("train", 12), ("t10k", 5)):
        write_idx(folder / f"{prefix}-images-idx3-ubyte", generator.integers(0, 256, (count, 28, 28), dtype=np.uint8))
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", generator.integers(0, 10, count, dtype=np.uint8))
    return folder


def load(raw: Path):
    return FashionMNIST(path=raw.parent.parent, expect="any").load()


def test_fashion_mnist_is_read_as_torchvision_reads_it(raw):
    sources = load(raw)
    assert sources.validation is None
    for examples, train in ((sources.train, True), (sources.test, False)):
        theirs = torchvision.datasets.FashionMNIST(raw.parent.parent, train=train)
        np.testing.assert_array_equal(examples.column("image")[..., 0], theirs.data.numpy())
        np.testing.assert_array_equal(examples.column("label"), theirs.targets.numpy())
        assert list(examples.class_names) == theirs.classes
        assert not examples.column("image").flags.owndata  # mapped, not read


def test_other_than_the_published_counts_are_refused_unless_they_are_expected(raw, monkeypatch):
    with pytest.raises(ValueError, match=r"Fashion-MNIST: 12 train pictures instead of 60,000, 5 test pictures instead of 10,000"):
        FashionMNIST(path=raw.parent.parent).load()
    monkeypatch.setattr("fedlens.data.sources.fashion_mnist.PUBLISHED", {"train": 12, "test": 5})
    assert len(FashionMNIST(path=raw.parent.parent).load().train) == 12


@pytest.mark.parametrize("missing", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_a_missing_file_is_an_error_that_says_where_it_belongs_and_how_it_gets_there(raw, missing):
    (raw / missing).unlink()
    with pytest.raises(FileNotFoundError, match=rf"data\.source\.path: {raw / missing} is missing.*download=True"):
        load(raw)


@pytest.mark.parametrize("change", [lambda content: content[:-1], lambda content: content + b"\0", lambda content: content[:100]])
def test_a_truncated_or_too_long_file_is_refused(raw, change):
    file = raw / "train-images-idx3-ubyte"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(ValueError, match=rf"{file} has [\d,]+ bytes; its header promises 9,424"):
        load(raw)


@pytest.mark.parametrize("magic", [0x0801, 0x0D03, 0x1F8B0800, 0])
def test_a_file_of_another_format_is_refused(raw, magic):
    file = raw / "train-images-idx3-ubyte"
    write_idx(file, np.zeros((12, 28, 28), np.uint8), magic)
    with pytest.raises(ValueError, match=f"{file} is no IDX file of bytes with 3 dimensions"):
        load(raw)


@pytest.mark.parametrize("content", [b"", b"\0\0\x08\x03\0\0"])
def test_a_file_without_a_header_is_refused(raw, content):
    file = raw / "train-images-idx3-ubyte"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="no IDX file"):
        load(raw)


def test_images_and_labels_must_be_equally_many(raw):
    write_idx(raw / "train-labels-idx1-ubyte", np.zeros(11, np.uint8))
    with pytest.raises(ValueError, match="equally long"):
        load(raw)


def test_fashion_mnist_mini_has_a_thousand_and_two_hundred_pictures_of_each_class():
    sources = FashionMNISTMini().load()
    for examples, count in ((sources.train, 1_000), (sources.test, 200)):
        assert examples.column("image").shape == (10 * count, 28, 28, 1)
        assert np.bincount(examples.column("label")).tolist() == [count] * 10
        assert len({picture.tobytes() for picture in examples.column("image")}) > 0.99 * len(examples)
    assert sources.validation is None
    assert list(sources.train.class_names) == torchvision.datasets.FashionMNIST.classes


def test_pictures_of_fashion_mnist_mini_have_the_stated_mean_and_deviation():
    train = FashionMNISTMini().load().train
    shares = train.column("image") / 255
    assert (shares.mean(), shares.std()) == pytest.approx((train.mean[0], train.standard_deviation[0]), abs=0.01)


def test_the_license_of_fashion_mnist_is_shipped_beside_it():
    text = (files("fedlens.data.sources") / "fashion_mnist_mini" / "LICENSE").read_text()
    assert "MIT" in text
    assert "Zalando" in text


def test_packed_opens_the_splits_that_are_there(tmp_path):
    for split, count in (("train", 4), ("test", 2)):
        Examples({"label": np.arange(count)}, split).save(tmp_path / split)
    sources = Packed(path=tmp_path).load()
    assert (len(sources.train), sources.validation, len(sources.test)) == (4, None, 2)
    assert isinstance(sources.train.column("label"), np.memmap)


def test_packed_needs_training_examples(tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"data\.source\.path: {tmp_path / 'train'} is missing"):
        Packed(path=tmp_path).load()
