"""The Semantic Boundaries Dataset (Hariharan et al. 2011): what each pixel shows in 11,355 pictures of PASCAL VOC 2011."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field

from fedlens.data.listing import Listing
from fedlens.data.pictures import VOID, BrokenPicture, MissingPicture
from fedlens.data.sources.base import SOURCES, About, PictureFiles
from fedlens.data.sources.checks import Expect, folder_with, require_counts, require_file

CLASS_NAMES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
PUBLISHED = {"train": 8_498, "val": 2_857}
HOW = "unpack benchmark.tgz of the Semantic Boundaries Dataset there"
VOC_VALIDATION = "ImageSets/Segmentation/val.txt"


@SOURCES.register("sbd", paper="Hariharan et al. 2011, Semantic Contours from Inverse Detectors")
class SBD(PictureFiles):
    """SBD's own 8,498 + 2,857 pictures, on which FedCV trains and measures: PATH/benchmark_RELEASE/dataset, or that folder itself.

    `mask` has the classes 0 … 20 and no void boundary; `labels` [N, 21] says which of them a picture shows, never the background
    (class 0), as FedCV's partition wants it. Not comparable with results on VOC's own validation pictures, many of which are among
    those to train on here: for these, take `voc` with protocol trainaug. `expect: any` accepts a part of the files.
    """

    size: Annotated[int, Field(ge=8, le=4096)] = 512
    expect: Expect = "official"

    about: ClassVar[About] = About(
        contents="8,498 + 2,857 pictures with masks, 20 classes and background",
        licence="Flickr's terms of use (pictures); for research",
        where="http://home.bharathh.info/pubs/codes/SBD (benchmark.tgz, MD5 82b4d87ceb2ed10f6038a1cba92111cb)",
        gigabytes=1.5,
        files=("train.txt", "img", "cls"),
    )

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        return super().is_in(sbd_folder(folder))

    def listings(self) -> dict[str, Listing]:
        folder = sbd_folder(self.path)
        ids = {part: read_ids(folder / f"{part}.txt", HOW) for part in PUBLISHED}
        require_counts("SBD", self.expect, {f"pictures in {part}.txt": (len(ids[part]), PUBLISHED[part]) for part in PUBLISHED})
        if both := sorted(set(ids["train"]) & set(ids["val"])):
            raise ValueError(f"{folder / 'val.txt'}: '{both[0]}' stands in train.txt as well; a picture belongs to one of them")
        warnings.warn(_overlap(self.path, ids["train"]), stacklevel=2)
        return {
            split: segmentation_listing(
                "SBD", ids[part], [folder / "img" / f"{i}.jpg" for i in ids[part]], [folder / "cls" / f"{i}.mat" for i in ids[part]]
            )
            for split, part in (("train", "train"), ("validation", "val"))
        }


class Masks(Sequence[Any]):
    """Masks of pictures: palette PNGs as they are, and SBD's .mat files, each read when it is asked for."""

    def __init__(self, paths: Sequence[Path]):
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: Any) -> Any:
        path = self.paths[row]
        return read_annotation(path)[0] if path.suffix == ".mat" else path


def segmentation_listing(name: str, ids: Sequence[str], pictures: Sequence[Path], masks: Sequence[Path]) -> Listing:
    """Pictures and masks that lie in files of their own; `labels` says which classes each mask holds."""
    labels = np.zeros((len(ids), len(CLASS_NAMES)), dtype=np.uint8)
    for row, path in enumerate(masks):
        try:
            labels[row, present_classes(path)] = 1
        except (MissingPicture, BrokenPicture):
            continue  # it fails again where pictures are decoded, which is where the row is refused or skipped
    columns = {"labels": labels, "image_id": np.array(ids, dtype=np.str_)}
    return Listing(pictures, columns, name, CLASS_NAMES, keys=ids, masks=Masks(masks))


def present_classes(path: Path) -> NDArray[np.int64]:
    """The classes other than background and void that a mask holds, without decoding it where its file lists them."""
    if path.suffix == ".mat":
        present = read_annotation(path)[1]
    else:
        try:
            with Image.open(path) as mask:
                values = np.asarray(mask)
        except FileNotFoundError as error:
            raise MissingPicture(f"{path} is missing") from error
        except (OSError, SyntaxError) as error:
            raise BrokenPicture(f"{path} cannot be decoded: {error}") from error
        if values.ndim != 2:
            raise BrokenPicture(f"{path} is no mask: it has {mask.mode} pixels, not one class for each")
        present = np.flatnonzero(np.bincount(values.ravel()))
        present = present[(present != 0) & (present != VOID)]
    if len(wrong := present[(present < 1) | (present >= len(CLASS_NAMES))]):
        raise ValueError(f"{path} holds class {wrong[0]}; there are 1 … {len(CLASS_NAMES) - 1}: is it a mask of VOC's classes?")
    return present


def read_annotation(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """A .mat file's struct GTcls: the class of each pixel [H, W], and the classes that are there."""
    from scipy.io import loadmat

    try:
        with path.open("rb") as file:
            truth = loadmat(file)["GTcls"][0, 0]
        segmentation, present = truth["Segmentation"], np.atleast_1d(truth["CategoriesPresent"]).ravel()  # a scalar if it is one
        if segmentation.ndim != 2 or segmentation.dtype != np.uint8:
            raise ValueError(f"GTcls.Segmentation should be uint8 [H, W]; it is {segmentation.dtype} {segmentation.shape}")
        return segmentation, present.astype(np.int64)
    except FileNotFoundError as error:
        raise MissingPicture(f"{path} is missing") from error
    except Exception as error:  # whatever a torn file raises
        raise BrokenPicture(f"{path} cannot be read as SBD's MATLAB file ({type(error).__name__}: {error})") from error


def sbd_folder(path: Path) -> Path:
    return folder_with("cls", path, "benchmark_RELEASE/dataset", "dataset")


def read_ids(path: Path, how: str) -> list[str]:
    """The pictures that a list names, one in a line."""
    ids = require_file(path, how).read_text().split()
    if not ids:
        raise ValueError(f"{path} names no picture: truncated download?")
    if twice := [name for name, count in Counter(ids).items() if count > 1]:
        raise ValueError(f"{path} names '{twice[0]}' twice; each picture stands in it once")
    return ids


def _overlap(path: Path, train: Sequence[str]) -> str:
    known = folder_with(VOC_VALIDATION, path, "VOCdevkit/VOC2012", "TrainVal/VOCdevkit/VOC2012") / VOC_VALIDATION
    shared = f"{len(set(train) & set(known.read_text().split())):,}" if known.is_file() else "many"
    return (
        f"{shared} of SBD's pictures to train on are validation pictures of PASCAL VOC 2012: do not measure on those what was "
        "trained here (source voc with protocol trainaug leaves them out)"
    )
