"""Clients that are places: cells of the earth's surface, small where many photographs were taken."""

from __future__ import annotations

import warnings
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedlens.data.examples import Examples
from fedlens.data.partitions import s2_cells
from fedlens.data.partitions.base import PARTITIONS, Partition
from fedlens.data.population import Assignment


def s2_adaptive(latitude: NDArray[np.floating], longitude: NDArray[np.floating], most: int, least: int | None = None) -> Assignment:
    """Quarter the six faces of the earth until no cell holds more than `most` examples; each cell is a client, named by its token.

    A cell that holds fewer than `least` (default: a hundredth of `most`) is no client, and its examples are nobody's; nor are
    those without coordinates (NaN) anybody's (Hsu, Qi and Brown 2020, section 3).
    """
    least = -(-most // 100) if least is None else least
    unknown = np.isnan(latitude) | np.isnan(longitude)
    s2_cells.require_on_earth(np.where(unknown, 0, latitude), np.where(unknown, 0, longitude))  # by the rows of the data
    located = np.flatnonzero(~unknown)
    if not len(located):
        raise ValueError(f"none of {len(latitude):,} examples has coordinates: there is nothing to divide by place")
    leaves = s2_cells.leaf_cells(latitude[located], longitude[located])
    order = np.argsort(leaves, kind="stable")
    cells = _final_cells(leaves[order], most)
    found, counts = np.unique(cells, return_counts=True)
    if crowded := int((counts > most).sum()):
        warnings.warn(
            f"{crowded:,} places hold more than {most:,} examples with the same coordinates, up to {counts.max():,}: "
            "they are clients larger than asked for",
            stacklevel=2,
        )
    kept = counts >= least
    if not kept.any():
        raise ValueError(f"no cell holds {least:,} examples, the largest {counts.max():,}: take a lower `least` or a higher `most`")
    return Assignment(
        np.concatenate(([0], np.cumsum(counts[kept]))),
        located[order[np.repeat(kept, counts)]],
        s2_cells.tokens(found[kept]),
    )


def _final_cells(leaves: s2_cells.Cells, most: int) -> s2_cells.Cells:
    """For each leaf, in rising order, the largest cell around it that holds at most so many of them; else the leaf itself."""
    final = leaves.copy()
    active = np.arange(len(leaves))
    for level in range(s2_cells.LEAF):
        cells = s2_cells.parents(leaves[active], level)
        first = np.flatnonzero(np.concatenate(([True], cells[1:] != cells[:-1])))  # leaves of a cell follow one another
        counts = np.diff(np.append(first, len(cells)))
        settled = np.repeat(counts <= most, counts)
        final[active[settled]] = cells[settled]
        active = active[~settled]
        if not len(active):
            break
    return final


@PARTITIONS.register("geographic", paper="Hsu, Qi and Brown 2020, Federated Visual Classification, section 3 (iNaturalist-Geo)")
class Geographic(Partition):
    """One client for each cell of the earth that holds at most `most` examples, and at least `least`: a hundredth of it by default.

    Cells are those of the S2 geometry, halved in both directions where more was photographed.
    """

    most: Annotated[int, Field(ge=1)] = 3000
    least: Annotated[int, Field(ge=1)] | None = None
    latitude: str = "latitude"
    longitude: str = "longitude"

    def assign(self, data: Examples, seed: int) -> Assignment:
        return s2_adaptive(data.column(self.latitude), data.column(self.longitude), self.most, self.least)
