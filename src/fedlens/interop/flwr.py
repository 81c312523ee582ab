"""Exchange partitions with flwr-datasets: any of its partitioners as an `Assignment`, any assignment as one of its partitioners.

What a partitioner did with its rows is read off a column of row numbers, never off its index lists: some sort their data first
(`ShardPartitioner`), so that their lists mean other rows than one would think.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np

from fedlens.data.examples import Examples
from fedlens.data.population import Assignment

ROW = "fedlens_row"  # column with the number of each row


def assignment_from(partitioner: Any, data: Examples | None = None) -> Assignment:
    """Who holds what by a partitioner of flwr-datasets: one without data, which is given the one-dimensional columns of `data`.

    One that has its data already does without `data`, if they were given a column `fedlens_row` of row numbers before:
    `dataset.add_column("fedlens_row", range(len(dataset)))`. This also undoes the shuffle of flwr-datasets' `FederatedDataset`.
    """
    kind = type(partitioner).__name__
    if data is not None:
        if partitioner.is_dataset_assigned():
            raise ValueError(f"this {kind} has data already: make a new one for {data.name}, or leave `data` out")
        columns = {name: np.asarray(data.named(name)) for name in data.columns if data.columns[name].ndim == 1 and name != ROW}
        partitioner.dataset = _module("datasets").Dataset.from_dict({**columns, ROW: np.arange(len(data))})
    elif not partitioner.is_dataset_assigned():
        raise ValueError(f"this {kind} has no data to divide: pass `data`")
    elif ROW not in partitioner.dataset.column_names:
        raise ValueError(
            f"the data of this {kind} have no column '{ROW}', without which rows that it sorted cannot be told apart: "
            f'give it dataset.add_column("{ROW}", range(len(dataset))), or a new one to this function with `data`'
        )
    parts = [partitioner.load_partition(k) for k in range(partitioner.num_partitions)]
    if any(ROW not in part.column_names for part in parts):
        raise ValueError(f"a {kind} divides the columns of every example among its parties, not the examples among clients")
    rows = [np.asarray(part[ROW][:], dtype=np.int64) for part in parts]
    ids = getattr(partitioner, "partition_id_to_natural_id", None)
    names = None if ids is None else [str(ids[k]) for k in range(len(rows))]
    return Assignment(np.concatenate(([0], np.cumsum([len(part) for part in rows]))), np.concatenate(rows), names)


def partitioner_from(assignment: Assignment) -> Any:
    """A partitioner of flwr-datasets whose partition k is client k of an assignment.

    Example ids are row numbers, so the data must stand in the order they had: `FederatedDataset` needs `shuffle=False`.
    """
    base = _module("flwr_datasets.partitioner").Partitioner

    class PrecomputedPartitioner(base):  # type: ignore[misc, valid-type]
        """Partitions that were made before."""

        @property
        def num_partitions(self) -> int:
            return len(assignment)

        def load_partition(self, partition_id: int) -> Any:
            last = int(assignment.examples.max(initial=-1))
            if last >= len(self.dataset):
                raise ValueError(f"the assignment is of {last + 1:,} rows or more, but the dataset has only {len(self.dataset):,}")
            if not 0 <= partition_id < len(assignment):
                raise ValueError(f"partitions are 0…{len(assignment) - 1}; there is no {partition_id}")
            return self.dataset.select(assignment.of_client(partition_id))

    return PrecomputedPartitioner()


def _module(name: str) -> Any:
    """Import a module of flwr-datasets, or of the library that it is built on, with their reports home switched off."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"this needs flwr-datasets, which is not installed ({error}): pip install flwr-datasets") from error
