"""Partitions exchanged with flwr-datasets: with the library where it is installed, and with as little of it as is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fedlens.data import Assignment, Examples
from fedlens.data.partitions import grouped_natural, hsu_dirichlet, natural
from fedlens.interop.flwr import ROW, assignment_from, partitioner_from


class FakeDataset:
    """A table that can be selected from and sorted."""

    def __init__(self, columns: dict[str, Any]):
        self.columns = {name: np.asarray(values) for name, values in columns.items()}

    from_dict = classmethod(lambda cls, columns: cls(columns))
    column_names = property(lambda self: list(self.columns))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, column: str) -> Any:
        return self.columns[column].tolist()

    def select(self, rows: Any) -> FakeDataset:
        return FakeDataset({name: values[np.asarray(rows, dtype=int)] for name, values in self.columns.items()})

    def sort(self, column: str) -> FakeDataset:
        return self.select(np.argsort(self.columns[column], kind="stable"))


class FakePartitioner:
    """What flwr-datasets' base class promises."""

    def __init__(self) -> None:
        self._dataset: Any = None

    @property
    def dataset(self) -> Any:
        return self._dataset

    @dataset.setter
    def dataset(self, dataset: Any) -> None:
        assert self._dataset is None, "the data may be given once"
        self._dataset = dataset

    def is_dataset_assigned(self) -> bool:
        return self._dataset is not None


class FakeShards(FakePartitioner):
    """Sorts its data and keeps the sorted ones, as flwr-datasets' ShardPartitioner does."""

    num_partitions = 2
    sorted_already = False

    def load_partition(self, partition_id: int) -> FakeDataset:
        if not self.sorted_already:
            self._dataset, self.sorted_already = self._dataset.sort("label"), True
        half = len(self._dataset) // 2
        return self._dataset.select(range(partition_id * half, partition_id * half + half))


class FakeVertical(FakePartitioner):
    """Gives each party a column."""

    num_partitions = 2

    def load_partition(self, partition_id: int) -> FakeDataset:
        return FakeDataset({self.dataset.column_names[partition_id]: self.dataset[self.dataset.column_names[partition_id]]})


@pytest.fixture(params=["small", "installed"])
def flwr(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The classes Dataset, Partitioner, Shards (2 clients) and Vertical (2 parties) of the library or of its stand-in."""
    found = ModuleType("classes")
    if request.param == "small":
        datasets, partitioner = ModuleType("datasets"), ModuleType("flwr_datasets.partitioner")
        datasets.Dataset, partitioner.Partitioner = FakeDataset, FakePartitioner
        monkeypatch.setitem(sys.modules, "datasets", datasets)
        monkeypatch.setitem(sys.modules, "flwr_datasets", ModuleType("flwr_datasets"))
        monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", partitioner)
        found.Dataset, found.Partitioner, found.Shards, found.Vertical = FakeDataset, FakePartitioner, FakeShards, FakeVertical
        return found
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    partitioner = import_module("flwr_datasets.partitioner")
    found.Dataset, found.Partitioner = import_module("datasets").Dataset, partitioner.Partitioner
    found.Shards = lambda: partitioner.ShardPartitioner(2, "label", num_shards_per_partition=1, shard_size=10, shuffle=False)
    found.Vertical = lambda: partitioner.VerticalEvenPartitioner(2)
    return found


DATA = Examples(
    {
        "image": np.zeros((20, 2, 2, 1), dtype=np.uint8),
        "label": np.random.default_rng(0).permutation(np.arange(20) % 2),
        "user": np.array(list("zyxw") * 5),
    },
    "tiny",
)


def members(clients: Assignment) -> list[list[int]]:
    return [sorted(clients.of_client(k).tolist()) for k in range(len(clients))]


def test_a_partitioner_that_sorts_its_data_is_read_by_the_rows_that_it_was_given(flwr):
    clients = assignment_from(flwr.Shards(), DATA)
    assert sorted(members(clients)) == [np.flatnonzero(DATA.columns["label"] == c).tolist() for c in (0, 1)]
    assert members(clients) != [list(range(10)), list(range(10, 20))]


def test_data_that_the_partitioner_has_already_need_row_numbers_which_undo_a_shuffle_too(flwr):
    dataset = flwr.Dataset.from_dict({"label": DATA.columns["label"], ROW: np.arange(20)})
    shuffled = dataset.select(np.random.default_rng(1).permutation(20))
    holder, without, empty = flwr.Shards(), flwr.Shards(), flwr.Shards()
    holder.dataset = shuffled
    assert sorted(members(assignment_from(holder))) == [np.flatnonzero(DATA.columns["label"] == c).tolist() for c in (0, 1)]
    without.dataset = flwr.Dataset.from_dict({"label": DATA.columns["label"]})
    with pytest.raises(ValueError, match="have no column 'fedlens_row', without which rows that it sorted cannot be told apart"):
        assignment_from(without)
    with pytest.raises(ValueError, match="has no data to divide: pass `data`"):
        assignment_from(empty)
    with pytest.raises(ValueError, match="has data already: make a new one for tiny, or leave `data` out"):
        assignment_from(holder, DATA)


def test_partitioners_that_divide_columns_are_refused(flwr):
    with pytest.raises(ValueError, match="divides the columns of every example among its parties"):
        assignment_from(flwr.Vertical(), DATA)


def test_an_assignment_becomes_a_partitioner_and_comes_back(flwr):
    labels = DATA.columns["label"]
    clients = hsu_dirichlet(labels, 3, 0.5, np.random.default_rng(0))  # two of twenty are nobody's
    partitioner = partitioner_from(clients)
    assert isinstance(partitioner, flwr.Partitioner)
    assert partitioner.num_partitions == 3
    back = assignment_from(partitioner, DATA)
    assert np.array_equal(back.offsets, clients.offsets)
    assert np.array_equal(back.examples, clients.examples)
    assert partitioner.load_partition(1)["label"][:] == labels[clients.of_client(1)].tolist()


def test_partitions_and_rows_that_are_not_there_are_refused(flwr):
    partitioner = partitioner_from(Assignment.pooled(21))
    partitioner.dataset = flwr.Dataset.from_dict({"label": DATA.columns["label"]})
    with pytest.raises(ValueError, match="the assignment is of 21 rows or more, but the dataset has only 20"):
        partitioner.load_partition(0)
    partitioner = partitioner_from(Assignment.pooled(20))
    partitioner.dataset = flwr.Dataset.from_dict({"label": DATA.columns["label"]})
    for missing in (1, -1):
        with pytest.raises(ValueError, match=f"partitions are 0…0; there is no {missing}"):
            partitioner.load_partition(missing)


def test_numbers_that_stand_for_names_are_given_by_name(flwr):
    data = Examples({"label": np.array([0, 1, 0]), "user": np.array([1, 0, 1])}, categories={"user": np.array(["ann", "bob"])})
    partitioner = partitioner_from(Assignment.pooled(3))
    assignment_from(partitioner, data)
    assert list(partitioner.dataset["user"][:]) == ["bob", "ann", "bob"]
    assert list(partitioner.dataset["label"][:]) == [0, 1, 0]


def test_clients_that_hold_nothing_stay(flwr):
    clients = Assignment(np.array([0, 0, 2, 2]), np.array([5, 3]))
    back = assignment_from(partitioner_from(clients), DATA)
    assert back.sizes.tolist() == [0, 2, 0]
    assert back.examples.tolist() == [5, 3]


def test_nothing_of_it_is_imported_before_it_is_needed_and_no_reports_are_sent_home():
    program = """
import os, sys
import fedlens, fedlens.data, fedlens.interop.flwr
assert not {"datasets", "flwr_datasets"} & set(sys.modules)
sys.modules["datasets"] = None   # as if it were not installed
try:
    fedlens.interop.flwr._module("datasets")
except ImportError as error:
    assert "this needs flwr-datasets, which is not installed" in str(error), error
else:
    sys.exit("there was no error")
print(os.environ["FLWR_TELEMETRY_ENABLED"], os.environ["HF_HUB_DISABLE_TELEMETRY"])
"""
    environment = {name: value for name, value in os.environ.items() if "TELEMETRY" not in name}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "0 1"), done.stderr


def test_the_library_s_natural_partitions_are_ours():
    partitioner = import_module("flwr_datasets.partitioner")
    theirs, ours = assignment_from(partitioner.NaturalIdPartitioner("user"), DATA), natural(DATA.columns["user"])
    assert theirs.names == ours.names == list("wxyz")
    assert np.array_equal(theirs.examples, ours.examples)


@pytest.mark.parametrize("mode", ["allow-smaller", "allow-bigger", "drop-remainder"])
@pytest.mark.parametrize(("ids", "size"), [(10, 3), (10, 4), (11, 4), (10, 5), (3, 3)])
@pytest.mark.parametrize("order", ["sorted", "appearance"])
def test_the_library_s_groups_are_ours(mode, ids, size, order):
    partitioner = import_module("flwr_datasets.partitioner")
    user = np.random.default_rng(ids).permutation(np.arange(60) % ids)
    theirs = {"drop-remainder": "drop-reminder"}.get(mode, mode)
    grouped = partitioner.GroupedNaturalIdPartitioner("user", size, theirs, sort_unique_ids=order == "sorted")
    assert members(assignment_from(grouped, Examples({"user": user}))) == members(grouped_natural(user, size, mode, order))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("IidPartitioner", {"num_partitions": 7}),
        ("DirichletPartitioner", {"num_partitions": 5, "partition_by": "label", "alpha": 0.5, "min_partition_size": 0}),
        ("InnerDirichletPartitioner", {"partition_sizes": [30] * 4, "partition_by": "label", "alpha": 1.0}),
        (
            "PathologicalPartitioner",
            {
                "num_partitions": 5,
                "partition_by": "label",
                "num_classes_per_partition": 2,
                "class_assignment_mode": "deterministic",
            },
        ),
        ("ShardPartitioner", {"num_partitions": 5, "partition_by": "label", "num_shards_per_partition": 2, "shard_size": 12}),
        ("ContinuousPartitioner", {"num_partitions": 4, "partition_by": "weight", "strictness": 0.5}),
        ("SizePartitioner", {"partition_sizes": [20, 100]}),
        ("LinearPartitioner", {"num_partitions": 4}),
    ],
)
def test_every_example_of_the_library_s_partitioners_is_held_once_and_is_the_one_they_say(name, settings):
    library = import_module("flwr_datasets.partitioner")
    columns = {"label": np.random.default_rng(0).integers(0, 5, 120), "weight": np.random.default_rng(1).normal(size=120)}
    partitioner = getattr(library, name)(**settings)
    clients = assignment_from(partitioner, Examples(columns))
    assert sorted(clients.examples) == list(range(120))
    for k in range(len(clients)):
        part = partitioner.load_partition(k)
        for column in columns:
            assert part[column][:] == columns[column][clients.of_client(k)].tolist()
