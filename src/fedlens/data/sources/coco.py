"""COCO 2017 (Lin et al. 2014): photographs of everyday scenes, with boxes around eighty kinds of things."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedlens.data.listing import Listing
from fedlens.data.pictures import Fit
from fedlens.data.sources.base import SOURCES, About, PictureFiles
from fedlens.data.sources.boxes import box_columns
from fedlens.data.sources.checks import Expect, folder_with, require_counts, require_file

PUBLISHED = {"train": 118_287, "val": 5_000}
CATEGORIES = 80
HOW = "unpack annotations_trainval2017.zip there"


@SOURCES.register("coco", paper="Lin et al. 2014, Microsoft COCO: Common Objects in Context")
class COCO(PictureFiles):
    """118,287 + 5,000 pictures with boxes: PATH/annotations/instances_*2017.json, PATH/train2017 and PATH/val2017, or in PATH/coco.

    Categories become the classes 0 … 79 in the order of their ids, which have gaps; `boxes` are (left, top, right, bottom) in
    pixels, `box_label` is −1 where there is none; `labels` and `label_counts` [N, 80]; `image_id` is COCO's. A picture without
    boxes stays. Boxes without area are left out, and so are crowds (many things in one box) unless `crowds`.
    `expect: any` accepts a part of the files.
    """

    size: Annotated[int, Field(ge=8, le=4096)] = 640
    fit: Fit = "pad"
    crowds: bool = False
    expect: Expect = "official"

    about: ClassVar[About] = About(
        contents="118,287 + 5,000 pictures with boxes, 80 classes",
        licence="CC BY 4.0 (annotations); Flickr's terms of use (pictures)",
        where="https://cocodataset.org (annotations_trainval2017.zip, train2017.zip, val2017.zip)",
        gigabytes=20.5,
        files=(
            *("annotations/instances_train2017.json", "annotations/instances_val2017.json"),
            *("train2017 | images/train2017", "val2017 | images/val2017"),
        ),
    )

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        return super().is_in(_folder(folder))

    def listings(self) -> dict[str, Listing]:
        folder = _folder(self.path)
        splits = {}
        for split, part in (("train", "train"), ("validation", "val")):
            path = require_file(folder / "annotations" / f"instances_{part}2017.json", HOW)
            pictures = folder_with(f"{part}2017", folder, "images") / f"{part}2017"
            with _no_collection():
                splits[split] = listing = _listing(path, pictures, self.crowds)
            counts = {"pictures": (len(listing), PUBLISHED[part]), "categories": (len(listing.class_names), CATEGORIES)}
            require_counts(f"COCO 2017 {part}", self.expect, counts)
        if splits["train"].class_names != splits["validation"].class_names:
            raise ValueError(f"{folder / 'annotations'}: the two files have different categories; take both from the same release")
        return splits


def _folder(path: Path) -> Path:
    return folder_with("annotations", path, "coco", "COCO")


@contextmanager
def _no_collection() -> Iterator[None]:
    """Millions of small objects that all stay: looking for cycles among them again and again would take most of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _listing(path: Path, pictures: Path, crowds: bool) -> Listing:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as JSON ({error}): truncated download?") from error
    images, annotations, categories = (_table(path, content, name) for name in ("images", "annotations", "categories"))
    if not images or not categories:
        raise ValueError(f"{path} has {len(images)} images and {len(categories)} categories; there must be some of each")
    files = _column(path, "images", images, "file_name", str)
    category_id, image_id = _ids(path, "categories", categories), _ids(path, "images", images)
    names = dict(zip(category_id.tolist(), _column(path, "categories", categories, "name", str), strict=True))

    edges = _boxes(path, annotations)
    row = _places(path, annotations, "image_id", image_id)
    category = _places(path, annotations, "category_id", np.sort(category_id))
    kept = (edges[:, 2] > 0) & (edges[:, 3] > 0)
    if not crowds:
        kept &= _numbers(path, annotations, "iscrowd") == 0
    edges[:, 2:] += edges[:, :2]  # left, top, width, height → left, top, right, bottom
    boxes = edges.astype(np.float32)
    columns: dict[str, NDArray[Any]] = box_columns(row[kept], boxes[kept], category[kept], len(images), len(categories))
    columns["image_id"] = image_id
    sizes = np.stack([_column(path, "images", images, side, int) for side in ("width", "height")], axis=1)
    found, classes = [pictures / file for file in files], tuple(names[i] for i in sorted(names))
    return Listing(found, columns, "COCO 2017", classes, keys=files, sizes=sizes)


def _table(path: Path, content: Any, name: str) -> list[Mapping[str, Any]]:
    rows = content.get(name) if isinstance(content, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path}: '{name}' should be a list of objects; is this COCO's file of instances?")
    return rows


def _column(path: Path, table: str, rows: Sequence[Mapping[str, Any]], key: str, kind: type) -> list[Any]:
    """One value of each row, which has to be there and of one type."""
    values = [row.get(key) for row in rows]
    if set(map(type, values)) - {kind}:
        wrong = next(place for place, value in enumerate(values) if type(value) is not kind)
        raise ValueError(f"{path}: {table}[{wrong}]: '{key}' should be of type {kind.__name__}; it is {values[wrong]!r}")
    return values


def _numbers(path: Path, rows: Sequence[Mapping[str, Any]], key: str) -> NDArray[np.int64]:
    return np.array(_column(path, "annotations", rows, key, int), dtype=np.int64)


def _ids(path: Path, table: str, rows: Sequence[Mapping[str, Any]]) -> NDArray[np.int64]:
    ids = np.array(_column(path, table, rows, "id", int), dtype=np.int64)
    found, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"{path}: two of '{table}' have the id {found[counts > 1][0]}; each has its own")
    return ids


def _places(path: Path, annotations: Sequence[Mapping[str, Any]], key: str, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where in `ids` that stands to which each annotation refers."""
    wanted, order = _numbers(path, annotations, key), np.argsort(ids, kind="stable")
    found = order[np.searchsorted(ids, wanted, sorter=order).clip(max=len(ids) - 1)]
    if len(unknown := np.flatnonzero(ids[found] != wanted)):
        there_is_no = f"there is no {key.removesuffix('_id')} with the id {wanted[unknown[0]]}"
        raise ValueError(f"{path}: annotations[{unknown[0]}]: {there_is_no}")
    return found


def _boxes(path: Path, annotations: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
    """All boxes [B, 4]: left, top, width, height."""
    listed = _column(path, "annotations", annotations, "bbox", list)
    try:
        if set(map(len, listed)) - {4}:
            raise ValueError
        boxes = np.fromiter(chain.from_iterable(listed), dtype=np.float64, count=4 * len(listed)).reshape(-1, 4)
    except (TypeError, ValueError):
        wrong = next(place for place, box in enumerate(listed) if len(box) != 4 or not _are_numbers(box))
        raise ValueError(f"{path}: annotations[{wrong}]: 'bbox' should be four numbers; it is {listed[wrong]}") from None
    if len(unfit := np.flatnonzero(~np.isfinite(boxes).all(axis=1))):
        raise ValueError(f"{path}: annotations[{unfit[0]}]: 'bbox' should be four numbers; it is {listed[unfit[0]]}")
    return boxes


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float) for value in values)
