"""Layers' arithmetic where every lane has a weight of its own: forward and backward, by kernels on a GPU.

    x [L · B, …]: the images of lane 0, then those of lane 1, …;   w [L, …]

Before their first step all lanes hold the same weight: then w has stride 0 over lanes, the forward pass and the gradient of the
images are ordinary operations on all images at once, and only the gradient of the weight is a lane's own.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def shared(w: Tensor) -> bool:
    """Whether all lanes hold the same weight."""
    return w.stride(0) == 0 or len(w) == 1


def destination(w: Tensor) -> Tensor | None:
    """Where the gradient of a weight belongs, for the first who asks: written there, it need not be copied there."""
    return w.__dict__.pop("destination", None)


class LinearMap(torch.autograd.Function):
    """y[l] = x[l] w[l]ᵀ: a batched matrix product.   x [L, R, I], w [L, O, I]"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, into: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.into = into
        return F.linear(x, w[0]) if shared(w) else torch.bmm(x, w.mT)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,), (x, w) = gradients, ctx.saved_tensors
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = g @ w[0] if shared(w) else torch.bmm(g, w)
        if ctx.needs_input_grad[1]:
            if x.is_cuda:
                from fedlens.engines.lane_kernels import Geometry, weight_gradient

                dw = w.new_empty(w.shape) if ctx.into is None else ctx.into
                x, g = (value.contiguous().view(-1, value.shape[-1], 1, 1) for value in (x, g))
                weight_gradient(x, g, dw[..., None, None], Geometry())
            else:
                dw = torch.bmm(g.mT, x)
        return dx, dw, None


class Convolution(torch.autograd.Function):
    """A convolution with a weight for each lane, w [L, O, I, k, k], channels innermost: by our own kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, geometry: Any, into: Tensor | None) -> Tensor:
        from fedlens.engines.lane_kernels import convolve

        x = x.contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(x, w)
        ctx.geometry, ctx.into = geometry, into
        if shared(w):
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
            dx = torch.ops.aten.convolution_backward(g, x, w[0], None, *rest)[0]
        elif ctx.needs_input_grad[0]:
            dx = input_gradient(g, w, tuple(x.shape[2:]), geometry)
        if ctx.needs_input_grad[1]:
            dw = w.new_empty(w.shape) if ctx.into is None else ctx.into
            weight_gradient(x, g, dw, geometry)
        if ctx.needs_input_grad[2]:
            db = channel_sums(g, rows=len(w))[0].to(g.dtype)
        return dx, dw, db, None, None


class GroupedConvolution(torch.autograd.Function):
    """A convolution with a weight for each lane as a grouped one, a lane a group or several: for CPUs and for depthwise ones."""

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
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float) -> Tensor:
        from fedlens.engines.channel_kernels import channel_affine, channel_sums

        x = x.contiguous(memory_format=torch.channels_last)
        images, channels, height, width = x.shape
        count = height * width * channels // groups
        first, second = channel_sums(x, x).view(2, images, groups, -1).sum(3) / count  # [N, groups]
        deviation = (second - first.square()).clamp_(min=0).add_(eps).rsqrt_()  # 1 / σ
        scale = deviation[:, :, None].expand(-1, -1, channels // groups).reshape(images, channels)
        mean = first[:, :, None].expand(-1, -1, channels // groups).reshape(images, channels)
        factor = scale if weight is None else (scale.view(len(weight), -1, channels) * weight[:, None]).view(images, channels)
        shift = -mean * factor
        if bias is not None:
            shift = (shift.view(len(bias), -1, channels) + bias[:, None]).view(images, channels)
        ctx.save_for_backward(x, weight, mean, scale)
        ctx.groups, ctx.count = groups, count
        return channel_affine(x, factor, shift)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from fedlens.engines.channel_kernels import channel_affine, channel_sums

        (g,), (x, weight, mean, scale) = gradients, ctx.saved_tensors
        g = g.contiguous(memory_format=torch.channels_last)
        images, channels = mean.shape
        total, product = channel_sums(g, x)  # [N, C]: Σ g and Σ g x
        product = (product - mean * total) * scale  # Σ g x̂
        dweight = dbias = None
        factor, h, hx = scale, total, product
        if weight is not None:
            lanes = len(weight), -1, channels
            dweight, dbias = (value.view(lanes).sum(1).to(weight.dtype) for value in (product, total))
            factor, h, hx = ((value.view(lanes) * weight[:, None]).view(images, channels) for value in (scale, total, product))
        groups = images, ctx.groups, channels // ctx.groups
        h, hx = (value.view(groups).sum(2, keepdim=True).expand(groups).reshape(images, channels) / ctx.count for value in (h, hx))
        of_x = -scale * scale * hx
        dx = channel_affine(g, factor, -scale * h - mean * of_x, x, of_x) if ctx.needs_input_grad[0] else None
        return dx, dweight, dbias, None, None


def together(x: Tensor, lanes: int) -> Tensor:
    """Lanes side by side in the channels: [L · B, C, …] → [B, L · C, …]."""
    return x.unflatten(0, (lanes, -1)).transpose(0, 1).flatten(1, 2)


def apart(x: Tensor, lanes: int) -> Tensor:
    """Lanes one after another again: [B, L · C, …] → [L · B, C, …]."""
    return x.unflatten(1, (lanes, -1)).transpose(0, 1).flatten(0, 1)
