"""Where examples come from: one file a data set."""

from fedlens.data.sources.base import SOURCES, About, Files, PictureFiles, Source, Sources
from fedlens.data.sources.celeba import CelebA
from fedlens.data.sources.cifar import CIFAR10, CIFAR100
from fedlens.data.sources.coco import COCO
from fedlens.data.sources.fashion_mnist import FashionMNIST, FashionMNISTMini
from fedlens.data.sources.flair import FLAIR
from fedlens.data.sources.hub import Hub
from fedlens.data.sources.image_folder import ImageFolder
from fedlens.data.sources.inaturalist import INaturalist, INaturalistRaw
from fedlens.data.sources.landmarks import Landmarks, LandmarksRaw
from fedlens.data.sources.leaf import LEAFFEMNIST, LEAFCelebA
from fedlens.data.sources.mnist import EMNIST, MNIST
from fedlens.data.sources.packed import Packed
from fedlens.data.sources.sbd import SBD
from fedlens.data.sources.shapes import Shapes
from fedlens.data.sources.tff import TFFCIFAR100, TFFEMNIST, TFFCelebA
from fedlens.data.sources.tfrecords import TFRecords
from fedlens.data.sources.voc import VOC

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "COCO",
    "EMNIST",
    "FLAIR",
    "LEAFFEMNIST",
    "MNIST",
    "SBD",
    "SOURCES",
    "TFFCIFAR100",
    "TFFEMNIST",
    "VOC",
    "About",
    "CelebA",
    "FashionMNIST",
    "FashionMNISTMini",
    "Files",
    "Hub",
    "INaturalist",
    "INaturalistRaw",
    "ImageFolder",
    "LEAFCelebA",
    "Landmarks",
    "LandmarksRaw",
    "Packed",
    "PictureFiles",
    "Shapes",
    "Source",
    "Sources",
    "TFFCelebA",
    "TFRecords",
]
