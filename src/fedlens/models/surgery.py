"""Change a finished model for federated learning: norms without batch statistics, another head, frozen parameters."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision.models import EfficientNet, MobileNetV2, MobileNetV3

from fedlens.registry import nearest

# Hsu et al. 2020 give MobileNetV2 8 groups, which divide all widths of these families; 32 would not.
FAMILIES_OF_8_GROUPS = (MobileNetV2, MobileNetV3, EfficientNet)


def set_layer(model: nn.Module, name: str, layer: nn.Module) -> None:
    """Put a layer in the place of the one with this name."""
    if not name:
        raise ValueError("the model is itself the layer to replace, which cannot be done in place; wrap it in nn.Sequential")
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, layer)


def replace_layers(model: nn.Module, convert: Callable[[str, nn.Module], nn.Module | None]) -> int:
    """Put `convert(name, layer)` in the place of every layer for which it is not None (in place); the number of them."""
    replacements: dict[nn.Module, nn.Module] = {}
    # A layer that the model holds under two names must stay one layer: so visit both names, and convert it once.
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        replacement = replacements.get(layer) or convert(name, layer)
        if replacement is None:
            continue
        # On the device and in the precision of the layer, or of the model where the layer has no tensor to tell.
        like = next(chain(layer.parameters(), layer.buffers(), model.parameters()), None)
        replacements[layer] = replacement.train(layer.training).to(like) if like is not None else replacement
        set_layer(model, name, replacement)
    return len(replacements)


class FrozenBatchNorm(nn.Module):
    """BatchNorm that always normalises by its running statistics and never changes them; weight and bias are trained.

    y = weight · (x − running_mean) / √(running_var + eps) + bias, channel by channel.
    Loads state dicts of BatchNorm as they are.
    """

    constant_buffers = True  # they never travel (see `Layout.of_statistics`)
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float = 1e-5, affine: bool = True):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        scale = (self.running_var + self.eps).rsqrt()
        if self.weight is not None:
            scale = scale * self.weight
        shift = -self.running_mean * scale
        if self.bias is not None:
            shift = shift + self.bias
        per_channel = (-1,) + (1,) * (x.ndim - 2)
        return torch.addcmul(shift.view(per_channel), x, scale.view(per_channel))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict.pop(f"{prefix}num_batches_tracked", None)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        return f"{self.running_mean.numel()}, eps={self.eps}, affine={self.weight is not None}"


def replace_batch_norm(model: nn.Module, norm: Literal["group", "frozen"], groups: int | None = None) -> int:
    """Replace every BatchNorm by GroupNorm or by FrozenBatchNorm (in place); the number of layers replaced.

    GroupNorm starts fresh. Without `groups` it has 8 in MobileNets and EfficientNets (Hsu et al. 2020) and 32, or one a
    channel where those are fewer, elsewhere (FLAIR). FrozenBatchNorm takes over what the layer holds.
    """
    if groups is None and isinstance(model, FAMILIES_OF_8_GROUPS):
        groups = 8

    def convert(name: str, layer: nn.Module) -> nn.Module | None:
        if not isinstance(layer, _BatchNorm):
            return None
        return group_norm(name, layer, groups) if norm == "group" else frozen_batch_norm(name, layer)

    return replace_layers(model, convert)


def group_norm(name: str, layer: _BatchNorm, groups: int | None) -> nn.GroupNorm:
    channels = layer.num_features
    groups = min(32, channels) if groups is None else groups
    if groups < 1 or channels % groups:
        raise ValueError(f"layer '{name}': {groups} groups do not divide its {channels} channels; give groups= that do")
    return nn.GroupNorm(groups, channels, affine=layer.affine)


def frozen_batch_norm(name: str, layer: _BatchNorm) -> FrozenBatchNorm:
    if layer.running_mean is None:
        raise ValueError(f"layer '{name}' keeps no running statistics that could be frozen; use norm='group'")
    frozen = FrozenBatchNorm(layer.num_features, layer.eps, layer.affine)
    frozen.load_state_dict(layer.state_dict(), assign=True)
    return frozen


def find_head(model: nn.Module, classes: int) -> str | None:
    """The name of the classifier: the last linear layer, if it has one output for each class; otherwise None."""
    linear = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    return linear[-1][0] if linear and linear[-1][1].out_features == classes else None


def replace_head(model: nn.Module, head: str, classes: int, bottleneck: int | None = None) -> None:
    """Put a fresh classifier in the place of linear layer `head` (in place).

    With a bottleneck, a linear layer without activation stands before it (64 units in Hsu et al. 2020, for Landmarks).
    """
    old = model.get_submodule(head)
    if not isinstance(old, nn.Linear):
        raise ValueError(f"head '{head}' is {type(old).__name__}, expected the name of a linear layer")
    new: nn.Module = nn.Linear(bottleneck or old.in_features, classes)
    if bottleneck is not None:
        new = nn.Sequential(OrderedDict(bottleneck=nn.Linear(old.in_features, bottleneck), classifier=new))
    set_layer(model, head, new.to(old.weight))


def freeze(model: nn.Module, patterns: str | Sequence[str], head: str | None = None) -> None:
    """Exclude parameters from training: those with names that match a glob; the word 'backbone' is all but the head."""
    parameters = dict(model.named_parameters())
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if pattern == "backbone" and head is None:
            raise ValueError("freeze='backbone': the model has no known head to tell from it; give patterns of names")
        if pattern == "backbone":
            matches = [name for name in parameters if not name.startswith(f"{head}.")]
        else:
            matches = [name for name in parameters if fnmatchcase(name, pattern)]
        if not matches:
            raise ValueError(f"freeze='{pattern}' matches no parameter: {nearest(pattern, parameters)}")
        for name in matches:
            parameters[name].requires_grad_(False)
