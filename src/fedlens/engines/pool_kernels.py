"""Max-pooling of images whose channels lie innermost, forward and backward, in Triton.

y[n, i, c] = max_j x[n, i · stride − padding + j, c];   the gradient goes to the first j that holds the maximum
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 2048


@triton.jit(do_not_specialize=["pixels", "H", "W", "OH", "OW"])
def pool(x, y, which, pixels, H, W, OH, OW, C, STRIDE: tl.constexpr, PADDING: tl.constexpr, TAPS: tl.constexpr,
         BP: tl.constexpr, BC: tl.constexpr):  # fmt: skip
    """A tile of outputs, and which tap each came from."""
    i = tl.program_id(0) * BP + tl.arange(0, BP)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    n, inside = (i // (OH * OW)).to(tl.int64), i % (OH * OW)
    first_h, first_w = inside // OW * STRIDE - PADDING, inside % OW * STRIDE - PADDING
    ok = (i < pixels)[:, None] & (c < C)[None, :]
    best, tap = tl.full((BP, BC), -float("inf"), dtype=tl.float32), tl.zeros((BP, BC), dtype=tl.int32)
    for j in tl.static_range(TAPS * TAPS):
        h, w = first_h + j // TAPS, first_w + j % TAPS
        there = ((h >= 0) & (h < H) & (w >= 0) & (w < W))[:, None] & ok
        value = tl.load(x + ((n * H + h) * W + w)[:, None] * C + c[None, :], mask=there, other=-float("inf")).to(tl.float32)
        better = (value > best) | (value != value)
        best, tap = tl.where(better, value, best), tl.where(better, j, tap)
    place = i.to(tl.int64)[:, None] * C + c[None, :]
    tl.store(y + place, best.to(y.dtype.element_ty), mask=ok)
    tl.store(which + place, tap.to(tl.uint8), mask=ok)


@triton.jit(do_not_specialize=["pixels", "H", "W", "OH", "OW"])
def pool_gradient(g, which, dx, pixels, H, W, OH, OW, C, STRIDE: tl.constexpr, PADDING: tl.constexpr, TAPS: tl.constexpr,
                  BP: tl.constexpr, BC: tl.constexpr):  # fmt: skip
    """A tile of inputs: the sum over the windows that chose them."""
    i = tl.program_id(0) * BP + tl.arange(0, BP)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    n, inside = (i // (H * W)).to(tl.int64), i % (H * W)
    h, w = inside // W + PADDING, inside % W + PADDING
    ok = (i < pixels)[:, None] & (c < C)[None, :]
    total = tl.zeros((BP, BC), dtype=tl.float32)
    for j in tl.static_range(TAPS * TAPS):
        up, left = h - j // TAPS, w - j % TAPS
        there = (up >= 0) & (left >= 0) & (up % STRIDE == 0) & (left % STRIDE == 0) & (up // STRIDE < OH) & (left // STRIDE < OW)
        place = ((n * OH + up // STRIDE) * OW + left // STRIDE)[:, None] * C + c[None, :]
        window = there[:, None] & ok
        chosen = window & (tl.load(which + place, mask=window, other=255) == j)
        total += tl.load(g + place, mask=chosen, other=0.0).to(tl.float32)
    tl.store(dx + i.to(tl.int64)[:, None] * C + c[None, :], total.to(dx.dtype.element_ty), mask=ok)


@triton.jit(do_not_specialize=["pixels", "H", "W", "OH", "OW"])
def unpool(g, which, dx, pixels, H, W, OH, OW, C, TAPS: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):
    """The same where windows lie side by side and cover everything: a tile of outputs, each read once and sent where it belongs."""
    i = tl.program_id(0) * BP + tl.arange(0, BP)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    n, inside = (i // (OH * OW)).to(tl.int64), i % (OH * OW)
    ok = (i < pixels)[:, None] & (c < C)[None, :]
    place = i.to(tl.int64)[:, None] * C + c[None, :]
    value, tap = tl.load(g + place, mask=ok, other=0.0), tl.load(which + place, mask=ok, other=0)
    corner = (n * H + inside // OW * TAPS) * W + inside % OW * TAPS
    for j in tl.static_range(TAPS * TAPS):
        there = (corner + (j // TAPS) * W + j % TAPS)[:, None] * C + c[None, :]
        tl.store(dx + there, tl.where(tap == j, value, 0.0).to(dx.dtype.element_ty), mask=ok)


def max_pool(x: Tensor, taps: int, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    """x [N, C, H, W], channels innermost → y, and for each of its numbers the tap it came from."""
    images, channels, height, width = x.shape
    high, wide = ((size + 2 * padding - taps) // stride + 1 for size in (height, width))
    shape: Any = {"size": (images, channels, high, wide), "device": x.device, "memory_format": torch.channels_last}
    y, which = torch.empty(dtype=x.dtype, **shape), torch.empty(dtype=torch.uint8, **shape)
    pixels, (tall, across) = images * high * wide, _tile(channels)
    pool[(triton.cdiv(pixels, tall), triton.cdiv(channels, across))](
        x, y, which, pixels, height, width, high, wide, channels, STRIDE=stride, PADDING=padding, TAPS=taps, BP=tall, BC=across
    )
    return y, which


def max_pool_gradient(g: Tensor, which: Tensor, size: tuple[int, int], taps: int, stride: int, padding: int) -> Tensor:
    """The gradient of images of a size."""
    (images, channels, high, wide), (height, width) = g.shape, size
    dx = torch.empty((images, channels, height, width), dtype=g.dtype, device=g.device, memory_format=torch.channels_last)
    tall, across = _tile(channels)
    if taps == stride and (height, width) == (high * taps, wide * taps):
        pixels = images * high * wide
        unpool[(triton.cdiv(pixels, tall), triton.cdiv(channels, across))](
            g, which, dx, pixels, height, width, high, wide, channels, TAPS=taps, BP=tall, BC=across
        )
        return dx
    pixels = images * height * width
    pool_gradient[(triton.cdiv(pixels, tall), triton.cdiv(channels, across))](
        g, which, dx, pixels, height, width, high, wide, channels, STRIDE=stride, PADDING=padding, TAPS=taps, BP=tall, BC=across
    )
    return dx


def _tile(channels: int) -> tuple[int, int]:
    across = min(128, triton.next_power_of_2(channels))
    return TILE // across, across
