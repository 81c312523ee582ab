"""Build a model by name, ready for federated learning: norm, head, weights and frozen parameters from one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedlens.models import surgery
from fedlens.models.dropout import keyed_dropout_
from fedlens.models.pretrained import imagenet_file, load_pretrained
from fedlens.registry import Registry

# A builder makes a module of (classes, channels, image size or None for its own), with torch's global generator.
Builder = Callable[[int, int, int | None], nn.Module]
MODELS: Registry[Builder] = Registry("model")


def create_model(
    name: str,
    classes: int,
    *,
    channels: int = 3,
    image_size: int | None = None,
    norm: Literal["batch", "group", "frozen"] | None = None,
    groups: int | None = None,
    norm_init: Literal["fresh", "affine"] = "fresh",
    bottleneck: int | None = None,
    pretrained: str | Path | None = None,
    freeze: str | Sequence[str] | None = None,
    seed: int = 0,
) -> nn.Module:
    """Build a registered model on the CPU: the same arguments give the same weights, whatever was drawn before.

    image_size  in pixels, where the architecture depends on it; None for its own
    norm        'group' or 'frozen' replaces every BatchNorm (see `replace_batch_norm`, also for groups), 'batch' keeps it
    norm_init   what GroupNorm takes from pretrained BatchNorm: nothing ('fresh'), or weight and bias ('affine')
    bottleneck  units of a linear layer between features and classifier
    pretrained  'imagenet' (torchvision's, from torch.hub's folder; never downloaded) or the path of a weights file
    freeze      glob patterns of parameter names, or 'backbone' for all but the head

    `model.loaded` says what came from the weights file; None without one.
    Dropout is keyed: call `set_dropout_key` before each training step, or all steps have the same mask.
    """
    builder = MODELS.get(name)
    check_counts(classes=classes, channels=channels, image_size=image_size, groups=groups, bottleneck=bottleneck)
    check_norm(norm, groups, norm_init, pretrained)
    if pretrained == "imagenet" and channels != 3:
        raise ValueError(f"channels={channels}: ImageNet weights are for 3 channels; leave out channels or pretrained")
    file = imagenet_file(name) if pretrained == "imagenet" else pretrained
    # Only the CPU's generator is seeded, and put back afterwards; `torch.manual_seed` would set those of all devices.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        model = builder(classes, channels, image_size)
        head = surgery.find_head(model, classes)
        if bottleneck is not None:
            set_bottleneck(name, model, head, classes, bottleneck)
        if norm is not None:
            set_norm(name, model, norm, groups)
        keyed_dropout_(model)
    # Weights come after the surgery: then FrozenBatchNorm takes the statistics of the file's BatchNorm.
    loaded = load_pretrained(model, Path(file), head, norm_init) if file is not None else None
    model.loaded = loaded  # type: ignore[assignment]
    if freeze is not None:
        surgery.freeze(model, freeze, head)
    return model


def check_counts(**counts: int | None) -> None:
    for argument, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{argument}={count}, expected at least 1")


def check_norm(norm: str | None, groups: int | None, norm_init: str, pretrained: str | Path | None) -> None:
    if norm not in (None, "batch", "group", "frozen"):
        raise ValueError(f"norm={norm!r}, expected 'batch', 'group', 'frozen' or None")
    if norm_init not in ("fresh", "affine"):
        raise ValueError(f"norm_init={norm_init!r}, expected 'fresh' or 'affine'")
    if groups is not None and norm != "group":
        raise ValueError(f"groups={groups} with norm={norm!r}: groups are for norm='group'")
    if norm_init == "affine" and (norm != "group" or pretrained is None):
        raise ValueError("norm_init='affine' needs norm='group' and pretrained weights to take BatchNorm's from")


def set_norm(name: str, model: nn.Module, norm: Literal["batch", "group", "frozen"], groups: int | None) -> None:
    if norm == "batch":
        layers = sum(isinstance(layer, _BatchNorm) for layer in model.modules())
    else:
        layers = surgery.replace_batch_norm(model, norm, groups)
    if not layers:
        raise ValueError(f"norm='{norm}' is about BatchNorm layers, and model '{name}' has none; leave norm out")


def set_bottleneck(name: str, model: nn.Module, head: str | None, classes: int, bottleneck: int) -> None:
    if head is None:
        raise ValueError(f"bottleneck={bottleneck}: model '{name}' does not end in a linear layer of {classes} outputs")
    surgery.replace_head(model, head, classes, bottleneck)
