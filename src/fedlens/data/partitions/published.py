"""Who holds what as others have published it, so that results can be compared client by client."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, Field

from fedlens.data.examples import Examples
from fedlens.data.partitions.base import PARTITIONS, Partition
from fedlens.data.population import Assignment, Indices
from fedlens.data.sources import tables
from fedlens.data.sources.base import data_folder
from fedlens.data.sources.checks import Expect
from fedlens.data.sources.tables import Place

CLIENTS, EACH = 100, 500


def _of_two_decimals(alpha: float) -> float:
    """Files are called by two decimals: 0.051 is not to be taken for the 0.05 that it would be rounded to."""
    if float(f"{alpha:.2f}") != alpha:
        raise ValueError(f"there is a table for α with two decimals at most, such as 0.05; got {alpha}")
    return alpha


@PARTITIONS.register("published", paper="Hsu, Qi and Brown 2020, Federated Visual Classification, section 3 (CIFAR)")
class Published(Partition):
    """CIFAR among 100 clients by the very tables that the paper used: federated_train_alpha_<alpha>.csv.

    `path` is a folder that has them anywhere, unpacked or in cifar10_v1.1.zip or cifar100_v1.1.zip, or one of these zips. There is
    a table for α = 0, 0.05, 0.1, 0.2, 0.5, 1, 10 and 100 of CIFAR-10, and for 0, 0.5, 1, 2, 5, 10, 100 and 1000 of CIFAR-100.
    Each gives every image to one client, and 500 to each; expect=any takes other tables, too, that give no image to two.
    """

    path: Path = Field(default_factory=data_folder)
    alpha: Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_of_two_decimals)] = 1.0
    expect: Expect = "official"

    def assign(self, data: Examples, seed: int) -> Assignment:
        labels = data.column("label")
        file_name = f"federated_train_alpha_{self.alpha:.2f}.csv"
        place = tables.find(self.path, file_name)
        if place is None:
            raise FileNotFoundError(
                f"data.partition.path: {file_name} is neither under {self.path} nor in a zip there (cifar10_v1.1.zip and "
                "cifar100_v1.1.zip are at storage.googleapis.com/gresearch/federated-vision-datasets; see which alphas they have)"
            )
        tables.check_md5(place, {})
        table = tables.read(place, "user_id", "image_id", "class")
        image, label = (tables.integers(table[name], name, place) for name in ("image_id", "class"))
        tables.require_distinct(image, "image_id", place)
        if image.min() < 0 or image.max() >= len(labels):
            wrong = image.min() if image.min() < 0 else image.max()
            raise ValueError(f"{place}: image {wrong:,} is none of the {len(labels):,} of {data.name}: the table is for other data")
        if wrong := int((labels[image] != label).sum()):
            raise ValueError(
                f"{place}: {wrong:,} of {len(label):,} rows give an image another class than {data.name} does: the table is for "
                "other data, or from before January 2022, with wrong image ids: take that of the zip with v1.1 in its name"
            )
        users, user = np.unique(tables.identities(table["user_id"]), return_inverse=True)
        client = np.full(len(labels), -1)
        client[image] = user.reshape(-1)
        self._require_official(place, len(labels), np.bincount(user.reshape(-1)))
        return Assignment.from_clients(client, len(users), users.astype(np.str_).tolist())

    def _require_official(self, place: Place, images: int, sizes: Indices) -> None:
        """Every image is given to a client, of which there are 100 with 500 each."""
        whole = sizes.sum() == images and len(sizes) == CLIENTS and (sizes == EACH).all()
        if self.expect == "official" and not whole:
            found = f"{sizes.sum():,} of {images:,} images to {len(sizes):,} clients, {sizes.min():,} to {sizes.max():,} to each"
            raise ValueError(
                f"{place}: it gives {found}; the official tables give all images to {CLIENTS} clients, {EACH} to each "
                "(data.partition.expect=any takes it as it is)"
            )
