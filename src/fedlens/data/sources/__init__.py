"""Where examples come from: one file a data set."""

from fedlens.data.sources.base import SOURCES, Source, Sources
from fedlens.data.sources.cifar import CIFAR10, CIFAR100
from fedlens.data.sources.fashion_mnist import FashionMNIST, FashionMNISTMini
from fedlens.data.sources.packed import Packed

__all__ = ["CIFAR10", "CIFAR100", "SOURCES", "FashionMNIST", "FashionMNISTMini", "Packed", "Source", "Sources"]
