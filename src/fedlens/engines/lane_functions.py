"""Layers' arithmetic where every lane has a weight of its own: forward and backward, by kernels on a GPU.

    x [L · B, …]: the images of lane 0, then those of lane 1, …;   w [L, …]

Before their first step all lanes hold the same weight: then w has stride 0 over lanes, the forward pass and the gradient of the
images are ordinary operations on all images at once, and only the gradient of the weight is a lane's own.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LONG = 64  # a library's matrix product is faster than ours where it sums over so many numbers, and slower where there are few


def by_kernels(x: Tensor) -> bool:
    """Whether our own kernels compute what follows from x."""
    return x.is_cuda


def shared(w: Tensor) -> bool:
    """Whether all lanes hold the same weight."""
    return w.stride(0) == 0 or len(w) == 1


def destination(w: Tensor) -> Tensor | None:
    """Where the gradient of a weight belongs, for the first who asks: written there, it need not be copied there."""
    return w.__dict__.pop("destination", None)


class LinearMap(torch.autograd.Function):
    """y[l] = x[l] w[l]ᵀ + b[l]: a batched matrix product.   x [L · B, …, I], w [L, O, I], b [L, O] or None"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, into: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.into = into
        if shared(w) and (bias is None or shared(bias)):
            return F.linear(x, w[0], None if bias is None else bias[0])
        y = x.new_empty(*x.shape[:-1], w.shape[1])  # no view, or autograd forbids to change it in place
        rows = by_lane(y, w)
        torch.bmm(by_lane(x, w), w.mT, out=rows)
        if bias is not None and by_kernels(x):
            from fedlens.engines.channel_kernels import add_to_channels_

            add_to_channels_(rows, bias)
        elif bias is not None:
            rows += bias[:, None]
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x, w), dx, dw, db = ctx.saved_tensors, None, None, None
        rows, g = by_lane(x, w), by_lane(gradients[0].contiguous(), w)
        if ctx.needs_input_grad[0]:
            dx = (g @ w[0] if shared(w) else torch.bmm(g, w)).view(x.shape)
        if ctx.needs_input_grad[1]:
            dw = w.new_empty(w.shape) if ctx.into is None else ctx.into
            if by_kernels(x) and rows.shape[1] < LONG:
                from fedlens.engines.lane_kernels import Geometry, weight_gradient

                inputs, outputs = (value.contiguous().view(-1, value.shape[-1], 1, 1) for value in (rows, g))
                weight_gradient(inputs, outputs, dw[..., None, None], Geometry())
            else:
                torch.bmm(g.mT, rows, out=dw)
        if ctx.needs_input_grad[2] and by_kernels(x):
            from fedlens.engines.channel_kernels import channel_sums

            db = channel_sums(g.mT[..., None], len(w))
        elif ctx.needs_input_grad[2]:
            db = g.sum(1)
        return dx, dw, db, None


class Convolution(torch.autograd.Function):
    """A convolution with a weight for each lane, w [L, O, I, k, k], channels innermost: by our own kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, geometry: Any, into: Tensor | None) -> Tensor:
        from fedlens.engines.lane_kernels import convolve, in_fours

        x = in_fours(x)
        ctx.save_for_backward(x, w)
        ctx.geometry, ctx.into = geometry, into
        if shared(w) and w.shape[2] == x.shape[1]:  # with fewer channels, ours are faster than the library's
            return F.conv2d(x, w[0], None if bias is None else bias[0], geometry.stride, geometry.padding, geometry.dilation)
        return convolve(x, w, bias, geometry)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from fedlens.engines.channel_kernels import channel_sums
        from fedlens.engines.lane_kernels import input_gradient, weight_gradient

        (g,), (x, w), geometry = gradients, ctx.saved_tensors, ctx.geometry
        g = g.contiguous(memory_format=torch.channels_last)
        dx = dw = db = None
        if ctx.needs_input_grad[0] and shared(w):
            rest = [geometry.stride] * 2, geometry.padding, [geometry.dilation] * 2, False, (0, 0), 1, (True, False, False)
            dx = torch.ops.aten.convolution_backward(g, x[:, : w.shape[2]], w[0], None, *rest)[0]
        elif ctx.needs_input_grad[0]:
            dx = input_gradient(g, w, tuple(x.shape[2:]), geometry)
        if ctx.needs_input_grad[1]:
            dw = w.new_empty(w.shape) if ctx.into is None else ctx.into
            weight_gradient(x, g, dw, geometry)
        if ctx.needs_input_grad[2]:
            db = channel_sums(g, len(w))
        return dx, dw, db, None, None


class DepthwiseConvolution(torch.autograd.Function):
    """A convolution of each channel by itself, with a weight for each lane, w [L, C, 1, k, k]: by our own kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, geometry: Any, into: Tensor | None) -> Tensor:
        from fedlens.engines.depthwise_kernels import convolve

        x = x.contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(x, w)
        ctx.geometry, ctx.into = geometry, into
        return convolve(x, w, geometry)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from fedlens.engines.depthwise_kernels import input_gradient, weight_gradient

        (g,), (x, w), dx, dw = gradients, ctx.saved_tensors, None, None
        g = g.contiguous(memory_format=torch.channels_last)
        if ctx.needs_input_grad[0]:
            dx = input_gradient(g, w, (x.shape[2], x.shape[3]), ctx.geometry)
        if ctx.needs_input_grad[1]:
            dw = w.new_empty(w.shape) if ctx.into is None else ctx.into
            weight_gradient(x, g, dw, ctx.geometry)
        return dx, dw, None, None


class GroupedConvolution(torch.autograd.Function):
    """A convolution with a weight for each lane as a grouped one, a lane a group or several."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, geometry: tuple[Any, Any, Any], groups: int) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.geometry, ctx.groups = geometry, groups
        if shared(w):
            return F.conv2d(x, w[0], None, *geometry, groups)
        return apart(F.conv2d(together(x, len(w)), w.flatten(0, 1), None, *geometry, groups * len(w)), len(w))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,), (x, w) = gradients, ctx.saved_tensors
        lanes, (stride, padding, dilation) = len(w), ctx.geometry
        rest = stride, padding, dilation, False, (0, 0)
        dx = dw = None
        gradient = torch.ops.aten.convolution_backward
        grouped = together(g, lanes), together(x, lanes)
        if ctx.needs_input_grad[0] and shared(w):
            dx = gradient(g, x, w[0], None, *rest, ctx.groups, (True, False, False))[0]
        elif ctx.needs_input_grad[0]:
            dx = apart(gradient(*grouped, w.flatten(0, 1), None, *rest, ctx.groups * lanes, (True, False, False))[0], lanes)
        if ctx.needs_input_grad[1]:  # which does not depend on the weight, only on its shape
            shape = w.new_empty(w.shape).flatten(0, 1)
            dw = gradient(*grouped, shape, None, *rest, ctx.groups * lanes, (False, True, False))[1].view(w.shape)
        return dx, dw, None, None


class GroupNorm(torch.autograd.Function):
    """y = γ[l] (x − μ) / σ + β[l] with μ and σ of each image and group of channels, and γ, β [L, C] or None.

    With x̂ = (x − μ) / σ and h = γ g over the n numbers of a group:   dx = (h − Σ h / n − x̂ Σ h x̂ / n) / σ

    With a `cap`, min(max(y + shortcut, 0), cap) instead of y.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        shortcut: Tensor | None,
        groups: int,
        eps: float,
        cap: float | None,
        into: tuple[Any, Any],
    ) -> Tensor:
        from fedlens.engines.channel_kernels import group_norm

        x = x.contiguous(memory_format=torch.channels_last)
        beside = None if shortcut is None else shortcut.contiguous(memory_format=torch.channels_last)
        normed = group_norm(x, weight, bias, groups, eps, beside, cap)
        kept = normed.y if beside is not None else None  # to see where it was cut off
        ctx.save_for_backward(x, weight, bias, normed.mean, normed.deviation, normed.factor, normed.shift, kept)
        ctx.into, ctx.cap = into, cap
        return normed.y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from fedlens.engines.channel_kernels import Normed, group_norm_gradient, lane_sums

        x, weight, bias, *tables, y = ctx.saved_tensors
        g = gradients[0].contiguous(memory_format=torch.channels_last)
        normed = Normed(g if y is None else y, *tables)
        dx, total, product, passed = group_norm_gradient(g, x, weight, normed, y is not None, ctx.cap)
        own: list[Tensor | None] = [None, None]
        for place, (value, table) in enumerate(((weight, product), (bias, total))):
            if ctx.needs_input_grad[1 + place]:
                own[place] = lane_sums(table, value.new_empty(value.shape) if ctx.into[place] is None else ctx.into[place])
        return dx, *own, passed if ctx.needs_input_grad[3] else None, None, None, None, None


class MaxPool(torch.autograd.Function):
    """The largest of each window; its gradient goes where it was found."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: int, stride: int, padding: int) -> Tensor:
        from fedlens.engines.pool_kernels import max_pool

        y, which = max_pool(x.contiguous(memory_format=torch.channels_last), taps, stride, padding)
        ctx.save_for_backward(which)
        ctx.geometry = (x.shape[2], x.shape[3]), taps, stride, padding
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from fedlens.engines.pool_kernels import max_pool_gradient

        (g,), (which,) = gradients, ctx.saved_tensors
        return max_pool_gradient(g.contiguous(memory_format=torch.channels_last), which, *ctx.geometry), None, None, None


def lane_linear(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """x [L · B, …, I] by a weight for each lane, w [L, O, I] and bias [L, O], or by one for all."""
    if w.ndim == 2:
        if bias is None or bias.ndim == 1:
            return F.linear(x, w, bias)
        y = F.linear(x, w)
        return y + per_image(bias, 1, y, last=True)
    own = bias.expand(len(w), -1) if bias is not None and bias.ndim == 1 else bias
    return LinearMap.apply(x, w, own, destination(w))


def by_lane(x: Tensor, w: Tensor) -> Tensor:
    """The rows of each lane: [L · B, …, I] → [L, B · …, I]."""
    return x.reshape(len(w), -1, x.shape[-1])


def cut_off(y: Tensor, shortcut: Tensor | None, cap: float | None) -> Tensor:
    """y plus a shortcut, cut off below 0 and above `cap`, of which there may be none."""
    y = y if shortcut is None else y + shortcut
    if cap is None:
        return y
    return F.relu(y) if math.isinf(cap) else F.hardtanh(y, 0, cap)


def together(x: Tensor, lanes: int) -> Tensor:
    """Lanes side by side in the channels: [L · B, C, …] → [B, L · C, …]."""
    return x.unflatten(0, (lanes, -1)).transpose(0, 1).flatten(1, 2)


def apart(x: Tensor, lanes: int) -> Tensor:
    """Lanes one after another again: [B, L · C, …] → [L · B, C, …]."""
    return x.unflatten(1, (lanes, -1)).transpose(0, 1).flatten(0, 1)


def per_image(value: Tensor, own: int, x: Tensor, last: bool = False) -> Tensor:
    """Broadcast a layer's `value`, of `own` dimensions or with one more for lanes, against images x [L · B, …].

    Its dimensions are those after the first of x, or its `last` ones.
    """
    lanes = value if value.ndim > own else value[None]
    value = lanes[:, None].expand(-1, len(x) // len(lanes), *lanes.shape[1:]).flatten(0, 1).to(x.dtype)
    missing = x.ndim - value.ndim
    at = 1 if last else value.ndim
    return value.view(*value.shape[:at], *(1,) * missing, *value.shape[at:])
