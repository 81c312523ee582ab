"""Folders of pictures, by class and by user."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from fedlens.data.sources.image_folder import ImageFolder


def picture(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 16), (shade, 0, 0)).save(path)


def folder_of(tmp_path: Path, *files: str) -> Path:
    for shade, file in enumerate(files):
        picture(tmp_path / file, 10 * shade)
    return tmp_path


def table(folder: Path, *lines: str) -> None:
    (folder / "clients.csv").write_text("\n".join(lines) + "\n")


def listings(folder: Path, **settings: object):
    return ImageFolder(path=folder, size=16, **settings).listings()


def labels(listing) -> dict[str, str]:
    return {key: listing.class_names[label] for key, label in zip(listing.keys, listing.columns["label"], strict=True)}


def clients(listing) -> dict[str, str]:
    return dict(zip(listing.keys, listing.columns["client"].tolist(), strict=True))


def test_one_folder_is_all_for_training(tmp_path):
    folder = folder_of(tmp_path, "dog/b.png", "cat/a.jpg", "cat/deep/down/c.PNG")
    found = listings(folder)
    assert list(found) == ["train"]
    assert found["train"].class_names == ("cat", "dog")
    assert labels(found["train"]) == {"cat/a.jpg": "cat", "cat/deep/down/c.PNG": "cat", "dog/b.png": "dog"}
    assert "client" not in found["train"].columns
    train = ImageFolder(path=folder, size=16).load().train
    assert train.column("image").shape == (3, 16, 16, 3)
    assert train.column("label").tolist() == [0, 0, 1]


@pytest.mark.parametrize("validation", ["validation", "val", "valid"])
def test_splits_are_folders_beside_which_may_lie_what_is_no_picture(tmp_path, validation):
    folder = folder_of(tmp_path, "train/cat/a.png", "train/dog/b.png", f"{validation}/dog/c.png", "test/cat/d.png", ".more/e.png")
    (folder / "notes").mkdir()
    (folder / "notes" / "README").write_text("no picture")
    found = listings(folder)
    assert {split: labels(listing) for split, listing in found.items()} == {
        "train": {"train/cat/a.png": "cat", "train/dog/b.png": "dog"},
        "validation": {f"{validation}/dog/c.png": "dog"},
        "test": {"test/cat/d.png": "cat"},
    }


@pytest.mark.parametrize("beside", ["car/x/1.png", "Test/1.png", "bus/deep/down/1.jpg"])
def test_a_class_called_train_is_not_taken_for_a_split_beside_which_others_are_passed_over(tmp_path, beside):
    message = rf"has the splits train, but {beside} lies in none of them: if 'train' is a class like the others, put all"
    with pytest.raises(ValueError, match=message):
        listings(folder_of(tmp_path, "train/x/1.png", beside))


def test_a_link_back_to_where_it_lies_adds_nothing(tmp_path):
    folder = folder_of(tmp_path, "cat/a.png", "dog/b.png", "dog/deep/c.png")
    (folder / "cat" / "all").symlink_to(folder)
    (folder / "dog" / "deep" / "up").symlink_to(folder / "dog")
    found = labels(listings(folder)["train"])
    in_circles = [file for file in found if file.count("dog/") > 1 or file.count("cat/") > 1]
    assert not in_circles
    assert {"cat/a.png", "dog/b.png", "dog/deep/c.png"} <= found.keys()


def test_folders_that_link_to_each_other_are_no_endless_way(tmp_path):
    folder = folder_of(tmp_path, "cat/a.png", "dog/b.png")
    (folder / "cat" / "dogs").symlink_to(folder / "dog")
    (folder / "dog" / "cats").symlink_to(folder / "cat")
    assert labels(listings(folder)["train"]) == {
        "cat/a.png": "cat",
        "cat/dogs/b.png": "cat",
        "dog/b.png": "dog",
        "dog/cats/a.png": "dog",
    }


def test_two_clients_may_link_to_the_same_pictures(tmp_path):
    folder = folder_of(tmp_path / "data", "ann/cat/a.png")
    picture(tmp_path / "shared" / "b.png")
    for client in ("ann", "bob"):
        (folder / client).mkdir(exist_ok=True)
        (folder / client / "dog").symlink_to(tmp_path / "shared")
    found = clients(listings(folder, layout="client/class")["train"])
    assert found == {"ann/cat/a.png": "ann", "ann/dog/b.png": "ann", "bob/dog/b.png": "bob"}


def test_two_folders_of_the_same_split_are_refused(tmp_path):
    with pytest.raises(ValueError, match="several folders of the same split: train, validation, val"):
        listings(folder_of(tmp_path, "train/cat/a.png", "val/cat/b.png", "validation/cat/c.png"))


@pytest.mark.parametrize(
    ("layout", "file"),
    [("client/class", "ann/cat/a.png"), ("class/client", "cat/ann/a.png"), ("class/*/client", "cat/2024/ann/more/a.png")],
)
@pytest.mark.parametrize("split", ["", "train/"])
def test_a_folder_level_may_be_the_client(tmp_path, layout, file, split):
    found = listings(folder_of(tmp_path, f"{split}{file}"), layout=layout)["train"]
    assert clients(found) == {f"{split}{file}": "ann"}
    assert labels(found) == {f"{split}{file}": "cat"}


@pytest.mark.parametrize("layout", ["", "klass", "class/class", "client/", "client/class/client"])
def test_a_layout_names_class_and_client_once(layout):
    with pytest.raises(ValidationError, match="expected folder levels such as client/class"):
        ImageFolder(layout=layout)


@pytest.mark.parametrize(("layout", "file"), [("class", "a.png"), ("client/class", "ann/a.png"), ("class/client", "cat/a.png")])
def test_a_picture_that_does_not_lie_deep_enough_is_named(tmp_path, layout, file):
    with pytest.raises(ValueError, match=rf"{file} does not lie as deep as data\.source\.layout={layout} says"):
        listings(folder_of(tmp_path, file), layout=layout)


def test_what_is_no_picture_by_its_suffix_is_ignored(tmp_path):
    folder = folder_of(tmp_path, "cat/a.png", "cat/.hidden.png", ".cache/b.png")
    for name in ("cat/notes.txt", "cat/Thumbs.db", "README", "cat/png"):
        (folder / name).write_text("no picture")
    assert labels(listings(folder)["train"]) == {"cat/a.png": "cat"}


def test_clients_csv_says_whose_a_picture_is(tmp_path):
    folder = folder_of(tmp_path, "train/cat/a.png", "train/cat/b.png", "test/cat/c.png")
    table(folder, "file,client", "train/cat/b.png,ann", "train/cat/a.png,bob", "test/cat/c.png,eve")
    found = listings(folder)
    assert clients(found["train"]) == {"train/cat/a.png": "bob", "train/cat/b.png": "ann"}
    assert clients(found["test"]) == {"test/cat/c.png": "eve"}


def test_clients_csv_may_say_what_a_picture_shows(tmp_path):
    folder = folder_of(tmp_path, "x.png", "deep/down/y.png")
    table(folder, "file,client,label", 'x.png,"Ann, the first",cat', "deep/down/y.png,bob,dog")
    found = listings(folder)["train"]
    assert labels(found) == {"x.png": "cat", "deep/down/y.png": "dog"}
    assert clients(found)["x.png"] == "Ann, the first"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["file,user", "cat/a.png,ann"], r"the first line should be file,client or file,client,label; it is 'file,user'"),
        (["file,client", "cat/a.png,"], "line 2 should have a value for each of file,client"),
        (["file,client", "cat/a.png"], "line 2 should have a value for each of file,client"),
        (["file,client", "cat/a.png,ann,cat"], "line 2 should have a value for each of file,client"),
        (
            ["file,client", "cat/a.png,ann", "cat/b.png,ann", "./cat/a.png,bob"],
            "line 4: cat/a.png stands there for the second time",
        ),
        (["file,client", "cat/a.png,ann"], "has no row for cat/b.png"),
    ],
)
def test_what_is_wrong_in_clients_csv_is_named(tmp_path, lines, message):
    folder = folder_of(tmp_path, "cat/a.png", "cat/b.png")
    table(folder, *lines)
    with pytest.raises(ValueError, match=rf"clients\.csv.*{message}"):
        listings(folder)


def test_a_row_of_clients_csv_outside_the_splits_is_refused(tmp_path):
    folder = folder_of(tmp_path, "train/cat/a.png")
    table(folder, "file,client", "train/cat/a.png,ann", "more/b.png,ann")
    with pytest.raises(ValueError, match=r"more/b\.png lies in none of the folders train"):
        listings(folder)


def test_a_picture_that_only_clients_csv_knows_is_a_missing_one(tmp_path):
    folder = folder_of(tmp_path, "cat/a.png")
    table(folder, "file,client", "cat/a.png,ann", "cat/b.png,bob")
    with pytest.raises(ValueError, match=r"1 missing, 0 broken; 1 clients lack some \(bob: 1\)(.|\n)*cat/b\.png is missing"):
        ImageFolder(path=folder, size=16).load()
    assert len(ImageFolder(path=folder, size=16, missing="skip").load().train) == 1


def test_a_class_that_cannot_be_learnt_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"test/dog/b\.png: no picture to train on is of the class 'dog'"):
        listings(folder_of(tmp_path, "train/cat/a.png", "test/dog/b.png"))


def test_there_have_to_be_pictures(tmp_path):
    with pytest.raises(ValueError, match="holds no pictures to train on"):
        listings(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere is no folder"):
        listings(tmp_path / "nowhere")


def test_pictures_are_in_the_same_order_whatever_the_disk_says(tmp_path):
    files = [f"{kind}/{number}.png" for number in np.random.default_rng(0).permutation(9) for kind in "zax"]
    assert listings(folder_of(tmp_path, *files))["train"].keys == sorted(files)
