"""What every source of examples answers: the training examples and those for evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from fedlens.data.examples import Examples
from fedlens.registry import Part, Registry

SOURCES: Registry[type[Source]] = Registry("data source")


@dataclass(frozen=True)
class Sources:
    """A data set's own splits."""

    train: Examples
    validation: Examples | None = None
    test: Examples | None = None


class Source(Part):
    """A data set and where its files are."""

    def load(self) -> Sources:
        raise NotImplementedError
