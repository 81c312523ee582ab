"""MNIST and EMNIST in the files that torchvision downloads."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torchvision

from fedlens.data.sources.characters import CHARACTERS, character_examples, inked, mean_and_deviation
from fedlens.data.sources.mnist import CLASSES, EMNIST, MNIST, PUBLISHED

GENERATOR = np.random.default_rng(0)


def write_idx(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack(f">{1 + values.ndim}i", 0x0800 + values.ndim, *values.shape) + values.tobytes())


def write(folder: Path, prefix: str, labels: list[int]) -> None:
    write_idx(folder / f"{prefix}-images-idx3-ubyte", GENERATOR.integers(0, 256, (len(labels), 28, 28), dtype=np.uint8))
    write_idx(folder / f"{prefix}-labels-idx1-ubyte", np.array(labels, dtype=np.uint8))


def write_emnist(path: Path, split: str, labels: list[int]) -> None:
    for part in ("train", "test"):
        write(path / "EMNIST" / "raw", f"emnist-{split}-{part}", labels)


def test_mnist_is_read_as_torchvision_reads_it(tmp_path):
    write(tmp_path / "MNIST" / "raw", "train", [5, 0, 9, 3])
    write(tmp_path / "MNIST" / "raw", "t10k", [7, 2])
    sources = MNIST(path=tmp_path, expect="any").load()
    for examples, train in ((sources.train, True), (sources.test, False)):
        theirs = torchvision.datasets.MNIST(tmp_path, train=train)
        np.testing.assert_array_equal(examples.column("image")[..., 0], theirs.data.numpy())
        np.testing.assert_array_equal(examples.column("label"), theirs.targets.numpy())
    assert sources.train.class_names == tuple("0123456789")
    assert sources.validation is None


@pytest.mark.parametrize("place", [".", "MNIST", "MNIST/raw"])
def test_the_path_may_be_the_folder_of_the_files_itself(tmp_path, place):
    write(tmp_path / "MNIST" / "raw", "train", [5, 0])
    write(tmp_path / "MNIST" / "raw", "t10k", [7])
    assert len(MNIST(path=tmp_path / place, expect="any").load().train) == 2


@pytest.mark.parametrize("split", ["byclass", "bymerge", "balanced", "digits", "mnist"])
def test_emnist_stands_upright_and_its_classes_are_torchvisions(tmp_path, split):
    last = len(CLASSES[split]) - 1
    write_emnist(tmp_path, split, [0, last, 1])
    sources = EMNIST(path=tmp_path, split=split, expect="any").load()
    for examples, train in ((sources.train, True), (sources.test, False)):
        theirs = torchvision.datasets.EMNIST(tmp_path, split, train=train)
        np.testing.assert_array_equal(examples.column("image")[..., 0], theirs.data.numpy().transpose(0, 2, 1))
        assert examples.column("label").tolist() == [0, last, 1]
        assert list(examples.class_names) == theirs.classes


def test_letters_of_emnist_count_from_nought(tmp_path):
    write_emnist(tmp_path, "letters", [1, 26, 3])
    train = EMNIST(path=tmp_path, split="letters", expect="any").load().train
    assert train.column("label").tolist() == [0, 25, 2]
    names = torchvision.datasets.EMNIST(tmp_path, "letters", train=True).classes
    assert train.class_names == tuple(names[1:])


def test_a_class_that_a_split_does_not_have_is_an_error(tmp_path):
    write_emnist(tmp_path, "letters", [0, 26])
    with pytest.raises(ValueError, match=r"labels must lie in 0…25; found -1"):
        EMNIST(path=tmp_path, split="letters", expect="any").load()


def test_a_missing_file_says_where_it_belongs_and_who_puts_it_there(tmp_path):
    missing = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    with pytest.raises(FileNotFoundError, match=rf"data\.source\.path: {missing} is missing \(torchvision\.datasets\.MNIST\("):
        MNIST(path=tmp_path, expect="any").load()
    write_emnist(tmp_path, "digits", [1])
    with pytest.raises(FileNotFoundError, match=r"EMNIST/raw/emnist-balanced-train-images-idx3-ubyte is missing"):
        EMNIST(path=tmp_path, expect="any").load()


def test_about_knows_when_the_files_are_there(tmp_path):
    assert not EMNIST.is_in(tmp_path)
    write_emnist(tmp_path, "balanced", [1])
    assert not MNIST.is_in(tmp_path)
    for part in ("train", "t10k"):
        write(tmp_path / "MNIST" / "raw", part, [1])
    for source in (EMNIST, MNIST):
        for place in ("", f"{source.__name__}", f"{source.__name__}/raw"):
            assert source.is_in(tmp_path / place)


def test_other_than_the_published_counts_are_refused_unless_they_are_expected(tmp_path):
    for part in ("train", "t10k"):
        write(tmp_path / "MNIST" / "raw", part, [1] * len(part))
    with pytest.raises(ValueError, match=r"MNIST: 5 train pictures instead of 60,000, 4 test pictures instead of 10,000"):
        MNIST(path=tmp_path).load()


@pytest.mark.parametrize(
    ("split", "train", "test"),
    [
        ("byclass", "697,932", "116,323"),
        ("bymerge", "697,932", "116,323"),
        ("balanced", "112,800", "18,800"),
        ("letters", "124,800", "20,800"),
        ("digits", "240,000", "40,000"),
        ("mnist", "60,000", "10,000"),
    ],
)
def test_every_split_of_emnist_has_its_counts(tmp_path, split, train, test):
    write_emnist(tmp_path, split, [1, 2])
    with pytest.raises(
        ValueError, match=f"EMNIST {split}: 2 train pictures instead of {train}, 2 test pictures instead of {test}; .*expect=any"
    ):
        EMNIST(path=tmp_path, split=split).load()


def test_the_published_counts_are_taken(tmp_path, monkeypatch):
    write_emnist(tmp_path, "letters", [1, 2])
    monkeypatch.setitem(PUBLISHED, "letters", (2, 2))
    assert len(EMNIST(path=tmp_path, split="letters").load().test) == 2


def test_characters_are_those_of_emnist_in_its_order():
    assert (CHARACTERS[0], CHARACTERS[9], CHARACTERS[10], CHARACTERS[35], CHARACTERS[36], CHARACTERS[61]) == tuple("09AZaz")


def test_mean_and_deviation_are_those_of_the_pixels():
    image = GENERATOR.integers(0, 256, (300, 28, 28, 1), dtype=np.uint8)
    (mean,), (deviation,) = mean_and_deviation(image)
    assert (mean, deviation) == pytest.approx(((image / 255).mean(), (image / 255).std()), abs=1e-4)


def test_test_pictures_are_normalised_as_the_training_pictures_are():
    train, test = (GENERATOR.integers(0, most, (9, 28, 28, 1), dtype=np.uint8) for most in (256, 32))
    first = character_examples("characters", {"image": train}, CHARACTERS, None)
    second = character_examples("characters", {"image": test}, CHARACTERS, first)
    assert second.mean == first.mean == mean_and_deviation(train)[0]
    assert mean_and_deviation(test)[0] != first.mean


def test_pictures_of_one_colour_have_a_deviation_that_can_be_divided_by():
    assert mean_and_deviation(np.full((2, 28, 28, 1), 255, dtype=np.uint8)) == ((1.0,), (1e-4,))


def test_bright_ink_is_the_negative_of_dark_ink():
    dark = np.array([0, 1, 254, 255], dtype=np.uint8)
    assert inked(dark.copy(), "dark").tolist() == [0, 1, 254, 255]
    assert inked(dark.copy(), "bright").tolist() == [255, 254, 1, 0]
