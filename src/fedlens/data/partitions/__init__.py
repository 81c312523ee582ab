"""Who holds what: pure functions from labels or ids to an `Assignment`, and the parts that name them."""

from fedlens.data.partitions.base import IID, PARTITIONS, Aside, Natural, Partition, federate, iid, natural
from fedlens.data.partitions.dirichlet import (
    ClassDirichlet,
    FedCVLDA,
    HsuDirichlet,
    Pachinko,
    class_dirichlet,
    hsu_dirichlet,
    pachinko,
)
from fedlens.data.partitions.geographic import Geographic, s2_adaptive
from fedlens.data.partitions.grouped import GroupedNatural, grouped_natural
from fedlens.data.partitions.multilabel import (
    CocoGreedy,
    DominantClassLDA,
    FirstClassLDA,
    RarestClassLDA,
    coco_greedy,
    dominant_class,
    first_class,
    rarest_class,
)
from fedlens.data.partitions.published import Published
from fedlens.data.partitions.quantity import Quantity
from fedlens.data.partitions.shards import Pathological, Shards, pathological, shards
from fedlens.data.partitions.views import Shift

__all__ = [
    "IID",
    "PARTITIONS",
    "Aside",
    "ClassDirichlet",
    "CocoGreedy",
    "DominantClassLDA",
    "FedCVLDA",
    "FirstClassLDA",
    "Geographic",
    "GroupedNatural",
    "HsuDirichlet",
    "Natural",
    "Pachinko",
    "Partition",
    "Pathological",
    "Published",
    "Quantity",
    "RarestClassLDA",
    "Shards",
    "Shift",
    "class_dirichlet",
    "coco_greedy",
    "dominant_class",
    "federate",
    "first_class",
    "grouped_natural",
    "hsu_dirichlet",
    "iid",
    "natural",
    "pachinko",
    "pathological",
    "rarest_class",
    "s2_adaptive",
    "shards",
]
