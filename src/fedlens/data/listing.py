"""A data set of encoded pictures before they are decoded: what stands in each row beside the picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedlens.data.examples import Examples
from fedlens.data.pictures import Pictures


@dataclass(frozen=True)
class Listing:
    """One split of a data set: encoded pictures and equally long columns.

    A column of texts, as that of clients often is, becomes one of numbers with their names beside it.
    `boxes` [N, M, 4] (left, top, right, bottom, in the pixels of the encoded picture) move with the picture when it is resized, and
    so do `masks`; where there are fewer than M boxes, their `box_label` [N, M] is −1. What masks and boxes say holds for a picture
    as it is stored: it is not turned then, and has to be of the mask's size, and of its row of `sizes` [N, 2] (width, height).
    """

    pictures: Pictures
    columns: Mapping[str, NDArray[np.generic]]
    name: str
    class_names: tuple[str, ...] = ()
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)  # of photographs, as ImageNet's are
    standard_deviation: tuple[float, ...] = (0.229, 0.224, 0.225)
    keys: Sequence[str] = field(default_factory=tuple)  # what a row is called in a report; none: by its number
    masks: Pictures | None = None
    sizes: NDArray[np.int64] | None = None
    categories: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)  # names for what the numbers of a column stand for

    def __post_init__(self) -> None:
        lengths = {"pictures": len(self.pictures), **{name: len(values) for name, values in self.columns.items()}}
        lengths |= {"keys": len(self.keys)} if len(self.keys) else {}
        lengths |= {name: len(values) for name, values in (("masks", self.masks), ("sizes", self.sizes)) if values is not None}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"{self.name}: pictures and columns must be equally long: got {lengths}")

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def is_turned(self) -> bool:
        """Whether pictures taken on their side are to stand upright: unless something was drawn on them."""
        return self.masks is None and self.sizes is None and "boxes" not in self.columns

    def key(self, row: int) -> str:
        return str(self.keys[row]) if len(self.keys) else f"row {row}"

    def examples(self, decoded: Mapping[str, NDArray[np.generic]]) -> Examples:
        """The rows with what was decoded of them, which takes the place of columns of the same name."""
        columns, categories = coded({**self.columns, **decoded})
        known = self.name, self.class_names, self.mean, self.standard_deviation
        return Examples(columns, *known, {**self.categories, **categories})


def coded(columns: Mapping[str, NDArray[np.generic]]) -> tuple[dict[str, NDArray[np.generic]], dict[str, NDArray[np.str_]]]:
    """Columns in which texts are numbers, and the texts for which they stand, sorted."""
    found, categories = dict(columns), {}
    for name, values in columns.items():
        if values.dtype.kind in "US":
            categories[name], codes = np.unique(values.astype(np.str_), return_inverse=True)
            found[name] = codes.reshape(-1)
    return found, categories
