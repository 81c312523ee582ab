"""Depthwise convolutions in which every lane has a weight of its own, in Triton: each channel by itself, bound by memory.

y[n, i, c] = Σ_j x[n, i · stride − padding + j · dilation, c] w[l, c, j]        image n belongs to lane l = n // (N / L)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedlens.engines.lane_kernels import Geometry

TILE = 2048  # numbers of the images that a block of threads holds
PROGRAMS = 2048  # blocks of threads that keep a large GPU busy: a constant, so that no machine changes the order of a sum


@triton.jit(do_not_specialize=["pixels", "H", "W", "OH", "OW"])
def convolve_channels(
    x, w, y, pixels, H, W, OH, OW, C, w_lane, w_channel, w_h, w_w, stride, padding_h, padding_w, dilation,
    KH: tl.constexpr, KW: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """A tile of one lane's outputs."""
    lane = tl.program_id(2).to(tl.int64)
    i, c = tl.program_id(0) * BP + tl.arange(0, BP), tl.program_id(1) * BC + tl.arange(0, BC)
    n, inside = i // (OH * OW), i % (OH * OW)
    first_h, first_w = inside // OW * stride - padding_h, inside % OW * stride - padding_w
    ok_i, ok_c = i < pixels, c < C
    x += lane * (pixels // (OH * OW)) * H * W * C
    total = tl.zeros((BP, BC), dtype=tl.float32)
    for j_h in tl.static_range(KH):
        for j_w in tl.static_range(KW):
            h, v = first_h + j_h * dilation, first_w + j_w * dilation
            there = (h >= 0) & (h < H) & (v >= 0) & (v < W) & ok_i
            value = tl.load(x + ((n * H + h) * W + v)[:, None] * C + c[None, :], mask=there[:, None] & ok_c[None, :], other=0.0)
            tap = tl.load(w + lane * w_lane + c * w_channel + j_h * w_h + j_w * w_w, mask=ok_c, other=0.0)
            total += value.to(tl.float32) * tap.to(tl.float32)[None, :]
    place = (lane * pixels + i)[:, None] * C + c[None, :]
    tl.store(y + place, total.to(y.dtype.element_ty), mask=ok_i[:, None] & ok_c[None, :])


@triton.jit(do_not_specialize=["pixels", "H", "W", "OH", "OW"])
def gradient_of_channels(
    g, w, dx, pixels, H, W, OH, OW, C, w_lane, w_channel, w_h, w_w, stride, padding_h, padding_w, dilation,
    KH: tl.constexpr, KW: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """A tile of one lane's inputs: the sum over the outputs that read them."""
    lane = tl.program_id(2).to(tl.int64)
    i, c = tl.program_id(0) * BP + tl.arange(0, BP), tl.program_id(1) * BC + tl.arange(0, BC)
    n, inside = i // (H * W), i % (H * W)
    h, v = inside // W + padding_h, inside % W + padding_w
    ok_i, ok_c = i < pixels, c < C
    g += lane * (pixels // (H * W)) * OH * OW * C
    total = tl.zeros((BP, BC), dtype=tl.float32)
    for j_h in tl.static_range(KH):
        for j_w in tl.static_range(KW):
            up, left = h - j_h * dilation, v - j_w * dilation
            there = (up >= 0) & (left >= 0) & (up % stride == 0) & (left % stride == 0) & ok_i
            row, column = up // stride, left // stride
            there = there & (row < OH) & (column < OW)
            place = ((n * OH + row) * OW + column)[:, None] * C + c[None, :]
            value = tl.load(g + place, mask=there[:, None] & ok_c[None, :], other=0.0)
            tap = tl.load(w + lane * w_lane + c * w_channel + j_h * w_h + j_w * w_w, mask=ok_c, other=0.0)
            total += value.to(tl.float32) * tap.to(tl.float32)[None, :]
    place = (lane * pixels + i)[:, None] * C + c[None, :]
    tl.store(dx + place, total.to(dx.dtype.element_ty), mask=ok_i[:, None] & ok_c[None, :])


@triton.jit(do_not_specialize=["pixels", "part", "parts", "H", "W", "OH", "OW"])
def gradient_of_taps(
    x, g, out, pixels, part, parts, H, W, OH, OW, C, stride, padding_h, padding_w, dilation,
    KW: tl.constexpr, TAPS: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """One tap's gradient for a block of channels of one lane, summed over one part of its pixels; out [parts, L, TAPS, C]."""
    tap, which = tl.program_id(0) % TAPS, tl.program_id(2)
    lane, turn = (which // parts).to(tl.int64), which % parts
    c = tl.program_id(0) // TAPS * BC + tl.arange(0, BC)
    j_h, j_w = tap // KW, tap % KW
    images, ok_c = pixels // (OH * OW), c < C
    x += lane * images * H * W * C
    g += lane * pixels * C
    total = tl.zeros((BP, BC), dtype=tl.float32)
    last = tl.minimum(turn * part + part, pixels)
    for start in range(turn * part, last, BP):
        i = start + tl.arange(0, BP)
        n, inside = i // (OH * OW), i % (OH * OW)
        h, v = inside // OW * stride - padding_h + j_h * dilation, inside % OW * stride - padding_w + j_w * dilation
        there = ((h >= 0) & (h < H) & (v >= 0) & (v < W) & (i < last))[:, None] & ok_c[None, :]
        value = tl.load(x + ((n * H + h) * W + v)[:, None] * C + c[None, :], mask=there, other=0.0).to(tl.float32)
        total += value * tl.load(g + i[:, None] * C + c[None, :], mask=there, other=0.0).to(tl.float32)
    lanes = tl.num_programs(2) // parts
    tl.store(out + ((turn * lanes + lane) * TAPS + tap) * C + c, tl.sum(total, 0), mask=ok_c)


def convolve(x: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    """x [L · B, C, H, W] with channels innermost, w [L, C, 1, KH, KW] of any strides → [L · B, C, OH, OW]."""
    (lanes, channels, _, *taps), (height, width) = w.shape, geometry.outputs(x.shape, w.shape)
    y = _images(x, height, width)
    pixels, (tall, wide) = len(x) // lanes * height * width, _tile(channels)
    convolve_channels[(triton.cdiv(pixels, tall), triton.cdiv(channels, wide), lanes)](
        x, w, y, pixels, *x.shape[2:], height, width, channels, *_strides(w), geometry.stride, *geometry.padding, geometry.dilation,
        KH=taps[0], KW=taps[1], BP=tall, BC=wide,
    )  # fmt: skip
    return y


def input_gradient(g: Tensor, w: Tensor, size: tuple[int, int], geometry: Geometry) -> Tensor:
    """The gradient of images of a size."""
    (lanes, channels, _, *taps), dx = w.shape, _images(g, *size)
    pixels, (tall, wide) = len(g) // lanes * size[0] * size[1], _tile(channels)
    gradient_of_channels[(triton.cdiv(pixels, tall), triton.cdiv(channels, wide), lanes)](
        g, w, dx, pixels, *size, *g.shape[2:], channels, *_strides(w), geometry.stride, *geometry.padding, geometry.dilation,
        KH=taps[0], KW=taps[1], BP=tall, BC=wide,
    )  # fmt: skip
    return dx


def weight_gradient(x: Tensor, g: Tensor, dw: Tensor, geometry: Geometry) -> None:
    """Write the gradient of the weight into dw [L, C, 1, KH, KW], of any strides."""
    lanes, channels, _, *taps = dw.shape
    pixels, (tall, wide) = len(g) // lanes * g.shape[2] * g.shape[3], _tile(channels)
    across = triton.cdiv(channels, wide) * taps[0] * taps[1]
    parts = max(1, min(PROGRAMS // (across * lanes), pixels // (4 * tall)))
    part = triton.cdiv(triton.cdiv(pixels, parts), tall) * tall
    parts = triton.cdiv(pixels, part)
    out = dw.new_empty((parts, lanes, *taps, channels), dtype=torch.float32)
    gradient_of_taps[(across, 1, lanes * parts)](
        x, g, out, pixels, part, parts, *x.shape[2:], *g.shape[2:], channels, geometry.stride, *geometry.padding, geometry.dilation,
        KW=taps[1], TAPS=taps[0] * taps[1], BP=tall, BC=wide,
    )  # fmt: skip
    dw.copy_(out.sum(0).movedim(-1, 1)[:, :, None])


def _strides(w: Tensor) -> tuple[int, int, int, int]:
    lane, channel, _, height, width = w.stride()
    return lane, channel, height, width


def _images(like: Tensor, height: int, width: int) -> Tensor:
    shape = *like.shape[:2], height, width
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _tile(channels: int) -> tuple[int, int]:
    wide = min(128, triton.next_power_of_2(channels))
    return TILE // wide, wide
