"""Parquet and Arrow files in the layouts of Hugging Face's hub and of `save_to_disk`."""

from __future__ import annotations

import io
import json
import pickle
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedlens.data.sources.hub import Hub

FEMNIST = {
    "image": {"_type": "Image"},
    "writer_id": {"dtype": "string", "_type": "Value"},
    "hsf_id": {"dtype": "int64", "_type": "Value"},
    "character": {"names": ["0", "1", "A", "b"], "_type": "ClassLabel"},
}
PICTURE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def png(shade: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (28, 28), shade).save(file, format="png")
    return file.getvalue()


def pictures(*shades: int | None) -> pa.Array:
    return pa.array([{"bytes": None if shade is None else png(shade), "path": None} for shade in shades], PICTURE)


def femnist(writers: list[str], labels: list[int], first: int = 0) -> pa.Table:
    columns = {
        "image": pictures(*range(first, first + len(labels))),
        "writer_id": pa.array(writers, pa.string()),
        "hsf_id": pa.array(range(len(labels)), pa.int64()),
        "character": pa.array(labels, pa.int64()),
    }
    return described(pa.table(columns), FEMNIST)


def described(table: pa.Table, features: dict[str, Any] | None) -> pa.Table:
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})} if features else None)


def plain(**columns: Any) -> pa.Table:
    """A table without metadata, as any tool writes it."""
    count = len(next(iter(columns.values())))
    return pa.table({"image": pictures(*range(count)), **columns})


def parquet(path: Path, table: pa.Table, rows: int = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=rows)
    return path


def arrow(path: Path, table: pa.Table) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=2)
    return path


def shades(examples) -> list[int]:
    return examples.column("image")[:, 0, 0, 0].tolist()


@pytest.fixture
def local(tmp_path) -> Path:
    parquet(tmp_path / "data" / "train-00000-of-00002.parquet", femnist(["f0_1", "f0_1", "f0_2"], [3, 0, 2]))
    parquet(tmp_path / "data" / "train-00001-of-00002.parquet", femnist(["f0_3", "f0_1"], [1, 1], first=3))
    return tmp_path


def test_femnist_is_read_with_its_characters_and_writers(local):
    sources = Hub(path=local, size=28, keep=("hsf_id",)).load()
    train = sources.train
    assert (sources.validation, sources.test) == (None, None)
    assert shades(train) == [0, 1, 2, 3, 4]
    assert train.column("label").tolist() == [3, 0, 2, 1, 1]
    assert train.class_names == ("0", "1", "A", "b")
    assert train.categories["client"][train.column("client")].tolist() == ["f0_1", "f0_1", "f0_2", "f0_3", "f0_1"]
    assert train.column("hsf_id").tolist() == [0, 1, 2, 0, 1]


def test_nothing_but_pyarrow_is_needed_for_local_files(local, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert len(Hub(path=local, size=28).load().train) == 5


def test_pictures_are_read_in_any_order_and_by_another_process(local):
    here = Hub(path=local).listings()["train"].pictures
    assert here[0] == png(0)
    sent = pickle.dumps(here)
    assert png(0) not in sent  # names of files, no pictures
    pictures = pickle.loads(sent)
    for row in (0, 4, 3, 1, 2, 0):
        assert pictures[row] == png(row)
    with pytest.raises(IndexError, match="row 5 of 5"):
        pictures[5]


LAYOUTS = {
    "names in one folder": (
        "data/train-00000-of-00001.parquet",
        "data/validation-00000-of-00001.parquet",
        "data/test-00000-of-00001.parquet",
    ),
    "with digests": (
        "train-00000-of-00001-0a1b2c3d.parquet",
        "valid-00000-of-00001-0a1b2c3d.parquet",
        "test-00000-of-00001-ff.parquet",
    ),
    "the hub's conversion": ("default/train/0000.parquet", "default/val/0000.parquet", "default/test/0000.parquet"),
    "plain names": ("train.parquet", "dev.parquet", "test.parquet"),
    "save_to_disk": ("train/data-00000-of-00001.arrow", "validation/data-00000-of-00001.arrow", "test/data-00000-of-00001.arrow"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_splits_are_found_in_usual_layouts(tmp_path, layout):
    for first, file in enumerate(LAYOUTS[layout]):
        (arrow if file.endswith("arrow") else parquet)(tmp_path / file, femnist(["a", "b", "c"], [0, 1, 2], 10 * first))
    sources = Hub(path=tmp_path, size=28).load()
    assert [shades(examples) for examples in (sources.train, sources.validation, sources.test)] == [
        [0, 1, 2],
        [10, 11, 12],
        [20, 21, 22],
    ]


def test_a_data_set_that_was_saved_whole_is_all_for_training(tmp_path):
    arrow(tmp_path / "data-00000-of-00001.arrow", femnist(["a", "b", "c"], [0, 1, 2]))
    arrow(tmp_path / "cache-0123456789abcdef.arrow", femnist(["x"], [0]))
    assert list(Hub(path=tmp_path).listings()) == ["train"]
    assert len(Hub(path=tmp_path).listings()["train"]) == 3


def test_one_of_several_data_sets_is_chosen(tmp_path):
    for config, count in (("small", 1), ("large", 3)):
        parquet(tmp_path / config / "train-00000-of-00001.parquet", femnist(["a"] * count, [0] * count))
    with pytest.raises(ValueError, match=r"holds 'train' of several data sets: large, small; choose one by data\.source\.config"):
        Hub(path=tmp_path).listings()
    assert len(Hub(path=tmp_path, config="large").listings()["train"]) == 3
    with pytest.raises(FileNotFoundError, match="huge is no folder"):
        Hub(path=tmp_path, config="huge").listings()


def test_the_split_to_train_on_may_be_called_otherwise(tmp_path):
    parquet(tmp_path / "full-00000-of-00001.parquet", femnist(["a"], [0]))
    with pytest.raises(ValueError, match=r"there is no split 'train' to train on, but: full \(data\.source\.train_split"):
        Hub(path=tmp_path).listings()
    assert len(Hub(path=tmp_path, train_split="full").listings()["train"]) == 1


def test_a_shard_that_is_missing_is_counted(local):
    (local / "data" / "train-00000-of-00002.parquet").unlink()
    with pytest.raises(ValueError, match="holds 1 of 2 files of 'train'"):
        Hub(path=local).listings()


def test_there_have_to_be_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no Parquet or Arrow files"):
        Hub(path=tmp_path).listings()


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("content", [b"", b"no table at all, but long enough"])
def test_a_torn_file_is_named(tmp_path, suffix, content):
    (tmp_path / f"train.{suffix}").write_bytes(content)
    with pytest.raises(ValueError, match=rf"train\.{suffix} cannot be read as a table"):
        Hub(path=tmp_path).listings()


def test_columns_may_be_called_anything(tmp_path):
    table = plain(other=pa.array(["x", "y"])).rename_columns(["photograph_of_it", "kind"]).append_column("who", pa.array([7, 12]))
    parquet(tmp_path / "train.parquet", table)
    with pytest.raises(
        ValueError, match=r"which column holds the label\? set data\.source\.label to one of: photograph_of_it, kind, who"
    ):
        Hub(path=tmp_path).listings()
    train = Hub(path=tmp_path, label="kind", client="who").listings()["train"]
    assert train.class_names == ("x", "y")
    assert train.columns["client"].tolist() == ["7", "12"]
    with pytest.raises(ValueError, match=r"has no column 'whom'; it has: photograph_of_it, kind, who"):
        Hub(path=tmp_path, label="kind", client="whom").listings()


def test_several_columns_of_pictures_are_told_apart_by_their_names(tmp_path):
    two = {"left": pictures(1, 2), "right": pictures(3, 4), "label": pa.array([0, 1])}
    parquet(tmp_path / "train.parquet", pa.table(two))
    with pytest.raises(ValueError, match="which column holds the image"):
        Hub(path=tmp_path).listings()
    assert shades(Hub(path=tmp_path, image="right", size=28).load().train) == [3, 4]


@pytest.mark.parametrize(
    ("values", "names", "codes"),
    [
        (pa.array(["owl", "bat", "owl"]), ("bat", "owl"), [1, 0, 1]),
        (pa.array([900, 7, 30]), ("7", "30", "900"), [2, 0, 1]),
        (pa.array([True, False, True]), ("False", "True"), [1, 0, 1]),
    ],
)
def test_classes_without_declared_names_are_called_as_they_stand(tmp_path, values, names, codes):
    parquet(tmp_path / "train.parquet", plain(label=values))
    train = Hub(path=tmp_path).listings()["train"]
    assert train.class_names == names
    assert train.columns["label"].tolist() == codes
    assert train.columns["label"].dtype == np.int64


CLASSES = {"names": ["cat", "dog", "owl"], "_type": "ClassLabel"}


@pytest.mark.parametrize(
    ("feature", "values"),
    [
        ({"feature": CLASSES, "_type": "Sequence"}, [[0, 2], [], [2, 2]]),
        ({"feature": CLASSES, "_type": "List"}, [[0, 2], None, [2]]),
        ([CLASSES], [[2, 0], [], [2]]),
        (None, [["cat", "owl"], [], ["owl"]]),
    ],
)
def test_lists_become_several_labels(tmp_path, feature, values):
    table = plain(labels=pa.array(values))
    parquet(tmp_path / "train.parquet", described(table, {"labels": feature} if feature else None), rows=1)
    train = Hub(path=tmp_path).listings()["train"]
    assert train.class_names == (("cat", "dog", "owl") if feature else ("cat", "owl"))
    assert train.columns["labels"].tolist() == ([[1, 0, 1], [0, 0, 0], [0, 0, 1]] if feature else [[1, 1], [0, 0], [0, 1]])
    assert "label" not in train.columns


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": pa.array([0, None])}, r"'label' is empty in 1 rows, first in row 1"),
        ({"label": pa.array([0, 1]), "user_id": pa.array([None, "a"])}, r"'user_id' is empty in 1 rows, first in row 0"),
        ({"label": pa.array([0.5, 1.0])}, "should hold whole numbers or texts, or lists of them; it holds float64"),
        ({"label": pa.array([{"x": 1}, {"x": 2}])}, "should hold numbers or texts; it holds struct"),
    ],
)
def test_labels_and_clients_are_whole(tmp_path, columns, message):
    parquet(tmp_path / "train.parquet", plain(**columns))
    with pytest.raises(ValueError, match=message):
        Hub(path=tmp_path).listings()


@pytest.mark.parametrize("wrong", [-1, 4])
def test_a_label_that_is_no_class_is_refused(tmp_path, wrong):
    parquet(tmp_path / "train.parquet", femnist(["a", "b"], [0, wrong]))
    with pytest.raises(ValueError, match=f"'character' holds '{wrong}', which is none of the 4 classes to learn"):
        Hub(path=tmp_path).listings()


def test_a_class_that_cannot_be_learnt_is_refused(tmp_path):
    for split, kinds in (("train", ["a", "b"]), ("test", ["a", "c"])):
        parquet(tmp_path / f"{split}.parquet", plain(label=pa.array(kinds)))
    with pytest.raises(ValueError, match="'label' holds 'c', which is none of the 2 classes to learn"):
        Hub(path=tmp_path).listings()


def test_a_split_with_hidden_labels_is_left_out(tmp_path):
    parquet(tmp_path / "train.parquet", femnist(["a", "b"], [0, 1]))
    parquet(tmp_path / "test.parquet", femnist(["a", "b"], [-1, -1]))
    assert list(Hub(path=tmp_path).listings()) == ["train"]


def test_a_row_without_picture_is_a_missing_one_and_a_path_leads_to_a_file(tmp_path):
    (tmp_path / "shots").mkdir()
    (tmp_path / "shots" / "a.png").write_bytes(png(77))
    image = pa.array([{"bytes": None, "path": "shots/a.png"}, {"bytes": None, "path": None}, None], PICTURE)
    parquet(tmp_path / "train.parquet", pa.table({"image": image, "label": pa.array([0, 1, 0])}))
    with pytest.raises(ValueError, match=r"2 missing, 0 broken(.|\n)*'image' of row 1 is empty"):
        Hub(path=tmp_path, size=28).load()
    assert shades(Hub(path=tmp_path, size=28, missing="skip").load().train) == [77]


def test_files_of_different_types_do_not_go_together(tmp_path):
    parquet(tmp_path / "train-00000-of-00002.parquet", plain(label=pa.array([0, 1])))
    parquet(tmp_path / "train-00001-of-00002.parquet", plain(label=pa.array(["a", "b"])))
    with pytest.raises(ValueError, match="the files' columns are not of the same types"):
        Hub(path=tmp_path).listings()


def test_by_name_datasets_fetches_and_its_files_are_read(tmp_path, monkeypatch):
    files = {
        name: arrow(tmp_path / f"femnist-{name}.arrow", femnist(["a", "b"], [0, 1], first))
        for name, first in (("train", 0), ("test", 9))
    }
    asked = []

    def load_dataset(name: str, config: str | None) -> dict[str, Any]:
        asked.append((name, config))
        return {split: SimpleNamespace(cache_files=[{"filename": str(file)}]) for split, file in files.items()}

    fake = ModuleType("datasets")
    fake.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", fake)
    sources = Hub(dataset="flwrlabs/femnist", config="plain", size=28).load()
    assert asked == [("flwrlabs/femnist", "plain")]
    assert (shades(sources.train), shades(sources.test)) == ([0, 1], [9, 10])
    assert sources.train.name == "flwrlabs/femnist"


def test_what_is_not_installed_is_named(local, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        ImportError, match=r"to fetch flwrlabs/femnist, the package datasets is needed \(pip install 'fedlens\[hub\]'\)"
    ):
        Hub(dataset="flwrlabs/femnist").listings()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"need the package pyarrow \(pip install 'fedlens\[hub\]'\)"):
        Hub(path=local).listings()


def test_what_the_package_datasets_writes_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = import_module("datasets")
    features = {
        "image": datasets.Image(),
        "writer_id": datasets.Value("string"),
        "character": datasets.ClassLabel(names=["a", "b"]),
    }
    rows = {
        "image": [{"bytes": png(k)} for k in range(7)],
        "writer_id": [f"w{k % 2}" for k in range(7)],
        "character": [1, 0] * 3 + [1],
    }
    theirs = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    theirs.save_to_disk(tmp_path / "saved", num_shards=3)
    theirs.to_parquet(tmp_path / "written" / "train-00000-of-00001.parquet")
    for folder in ("saved", "written"):
        train = Hub(path=tmp_path / folder, size=28).load().train
        assert shades(train) == list(range(7))
        assert train.column("label").tolist() == theirs["character"][:]
        assert train.class_names == ("a", "b")
        assert train.categories["client"].tolist() == ["w0", "w1"]
