"""PASCAL VOC 2012 (Everingham et al. 2015): photographs of twenty kinds of things, with masks and with boxes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedlens.data.listing import Listing
from fedlens.data.pictures import Fit
from fedlens.data.sources.base import SOURCES, About, PictureFiles
from fedlens.data.sources.boxes import box_columns
from fedlens.data.sources.checks import Expect, folder_with, require_counts, require_file
from fedlens.data.sources.sbd import CLASS_NAMES, read_ids, sbd_folder, segmentation_listing
from fedlens.data.sources.sbd import HOW as HOW_SBD

PUBLISHED = {"segmentation": (1_464, 1_449), "detection": (5_717, 5_823), "trainaug": (10_582, 1_449)}
HOW = "unpack VOCtrainval_11-May-2012.tar there"
THINGS = CLASS_NAMES[1:]  # boxes have no background
CORNERS = ("xmin", "ymin", "xmax", "ymax")


@SOURCES.register("voc", paper="Everingham et al. 2015, The PASCAL Visual Object Classes Challenge: A Retrospective")
class VOC(PictureFiles):
    """PASCAL VOC 2012's pictures with masks or boxes: PATH/VOCdevkit/VOC2012, or that folder itself.

    protocol     segmentation: 1,464 + 1,449 pictures with masks
                 trainaug: as everyone trains, with SBD's masks too: (SBD ∪ VOC train) − VOC val = 10,582, + 1,449
                 detection: 5,717 + 5,823 pictures with boxes
    sbd_path     where SBD's files are (trainaug); PATH unless given
    difficult    whether objects that are marked as difficult count (detection)
    expect       `any` accepts a part of the files

    With masks, the classes are 0 … 20 with the background first and 255 for void; `labels` [N, 21] says which of them a picture
    shows, never the background, as FedCV's partition wants it. A picture that has both VOC's mask and SBD's comes with VOC's.
    With boxes, the classes are 0 … 19; `labels` [N, 20], `label_counts` [N, 20].
    """

    size: Annotated[int, Field(ge=8, le=4096)] = 512
    fit: Fit = "pad"
    protocol: Literal["segmentation", "trainaug", "detection"] = "segmentation"
    sbd_path: Path | None = None
    difficult: bool = False
    expect: Expect = "official"

    about: ClassVar[About] = About(
        contents="1,464 + 1,449 pictures with masks (with SBD 10,582 + 1,449), or 5,717 + 5,823 with boxes, 20 classes",
        licence="Flickr's terms of use (pictures); for research",
        where="http://host.robots.ox.ac.uk/pascal/VOC/voc2012 (VOCtrainval_11-May-2012.tar, MD5 6cd6e144f989b92b3379bac3b3de84fd)",
        gigabytes=2.0,
        files=("JPEGImages", "ImageSets"),
    )

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        return super().is_in(_folder(folder))

    def listings(self) -> dict[str, Listing]:
        folder = _folder(self.path)
        lists = folder / "ImageSets" / ("Main" if self.protocol == "detection" else "Segmentation")
        train, validation = (read_ids(lists / f"{part}.txt", HOW) for part in ("train", "val"))
        masks = {i: folder / "SegmentationClass" / f"{i}.png" for i in train + validation}
        pictures = {i: folder / "JPEGImages" / f"{i}.jpg" for i in train + validation}
        if self.protocol == "trainaug":
            more = sbd_folder(self.sbd_path or self.path)
            for i in read_ids(more / "train.txt", HOW_SBD) + read_ids(more / "val.txt", HOW_SBD):
                masks.setdefault(i, more / "cls" / f"{i}.mat")
                pictures.setdefault(i, more / "img" / f"{i}.jpg")
            train = sorted(set(pictures) - set(validation))
        published = dict(zip(("pictures to train on", "validation pictures"), PUBLISHED[self.protocol], strict=True))
        found = dict(zip(published, (len(train), len(validation)), strict=True))
        require_counts(f"PASCAL VOC 2012 {self.protocol}", self.expect, {name: (found[name], published[name]) for name in found})
        if both := sorted(set(train) & set(validation)):
            raise ValueError(f"{lists / 'val.txt'}: '{both[0]}' stands in train.txt as well; a picture belongs to one of them")
        splits = {"train": train, "validation": validation}
        if self.protocol == "detection":
            return {split: self._detection(folder, ids, [pictures[i] for i in ids]) for split, ids in splits.items()}
        return {
            split: segmentation_listing("PASCAL VOC 2012", ids, [pictures[i] for i in ids], [masks[i] for i in ids])
            for split, ids in splits.items()
        }

    def _detection(self, folder: Path, ids: list[str], pictures: list[Path]) -> Listing:
        found = [read_boxes(folder / "Annotations" / f"{i}.xml", self.difficult) for i in ids]
        row = np.repeat(np.arange(len(ids)), [len(label) for _, label in found])
        boxes, label = (np.concatenate(parts) for parts in zip(*found, strict=True))
        columns: dict[str, NDArray[Any]] = box_columns(row, boxes, label, len(ids), len(THINGS))
        columns["image_id"] = np.array(ids, dtype=np.str_)
        return Listing(pictures, columns, "PASCAL VOC 2012", THINGS, keys=ids)


def _folder(path: Path) -> Path:
    return folder_with("JPEGImages", path, "VOCdevkit/VOC2012", "VOC2012", "TrainVal/VOCdevkit/VOC2012")


def read_boxes(path: Path, difficult: bool) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The boxes [M, 4] and classes [M] of a picture's objects.

    The file counts pixels from 1 and means the last one of a box to be in it; here a box goes from edge to edge:
    (xmin − 1, ymin − 1, xmax, ymax).
    """
    try:
        objects = ElementTree.parse(require_file(path, HOW)).getroot().findall("object")
    except ElementTree.ParseError as error:
        raise ValueError(f"{path} cannot be read as XML ({error}): truncated download?") from error
    boxes, label = [], []
    for number, thing in enumerate(objects, start=1):
        name, corners = thing.findtext("name", ""), [thing.findtext(f"bndbox/{corner}") for corner in CORNERS]
        if name not in THINGS:
            raise ValueError(f"{path}: object {number} is called '{name}', which is no class of PASCAL VOC ({', '.join(THINGS)})")
        try:
            left, top, right, bottom = (float(corner) for corner in corners if corner is not None)
        except ValueError as error:
            raise ValueError(f"{path}: the box of object {number} should be four numbers; got {corners}") from error
        if difficult or thing.findtext("difficult", "0").strip() != "1":
            boxes.append((left - 1, top - 1, right, bottom))
            label.append(THINGS.index(name))
    return np.array(boxes, dtype=np.float32).reshape(-1, 4), np.array(label, dtype=np.int64)
