"""FLAIR in each of the layouts in which it is kept."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from fedlens.data import Examples
from fedlens.data.prepare import Shape, prepare
from fedlens.data.sources.flair import COARSE, FLAIR

GENERATOR = np.random.default_rng(0)
Entry = dict[str, object]

# (user, picture, coarse labels, fine labels, partition); users' pictures are not side by side, and one has no labels
TABLE = [
    ("59769174@N00", "501", ["plant", "animal"], ["tree", "dog", "animal"], "train"),
    ("10000001@N07", "17", ["structure"], ["zoo"], "train"),
    ("59769174@N00", "502", ["food"], ["apple", "zucchini"], "train"),
    ("59769174@N00", "9", [], [], "train"),
    ("20000002@N01", "71", ["religion", "music"], ["choir"], "val"),
    ("30000003@N02", "81", ["structure"], ["tower", "dog"], "test"),
    ("30000003@N02", "82", ["animal"], ["dog"], "test"),
]
FINE = ["animal", "apple", "choir", "dog", "tower", "tree", "zoo", "zucchini"]


def jpeg(seed: int) -> bytes:
    """A smooth picture of 256 × 256, as small_images are."""
    corners = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(corners).resize((256, 256), Image.Resampling.BICUBIC).save(file, "JPEG", quality=95)
    return file.getvalue()


JPEGS = {image: jpeg(int(image)) for _, image, *_ in TABLE}
PIXELS = {image: np.asarray(Image.open(io.BytesIO(content))) for image, content in JPEGS.items()}


def entries() -> list[Entry]:
    names = ("user_id", "image_id", "labels", "fine_grained_labels", "partition")
    return [dict(zip(names, row, strict=True)) for row in TABLE]


def write_raw(folder: Path, table: list[Entry] | None = None) -> Path:
    (folder / "small_images").mkdir(parents=True, exist_ok=True)
    for image, content in JPEGS.items():
        (folder / "small_images" / f"{image}.jpg").write_bytes(content)
    (folder / "labels_and_metadata.json").write_text(json.dumps(entries() if table is None else table))
    lines = [f"{name} -> {COARSE[0]}" for name in FINE] + [f"{name} -> {name}" for name in COARSE]
    (folder / "label_relationship.txt").write_text("\n".join(lines))
    return folder


def by_user() -> dict[tuple[str, str], list[Entry]]:
    found: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries():
        found.setdefault((entry["partition"], entry["user_id"]), []).append(entry)
    return found


def write_pfl(folder: Path) -> Path:
    """As benchmarks/dataset/flair of pfl-research writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = {"": {name: c for c, name in enumerate(COARSE)}, "fine_grained_": {name: c for c, name in enumerate(FINE)}}
    with h5py.File(folder / "flair_federated.hdf5", "w") as file:
        for (partition, user), own in by_user().items():
            where = f"/{partition}/{user}"
            for kind, column_type in (("", np.uint8), ("fine_grained_", np.uint16)):
                pairs = [(i, numbers[kind][name]) for i, entry in enumerate(own) for name in entry[f"{kind}labels"]]
                file[f"{where}/{kind}labels_row"] = np.array([i for i, _ in pairs], dtype=np.uint16)
                file[f"{where}/{kind}labels_col"] = np.array([c for _, c in pairs], dtype=column_type)
            file[f"{where}/image_ids"] = np.array([entry["image_id"] for entry in own], dtype="S")
            file.create_dataset(f"{where}/images", data=np.stack([PIXELS[entry["image_id"]] for entry in own]))
        file["/metadata/label_mapping"] = json.dumps(numbers[""])
        file["/metadata/fine_grained_label_mapping"] = json.dumps(numbers["fine_grained_"])
    return folder / "flair_federated.hdf5"


def write_ml_flair(folder: Path) -> Path:
    """As prepare_dataset.py of ml-flair writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "flair_federated.hdf5", "w") as file:
        for (partition, user), own in by_user().items():
            where = f"/{partition}/{user}"
            for kind in ("labels", "fine_grained_labels"):
                file[f"{where}/{kind}"] = np.array(["|".join(entry[kind]) for entry in own], dtype="S")
            file[f"{where}/image_ids"] = np.array([entry["image_id"] for entry in own], dtype="S")
            file.create_dataset(f"{where}/images", data=np.stack([PIXELS[entry["image_id"]] for entry in own]))
        file["/metadata/label_counter"] = json.dumps({"animal": 2})
        file["/metadata/fine_grained_label_counter"] = json.dumps({"dog": 2})
    return folder / "flair_federated.hdf5"


def write_central(folder: Path) -> Path:
    """As both write it when it is not grouped by user; what pfl-research calls a mapping are counts."""
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "flair_central.hdf5", "w") as file:
        for entry in entries():
            where = f"/{entry['partition']}/{entry['image_id']}"
            file.create_dataset(f"{where}/image", data=PIXELS[entry["image_id"]])
            file[f"{where}/labels"] = "|".join(entry["labels"])
            file[f"{where}/fine_grained_labels"] = "|".join(entry["fine_grained_labels"])
            file[f"{where}/user_id"] = entry["user_id"]
        file["/metadata/label_mapping"] = json.dumps({"animal": 2})
    return folder / "flair_central.hdf5"


def write_parquet(folder: Path, change: Callable[[dict[str, list]], None] = lambda columns: None) -> Path:
    """As the Hub has it: the training split in two files, pictures two in a row group."""
    pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for partition, parts in (("train", 2), ("val", 1), ("test", 1)):
        own = [entry for entry in entries() if entry["partition"] == partition]
        for part in range(parts):
            rows = own[part::parts]
            columns = {name: [row[name] for row in rows] for name in ("user_id", "image_id", "labels", "fine_grained_labels")}
            columns["image"] = [{"bytes": JPEGS[row["image_id"]], "path": f"{row['image_id']}.jpg"} for row in rows]
            change(columns)
            labels = {name: pa.array(columns.pop(name), pa.list_(pa.string())) for name in ("labels", "fine_grained_labels")}
            file = folder / "data" / f"{partition}-{part:05}-of-{parts:05}.parquet"
            pq.write_table(pa.table(columns | labels), file, row_group_size=2)
    return folder / "data"


LAYOUTS = {"raw": write_raw, "pfl": write_pfl, "ml-flair": write_ml_flair, "central": write_central, "parquet": write_parquet}


def load(path: Path, **settings: object):
    return FLAIR(path=path, expect="any", **settings).load()


def told(examples: Examples) -> dict[str, tuple]:
    """What is said of each picture, by its name."""
    clients = examples.categories["client"][examples.column("client")]
    images = examples.categories["image_id"][examples.column("image_id")]
    return {
        image: (client, examples.column("labels")[i].tolist(), examples.column("fine_labels")[i].tolist())
        for i, (image, client) in enumerate(zip(images.tolist(), clients.tolist(), strict=True))
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_has_the_users_labels_and_pixels_of_every_picture(tmp_path, layout):
    LAYOUTS[layout](tmp_path / "flair")
    sources = load(tmp_path)
    for examples, partition in ((sources.train, "train"), (sources.validation, "val"), (sources.test, "test")):
        rows = [row for row in TABLE if row[4] == partition]
        assert told(examples) == {
            image: (user, [int(name in coarse) for name in COARSE], [int(name in fine) for name in FINE])
            for user, image, coarse, fine, _ in rows
        }
        images = examples.categories["image_id"][examples.column("image_id")]
        for i, image in enumerate(images.tolist()):
            np.testing.assert_array_equal(examples.column("image")[i], PIXELS[image])  # 256 stays 256: nothing is resampled
        assert examples.column("labels").dtype == examples.column("fine_labels").dtype == np.uint8
        assert examples.class_names == COARSE


def test_the_coarse_labels_are_seventeen_in_alphabetical_order():
    assert len(COARSE) == 17
    assert list(COARSE) == sorted(COARSE)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_path_may_be_the_folder_or_the_file_itself(tmp_path, layout):
    place = LAYOUTS[layout](tmp_path / "elsewhere")
    assert len(load(place).train) == 4
    assert FLAIR.is_in(place)
    assert not FLAIR.is_in(tmp_path / "nowhere")


def test_the_hubs_converted_files_lie_in_a_folder_for_each_split(tmp_path):
    folder = write_parquet(tmp_path)
    for split in ("train", "val", "test"):
        (tmp_path / "hub" / "default" / split).mkdir(parents=True)
        for number, file in enumerate(sorted(folder.glob(f"{split}-*"))):
            shutil.copy(file, tmp_path / "hub" / "default" / split / f"{number:04}.parquet")
    assert told(load(tmp_path / "hub").train) == told(load(tmp_path).train)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pictures_are_read_lazily_and_by_processes_that_did_not_open_the_file(tmp_path, layout):
    LAYOUTS[layout](tmp_path)
    listing = FLAIR(path=tmp_path, expect="any").listings()["train"]
    first = listing.pictures[0]
    copy = pickle.loads(pickle.dumps(listing))
    assert len(pickle.dumps(listing.pictures)) < 5_000  # names, not pixels
    for a, b in ((first, copy.pictures[0]), (listing.pictures[3], copy.pictures[3])):
        np.testing.assert_array_equal(a, b)
    if layout != "raw":
        with pytest.raises(IndexError):
            listing.pictures[4]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pictures_are_prepared_by_several_threads(tmp_path, monkeypatch, layout):
    monkeypatch.setattr("fedlens.data.prepare.TURN", 1)
    LAYOUTS[layout](tmp_path)
    listing = FLAIR(path=tmp_path, expect="any").listings()["train"]
    assert prepare(listing, tmp_path / "store", Shape(256), "refuse", 2, lambda done: None) is None
    image = Examples.open(tmp_path / "store").column("image")
    for i, name in enumerate(listing.columns["image_id"].tolist()):
        np.testing.assert_array_equal(image[i], PIXELS[name])


def test_dev_is_another_name_of_the_validation_split(tmp_path):
    write_raw(
        tmp_path, [entry | {"partition": "dev" if entry["partition"] == "val" else entry["partition"]} for entry in entries()]
    )
    assert len(load(tmp_path).validation) == 1


def test_full_size_pictures_are_taken_where_there_are_no_small_ones(tmp_path):
    write_raw(tmp_path)
    (tmp_path / "small_images").rename(tmp_path / "raw_images")
    assert len(load(tmp_path, size=32).train) == 4


def test_other_than_the_official_counts_are_refused_unless_they_are_expected(tmp_path):
    write_raw(tmp_path)
    message = r"8 fine labels instead of 1,628, 4 train pictures instead of 345,879, 2 train users instead of 41,131.*expect=any"
    with pytest.raises(ValueError, match=message):
        FLAIR(path=tmp_path).listings()


def test_nothing_there_says_what_was_looked_for_and_where_it_is_to_be_had(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no FLAIR in .*labels_and_metadata\.json.*huggingface\.co/datasets/apple/flair"):
        load(tmp_path)


def test_two_layouts_in_one_place_are_an_error_that_names_both(tmp_path):
    write_raw(tmp_path)
    write_pfl(tmp_path)
    with pytest.raises(ValueError, match=r"more than once, name one: .*labels_and_metadata\.json, .*flair_federated\.hdf5"):
        load(tmp_path)


def test_a_missing_picture_is_reported_with_its_user_or_skipped(tmp_path):
    write_raw(tmp_path)
    (tmp_path / "small_images" / "502.jpg").unlink()
    with pytest.raises(ValueError, match=r"1 of 4 pictures.*\(59769174@N00: 1\)\n  502: .*502\.jpg is missing"):
        load(tmp_path)
    assert len(load(tmp_path, missing="skip").train) == 3


@pytest.mark.parametrize(
    ("row", "change", "message"),
    [
        (4, {"user_id": "59769174@N00"}, r"user 59769174@N00 is there more than once, in train and validation"),
        (5, {"image_id": "501"}, r"picture 501 is there more than once, in train and test"),
        (1, {"image_id": "501"}, r"picture 501 is there more than once, in train"),
        (1, {"user_id": None}, r"labels_and_metadata\.json, train, row 1: 'user_id' is empty"),
        (2, {"labels": None}, r"train, row 2: 'labels' should be a list of names; it is None"),
        (2, {"fine_grained_labels": "dog"}, r"train, row 2: 'fine_grained_labels' should be a list of names; it is dog"),
        (0, {"labels": ["unicorn"]}, r"FLAIR has no label 'unicorn'; it has: animal, art"),
        (3, {"partition": "training"}, r"entry 3: partition 'training' is none of train, val and test"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*does not have")
def test_wrong_entries_are_refused_and_the_place_named(tmp_path, row, change, message):
    table = entries()
    table[row] |= change
    write_raw(tmp_path, table)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


@pytest.mark.parametrize("content", ["", '[{"user_id": "a"', "{}", "3", '[{"user_id": "a", "image_id": "1"}]'])
def test_torn_metadata_are_refused(tmp_path, content):
    (write_raw(tmp_path) / "labels_and_metadata.json").write_text(content)
    with pytest.raises(ValueError, match=r"labels_and_metadata\.json.* (cannot be read|has no training pictures)"):
        load(tmp_path)


def test_labels_that_the_taxonomy_does_not_have_are_warned_of(tmp_path):
    write_raw(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(tmp_path)
    (tmp_path / "label_relationship.txt").write_text("\n".join(f"{name} -> {name}" for name in COARSE))
    with pytest.warns(UserWarning, match=r"label_relationship\.txt does not have 7 labels of the pictures: apple, choir"):
        load(tmp_path)


def edit(file: Path, name: str, value: object) -> None:
    with h5py.File(file, "a") as opened:
        del opened[name]
        if value is not None:
            opened[name] = value


USER = "train/59769174@N00"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            f"{USER}/labels_row",
            np.array([0, 0, 3], dtype=np.uint16),
            r"59769174@N00: labels_row and labels_col do not fit 3 pict",
        ),
        (f"{USER}/labels_col", np.array([0, 17, 3], dtype=np.uint8), r"train/59769174@N00: labels_row and labels_col do not fit"),
        (f"{USER}/labels_col", np.array([0], dtype=np.uint8), r"train/59769174@N00: labels_row and labels_col do not fit"),
        (f"{USER}/image_ids", None, r"'/train/59769174@N00' is not complete"),
        ("metadata/label_mapping", json.dumps({"animal": 1}), r"metadata/label_mapping: numbers of labels should be 0 to 0"),
        ("metadata/label_mapping", None, r"cannot be read as HDF5"),
    ],
)
def test_wrong_content_of_pfls_file_is_refused_and_the_place_named(tmp_path, name, value, message):
    edit(write_pfl(tmp_path), name, value)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_labels_of_ml_flair_must_be_as_many_as_the_pictures(tmp_path):
    edit(write_ml_flair(tmp_path), f"{USER}/labels", np.array([b"animal"]))
    with pytest.raises(ValueError, match=r"flair_federated\.hdf5: train/59769174@N00: 3 pictures and 1 'labels'"):
        load(tmp_path)


@pytest.mark.parametrize("write", [write_pfl, write_ml_flair])
def test_too_few_or_other_pictures_in_hdf5_are_broken_ones(tmp_path, write):
    edit(write(tmp_path), f"{USER}/images", np.zeros((2, 256, 256, 3), dtype=np.uint8))
    with pytest.raises(ValueError, match=r"1 of 4 pictures cannot be used: 0 missing, 1 broken.*\n.*train/59769174@N00/images"):
        load(tmp_path)
    edit(tmp_path / "flair_federated.hdf5", f"{USER}/images", np.zeros((3, 256, 256, 3), dtype=np.float32))
    with pytest.raises(ValueError, match=r"should be uint8 \[height, width, 3\]; it is float32"):
        load(tmp_path)


def test_an_hdf5_file_of_something_else_is_refused(tmp_path):
    with h5py.File(tmp_path / "flair.hdf5", "w") as file:
        file["train/a/b"] = np.zeros(3)
    with pytest.raises(ValueError, match=r"flair\.hdf5: '/train/a' holds b, which is none of FLAIR's layouts"):
        load(tmp_path)
    with h5py.File(tmp_path / "flair.hdf5", "w") as file:
        file["a"] = np.zeros(3)
    with pytest.raises(ValueError, match=r"no groups train, val and test; it has: a"):
        load(tmp_path)


@pytest.mark.parametrize("keep", [100, 5_000])
def test_a_torn_hdf5_is_refused(tmp_path, keep):
    file = write_pfl(tmp_path)
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"flair_federated\.hdf5 cannot be read as HDF5"):
        load(tmp_path)


def test_a_parquet_file_without_a_column_is_refused_by_name(tmp_path):
    write_parquet(tmp_path, lambda columns: columns.pop("user_id"))
    with pytest.raises(ValueError, match=r"parquet has no column 'user_id'; it has: image_id"):
        load(tmp_path)


def test_an_empty_field_of_parquet_is_refused_and_the_row_named(tmp_path):
    write_parquet(tmp_path, lambda columns: columns["user_id"].__setitem__(0, None))
    with pytest.raises(ValueError, match=r"train, row 0: 'user_id' is empty"):
        load(tmp_path)


def test_numbers_are_names_of_pictures_too(tmp_path):
    write_parquet(tmp_path, lambda columns: columns.update(image_id=[int(name) for name in columns["image_id"]]))
    assert set(told(load(tmp_path).train)) == {"501", "17", "502", "9"}
