"""Label skew where an image shows several classes: which one of them decides who gets it, and divisions by category.

An image is given one class of those it shows, and classes are divided as single labels are, by `class_dirichlet` with a cap
at N / K. Data are a column `labels`, uint8 [N, C], 1 where an image shows a class.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedlens import random
from fedlens.data.examples import Examples
from fedlens.data.partitions.base import PARTITIONS, Clients, Partition
from fedlens.data.partitions.dirichlet import Concentration, class_dirichlet
from fedlens.data.population import Assignment, Indices

Table = NDArray[Any]  # [N, C]


def first_class(labels: Table, background: int | None = None) -> Indices:
    """The first class in list order that each image shows, −1 where it shows none; a background column is never shown."""
    found, classes = labels.any(axis=1), labels.argmax(axis=1)
    if background is not None:
        others = np.delete(np.arange(labels.shape[1]), background)
        found, classes = labels[:, others].any(axis=1), others[labels[:, others].argmax(axis=1)]
    return np.where(found, classes, -1)


def rarest_class(labels: Table) -> Indices:
    """Of the classes that each image shows the one that the fewest images show; where it shows none, C, a class of its own."""
    return dominant_class(labels != 0)


def dominant_class(amounts: Table) -> Indices:
    """The class of which each image shows most, the rarer of equals; where it shows none, C, a class of its own."""
    order = np.argsort(np.count_nonzero(amounts, axis=0), kind="stable")  # rare ones first
    classes = order[amounts[:, order].argmax(axis=1)]  # of equals the first
    return np.where(amounts.any(axis=1), classes, amounts.shape[1])


def coco_greedy(labels: Table, clients: int) -> Assignment:
    """Give all images that show the most frequent category to one client, take them away, and so on; the last gets what is left.

    As the FedCV paper words it. One client gets every image of a person, and the last often half of all.
    """
    remaining = np.ones(len(labels), dtype=bool)
    counts = np.count_nonzero(labels, axis=0)
    owner = np.full(len(labels), clients - 1)
    for client in range(clients - 1):
        most = int(counts.argmax())
        if not counts[most]:
            raise ValueError(f"no category is left for client {client + 1} of {clients}: take fewer clients")
        taken = np.flatnonzero(remaining & (labels[:, most] != 0))
        owner[taken] = client
        remaining[taken] = False
        counts = counts - np.count_nonzero(labels[taken], axis=0)
    if not remaining.any():
        raise ValueError(f"no image is left for the last of {clients} clients: take fewer clients")
    return Assignment.from_clients(owner, clients)


class _OneClassLDA(Partition):
    """The settings of partitions that divide images by one class of each."""

    clients: Clients = 100
    alpha: Concentration = 0.5
    least: Annotated[int, Field(ge=0)] = 10

    def class_of_each(self, data: Examples) -> Indices:
        raise NotImplementedError

    def assign(self, data: Examples, seed: int) -> Assignment:
        generator = random.generator(seed, "partition")
        classes = self.class_of_each(data)
        if (classes < 0).all():
            raise ValueError(f"{data.name}: no image shows a class: there is nothing to divide by")
        return class_dirichlet(classes, self.clients, self.alpha, generator, self.least, capped=True)


@PARTITIONS.register("first_class_lda", paper="He et al. 2021, FedCV (segmentation)")
class FirstClassLDA(_OneClassLDA):
    """Each image belongs to the first class in list order that it shows, and classes are divided by Dir(α), capped at N / K.

    FedCV's rule: classes early in the list get all their images and the last only what shows nothing else, such as few of all
    persons. `background` names a column that every image may show: it is passed over, but a Dirichlet draw is made for it,
    as there. Images that show nothing else are nobody's, and yet count for N.
    """

    background: Annotated[int, Field(ge=0)] | None = None

    def class_of_each(self, data: Examples) -> Indices:
        labels = multi_hot(data)
        if self.background is not None and self.background >= labels.shape[1]:
            raise ValueError(f"{data.name}: there is no class {self.background} to be the background, only 0…{labels.shape[1] - 1}")
        return first_class(labels, self.background)


@PARTITIONS.register("rarest_class_lda")
class RarestClassLDA(_OneClassLDA):
    """Each image belongs to the rarest class that it shows, and classes are divided by Dir(α), capped at N / K.

    A better rule than list order. All images of a rare class are divided by its own draw, so that its skew is what α says; of a
    frequent one, such as person, enough are left that show nothing rarer. And the result does not depend on how classes are
    numbered. It needs to know only what is shown, not how much of it. Images that show nothing are divided as one more class.
    """

    def class_of_each(self, data: Examples) -> Indices:
        return rarest_class(multi_hot(data))


@PARTITIONS.register("dominant_class_lda", paper="He et al. 2021, FedCV (detection), where it is a greedy division")
class DominantClassLDA(_OneClassLDA):
    """Each image belongs to the class of which it shows most, and classes are divided by Dir(α), capped at N / K.

    How much it shows is a column `label_counts` [N, C], numbers of boxes or areas, if there is one; without it, all classes that an
    image shows are equal, and of equals the rarer one counts. Images that show nothing are divided as one more class.
    """

    def class_of_each(self, data: Examples) -> Indices:
        return dominant_class(multi_hot(data, "label_counts") if "label_counts" in data.columns else multi_hot(data))


@PARTITIONS.register("coco_greedy", paper="He et al. 2021, FedCV (detection)")
class CocoGreedy(Partition):
    """All images of the most frequent category to one client, of what is left the same again, the rest to the last client.

    Nothing is drawn, whatever the seed. Clients differ by orders of magnitude: `dominant_class_lda` is what one wants.
    """

    clients: Annotated[int, Field(ge=1)] = 8

    def assign(self, data: Examples, seed: int) -> Assignment:
        return coco_greedy(multi_hot(data), self.clients)


def multi_hot(data: Examples, column: str = "labels") -> Table:
    """A column with one number for each class, none below zero."""
    labels = data.column(column)
    if labels.ndim != 2 or not labels.shape[1]:
        raise ValueError(f"{data.name}: column '{column}' must hold a number for each class, [N, C]; got {labels.shape}")
    if not np.issubdtype(labels.dtype, np.unsignedinteger) and labels.dtype != bool and not (labels >= 0).all():
        raise ValueError(f"{data.name}: column '{column}' must hold no number below 0 and no NaN")
    return labels
