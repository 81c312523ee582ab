"""FLAIR (Song et al. 2022): 429,078 photographs of 51,414 Flickr users, with 17 coarse and 1,628 fine labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedlens.data.listing import Listing
from fedlens.data.sources.base import SOURCES, About, PictureFiles
from fedlens.data.sources.checks import Expect, require_counts
from fedlens.data.sources.flair_hdf5 import read_hdf5
from fedlens.data.sources.flair_layouts import Tables, parquet_splits, read_parquet, read_raw

COARSE = (
    "animal", "art", "celebration", "equipment", "fire", "food", "games", "interior_room", "light", "liquid", "material", "music",
    "outdoor", "plant", "recreation", "religion", "structure",
)  # fmt: skip
OFFICIAL = {"train": (345_879, 41_131), "validation": (39_239, 5_141), "test": (43_960, 5_142)}  # pictures and users
FINE = 1_628
METADATA = "labels_and_metadata.json"


@SOURCES.register("flair", paper="Song et al. 2022, FLAIR: Federated Learning Annotated Image Repository")
class FLAIR(PictureFiles):
    """FLAIR in whatever layout it is kept: PATH, or PATH/flair, is or holds one of the following.

    - the published folder: labels_and_metadata.json and small_images/*.jpg (or else raw_images/*.jpg)
    - the Hugging Face Hub's apple/flair: {train,val,test}-*.parquet, perhaps in a folder `data`
    - an HDF5 file of pfl-research or ml-flair, grouped by users or not: *flair*.hdf5

    Columns: `labels` [N, 17] and `fine_labels` [N, 1628], both in alphabetical order of the names over all splits, `client` and
    `image_id`. Pictures of 256 × 256, as all layouts but raw_images have them, are kept as they are unless `size` is another.
    expect=any takes files with other than the official counts, in which fine labels are those that occur.
    """

    size: Annotated[int, Field(ge=8, le=4096)] = 256
    expect: Expect = "official"

    about: ClassVar[About] = About(
        contents="429,078 photographs, 51,414 users, 17 and 1,628 labels, several to a picture",
        licence="labels CC BY-NC 4.0; photographs as in ATTRIBUTION.txt",
        where="https://github.com/apple/ml-flair, or https://huggingface.co/datasets/apple/flair",
        gigabytes=5.7,
        files=(f"flair/{METADATA}",),
    )

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        return bool(_layouts(folder))

    def listings(self) -> Mapping[str, Listing]:
        layouts = _layouts(self.path)
        if not layouts:
            raise FileNotFoundError(
                f"data.source.path: there is no FLAIR in {self.path} nor in {self.path / 'flair'}: no {METADATA}, no *flair*.hdf5, "
                f"no train-*.parquet (get it from {self.about.where})"
            )
        if len(layouts) > 1:
            raise ValueError(f"data.source.path: FLAIR is there more than once, name one: {', '.join(map(str, layouts))}")
        ((place, read),) = layouts.items()
        tables = read()
        self._check(place, tables)
        fine = sorted(tables.fine_labels.numbers)
        return {split: _listing(tables, split, fine) for split in OFFICIAL if split in tables.splits}

    def _check(self, place: Path, tables: Tables) -> None:
        """No user and no picture is in two splits, and there are as many as there should be."""
        if "train" not in tables.splits:
            raise ValueError(f"{place} has no training pictures; it has: {', '.join(tables.splits) or 'none'}")
        users = {split: np.unique(table.client) for split, table in tables.splits.items()}
        pictures = {split: table.image_id for split, table in tables.splits.items()}
        _require_once(place, "user", users)
        _require_once(place, "picture", pictures)
        counts = {"fine labels": (len(tables.fine_labels.numbers), FINE)}
        for split, (images, clients) in OFFICIAL.items():
            counts[f"{split} pictures"] = len(pictures.get(split, ())), images
            counts[f"{split} users"] = len(users.get(split, ())), clients
        require_counts(f"FLAIR in {place}", self.expect, counts)


def _require_once(place: Path, what: str, names: Mapping[str, NDArray[np.str_]]) -> None:
    """No name is there twice, in one split or in two."""
    found, counts = np.unique(np.concatenate(list(names.values())), return_counts=True)
    if (counts > 1).any():
        twice = found[np.argmax(counts > 1)]
        among = " and ".join(split for split in names if (names[split] == twice).any())
        raise ValueError(f"{place}: {what} {twice} is there more than once, in {among}")


def _listing(tables: Tables, split: str, fine: list[str]) -> Listing:
    table = tables.splits[split]
    columns: dict[str, NDArray[Any]] = {
        "labels": tables.labels.multi_hot(table.labels, len(table.client), COARSE),
        "fine_labels": tables.fine_labels.multi_hot(table.fine_labels, len(table.client), fine),
        "client": table.client,
        "image_id": table.image_id,
    }
    names = {"fine_labels": np.array(fine, dtype=np.str_)}
    return Listing(table.pictures, columns, "FLAIR", COARSE, keys=table.image_id.tolist(), categories=names)


def _layouts(path: Path) -> dict[Path, Callable[[], Tables]]:
    """What there is of FLAIR in a place, and how it is read."""
    if path.is_file():
        return {path: partial(read_raw, path.parent) if path.name == METADATA else partial(read_hdf5, path)}
    found: dict[Path, Callable[[], Tables]] = {}
    for folder in (path, path / "flair"):
        if (folder / METADATA).is_file():
            found[folder / METADATA] = partial(read_raw, folder)
        for file in sorted([*folder.glob("*flair*.hdf5"), *folder.glob("*flair*.h5")]):
            found[file] = partial(read_hdf5, file)
        for place in (folder, folder / "data", folder / "default"):
            if "train" in (files := parquet_splits(place)):
                found[place] = partial(read_parquet, files)
    return found
