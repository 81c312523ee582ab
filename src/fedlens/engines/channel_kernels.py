"""GroupNorm with weights of each lane, as passes over the images in Triton.

    sums:   s[n, c] = Σ_i a[n, i, c]  and  Σ_i a[n, i, c] (b[n, i, c] − b[n, 0, c])    over the pixels i of an image
    tables: what follows from them for each image and channel: means, deviations, factors
    affine: y[n, i, c] = p[n, c] a[n, i, c] + q[n, c] b[n, i, c] + r[n, c]

Sums are taken of distances from an image's first pixel: of numbers far from zero, squares would drown what differs.

What follows a norm in most networks, adding a shortcut d and cutting off, y = min(max(· + d, 0), cap), is done in the same passes.
Its gradient passes where 0 < y < cap: that is computed again from x, or, with a shortcut, read from y.

Images [N, C, H, W] have their channels innermost; image n belongs to lane n // (N / L).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

PIECE = 512  # pixels that one block of threads sums
TILE = 4096  # numbers that it holds at a time


@triton.jit(do_not_specialize=["pixels", "pieces", "cap"])
def sum_channels(
    a, b, out, factor, shift, y, passed, pixels, C, pieces, cap, BOTH: tl.constexpr, SAME: tl.constexpr, AGAIN: tl.constexpr,
    READ: tl.constexpr, PIECE: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Of a where it passes: AGAIN computes from b where that is, READ reads it from y and leaves what passes."""
    n, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    first, second = tl.zeros((BP, BC), dtype=tl.float32), tl.zeros((BP, BC), dtype=tl.float32)
    if BOTH:
        pixel = tl.load(b + n * pixels * C + c, mask=c < C, other=0.0).to(tl.float32)[None, :]
    for start in range(0, PIECE, BP):
        i = piece * PIECE + start + tl.arange(0, BP)
        place = (n * pixels + i)[:, None] * C + c[None, :]
        ok = (i < pixels)[:, None] & (c < C)[None, :]
        value = tl.load(a + place, mask=ok, other=0.0).to(tl.float32)
        if READ:
            output = tl.load(y + place, mask=ok, other=0.0).to(tl.float32)
            value = tl.where((output > 0) & (output < cap), value, 0.0)
            tl.store(passed + place, value.to(passed.dtype.element_ty), mask=ok)
        if BOTH:
            whole = tl.load(b + place, mask=ok, other=0.0).to(tl.float32)
            if AGAIN:
                output = whole * tl.load(factor + n * C + c, mask=c < C, other=0.0)[None, :]
                output += tl.load(shift + n * C + c, mask=c < C, other=0.0)[None, :]
                value = tl.where((output > 0) & (output < cap), value, 0.0)
            other = tl.where(ok, whole - pixel, 0.0)
            if SAME:
                value = other
            second += value * other
        first += value
    place = (n * pieces + piece) * C + c
    tl.store(out + place, tl.sum(first, 0), mask=c < C)
    if BOTH:
        tl.store(out + tl.num_programs(0).to(tl.int64) * pieces * C + place, tl.sum(second, 0), mask=c < C)


@triton.jit(do_not_specialize=["pixels", "cap"])
def scale_channels(
    a, p, b, q, r, y, factor, shift, shortcut, pixels, C, cap, BOTH: tl.constexpr, AGAIN: tl.constexpr, ADD: tl.constexpr,
    CUT: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BP + tl.arange(0, BP)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    table = n * C + c
    place = (n * pixels + i)[:, None] * C + c[None, :]
    ok = (i < pixels)[:, None] & (c < C)[None, :]
    scale, moved = tl.load(p + table, mask=c < C, other=0.0), tl.load(r + table, mask=c < C, other=0.0)
    value = tl.load(a + place, mask=ok, other=0.0).to(tl.float32)
    if BOTH:
        other = tl.load(b + place, mask=ok, other=0.0).to(tl.float32)
        if AGAIN:
            output = other * tl.load(factor + table, mask=c < C, other=0.0)[None, :]
            output += tl.load(shift + table, mask=c < C, other=0.0)[None, :]
            value = tl.where((output > 0) & (output < cap), value, 0.0)
        value = value * scale[None, :] + moved[None, :] + other * tl.load(q + table, mask=c < C, other=0.0)[None, :]
    else:
        value = value * scale[None, :] + moved[None, :]
    if ADD:
        value += tl.load(shortcut + place, mask=ok, other=0.0).to(tl.float32)
    if CUT:  # what is not a number stays so
        value = tl.where(value < 0, 0.0, tl.where(value > cap, cap, value))
    tl.store(y + place, value.to(y.dtype.element_ty), mask=ok)


@triton.jit
def gather_pieces(sums, row, pieces, C, c, ok):
    """Σ over the pieces of one image, for channels c."""
    total = tl.zeros(c.shape, dtype=tl.float32)
    for piece in range(pieces):
        total += tl.load(sums + (row * pieces + piece) * C + c, mask=ok, other=0.0)
    return total


@triton.jit(do_not_specialize=["pixels", "pieces", "batch", "eps"])
def forward_tables(
    x, sums, weight, bias, mean, deviation, factor, shift, pixels, pieces, batch, eps, G, D, w_lane, b_lane,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, BG: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Of one image: mean and 1 / σ of each group [N, G], and what each channel is multiplied by and shifted by [N, C]."""
    n, images = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    g, d = tl.arange(0, BG), tl.arange(0, BD)
    c, ok = g[:, None] * D + d[None, :], (g < G)[:, None] & (d < D)[None, :]
    C = G * D
    pixel = tl.load(x + n * pixels * C + c, mask=ok, other=0.0).to(tl.float32)
    distance, square = gather_pieces(sums, n, pieces, C, c, ok), gather_pieces(sums, images + n, pieces, C, c, ok)
    first = tl.sum(distance + pixels * pixel, 1) / (pixels * D)
    off = tl.where(ok, pixel - first[:, None], 0.0)
    scale = tl.rsqrt(tl.maximum(tl.sum(square + off * (2 * distance + pixels * off), 1) / (pixels * D), 0.0) + eps)
    tl.store(mean + n * G + g, first, mask=g < G)
    tl.store(deviation + n * G + g, scale, mask=g < G)
    product = tl.broadcast_to(scale[:, None], (BG, BD))
    if WEIGHT:
        product = product * tl.load(weight + (n // batch) * w_lane + c, mask=ok, other=0.0).to(tl.float32)
    moved = -first[:, None] * product
    if BIAS:
        moved += tl.load(bias + (n // batch) * b_lane + c, mask=ok, other=0.0).to(tl.float32)
    tl.store(factor + n * C + c, product, mask=ok)
    tl.store(shift + n * C + c, moved, mask=ok)


@triton.jit(do_not_specialize=["pixels", "pieces", "batch"])
def backward_tables(
    x, sums, weight, mean, deviation, factor, of_x, shift, total, product, pixels, pieces, batch, G, D, w_lane,
    WEIGHT: tl.constexpr, BG: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Of one image: the factors of dx = factor g + of_x x + shift, and Σ g and Σ g x̂ of each channel, all [N, C]."""
    n, images = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    g, d = tl.arange(0, BG), tl.arange(0, BD)
    c, ok = g[:, None] * D + d[None, :], (g < G)[:, None] & (d < D)[None, :]
    C = G * D
    middle = tl.load(mean + n * G + g, mask=g < G, other=0.0)[:, None]
    scale = tl.load(deviation + n * G + g, mask=g < G, other=0.0)[:, None]
    plain = gather_pieces(sums, n, pieces, C, c, ok)
    pixel = tl.load(x + n * pixels * C + c, mask=ok, other=0.0).to(tl.float32)
    crossed = (gather_pieces(sums, images + n, pieces, C, c, ok) + (pixel - middle) * plain) * scale
    crossed, count = tl.where(ok, crossed, 0.0), pixels * D
    tl.store(total + n * C + c, plain, mask=ok)
    tl.store(product + n * C + c, crossed, mask=ok)
    own = tl.broadcast_to(scale, (BG, BD))
    if WEIGHT:
        w = tl.load(weight + (n // batch) * w_lane + c, mask=ok, other=0.0).to(tl.float32)
        own, plain, crossed = own * w, plain * w, crossed * w
    along = -scale * scale * (tl.sum(crossed, 1) / count)[:, None]
    tl.store(factor + n * C + c, own, mask=ok)
    tl.store(of_x + n * C + c, tl.broadcast_to(along, (BG, BD)), mask=ok)
    tl.store(shift + n * C + c, tl.broadcast_to(-scale * (tl.sum(plain, 1) / count)[:, None] - middle * along, (BG, BD)), mask=ok)


@triton.jit(do_not_specialize=["rows"])
def sum_rows(a, out, rows, C, out_lane, BR: tl.constexpr, BC: tl.constexpr):
    """Of one lane: Σ over its rows of a table [L · rows, C]."""
    lane, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * BC + tl.arange(0, BC)
    total = tl.zeros((BR, BC), dtype=tl.float32)
    for start in range(0, rows, BR):
        r = start + tl.arange(0, BR)
        ok = (r < rows)[:, None] & (c < C)[None, :]
        total += tl.load(a + (lane * rows + r)[:, None] * C + c[None, :], mask=ok, other=0.0)
    tl.store(out + lane * out_lane + c, tl.sum(total, 0).to(out.dtype.element_ty), mask=c < C)


@triton.jit(do_not_specialize=["rows"])
def add_channels(y, bias, rows, C, b_lane, BR: tl.constexpr, BC: tl.constexpr):
    lane = tl.program_id(1).to(tl.int64)
    r, c = tl.program_id(0) * BR + tl.arange(0, BR), tl.program_id(2) * BC + tl.arange(0, BC)
    place = (lane * rows + r)[:, None] * C + c[None, :]
    ok = (r < rows)[:, None] & (c < C)[None, :]
    more = tl.load(bias + lane * b_lane + c, mask=c < C, other=0.0).to(tl.float32)
    value = tl.load(y + place, mask=ok, other=0.0).to(tl.float32) + more[None, :]
    tl.store(y + place, value.to(y.dtype.element_ty), mask=ok)


@dataclass(frozen=True)
class Normed:
    """What a norm gives, and what its gradient needs of it."""

    y: Tensor
    mean: Tensor  # [N, G]
    deviation: Tensor  # [N, G], 1 / σ
    factor: Tensor  # [N, C]
    shift: Tensor  # [N, C]


def group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    groups: int,
    eps: float,
    shortcut: Tensor | None = None,
    cap: float | None = None,
) -> Normed:
    """GroupNorm of images, weight and bias [L, C] or None; then, if asked, plus a shortcut and cut off below 0 and above `cap`."""
    images, channels, height, width = x.shape
    mean, deviation = x.new_empty(2, images, groups, dtype=torch.float32)
    factor, shift = x.new_empty(2, images, channels, dtype=torch.float32)
    sums, depth = _sums(x, x), channels // groups
    forward_tables[(images,)](
        x, sums, _or(weight, sums), _or(bias, sums), mean, deviation, factor, shift,
        height * width, sums.shape[2], _batch(images, weight), eps, groups, depth, _stride(weight), _stride(bias),
        WEIGHT=weight is not None, BIAS=bias is not None, BG=triton.next_power_of_2(groups), BD=triton.next_power_of_2(depth),
    )  # fmt: skip
    return Normed(_affine(x, factor, shift, shortcut=shortcut, cap=cap), mean, deviation, factor, shift)


def group_norm_gradient(
    g: Tensor, x: Tensor, weight: Tensor | None, normed: Normed, shortcut: bool = False, cap: float | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradient of the images; for each image and channel Σ g and Σ g x̂, of which those of bias and weight are sums; and of
    the shortcut.
    """
    (images, channels, height, width), groups = x.shape, normed.mean.shape[1]
    factor, of_x, shift, total, product = x.new_empty(5, images, channels, dtype=torch.float32)
    passed = torch.empty_like(g) if shortcut and cap is not None else g
    sums, depth = _sums(g, x, normed, passed, cap), channels // groups
    backward_tables[(images,)](
        x, sums, _or(weight, sums), normed.mean, normed.deviation, factor, of_x, shift, total, product,
        height * width, sums.shape[2], _batch(images, weight), groups, depth, _stride(weight),
        WEIGHT=weight is not None, BG=triton.next_power_of_2(groups), BD=triton.next_power_of_2(depth),
    )  # fmt: skip
    again = cap is not None and not shortcut
    return _affine(passed, factor, shift, x, of_x, normed if again else None, cap=cap), total, product, passed


def lane_sums(table: Tensor, out: Tensor) -> Tensor:
    """Sum a table [L · rows, C] over the rows of each lane, into out [L, C]."""
    (lanes, channels), wide = out.shape, _block(table.shape[1])
    rows = len(table) // lanes
    tall = min(TILE // wide, triton.next_power_of_2(rows))
    sum_rows[(lanes, triton.cdiv(channels, wide))](table, out, rows, channels, out.stride(0), BR=tall, BC=wide)
    return out


def channel_sums(a: Tensor, lanes: int) -> Tensor:
    """Σ a over the images and pixels of each lane, [L, C]: the gradient of a bias."""
    sums = _sums(a)
    table = sums.view(-1, sums.shape[-1])
    return lane_sums(table, a.new_empty(lanes, a.shape[1]))


def add_to_channels_(y: Tensor, bias: Tensor) -> Tensor:
    """y[l, r, c] += bias[l, c], in place."""
    (lanes, rows, channels), wide = y.shape, _block(y.shape[2])
    tall = min(TILE // wide, triton.next_power_of_2(rows))
    add_channels[(triton.cdiv(rows, tall), lanes, triton.cdiv(channels, wide))](
        y, bias, rows, channels, bias.stride(0), BR=tall, BC=wide
    )
    return y


def _sums(
    a: Tensor, b: Tensor | None = None, normed: Normed | None = None, passed: Tensor | None = None, cap: float | None = None
) -> Tensor:
    """Σ a and, with b, Σ a b over pieces of each image: [1 or 2, N, pieces, C]; of a where it passes what was cut off."""
    images, channels, height, width = a.shape
    pieces, wide = triton.cdiv(height * width, PIECE), _block(channels)
    out = a.new_empty((1 if b is None else 2, images, pieces, channels), dtype=torch.float32)
    piece = min(PIECE, triton.next_power_of_2(height * width))
    cut, read = cap is not None, passed is not None and passed is not a
    tables = (out, out, a) if normed is None else (normed.factor, normed.shift, normed.y)
    sum_channels[(images, pieces, triton.cdiv(channels, wide))](
        a, _or(b, a), out, *tables, _or(passed, a), height * width, channels, pieces, math.inf if cap is None else cap,
        BOTH=b is not None, SAME=a is b, AGAIN=cut and not read, READ=cut and read,
        PIECE=piece, BP=min(TILE // wide, piece), BC=wide,
    )  # fmt: skip
    return out


def _affine(
    a: Tensor,
    p: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    q: Tensor | None = None,
    again: Normed | None = None,
    shortcut: Tensor | None = None,
    cap: float | None = None,
) -> Tensor:
    images, channels, height, width = a.shape
    y, wide = torch.empty_like(a, memory_format=torch.channels_last), _block(channels)
    tall = min(TILE // wide, triton.next_power_of_2(height * width))
    factor, shift = (p, r) if again is None else (again.factor, again.shift)
    pixels, most = height * width, math.inf if cap is None else cap
    scale_channels[(images, triton.cdiv(pixels, tall), triton.cdiv(channels, wide))](
        a, p, _or(b, a), _or(q, p), r, y, factor, shift, _or(shortcut, a), pixels, channels, most,
        BOTH=b is not None, AGAIN=again is not None, ADD=shortcut is not None, CUT=cap is not None and b is None, BP=tall, BC=wide,
    )  # fmt: skip
    return y


def _or(given: Tensor | None, stand_in: Tensor) -> Tensor:
    """A kernel's argument that it does not read still has to be a tensor."""
    return stand_in if given is None else given


def _stride(value: Tensor | None) -> int:
    return 0 if value is None else value.stride(0)


def _batch(images: int, weight: Tensor | None) -> int:
    return images if weight is None else images // len(weight)


def _block(channels: int) -> int:
    return min(128, triton.next_power_of_2(channels))
