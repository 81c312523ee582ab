"""CIFAR among the clients that the paper had."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from fedlens.data import Examples
from fedlens.data.partitions.published import Published

CLASSES, CLIENTS, EACH = 10, 12, 5
GENERATOR = np.random.default_rng(0)
LABELS = GENERATOR.integers(0, CLASSES, CLIENTS * EACH)
OWNER = GENERATOR.permutation(np.repeat(np.arange(CLIENTS), EACH))
DATA = Examples({"label": LABELS}, "CIFAR-10")


def table(image: np.ndarray | None = None, label: np.ndarray | None = None) -> str:
    """Rows in a shuffled order, as they are in the published files."""
    image = np.arange(len(LABELS)) if image is None else image
    label = LABELS[np.arange(len(LABELS))] if label is None else label
    rows = [f"{OWNER[row]},{image[row]},{label[row]}" for row in np.random.default_rng(1).permutation(len(LABELS))]
    return "\n".join(["user_id,image_id,class", *rows])


def published(**settings: object) -> Published:
    return Published(expect="any", **settings)


def zipped(path: Path, top: str = "", text: str | None = None, alpha: str = "0.05") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{top}federated_train_alpha_{alpha}.csv", table() if text is None else text)
        archive.writestr(f"{top}test.csv", "image_id,class\n")
    return path


@pytest.mark.parametrize("how", ["zip", "folder with zip", "zip with top folder", "unpacked"])
def test_each_client_holds_what_the_table_gives_it(tmp_path, how):
    path = zipped(tmp_path / "cifar10_v1.1.zip", "cifar10_v1.1/" if how == "zip with top folder" else "")
    if how == "unpacked":
        with zipfile.ZipFile(path) as archive:
            archive.extractall(tmp_path / "cifar10_v1.1")
        path.unlink()
    clients = published(path=path if how == "zip" else tmp_path, alpha=0.05).assign(DATA, 0)
    assert clients.names == [str(k) for k in range(CLIENTS)]  # not "10" before "2"
    for k in range(CLIENTS):
        assert clients.of_client(k).tolist() == np.nonzero(np.equal(OWNER, k))[0].tolist()


@pytest.mark.parametrize(("alpha", "text"), [(0, "0.00"), (0.5, "0.50"), (10, "10.00"), (1000, "1000.00")])
def test_alpha_names_the_file(tmp_path, alpha, text):
    zipped(tmp_path / "a.zip", alpha=text)
    assert len(published(path=tmp_path, alpha=alpha).assign(DATA, 0)) == CLIENTS
    with pytest.raises(
        FileNotFoundError, match=r"data\.partition\.path: federated_train_alpha_0.20.csv is neither under .*cifar10_v1.1.zip"
    ):
        published(path=tmp_path, alpha=0.2).assign(DATA, 0)


def test_a_table_from_before_2022_is_recognised_by_its_wrong_image_ids(tmp_path):
    zipped(tmp_path / "cifar10.zip", text=table(image=GENERATOR.permutation(len(LABELS))))
    with pytest.raises(
        ValueError, match=r"5\d of 60 rows give an image another class than CIFAR-10 does: .*before January 2022.*v1\.1"
    ):
        published(path=tmp_path, alpha=0.05).assign(DATA, 0)


def test_a_single_wrong_row_is_enough(tmp_path):
    labels = LABELS.copy()
    labels[17] = (labels[17] + 1) % CLASSES
    zipped(tmp_path / "a.zip", text=table(label=labels))
    with pytest.raises(ValueError, match="1 of 60 rows give an image another class"):
        published(path=tmp_path, alpha=0.05).assign(DATA, 0)


def test_tables_of_other_data_and_images_named_twice_are_refused(tmp_path):
    wrong = {
        "image 60 is none of the 60 of CIFAR-10": np.arange(len(LABELS)) + 1,
        "image -1 is none of the 60 of CIFAR-10": np.arange(len(LABELS)) - 1,
        "'image_id' 0 stands in 2 rows": np.maximum(np.arange(len(LABELS)) - 1, 0),
    }
    for message, image in wrong.items():
        zipped(tmp_path / "a.zip", text=table(image=image))
        with pytest.raises(ValueError, match=message):
            published(path=tmp_path, alpha=0.05).assign(DATA, 0)


def test_two_zips_with_different_tables_of_the_same_name_have_to_be_told_apart(tmp_path):
    first, second = zipped(tmp_path / "cifar10_v1.1.zip"), zipped(tmp_path / "cifar100_v1.1.zip", text=table(label=LABELS + 1))
    with pytest.raises(ValueError, match=r"several files called 'federated_train_alpha_0.05.csv' that differ"):
        published(path=tmp_path, alpha=0.05).assign(DATA, 0)
    assert len(published(path=first, alpha=0.05).assign(DATA, 0)) == CLIENTS
    with pytest.raises(ValueError, match="60 of 60 rows"):
        published(path=second, alpha=0.05).assign(DATA, 0)


def test_images_that_the_table_leaves_out_are_nobodys(tmp_path):
    (tmp_path / "federated_train_alpha_1.00.csv").write_text(f"user_id,image_id,class\n1,3,{LABELS[3]}\n0,5,{LABELS[5]}\n")
    clients = published(path=tmp_path).assign(DATA, 0)
    assert [clients.of_client(k).tolist() for k in range(len(clients))] == [[5], [3]]


def official(users: int = 100, each: int = 500) -> tuple[np.ndarray, Examples]:
    """Whose each image is, and data with as many images of ten classes."""
    owner = np.random.default_rng(0).permutation(np.repeat(np.arange(users), each))
    return owner, Examples({"label": np.arange(users * each) % 10}, "CIFAR-10")


def write_official(folder: Path, owner: np.ndarray, rows: int) -> None:
    lines = [f"{owner[row]},{row},{row % 10}" for row in range(rows)]
    (folder / "federated_train_alpha_1.00.csv").write_text("\n".join(["user_id,image_id,class", *lines]))


def test_an_official_table_gives_every_image_to_one_of_a_hundred_clients_of_five_hundred(tmp_path):
    owner, data = official()
    write_official(tmp_path, owner, 50_000)
    assert Published(path=tmp_path).assign(data, 0).sizes.tolist() == [500] * 100
    write_official(tmp_path, owner, 49_999)
    with pytest.raises(ValueError, match=r"gives 49,999 of 50,000 images to 100 clients, 499 to 500 to each; .*expect=any"):
        Published(path=tmp_path).assign(data, 0)
    assert published(path=tmp_path).assign(data, 0).sizes.min() == 499


@pytest.mark.parametrize(("users", "each"), [(50, 1_000), (100, 50)])
def test_other_clients_than_the_paper_s_are_no_official_table(tmp_path, users, each):
    owner, data = official(users, each)
    write_official(tmp_path, owner, users * each)
    with pytest.raises(ValueError, match=f"to {users} clients, {each:,} to {each:,} to each"):
        Published(path=tmp_path).assign(data, 0)


@pytest.mark.parametrize("alpha", [0.051, 0.0499999, 0.001, float("inf"), float("nan")])
def test_an_alpha_that_names_no_table_is_not_rounded_to_one_that_does(alpha):
    with pytest.raises(ValidationError, match=r"two decimals at most|finite number"):
        Published(alpha=alpha)
