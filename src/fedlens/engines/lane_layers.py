"""Layers that take one weight for all images, or one for each lane.

    y[l, b] = layer(x[l, b]; w[l])        x [L · B, …]: the images of lane 0, then those of lane 1, …;  w [L, …]

Whatever has no parameters (activations, pooling, residual sums) treats every image by itself and stays as it is, so a
network of such layers is a network of lanes: hand it stacked weights through `functional_call`, and one backward pass gives
every lane its own gradient. A module of an unknown kind that holds parameters is vectorised whole, by `torch.func.vmap`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet
from torchvision.models.vision_transformer import Encoder, VisionTransformer
from torchvision.ops.misc import Conv2dNormActivation

from fedlens.engines import lane_functions
from fedlens.engines.lane_blocks import LaneBasicBlock, LaneBottleneck, LaneConvolutionNormActivation, LaneResNet
from fedlens.engines.lane_functions import (
    Convolution,
    DepthwiseConvolution,
    GroupedConvolution,
    GroupNorm,
    MaxPool,
    apart,
    cut_off,
    destination,
    lane_linear,
    per_image,
    together,
)
from fedlens.engines.lane_transformers import LaneEncoder, LaneMultiheadAttention, LaneVisionTransformer
from fedlens.models.dropout import KeyedDropout, keyed_uniform
from fedlens.models.surgery import FrozenBatchNorm


class LaneConv2d(nn.Conv2d):
    """Convolution: by kernels that give each lane its own weight, or as a grouped one where there is none."""

    def forward(self, x: Tensor) -> Tensor:
        geometry = self.stride, self.padding, self.dilation
        if self.weight.ndim == 4:  # frozen: one weight for all
            y = F.conv2d(x, self.weight, None, *geometry, self.groups)  # type: ignore[arg-type]
        elif (own := self.kernel_geometry(x)) is not None and self.groups == 1:
            return Convolution.apply(x, self.weight, self.lane_bias(), own, destination(self.weight))
        elif own is not None and self.groups == self.in_channels == self.out_channels:
            y = DepthwiseConvolution.apply(x, self.weight, own, destination(self.weight))
        else:
            y = GroupedConvolution.apply(x, self.weight, geometry, self.groups)
        return y if self.bias is None else y + per_image(self.bias, 1, y)

    def kernel_geometry(self, x: Tensor) -> Any:
        """What our kernels need to know of this convolution; None where they do not apply."""
        square = len({*self.stride}) == len({*self.dilation}) == 1 and (self.stride[0] == 1 or self.dilation[0] == 1)
        if not lane_functions.by_kernels(x) or not square:
            return None
        from fedlens.engines.lane_kernels import Geometry

        geometry = Geometry(self.stride[0], (int(self.padding[0]), int(self.padding[1])), self.dilation[0])
        height, width = geometry.outputs(x.shape, self.weight.shape)
        images = len(x) // len(self.weight)
        largest = max(x[0].numel(), self.out_channels * height * width)
        return geometry if images * largest < 2**31 else None  # places within a lane are counted in 32 bits

    def lane_bias(self) -> Tensor | None:
        """The bias of each lane [L, O], also where it is frozen and the weight is not."""
        return self.bias if self.bias is None or self.bias.ndim == 2 else self.bias.expand(len(self.weight), -1)


class LaneLinear(nn.Linear):
    """Linear map: a batched matrix product."""

    def forward(self, x: Tensor) -> Tensor:
        return lane_linear(x, self.weight, self.bias)


class LaneGroupNorm(nn.GroupNorm):
    cuts_off = True

    def forward(self, x: Tensor, shortcut: Tensor | None = None, cap: float | None = None) -> Tensor:
        """The norm; with a `cap`, what often follows: plus a shortcut, cut off below 0 and above that."""
        if lane_functions.by_kernels(x) and x.ndim == 4:
            weight, bias = (v if v is None or v.ndim == 2 else v[None] for v in (self.weight, self.bias))
            if (weight is None) == (bias is None) and (weight is None or len(weight) == len(bias)):
                into = tuple(None if v is None or v.ndim == 1 else destination(v) for v in (self.weight, self.bias))
                return GroupNorm.apply(x, weight, bias, shortcut, self.num_groups, self.eps, cap, into)
        return cut_off(self.normed(x), shortcut, cap)

    def normed(self, x: Tensor) -> Tensor:
        y = F.group_norm(x, self.num_groups, eps=self.eps)
        return torch.addcmul(per_image(self.bias, 1, y), y, per_image(self.weight, 1, y)) if self.affine else y


LARGEST = 16  # window of a pooling kernel, which unrolls it


class LaneMaxPool2d(nn.MaxPool2d):
    """Nothing in it belongs to a lane; the kernels are faster where channels lie innermost."""

    def forward(self, x: Tensor) -> Any:
        sizes = [(value, value) if isinstance(value, int) else value for value in (self.kernel_size, self.stride, self.padding)]
        plain = not self.ceil_mode and not self.return_indices and self.dilation == 1 and all(a == b < LARGEST for a, b in sizes)
        if lane_functions.by_kernels(x) and x.ndim == 4 and plain and x[:, 0].numel() < 2**31:  # kernels count pixels in 32 bits
            return MaxPool.apply(x, *(size[0] for size in sizes))
        return super().forward(x)


class LaneLayerNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        y, own = F.layer_norm(x, self.normalized_shape, eps=self.eps), len(self.normalized_shape)
        weight, bias = (None if v is None else per_image(v, own, y, last=True) for v in (self.weight, self.bias))
        if weight is None:
            return y
        return y * weight if bias is None else torch.addcmul(bias, y, weight)


class LaneFrozenBatchNorm(FrozenBatchNorm):
    def forward(self, x: Tensor) -> Tensor:
        scale = (self.running_var + self.eps).rsqrt()
        if self.weight is not None:
            scale = scale * self.weight  # [C] or [L, C]
        shift = -self.running_mean * scale
        if self.bias is not None:
            shift = shift + self.bias
        return torch.addcmul(per_image(shift, 1, x), x, per_image(scale, 1, x))


class LaneBatchNorm(_BatchNorm):
    """BatchNorm over the images of each lane; every lane has running statistics of its own."""

    def forward(self, x: Tensor) -> Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        lanes = len(self.running_mean)
        if not self.training:  # a model of one's own may hold it still
            scale = (self.running_var + self.eps).rsqrt()
            y = torch.addcmul(per_image(-self.running_mean * scale, 1, x), x, per_image(scale, 1, x))
            return torch.addcmul(per_image(self.bias, 1, y), y, per_image(self.weight, 1, y)) if self.affine else y
        grouped = together(x, lanes)  # [B, L · C, …]
        mean, variance = (x.new_zeros(grouped.shape[1], dtype=torch.float32) for _ in range(2))
        y = apart(F.batch_norm(grouped, mean, variance, training=True, momentum=1.0, eps=self.eps), lanes)
        self.num_batches_tracked.add_(1)
        factor = 1 / self.num_batches_tracked[:, None].float() if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.view(lanes, -1), factor)
        self.running_var.lerp_(variance.view(lanes, -1), factor)
        return torch.addcmul(per_image(self.bias, 1, y), y, per_image(self.weight, 1, y)) if self.affine else y

    def _check_input_dim(self, input: Tensor) -> None:
        pass


class LaneKeyedDropout(KeyedDropout):
    """Every lane's mask is the one that its key gives to a batch of its own."""

    def forward(self, x: Tensor) -> Tensor:
        if self.key.ndim == 0 or self.p == 0 or not self.training:
            return super().forward(x)
        lanes = x.unflatten(0, (len(self.key), -1))
        shape = self.mask_shape(lanes.shape[1:])
        uniform = vmap(lambda key: keyed_uniform(key, self.layer, shape, x.device))(self.key)  # [L, B, …]
        scale = 1 / (1 - self.p) if self.p < 1 else 0.0
        return (lanes * ((uniform >= self.p).to(x.dtype) * scale)).flatten(0, 1)


LANE_LAYERS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: LaneConv2d,
    nn.Linear: LaneLinear,
    nn.GroupNorm: LaneGroupNorm,
    nn.LayerNorm: LaneLayerNorm,
    nn.MaxPool2d: LaneMaxPool2d,
    nn.MultiheadAttention: LaneMultiheadAttention,
    FrozenBatchNorm: LaneFrozenBatchNorm,
    KeyedDropout: LaneKeyedDropout,
    **{kind: type(f"Lane{kind.__name__}", (LaneBatchNorm, kind), {}) for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)},
}


COMPOSED: dict[type[nn.Module], type[nn.Module]] = {  # of layers, perhaps beside parameters of their own
    VisionTransformer: LaneVisionTransformer,
    Encoder: LaneEncoder,
    ResNet: LaneResNet,
    BasicBlock: LaneBasicBlock,
    Bottleneck: LaneBottleneck,
    Conv2dNormActivation: LaneConvolutionNormActivation,
}


CONVERTED = {*LANE_LAYERS.values(), *COMPOSED.values()}


def lanes_(model: nn.Module) -> None:
    """Let every layer take a weight for each lane (in place; names and shapes of parameters stay as they are)."""
    if type(model) in CONVERTED or hasattr(model, "plain"):  # met before, under another name
        return
    holds = [value for value in model._parameters.values() if value is not None] or model._buffers
    kind = type(model)
    if isinstance(model, _BatchNorm) and not model.track_running_stats:
        raise ValueError("BatchNorm without running statistics cannot be kept apart by lanes; use the sequential engine")
    if kind in COMPOSED:
        model.__class__ = COMPOSED[kind]
        for child in model.children():
            lanes_(child)
    elif kind in LANE_LAYERS and not (isinstance(model, nn.Conv2d) and unusual(model)):
        model.__class__ = LANE_LAYERS[kind]
    elif holds:
        if any(isinstance(module, _NormBase) and module.track_running_stats for module in model.modules()):
            raise ValueError(f"{kind.__name__} holds running statistics, which cannot be kept apart by lanes")
        model.__class__ = vmapped(kind)
        model.plain = {name: value.ndim for name, value in named_tensors(model).items()}  # type: ignore[assignment]
    else:
        for child in model.children():
            lanes_(child)


def unusual(convolution: nn.Conv2d) -> bool:
    return convolution.padding_mode != "zeros" or isinstance(convolution.padding, str)


def vmapped(kind: type[nn.Module]) -> type[nn.Module]:
    """A kind of module that runs lane by lane in one sweep where its tensors are stacked."""

    def forward(self: Any, x: Tensor) -> Tensor:
        tensors = named_tensors(self)
        stacked = {name: value for name, value in tensors.items() if value.ndim > self.plain[name]}
        if not stacked:
            return kind.forward(self, x)
        one = vmap(lambda values, images: functional_call(self, values, (images,)))
        lanes = len(next(iter(stacked.values())))
        with sdpa_kernel(SDPBackend.MATH):  # the other ways to attend know no vmap
            return one(stacked, x.unflatten(0, (lanes, -1))).flatten(0, 1)

    return type(f"Lane{kind.__name__}", (kind,), {"forward": forward})


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters()) | dict(module.named_buffers())
