"""Normalisation with statistics of each image and weights of each lane, as two passes over the images in Triton.

    sums:   s[n, c] = Σ_i a[n, i, c]  and  Σ_i a[n, i, c] b[n, i, c]
    affine: y[n, i, c] = p[n, c] a[n, i, c] + q[n, c] b[n, i, c] + r[n, c]

What lies between (means, variances, groups, the lane that an image belongs to) is arithmetic on tables [N, C].
Images [N, C, H, W] have their channels innermost; i runs over pixels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PIECE = 512  # pixels that one block of threads sums


@triton.jit(do_not_specialize=["pixels", "pieces"])
def sum_channels(a, b, out, pixels, C, pieces, BOTH: tl.constexpr, PIECE: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):
    n, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    first, second = tl.zeros((BC,), dtype=tl.float32), tl.zeros((BC,), dtype=tl.float32)
    for start in range(0, PIECE, BP):
        i = piece * PIECE + start + tl.arange(0, BP)
        place = (n * pixels + i)[:, None] * C + c[None, :]
        ok = (i < pixels)[:, None] & (c < C)[None, :]
        value = tl.load(a + place, mask=ok, other=0.0).to(tl.float32)
        first += tl.sum(value, 0)
        if BOTH:
            second += tl.sum(value * tl.load(b + place, mask=ok, other=0.0).to(tl.float32), 0)
    place = (n * pieces + piece) * C + c
    tl.store(out + place, first, mask=c < C)
    if BOTH:
        tl.store(out + tl.num_programs(0).to(tl.int64) * pieces * C + place, second, mask=c < C)


@triton.jit(do_not_specialize=["pixels"])
def scale_channels(a, p, b, q, r, y, pixels, C, BOTH: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):
    n = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BP + tl.arange(0, BP)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    table = n * C + c
    place = (n * pixels + i)[:, None] * C + c[None, :]
    ok = (i < pixels)[:, None] & (c < C)[None, :]
    scale, shift = tl.load(p + table, mask=c < C, other=0.0), tl.load(r + table, mask=c < C, other=0.0)
    value = tl.load(a + place, mask=ok, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
    if BOTH:
        value += tl.load(b + place, mask=ok, other=0.0).to(tl.float32) * tl.load(q + table, mask=c < C, other=0.0)[None, :]
    tl.store(y + place, value.to(y.dtype.element_ty), mask=ok)


def channel_sums(a: Tensor, b: Tensor | None = None, rows: int | None = None) -> Tensor:
    """Σ a and, with b, Σ a b over the pixels of each image, or of each of `rows` equal runs of images: [1 or 2, rows, C]."""
    rows, channels = rows or len(a), a.shape[1]
    pixels = a.numel() // (rows * channels)
    pieces, count = triton.cdiv(pixels, PIECE), 1 if b is None else 2
    out = torch.empty((count, rows, pieces, channels), dtype=torch.float32, device=a.device)
    wide = _block(channels)
    grid = (rows, pieces, triton.cdiv(channels, wide))
    sum_channels[grid](
        a, a if b is None else b, out, pixels, channels, pieces, BOTH=b is not None, PIECE=PIECE, BP=4096 // wide, BC=wide
    )
    return out.sum(2) if pieces > 1 else out[:, :, 0]


def channel_affine(a: Tensor, p: Tensor, r: Tensor, b: Tensor | None = None, q: Tensor | None = None) -> Tensor:
    """p a + q b + r with a number for each image and channel."""
    images, channels, height, width = a.shape
    y = torch.empty_like(a, memory_format=torch.channels_last)
    wide = _block(channels)
    grid = (images, triton.cdiv(height * width, 4096 // wide), triton.cdiv(channels, wide))
    p, r = p.contiguous(), r.contiguous()
    other, factor = (a, p) if b is None or q is None else (b, q.contiguous())
    scale_channels[grid](a, p, other, factor, r, y, height * width, channels, BOTH=b is not None, BP=4096 // wide, BC=wide)
    return y


def _block(channels: int) -> int:
    return min(128, triton.next_power_of_2(channels))
