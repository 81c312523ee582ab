"""Data: examples, the population that holds them, partitions and sources."""

from fedlens.data.examples import Examples
from fedlens.data.partitions import (
    IID,
    PARTITIONS,
    ClassDirichlet,
    FedCVLDA,
    HsuDirichlet,
    Natural,
    Pachinko,
    Partition,
    Pathological,
    Quantity,
    Shards,
    federate,
)
from fedlens.data.population import Assignment, Federation, Population
from fedlens.data.sources import CIFAR10, CIFAR100, SOURCES, FashionMNIST, FashionMNISTMini, Packed, Source
from fedlens.data.statistics import describe, mean_earth_movers_distance

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "IID",
    "PARTITIONS",
    "SOURCES",
    "Assignment",
    "ClassDirichlet",
    "Examples",
    "FashionMNIST",
    "FashionMNISTMini",
    "FedCVLDA",
    "Federation",
    "HsuDirichlet",
    "Natural",
    "Pachinko",
    "Packed",
    "Partition",
    "Pathological",
    "Population",
    "Quantity",
    "Shards",
    "Source",
    "describe",
    "federate",
    "mean_earth_movers_distance",
]
