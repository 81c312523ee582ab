"""Small convolutional networks of the federated learning papers, for images of about 30 pixels."""

from __future__ import annotations

from torch import Tensor, nn

from fedlens.models.create import MODELS

MCMAHAN = "McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized Data"
HSU = "Hsu et al. 2020, Federated Visual Classification with Real-World Data Distribution"


class SmallCNN(nn.Module):
    """Two 5×5 convolutions, each with 2×2 max-pooling, then fully connected layers; ReLU between all of them."""

    def __init__(
        self,
        image_size: int,
        channels: int,
        classes: int,
        *,
        filters: tuple[int, int],
        hidden: tuple[int, ...],
        padding: int,
    ):
        super().__init__()
        side = image_size
        for _ in filters:
            side = (side + 2 * padding - 4) // 2
        if side < 1:
            raise ValueError(f"image_size={image_size}: nothing is left after two convolutions and poolings; enlarge it")
        first, second = filters
        self.features = nn.Sequential(_pooled(channels, first, padding), _pooled(first, second, padding))
        inputs = (second * side**2, *hidden[:-1])
        self.hidden = nn.Sequential(*(_dense(*sizes) for sizes in zip(inputs, hidden, strict=True)))
        self.classifier = nn.Linear(hidden[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.hidden(self.features(x).flatten(1)))


def _pooled(inputs: int, outputs: int, padding: int) -> nn.Sequential:
    # ReLU is monotone, so after the maximum it gives the same numbers as before it, for a quarter of the work.
    return nn.Sequential(nn.Conv2d(inputs, outputs, 5, padding=padding), nn.MaxPool2d(2), nn.ReLU(inplace=True))


def _dense(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(inplace=True))


@MODELS.register("cnn_mcmahan", paper=MCMAHAN)
def cnn_mcmahan(classes: int, channels: int, image_size: int | None) -> nn.Module:
    """The MNIST network of the FedAvg paper; 582,026 parameters for 10 classes of 28×28×1."""
    return SmallCNN(image_size or 28, channels, classes, filters=(32, 64), hidden=(512,), padding=0)


@MODELS.register("cnn_hsu", paper=HSU)
def cnn_hsu(classes: int, channels: int, image_size: int | None) -> nn.Module:
    """The CIFAR network of Hsu et al., padded to keep its size; 1,756,426 parameters for 10 classes of 32×32×3."""
    return SmallCNN(image_size or 32, channels, classes, filters=(64, 64), hidden=(384, 192), padding=2)


@MODELS.register("cnn_hsu_valid", paper=HSU)
def cnn_hsu_valid(classes: int, channels: int, image_size: int | None) -> nn.Module:
    """The CIFAR network of Hsu et al. without padding, which the paper leaves open; 797,962 parameters."""
    return SmallCNN(image_size or 32, channels, classes, filters=(64, 64), hidden=(384, 192), padding=0)
