"""Clients that are groups of natural ones, as hospitals are of patients: from many devices to few silos."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedlens.data.examples import Examples
from fedlens.data.partitions.base import PARTITIONS, Partition
from fedlens.data.population import Assignment

Mode = Literal["allow-smaller", "allow-bigger", "drop-remainder", "strict"]
Order = Literal["sorted", "appearance"]


def grouped_natural(ids: NDArray[np.generic], group_size: int, mode: Mode = "allow-smaller", order: Order = "sorted") -> Assignment:
    """One client for each `group_size` distinct ids, taken in sorted order or as they appear, named by the first and the last.

    Ids that do not fill a group are the last, smaller group; or are spread so that the first groups grow (`allow-bigger`);
    or are left out with their examples (`drop-remainder`); or are an error (`strict`).
    """
    found, first, which = np.unique(ids, return_index=True, return_inverse=True)
    which = which.reshape(-1)
    if order == "appearance":
        by_appearance = np.argsort(first)
        found = found[by_appearance]
        which = np.argsort(by_appearance)[which]
    whole, rest = divmod(len(found), group_size)
    if mode != "allow-smaller" and not whole:
        raise ValueError(f"{len(found)} ids do not fill a group of {group_size}: take smaller groups, or mode allow-smaller")
    if mode == "strict" and rest:
        raise ValueError(f"{len(found)} ids do not divide into groups of {group_size}, {rest} are left: take another mode or size")
    if mode == "allow-bigger":
        sizes = np.full(whole, len(found) // whole)
        sizes[: len(found) % whole] += 1
    else:
        sizes = np.full(whole, group_size)
        if mode == "allow-smaller" and rest:
            sizes = np.append(sizes, rest)
    group = np.concatenate([np.repeat(np.arange(len(sizes)), sizes), np.full(len(found) - sizes.sum(), -1)])
    ends = np.cumsum(sizes)
    names = [str(found[a]) if a == b else f"{found[a]}…{found[b]}" for a, b in zip(ends - sizes, ends - 1, strict=True)]
    return Assignment.from_clients(group[which], len(sizes), names)


@PARTITIONS.register("grouped_natural")
class GroupedNatural(Partition):
    """One client for so many values of a column: organisations of several users each.

    `mode` says what becomes of the values that do not fill a group, `order` whether values are grouped as they sort or as they
    appear; with `appearance`, groups are those of flwr-datasets' GroupedNaturalIdPartitioner. Evaluation sets that have the column
    too are measured by groups of their own values, of which a smaller one takes those that are left, whatever the mode.
    """

    column: str = "client"
    group_size: Annotated[int, Field(ge=1)] = 10
    mode: Mode = "allow-smaller"
    order: Order = "sorted"

    def assign(self, data: Examples, seed: int) -> Assignment:
        return grouped_natural(data.named(self.column), self.group_size, self.mode, self.order)

    def group(self, data: Examples) -> Assignment:
        if self.column not in data.columns:
            return super().group(data)
        return grouped_natural(data.named(self.column), self.group_size, order=self.order)
