"""What every source of examples answers: the training examples and those for evaluation."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, TypeAlias

from pydantic import Field

from fedlens.data.examples import Examples
from fedlens.data.listing import Listing
from fedlens.data.pictures import Fit
from fedlens.data.prepare import Bad, Missing, Shape, decoded, prepare
from fedlens.registry import Part, Registry

SOURCES: Registry[type[Source]] = Registry("data source")

Watch: TypeAlias = Callable[[str, int, int], None]  # told of a split how many rows it has, and how many are done

MOST_BYTES = 0.5  # of the machine's memory, for pictures that are decoded without being prepared


def data_folder() -> Path:
    """Where data lie unless a recipe says otherwise: the folder that FEDLENS_DATA names, or `data` here."""
    return Path(os.environ.get("FEDLENS_DATA", "data"))


@dataclass(frozen=True)
class Sources:
    """A data set's own splits."""

    train: Examples
    validation: Examples | None = None
    test: Examples | None = None


@dataclass(frozen=True)
class About:
    """What people want to know of a data set before they have it."""

    contents: str  # how many pictures, clients and classes
    licence: str
    where: str  # to get it
    gigabytes: float = 0.0  # of the files that are needed
    files: tuple[str, ...] = ()  # patterns under the source's path, 'one | other'; where each finds something, the data are there


class Source(Part):
    """A data set and where its files are."""

    about: ClassVar[About]

    def load(self) -> Sources:
        raise NotImplementedError

    def prepare(self, folder: Path, threads: int, watch: Watch) -> dict[str, Bad]:
        """Write all splits as the source `packed` reads them; returns what was skipped, by split."""
        if (folder / "train").exists():
            raise ValueError(f"{folder / 'train'} is there already: choose another folder, or delete it")
        sources = self.load()
        for split, examples in (("train", sources.train), ("validation", sources.validation), ("test", sources.test)):
            if examples is not None:
                examples.save(folder / split)
                watch(split, len(examples), len(examples))
        return {}


class Files(Source):
    """A source that reads files: those of `about` under its path."""

    path: Path = Field(default_factory=data_folder)

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        """Whether the files are there, as far as one sees without opening them."""
        return all(any(next(folder.glob(one), None) for one in either.split(" | ")) for either in cls.about.files)


class PictureFiles(Files):
    """A source of encoded pictures: decoded once by `fedlens data prepare`, or, where that is not much, whenever it is loaded.

    size, fit    the square that each becomes: what its middle holds (crop), all of it with margins (pad) or distorted (stretch)
    missing      what happens where pictures are missing or broken: refuse the data, or skip them
    """

    size: Annotated[int, Field(ge=8, le=4096)] = 224
    fit: Fit = "crop"
    missing: Missing = "refuse"

    @property
    def shape(self) -> Shape:
        return Shape(self.size, self.fit)

    def listings(self) -> Mapping[str, Listing]:
        """The splits 'train' and, if there are, 'validation' and 'test', before any picture is decoded."""
        raise NotImplementedError

    def _listed(self) -> Mapping[str, Listing]:
        listings = self.listings()
        if not len(listings["train"]):
            raise ValueError(f"there is no picture to train on in {self.path}")
        return listings

    def load(self) -> Sources:
        listings = self._listed()
        bytes_needed = sum(len(listing) for listing in listings.values()) * self.size**2 * 3
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if bytes_needed > MOST_BYTES * memory:
            raise ValueError(
                f"{self.name}: its pictures take {bytes_needed / 1e9:,.0f} GB in memory; decode them once with "
                f"`fedlens data prepare {self.name} --to FOLDER`, and take data.source={{name: packed, path: FOLDER}}"
            )
        found = {}
        for split, listing in listings.items():
            found[split], bad = decoded(listing, self.shape, self.missing)
            if bad is not None:
                warnings.warn(f"{self.name}, {split}: {bad}", stacklevel=2)
        return Sources(**found)

    def prepare(self, folder: Path, threads: int, watch: Watch) -> dict[str, Bad]:
        skipped = {}
        for split, listing in self._listed().items():
            bad = prepare(listing, folder / split, self.shape, self.missing, threads, partial(watch, split, len(listing)))
            if bad is not None:
                skipped[split] = bad
        return skipped
