"""COCO 2017's annotations, in the folders into which its archives unpack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedlens.data.sources.boxes import box_columns
from fedlens.data.sources.coco import COCO

CATEGORIES = [{"supercategory": "x", "id": i, "name": f"kind {i}"} for i in (90, 1, 13)]  # neither in order nor without gaps


def annotation(number: int, image: int, category: int, bbox: Any, iscrowd: int = 0) -> dict[str, Any]:
    segment = {"counts": [1, 2], "size": [48, 64]} if iscrowd else [[1.0, 2.0, 3.0, 2.0, 3.0, 4.0]]
    said = {"image_id": image, "category_id": category, "bbox": bbox, "iscrowd": iscrowd}
    return {"id": number, "area": 1.0, "segmentation": segment, **said}


def content(images: list[int], annotations: list[dict[str, Any]]) -> dict[str, Any]:
    pictures = [{"id": i, "file_name": f"{i:012d}.jpg", "width": 64, "height": 48} for i in images]
    return {"info": {}, "licenses": [], "images": pictures, "annotations": annotations, "categories": CATEGORIES}


@pytest.fixture
def coco(tmp_path) -> Path:
    train = content(
        [581_921, 9, 25],
        [
            annotation(1, 25, 13, [8.5, 10, 20.25, 30]),
            annotation(2, 581_921, 90, [0, 0, 64, 48]),
            annotation(3, 25, 13, [1, 2, 3, 4]),
            annotation(4, 25, 1, [0, 0, 60, 40], iscrowd=1),
            annotation(5, 581_921, 1, [5, 5, 0, 10]),
        ],
    )
    validation = content([139], [annotation(6, 139, 1, [10, 20, 30, 20])])
    (tmp_path / "annotations").mkdir()
    for part, table in (("train", train), ("val", validation)):
        (tmp_path / "annotations" / f"instances_{part}2017.json").write_text(json.dumps(table))
        (tmp_path / f"{part}2017").mkdir()
        for image in table["images"]:
            Image.new("RGB", (64, 48), (image["id"] % 256, 0, 0)).save(tmp_path / f"{part}2017" / image["file_name"])
    return tmp_path


def change(folder: Path, table: str, place: int, **values: Any) -> None:
    path = folder / "annotations" / "instances_train2017.json"
    changed = json.loads(path.read_text())
    changed[table][place] |= values
    path.write_text(json.dumps(changed))


def test_categories_become_classes_without_gaps_in_the_order_of_their_ids(coco):
    listings = COCO(path=coco, expect="any").listings()
    train = listings["train"]
    assert train.class_names == ("kind 1", "kind 13", "kind 90")
    assert train.columns["image_id"].tolist() == [581_921, 9, 25]
    assert train.columns["box_label"].tolist() == [[2, -1], [-1, -1], [1, 1]]
    np.testing.assert_array_equal(train.columns["boxes"][2], [[8.5, 10, 28.75, 40], [1, 2, 4, 6]])
    assert train.columns["label_counts"].tolist() == [[0, 0, 1], [0, 0, 0], [0, 2, 0]]
    assert train.columns["labels"].tolist() == [[0, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert (train.columns["label_counts"].dtype, train.columns["labels"].dtype) == (np.int32, np.uint8)
    assert train.pictures[1] == coco / "train2017" / "000000000009.jpg"
    assert listings["validation"].columns["box_label"].tolist() == [[0]]


def test_crowds_count_if_they_are_wanted_and_boxes_without_area_never(coco):
    train = COCO(path=coco, expect="any", crowds=True).listings()["train"]
    assert train.columns["label_counts"].tolist() == [[0, 0, 1], [0, 0, 0], [1, 2, 0]]


@pytest.mark.parametrize("layout", ["below", "images"])
def test_coco_is_found_in_usual_places(coco, tmp_path, layout):
    if layout == "below":
        below = tmp_path / "coco"
        below.mkdir()
        for name in ("annotations", "train2017", "val2017"):
            (tmp_path / name).rename(below / name)
    else:
        (tmp_path / "images").mkdir()
        for name in ("train2017", "val2017"):
            (tmp_path / name).rename(tmp_path / "images" / name)
    assert all(path.is_file() for path in COCO(path=tmp_path, expect="any").listings()["train"].pictures)


def test_boxes_of_coco_move_with_their_pictures(coco):
    validation = COCO(path=coco, expect="any", size=32).load().validation  # 64 × 48 becomes 32 × 24, 4 below the top
    np.testing.assert_allclose(validation.column("boxes")[0], [[5, 14, 20, 24]])
    assert validation.column("image").shape == (1, 32, 32, 3)


def test_coco_counts_its_pictures_and_categories(coco):
    with pytest.raises(ValueError, match="COCO 2017 train: 3 pictures instead of 118,287, 3 categories instead of 80"):
        COCO(path=coco).listings()


WRONG = {
    "a picture that is not there": ("annotations", 2, {"image_id": 26}, r"annotations\[2\]: there is no image with the id 26"),
    "a picture beyond all": ("annotations", 2, {"image_id": 10**7}, r"annotations\[2\]: there is no image with the id 10000000"),
    "a category that is not there": ("annotations", 1, {"category_id": 2}, r"annotations\[1\]: there is no category with the id 2"),
    "no category": ("annotations", 1, {"category_id": None}, r"annotations\[1\]: 'category_id' should be of type int; it is None"),
    "three numbers": ("annotations", 3, {"bbox": [1, 2, 3]}, r"annotations\[3\]: 'bbox' should be four numbers"),
    "a null in a box": ("annotations", 0, {"bbox": [1, 2, None, 4]}, r"annotations\[0\]: 'bbox' should be four numbers"),
    "an endless box": (
        "annotations",
        0,
        {"bbox": [1, 2, 3, np.inf]},
        r"annotations\[0\]: 'bbox' should be four numbers",
    ),
    "no box": ("annotations", 0, {"bbox": None}, r"annotations\[0\]: 'bbox' should be of type list; it is None"),
    "a picture twice": ("images", 1, {"id": 25}, "two of 'images' have the id 25"),
    "no file": ("images", 1, {"file_name": None}, r"images\[1\]: 'file_name' should be of type str; it is None"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_in_the_annotations_is_named(coco, what):
    table, place, values, message = WRONG[what]
    change(coco, table, place, **values)
    with pytest.raises(ValueError, match=rf"instances_train2017\.json: {message}"):
        COCO(path=coco, expect="any").listings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "'images' should be a list of objects"),
        ('{"images": [], "annotations": [], "categories": []}', "has 0 images and 0 categories"),
        ('{"images": [', r"cannot be read as JSON .*truncated"),
    ],
)
def test_a_file_of_another_kind_is_refused(coco, text, message):
    (coco / "annotations" / "instances_train2017.json").write_text(text)
    with pytest.raises(ValueError, match=rf"instances_train2017\.json.*{message}"):
        COCO(path=coco, expect="any").listings()


def test_a_missing_file_is_named(coco):
    (coco / "annotations" / "instances_val2017.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"instances_val2017\.json is missing \(unpack annotations_trainval2017\.zip"):
        COCO(path=coco, expect="any").listings()


def test_both_files_have_the_same_categories(coco):
    change(coco, "categories", 0, name="another")
    with pytest.raises(ValueError, match="the two files have different categories"):
        COCO(path=coco, expect="any").listings()


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), max_size=12))
@settings(max_examples=60, deadline=None)
def test_every_box_is_found_again_in_the_row_of_its_picture_in_the_order_given(lines):
    row, label = (np.array([line[place] for line in lines], dtype=np.int64) for place in (0, 1))
    boxes = np.arange(4 * len(lines), dtype=np.float32).reshape(-1, 4)
    columns = box_columns(row, boxes, label, 5, 3)
    for picture in range(5):
        held, mine = columns["box_label"][picture] >= 0, row == picture
        np.testing.assert_array_equal(columns["boxes"][picture][held], boxes[mine])
        assert columns["box_label"][picture][held].tolist() == label[mine].tolist()
        assert columns["label_counts"][picture].tolist() == np.bincount(label[mine], minlength=3).tolist()
    assert columns["box_label"].shape[1] == max(1, np.bincount(row, minlength=1).max(initial=0))


@pytest.mark.parametrize("place", ["", "coco", "COCO"])
@pytest.mark.parametrize("pictures", ["", "images"])
def test_coco_is_there_where_it_is_read(coco, tmp_path, place, pictures):
    top = tmp_path / "top"
    for name in ("annotations", "train2017", "val2017"):
        target = top / place / ("" if name == "annotations" else pictures) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (coco / name).rename(target)
    assert COCO.is_in(top)
    assert COCO.is_in(top / place)
    assert COCO(path=top, expect="any").listings()
    (top / place / pictures / "val2017").rename(top / "elsewhere")
    assert not COCO.is_in(top)
