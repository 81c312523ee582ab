"""Blocks of convolutional networks in lanes: a norm, the shortcut and the rectifier behind it are one layer, not three."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet
from torchvision.ops.misc import Conv2dNormActivation


def rectified(norm: nn.Module, x: Tensor, rectifier: nn.Module, shortcut: Tensor | None = None) -> Tensor:
    """rectifier(norm(x) + shortcut), in one layer where there is one for it."""
    cap = {nn.ReLU: math.inf, nn.ReLU6: 6.0}.get(type(rectifier))
    if cap is not None and getattr(norm, "cuts_off", False):
        return norm(x, shortcut, cap)
    y = norm(x)
    return rectifier(y if shortcut is None else y + shortcut)


class LaneBasicBlock(BasicBlock):
    """Two convolutions of a ResNet beside a shortcut."""

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = rectified(self.bn1, self.conv1(x), self.relu)
        return rectified(self.bn2, self.conv2(y), self.relu, shortcut)


class LaneBottleneck(Bottleneck):
    """Three convolutions of a deeper one."""

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = rectified(self.bn1, self.conv1(x), self.relu)
        y = rectified(self.bn2, self.conv2(y), self.relu)
        return rectified(self.bn3, self.conv3(y), self.relu, shortcut)


class LaneResNet(ResNet):
    """The network around them, whose first norm sees the largest images."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(rectified(self.bn1, self.conv1(x), self.relu))
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = layer(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


class LaneConvolutionNormActivation(Conv2dNormActivation):
    """A convolution, its norm and an activation, as MobileNet and others stack them."""

    def forward(self, input: Tensor) -> Tensor:
        layers = list(self)
        if len(layers) != 3:
            return super().forward(input)
        convolution, norm, activation = layers
        return rectified(norm, convolution(input), activation)
