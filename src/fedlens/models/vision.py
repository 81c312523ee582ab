"""Networks of torchvision, built with random weights and without fetching anything."""

from __future__ import annotations

import torch
import torchvision.models
from torch import nn

from fedlens.models.create import MODELS, Builder

RESNET = "He et al. 2016, Deep Residual Learning for Image Recognition"
MOBILENET_V3 = "Howard et al. 2019, Searching for MobileNetV3"
PAPERS = {
    "resnet18": RESNET,
    "resnet34": RESNET,
    "resnet50": RESNET,
    "mobilenet_v2": "Sandler et al. 2018, MobileNetV2: Inverted Residuals and Linear Bottlenecks",
    "mobilenet_v3_small": MOBILENET_V3,
    "mobilenet_v3_large": MOBILENET_V3,
    "efficientnet_b0": "Tan & Le 2019, EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks",
    "vit_b_16": "Dosovitskiy et al. 2021, An Image Is Worth 16x16 Words: Transformers for Image Recognition at Scale",
}


def torchvision_builder(name: str) -> Builder:
    """The builder of one torchvision network. All but the vision transformer take images of any size."""

    def build(classes: int, channels: int, image_size: int | None) -> nn.Module:
        size = {"image_size": transformer_image_size(image_size)} if name == "vit_b_16" else {}
        model = torchvision.models.get_model(name, weights=None, num_classes=classes, **size)
        if channels != 3:
            replace_first_convolution(model, channels)
        return model

    build.__doc__ = f"torchvision's {name}, with another first convolution for images that have not 3 channels."
    return build


def transformer_image_size(image_size: int | None) -> int:
    size = image_size or 224
    if size % 16:
        raise ValueError(f"image_size={size}: vit_b_16 cuts images into 16×16 patches, so give a multiple of 16")
    return size


def replace_first_convolution(model: nn.Module, channels: int) -> None:
    """Let a network take images of another number of channels: its first convolution fresh, initialised by PyTorch."""
    convolution = next(layer for layer in model.modules() if isinstance(layer, nn.Conv2d))
    convolution.in_channels = channels
    convolution.weight = nn.Parameter(torch.empty(convolution.out_channels, channels, *convolution.kernel_size))
    convolution.reset_parameters()


for _name, _paper in PAPERS.items():
    MODELS.register(_name, paper=_paper)(torchvision_builder(_name))


@MODELS.register("resnet18_cifar", paper=RESNET)
def resnet18_cifar(classes: int, channels: int, image_size: int | None) -> nn.Module:
    """ResNet-18 for small images: a 3×3 stem of stride 1 and no max-pooling, so that 32 pixels end as 4×4, not 1×1."""
    model = torchvision.models.resnet18(weights=None, num_classes=classes)
    model.conv1 = nn.Conv2d(channels, 64, kernel_size=3, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")  # as its other convolutions
    model.maxpool = nn.Identity()
    return model
