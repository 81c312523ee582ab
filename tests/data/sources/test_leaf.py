"""LEAF's FEMNIST and CelebA, in the JSON files that its scripts write."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedlens.data.sources.leaf import LEAFFEMNIST, LEAFCelebA

GENERATOR = np.random.default_rng(0)


def picture() -> list[float]:
    return (GENERATOR.integers(0, 256, 784) / 255).tolist()


def writer(*classes: int) -> dict[str, list]:
    return {"x": [picture() for _ in classes], "y": list(classes)}


def write(file: Path, data: dict[str, dict[str, list]], **changes: object) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {"users": list(data), "num_samples": [len(user["y"]) for user in data.values()], "user_data": data}
    file.write_text(json.dumps(content | changes))
    return file


@pytest.fixture
def femnist(tmp_path) -> Path:
    """PATH/femnist/data with two files a split; their numbers sort as numbers, not as texts."""
    folder = tmp_path / "femnist" / "data"
    write(folder / "train" / "all_data_2_niid_0_keep_0_train_9.json", {"f0000_14": writer(3, 61), "f0001_41": writer(0)})
    write(folder / "train" / "all_data_10_niid_0_keep_0_train_9.json", {"f0002_01": writer(10)})
    write(folder / "test" / "all_data_2_niid_0_keep_0_test_9.json", {"f0000_14": writer(5)})
    return tmp_path


def clients(examples) -> list[str]:
    return examples.categories["client"][examples.column("client")].tolist()


def test_femnist_has_the_pictures_classes_and_writers_of_all_files(femnist):
    sources = LEAFFEMNIST(path=femnist).load()
    stored = json.loads((femnist / "femnist/data/train/all_data_2_niid_0_keep_0_train_9.json").read_text())["user_data"]
    image = sources.train.column("image")
    assert image.shape == (4, 28, 28, 1)
    np.testing.assert_array_equal(image[1].reshape(-1), np.rint(np.array(stored["f0000_14"]["x"][1]) * 255))
    np.testing.assert_array_equal(image[2].reshape(-1), np.rint(np.array(stored["f0001_41"]["x"][0]) * 255))
    assert sources.train.column("label").tolist() == [3, 61, 0, 10]
    assert clients(sources.train) == ["f0000_14", "f0000_14", "f0001_41", "f0002_01"]
    assert (sources.test.column("label").tolist(), clients(sources.test)) == ([5], ["f0000_14"])
    assert (sources.train.class_names[0], sources.train.class_names[61]) == ("0", "z")
    assert sources.test.mean == sources.train.mean


@pytest.mark.parametrize("place", ["femnist", "femnist/data"])
def test_the_path_may_be_a_folder_further_in(femnist, place):
    assert LEAFFEMNIST(path=femnist / place).load().train.fingerprint() == LEAFFEMNIST(path=femnist).load().train.fingerprint()


def test_a_clone_of_leaf_is_a_path_too(tmp_path):
    write(tmp_path / "data/femnist/data/all_data/all_data_0.json", {"f0000_14": writer(3)})
    assert len(LEAFFEMNIST(path=tmp_path).load().train) == 1


def test_ink_is_dark_as_stored_or_bright_as_mnists(femnist):
    dark, bright = (LEAFFEMNIST(path=femnist, ink=ink).load() for ink in ("dark", "bright"))
    for split in ("train", "test"):
        np.testing.assert_array_equal(255 - getattr(dark, split).column("image"), getattr(bright, split).column("image"))


def test_what_is_not_split_yet_is_training_data(tmp_path):
    write(tmp_path / "femnist" / "data" / "all_data" / "all_data_0.json", {"f0000_14": writer(3, 4), "f0001_41": writer(0)})
    sources = LEAFFEMNIST(path=tmp_path).load()
    assert (len(sources.train), sources.validation, sources.test) == (3, None, None)


def test_users_without_examples_as_splits_by_samples_leave_them_are_no_clients(tmp_path):
    data = {"f0000_14": writer(3), "f0001_41": writer(), "f0002_01": writer()}
    write(tmp_path / "all_data" / "all_data_0.json", data, users=["f0000_14", "f0001_41"], num_samples=[1, 0])
    train = LEAFFEMNIST(path=tmp_path).load().train
    assert train.categories["client"].tolist() == ["f0000_14"]


def test_a_file_takes_no_more_memory_than_a_few_times_its_size(tmp_path):
    data = {f"f{k:04}_00": writer(*[1] * 20) for k in range(20)}
    file = write(tmp_path / "all_data" / "all_data_0.json", data)
    tracemalloc.start()
    LEAFFEMNIST(path=tmp_path).load()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * file.stat().st_size  # 2 for the text while it is read, and a writer's numbers, of 32 bytes each


def test_missing_files_say_where_they_belong_and_who_makes_them(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no \*\.json in .*femnist/data/all_data \(run LEAF's data/femnist/preprocess\.sh"):
        LEAFFEMNIST(path=tmp_path).load()


def test_a_split_without_files_is_an_error(femnist):
    next((femnist / "femnist/data/test").iterdir()).unlink()
    with pytest.raises(FileNotFoundError, match=r"no \*\.json in .*femnist/data/test"):
        LEAFFEMNIST(path=femnist).load()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"user_data": {"f0000_14": {"x": [picture()], "y": [1, 2]}}}, r"user f0000_14: 1 pictures and 2 classes"),
        ({"user_data": {"f0000_14": {"x": [picture()[1:], picture()], "y": [1, 2]}}}, r"user f0000_14: .*inhomogeneous"),
        ({"user_data": {"f0000_14": {"x": [[0.5] * 783] * 2, "y": [1, 2]}}}, r"user f0000_14: pictures of shape \(783,\)"),
        ({"user_data": {"f0000_14": {"x": [[1.5] * 784] * 2, "y": [1, 2]}}}, r"user f0000_14: a pixel that does not lie in 0…1"),
        ({"user_data": {"f0000_14": {"x": [[None] * 784] * 2, "y": [1, 2]}}}, r"user f0000_14: a pixel that does not lie"),
        ({"user_data": {"f0000_14": {"x": [picture()] * 2, "y": [1, "b"]}}}, r"user f0000_14: invalid literal"),
        ({"user_data": {"f0000_14": {"x": [picture()] * 2, "y": [1, 62]}}}, r"labels must lie in 0…61; found 62"),
        ({"user_data": {"f0000_14": {}}}, r"user f0000_14: no examples"),
        ({"user_data": {}}, r"user f0000_14: no examples"),
        ({"num_samples": [3]}, r"user f0000_14: 2 examples, not 3 as num_samples says"),
        ({"num_samples": []}, r"is no file of LEAF's \(ValueError: zip"),
        ({"users": ["f0000_14"] * 2, "num_samples": [2] * 2}, r"user f0000_14 stands in another place too"),
        ({"users": [], "num_samples": []}, r"the files hold no examples"),
        ({"users": None}, r"is no file of LEAF's \(TypeError"),
    ],
)
def test_wrong_content_is_refused_and_the_user_named(tmp_path, change, message):
    write(tmp_path / "all_data" / "all_data_0.json", {"f0000_14": writer(1, 2)}, **change)
    with pytest.raises(ValueError, match=message):
        LEAFFEMNIST(path=tmp_path).load()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"users": ["f0000'])
def test_a_file_that_is_torn_or_something_else_is_refused(tmp_path, content):
    file = write(tmp_path / "all_data" / "all_data_0.json", {})
    file.write_text(content)
    with pytest.raises(ValueError, match=r"all_data_0\.json is no file of LEAF's .*truncated\?"):
        LEAFFEMNIST(path=tmp_path).load()


def test_a_writer_of_two_files_is_an_error(femnist):
    write(femnist / "femnist/data/train/all_data_11.json", {"f0000_14": writer(3)})
    with pytest.raises(ValueError, match=r"all_data_\d+.*\.json: user f0000_14 stands in another place too"):
        LEAFFEMNIST(path=femnist).load()


@pytest.fixture
def celeba(tmp_path) -> Path:
    folder = tmp_path / "celeba" / "data"
    (folder / "raw" / "img_align_celeba").mkdir(parents=True)
    for number in range(1, 5):
        Image.new("RGB", (178, 218), (50 * number, 0, 0)).save(folder / "raw" / "img_align_celeba" / f"{number:06}.jpg", quality=95)
    write(folder / "train" / "all_data_train_9.json", {
        "2880": {"x": ["000002.jpg", "000001.jpg"], "y": [1, 0]},
        "17": {"x": ["000003.jpg"], "y": [0]},
    })  # fmt: skip
    write(folder / "test" / "all_data_test_9.json", {"17": {"x": ["000004.jpg"], "y": [1]}})
    return tmp_path


def test_celeba_takes_leafs_celebrities_labels_and_pictures(celeba):
    sources = LEAFCelebA(path=celeba).load()
    assert sources.train.column("image").shape == (3, 84, 84, 3)
    for row, number in enumerate((2, 1, 3)):
        assert abs(float(sources.train.column("image")[row, ..., 0].mean()) - 50 * number) < 3
    assert sources.train.column("label").tolist() == [1, 0, 0]
    assert clients(sources.train) == ["2880", "2880", "17"]
    assert (clients(sources.test), sources.test.column("label").tolist()) == (["17"], [1])
    assert sources.train.class_names == ("not Smiling", "Smiling")


def test_a_missing_portrait_is_reported_with_its_celebrity(celeba):
    (celeba / "celeba/data/raw/img_align_celeba/000003.jpg").unlink()
    with pytest.raises(ValueError, match=r"1 of 3 pictures.*\(17: 1\)\n  000003\.jpg: .*is missing"):
        LEAFCelebA(path=celeba).load()


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ({"x": ["000001.jpg"], "y": [2]}, r"000001\.jpg has class 2; there are 0 and 1"),
        ({"x": [[0.5]], "y": [1]}, r"user 17: pictures that are not names of files"),
    ],
)
def test_wrong_classes_and_pictures_of_celeba_are_refused(celeba, user, message):
    write(celeba / "celeba/data/train/all_data_train_9.json", {"17": user})
    with pytest.raises(ValueError, match=message):
        LEAFCelebA(path=celeba).listings()


@pytest.mark.parametrize("place", ["", "femnist", "femnist/data"])
def test_the_files_are_there_where_they_are_read(femnist, celeba, place):
    assert LEAFFEMNIST.is_in(femnist / place)
    assert LEAFCelebA.is_in(celeba / place.replace("femnist", "celeba"))
    assert not LEAFCelebA.is_in(femnist / "femnist" / "data")  # no portraits are beside


def test_pictures_that_were_prepared_are_no_files_of_leaf(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "examples.json").write_text("{}")
    assert not LEAFFEMNIST.is_in(tmp_path)
