"""CelebA in its official files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedlens.data.sources.celeba import ATTRIBUTES, CelebA

GENERATOR = np.random.default_rng(0)
# picture k belongs to the celebrity who stands in place k, and to the part below; 7 has five pictures, 12 has six, 3 has one
CELEBRITY = [7, 12, 7, 12, 12, 7, 3, 12, 7, 12, 7, 12]
PART = [0, 0, 0, 0, 1, 0, 0, 1, 1, 2, 2, 2]
VALUES = GENERATOR.choice([-1, 1], (len(CELEBRITY), 40))


def name(k: int) -> str:
    return f"{k + 1:06}.jpg"


def write(folder: Path) -> Path:
    """The official files, with few pictures."""
    pictures = folder / "img_align_celeba"
    pictures.mkdir(parents=True)
    for k in range(len(CELEBRITY)):
        Image.new("RGB", (178, 218), (20 * k, 255 - 20 * k, 9)).save(pictures / name(k), quality=95)
    (folder / "identity_CelebA.txt").write_text("".join(f"{name(k)} {person}\n" for k, person in enumerate(CELEBRITY)))
    (folder / "list_eval_partition.txt").write_text("".join(f"{name(k)} {part}\n" for k, part in enumerate(PART)))
    lines = [f"{name(k)}  " + " ".join(f"{value:2}" for value in row) for k, row in enumerate(VALUES)]
    (folder / "list_attr_celeba.txt").write_text("\n".join([str(len(lines)), " ".join(ATTRIBUTES) + " ", *lines]) + "\n")
    return folder


@pytest.fixture
def folder(tmp_path) -> Path:
    return write(tmp_path / "celeba")


def source(folder: Path, **settings: object) -> CelebA:
    return CelebA(path=folder.parent, expect="any", **settings)


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_celebrities_with_five_pictures_are_clients_and_others_are_left_out(folder):
    sources = source(folder).load()
    clients = [
        examples.categories["client"][examples.column("client")].tolist() for examples in (sources.train, sources.validation)
    ]
    assert clients == [["7", "12", "7", "12", "7"], ["12", "12", "7"]]
    assert sum(map(len, (sources.train, sources.validation, sources.test))) == 11
    assert sources.train.class_names == ("not Smiling", "Smiling")


def test_how_few_pictures_a_celebrity_may_have_is_a_setting(folder):
    assert len(source(folder, least=1).listings()["train"]) == 6
    assert {len(listing) for listing in source(folder, least=6).listings().values()} == {2}
    with pytest.raises(ValueError, match="no celebrity of the training part has 7 pictures"):
        source(folder, least=7).listings()


def test_labels_are_one_attribute_and_attributes_are_all_of_them(folder):
    rows = [k for k in range(12) if PART[k] == 0 and CELEBRITY[k] != 3]
    for attribute in ("Smiling", "5_o_Clock_Shadow", "Young"):
        listing = source(folder, attribute=attribute).listings()["train"]
        np.testing.assert_array_equal(listing.columns["attributes"], (VALUES[rows] == 1).astype(np.uint8))
        assert listing.columns["attributes"].dtype == np.uint8
        expected = VALUES[rows, ATTRIBUTES.index(attribute)] == 1
        assert listing.columns["label"].tolist() == expected.astype(int).tolist()


def test_pictures_are_distorted_to_84_as_leaf_does(folder):
    image = source(folder).load().train.column("image")
    assert image.shape == (5, 84, 84, 3)
    for row, k in enumerate([0, 1, 2, 3, 5]):
        assert np.abs(image[row].reshape(-1, 3).mean(axis=0) - (20 * k, 255 - 20 * k, 9)).max() < 3


def test_there_are_forty_attributes_and_one_that_is_not_among_them_is_an_error(folder):
    assert len(set(ATTRIBUTES)) == 40
    with pytest.raises(ValueError, match="Input should be '5_o_Clock_Shadow'"):
        source(folder, attribute="Grumpy")


def test_the_files_may_come_in_any_order_of_their_lines(folder):
    before = source(folder).listings()["train"]
    for file, head in (("identity_CelebA.txt", 0), ("list_eval_partition.txt", 0), ("list_attr_celeba.txt", 2)):
        lines = (folder / file).read_text().splitlines()
        (folder / file).write_text("\n".join(lines[:head] + GENERATOR.permutation(lines[head:]).tolist()))
    after = source(folder).listings()["train"]
    assert list(before.keys) == list(after.keys)
    for column in before.columns:
        np.testing.assert_array_equal(before.columns[column], after.columns[column])


def test_other_than_the_official_counts_are_refused_unless_they_are_expected(folder):
    with pytest.raises(ValueError, match=r"CelebA: 12 images instead of 202,599, 3 celebrities instead of 10,177.*expect=any"):
        CelebA(path=folder).listings()


@pytest.mark.parametrize("missing", ["identity_CelebA.txt", "list_attr_celeba.txt", "list_eval_partition.txt"])
def test_a_missing_file_says_where_it_belongs(folder, missing):
    (folder / missing).unlink()
    with pytest.raises(FileNotFoundError, match=rf"data\.source\.path: .*celeba/{missing} is missing \(unpack"):
        source(folder).listings()


def test_missing_pictures_are_an_error_that_names_the_clients_or_are_skipped(folder):
    (folder / "img_align_celeba" / name(0)).unlink()
    with pytest.raises(ValueError, match=r"1 of 5 pictures.*1 missing.*1 clients lack some \(7: 1\)"):
        source(folder).load()
    assert len(source(folder, missing="skip").load().train) == 4


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("identity_CelebA.txt", "000002.jpg 12", "000001.jpg 12", "000001.jpg stands there twice"),
        ("identity_CelebA.txt", "000002.jpg 12", "000002.jpg x", "000002.jpg should be followed by a number"),
        ("identity_CelebA.txt", "000002.jpg 12", "000002.jpg", "23 words are not pairs"),
        (
            "identity_CelebA.txt",
            "000002.jpg 12\n",
            "",
            "list_attr_celeba.txt and identity.* are not about the same pictures: 000002.jpg",
        ),
        ("list_attr_celeba.txt", "12\n", "13\n", "line 1 promises 13 pictures, and 12 follow"),
        ("list_attr_celeba.txt", "Smiling", "Frowning", "line 2 should name CelebA's 40 attributes"),
        ("list_attr_celeba.txt", "000002.jpg", "000002.jpg 1", "a picture and 40 numbers: .*row 2"),
        ("list_attr_celeba.txt", "000002.jpg ", "000001.jpg ", "000001.jpg stands there twice"),
        ("list_eval_partition.txt", "000003.jpg 0", "000003.jpg 3", "000003.jpg is in part 3; there are 0"),
        ("list_eval_partition.txt", "000003.jpg 0", "000013.jpg 0", "not about the same pictures: 000003.jpg stands in one"),
    ],
)
def test_a_file_with_wrong_content_is_refused_and_the_place_named(folder, file, old, new, message):
    change(folder / file, old, new)
    with pytest.raises(ValueError, match=message):
        source(folder).listings()


def test_an_attribute_that_is_neither_one_nor_minus_one_is_refused(folder):
    lines = (folder / "list_attr_celeba.txt").read_text().splitlines()
    lines[4] = lines[4].replace(" 1", " 0", 1)
    (folder / "list_attr_celeba.txt").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"000003\.jpg has an attribute that is neither 1 nor −1"):
        source(folder).listings()


def test_the_files_are_there_where_they_are_read(folder):
    for place in (folder, folder.parent):
        assert CelebA.is_in(place)
    (folder / "identity_CelebA.txt").unlink()
    assert not CelebA.is_in(folder)
