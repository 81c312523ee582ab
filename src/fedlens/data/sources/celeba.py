"""CelebA (Liu et al. 2015): 202,599 portraits of 10,177 celebrities, with 40 attributes each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedlens.data.listing import Listing
from fedlens.data.pictures import Fit
from fedlens.data.sources.base import SOURCES, About, PictureFiles
from fedlens.data.sources.checks import Expect, folder_with, require_counts, require_file

Attribute: TypeAlias = Literal[
    "5_o_Clock_Shadow", "Arched_Eyebrows", "Attractive", "Bags_Under_Eyes", "Bald", "Bangs", "Big_Lips", "Big_Nose",
    "Black_Hair", "Blond_Hair", "Blurry", "Brown_Hair", "Bushy_Eyebrows", "Chubby", "Double_Chin", "Eyeglasses", "Goatee",
    "Gray_Hair", "Heavy_Makeup", "High_Cheekbones", "Male", "Mouth_Slightly_Open", "Mustache", "Narrow_Eyes", "No_Beard",
    "Oval_Face", "Pale_Skin", "Pointy_Nose", "Receding_Hairline", "Rosy_Cheeks", "Sideburns", "Smiling", "Straight_Hair",
    "Wavy_Hair", "Wearing_Earrings", "Wearing_Hat", "Wearing_Lipstick", "Wearing_Necklace", "Wearing_Necktie", "Young",
]  # fmt: skip
ATTRIBUTES: tuple[Attribute, ...] = get_args(Attribute)
PARTS = {"train": 0, "validation": 1, "test": 2}  # as list_eval_partition.txt counts them
OFFICIAL = {"images": 202_599, "celebrities": 10_177}
HOW = "unpack Anno/*.txt, Eval/list_eval_partition.txt and Img/img_align_celeba.zip of the official CelebA there"


@SOURCES.register("celeba", paper="Liu et al. 2015, Deep Learning Face Attributes in the Wild")
class CelebA(PictureFiles):
    """Portraits from the official files, which lie in PATH/celeba as torchvision puts them there, or in PATH itself.

    `client` is the celebrity; those with fewer than `least` pictures are left out, as LEAF does: 5 leave 9,343 of 10,177
    celebrities and 200,288 of 202,599 pictures. `label` is one `attribute` (0 or 1), by default LEAF's task, and `attributes` has
    all 40, in the official order. The splits are those of list_eval_partition.txt, which divides celebrities; LEAF's and TensorFlow
    Federated's own splits come with the sources leaf_celeba and tff_celeba. Pictures of 178 × 218 become 84 × 84 by distortion,
    also as with LEAF. expect=any takes files with other than the official counts.
    """

    size: Annotated[int, Field(ge=8, le=4096)] = 84
    fit: Fit = "stretch"
    attribute: Attribute = "Smiling"
    least: Annotated[int, Field(ge=1)] = 5
    expect: Expect = "official"

    about: ClassVar[About] = About(
        contents="200,288 portraits, 9,343 celebrities with 5 or more, 40 attributes",
        licence="non-commercial research only (CelebA's agreement)",
        where="mmlab.ie.cuhk.edu.hk/projects/CelebA.html, or torchvision.datasets.CelebA(PATH, download=True)",
        gigabytes=1.5,
        files=("identity_CelebA.txt", "list_attr_celeba.txt", "list_eval_partition.txt", "img_align_celeba"),
    )

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        return super().is_in(_folder(folder))

    def listings(self) -> Mapping[str, Listing]:
        folder = _folder(self.path)
        image, celebrity = _pairs(folder / "identity_CelebA.txt")
        attributes = _attributes(folder / "list_attr_celeba.txt", image)
        part = _parts(folder / "list_eval_partition.txt", image)
        _, which, sizes = np.unique(celebrity, return_inverse=True, return_counts=True)
        found = {"images": len(image), "celebrities": len(sizes)}
        require_counts("CelebA", self.expect, {what: (found[what], OFFICIAL[what]) for what in OFFICIAL})
        kept = sizes[which] >= self.least
        rows = {name: np.flatnonzero(kept & (part == number)) for name, number in PARTS.items()}
        if not len(rows["train"]):
            raise ValueError(
                f"{folder}: no celebrity of the training part has {self.least} pictures; take a smaller data.source.least"
            )
        return {name: self._listing(folder, rows[name], image, celebrity, attributes) for name in rows if len(rows[name])}

    def _listing(
        self, folder: Path, rows: NDArray[np.int64], image: NDArray[np.str_], celebrity: NDArray[np.str_], values: NDArray[np.uint8]
    ) -> Listing:
        columns: dict[str, NDArray[Any]] = {
            "label": values[rows, ATTRIBUTES.index(self.attribute)].astype(np.int64),
            "attributes": values[rows],
            "client": celebrity[rows],
        }
        names = image[rows].tolist()
        pictures = [folder / "img_align_celeba" / name for name in names]
        return Listing(pictures, columns, "CelebA", class_names(self.attribute), keys=names)


def _folder(path: Path) -> Path:
    return folder_with("identity_CelebA.txt", path, "celeba")


def class_names(attribute: Attribute) -> tuple[str, str]:
    return f"not {attribute}", attribute


def _pairs(path: Path) -> tuple[NDArray[np.str_], NDArray[np.str_]]:
    """Lines of a picture's file name and something else, sorted by the former."""
    words = np.array(require_file(path, HOW).read_text().split(), dtype=np.str_)
    if len(words) == 0 or len(words) % 2:
        raise ValueError(f"{path}: each line should be a picture and a number; {len(words):,} words are not pairs: truncated?")
    image, order = np.unique(words[0::2], return_index=True)
    if len(image) < len(words) // 2:
        raise ValueError(f"{path}: {_twice(words[0::2])} stands there twice")
    values = words[1::2][order]
    if wrong := image[~np.char.isdigit(values)].tolist():
        raise ValueError(f"{path}: {wrong[0]} should be followed by a number")
    return image, values


def _attributes(path: Path, image: NDArray[np.str_]) -> NDArray[np.uint8]:
    """Which attributes each picture has [N, 40]: how many lines, the 40 names, then lines of a picture and 40 times 1 or −1."""
    with require_file(path, HOW).open() as file:
        count, names = file.readline().strip(), file.readline().split()
        if tuple(names) != ATTRIBUTES:
            raise ValueError(f"{path}: line 2 should name CelebA's 40 attributes, {ATTRIBUTES[0]} to {ATTRIBUTES[-1]}")
        try:
            rows = np.loadtxt(file, dtype=[("image", "U32"), ("values", np.int8, (len(ATTRIBUTES),))], comments=None, ndmin=1)
        except ValueError as error:
            raise ValueError(f"{path}: each line from the third on should be a picture and 40 numbers: {error}") from error
    if count != str(len(rows)):
        raise ValueError(f"{path}: line 1 promises {count} pictures, and {len(rows):,} follow: truncated?")
    if wrong := rows["image"][(np.abs(rows["values"]) != 1).any(axis=1)].tolist():
        raise ValueError(f"{path}: {wrong[0]} has an attribute that is neither 1 nor −1")
    return (rows["values"][_places(path, rows["image"], image)] == 1).astype(np.uint8)


def _parts(path: Path, image: NDArray[np.str_]) -> NDArray[np.int64]:
    """To which split each picture belongs."""
    names, values = _pairs(path)
    part = values[_places(path, names, image)].astype(np.int64)
    if len(wrong := np.flatnonzero(part > 2)):
        raise ValueError(f"{path}: {image[wrong[0]]} is in part {part[wrong[0]]}; there are 0 (train), 1 (validation) and 2 (test)")
    return part


def _places(path: Path, names: NDArray[np.str_], image: NDArray[np.str_]) -> NDArray[np.int64]:
    """Where each picture stands among a file's lines, which have to be about the same pictures."""
    order = np.argsort(names, kind="stable")
    if len(names) == len(image) and (names[order] == image).all():
        return order
    if len(np.unique(names)) < len(names):
        raise ValueError(f"{path}: {_twice(names)} stands there twice")
    one = np.setxor1d(names, image)[0]
    raise ValueError(f"{path} and identity_CelebA.txt are not about the same pictures: {one} stands in one of them only")


def _twice(names: NDArray[np.str_]) -> str:
    values, counts = np.unique(names, return_counts=True)
    return str(values[counts > 1][0])
