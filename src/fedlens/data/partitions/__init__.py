"""Who holds what: pure functions from labels or ids to an `Assignment`, and the parts that name them."""

from fedlens.data.partitions.base import IID, PARTITIONS, Natural, Partition, federate, iid, natural
from fedlens.data.partitions.dirichlet import (
    ClassDirichlet,
    FedCVLDA,
    HsuDirichlet,
    Pachinko,
    class_dirichlet,
    hsu_dirichlet,
    pachinko,
)
from fedlens.data.partitions.quantity import Quantity
from fedlens.data.partitions.shards import Pathological, Shards, pathological, shards

__all__ = [
    "IID",
    "PARTITIONS",
    "ClassDirichlet",
    "FedCVLDA",
    "HsuDirichlet",
    "Natural",
    "Pachinko",
    "Partition",
    "Pathological",
    "Quantity",
    "Shards",
    "class_dirichlet",
    "federate",
    "hsu_dirichlet",
    "iid",
    "natural",
    "pachinko",
    "pathological",
    "shards",
]
