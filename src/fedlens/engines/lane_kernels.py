"""Convolutions in which every lane has a weight of its own, as implicit matrix products in Triton.

    y[l, b, i, o] = Σ_{j, c} x[l, b, i · stride − padding + j · dilation, c] w[l, o, c, j]

A library's grouped convolution keeps lanes side by side in the channels, so that every layer would shuffle its images, and is
slow where a group is small. Here images keep the order in which all other layers have them, [L · B, C, H, W] with channels
innermost, and a block of threads computes a tile of one lane's product. A linear map is a 1 × 1 convolution of 1 × 1 images.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
import triton
import triton.language as tl
from torch import Tensor

# numbers that change from layer to layer without a better kernel for some of them: one kernel is compiled for all
WALK = [
    "stride",
    "base_h",
    "base_w",
    "tap_h",
    "tap_w",
    "taps_h",
    "taps_w",
    "out_stride",
    "out_h",
    "out_w",
    "padding_h",
    "padding_w",
]
PROGRAMS = 1024  # blocks of threads that keep a large GPU busy: a constant, so that no machine changes the order of a sum


@triton.jit(do_not_specialize=["rows", "H", "W", "RH", "RW", "OH", "OW", *WALK])
def correlate(
    x, w, bias, y, rows, H, W, C, CW, O, RH, RW, OH, OW,  # the images have C channels, the weight CW of them
    bias_lane, w_lane, w_out, w_in, w_h, w_w,  # strides of the weight
    stride, base_h, base_w,  # input position = i · stride + base + j · STEP
    tap_h, tap_w, taps_h, taps_w,  # weight position = tap + j · TAP_STEP, for j < taps
    out_stride, out_h, out_w,  # output position = i · out_stride + out
    STEP: tl.constexpr, TAP_STEP: tl.constexpr, FLAT: tl.constexpr, GROUP: tl.constexpr, BIAS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile [BM outputs, BN channels] of one lane.

    FLAT: a block of the sum runs across taps, for few channels; GROUP is C, which the compiler has to know to read them at once.
    """
    lane = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    image, inside = m // (RH * RW), m % (RH * RW)
    i_h, i_w = inside // RW, inside % RW
    images = rows // (RH * RW)
    first_h, first_w = i_h * stride + base_h, i_w * stride + base_w
    if FLAT:
        pixel = GROUP
    else:
        pixel = C
    x_lane, w_lane_place = x + lane * images * H * W * pixel, w + lane * w_lane
    x_image = image * (H * W * pixel)
    ok_m, ok_n = m < rows, n < O
    total = tl.zeros((BM, BN), dtype=tl.float32)
    if FLAT:
        extent = taps_h * taps_w * GROUP
        for start in range(0, extent, BK):
            k = start + tl.arange(0, BK)
            c, tap = k % GROUP, k // GROUP
            j_h, j_w = tap // taps_w, tap % taps_w
            h = first_h[:, None] + j_h[None, :] * STEP
            v = first_w[:, None] + j_w[None, :] * STEP
            inner = (h >= 0) & (h < H) & (v >= 0) & (v < W) & ok_m[:, None] & (k < extent)[None, :]
            a = tl.load(x_lane + x_image[:, None] + (h * W + v) * GROUP + c[None, :], mask=inner, other=0.0)
            place = (tap_h + j_h * TAP_STEP) * w_h + (tap_w + j_w * TAP_STEP) * w_w + c * w_in
            ok = ((k < extent) & (c < CW))[:, None] & ok_n[None, :]
            b = tl.load(w_lane_place + place[:, None] + n[None, :] * w_out, mask=ok, other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
    else:
        blocks = tl.cdiv(C, BK)
        for turn in range(taps_h * taps_w * blocks):
            tap, c = turn // blocks, (turn % blocks) * BK + tl.arange(0, BK)
            j_h, j_w = tap // taps_w, tap % taps_w
            h, v = first_h + j_h * STEP, first_w + j_w * STEP
            inner = (h >= 0) & (h < H) & (v >= 0) & (v < W) & ok_m
            ok = inner[:, None] & (c < C)[None, :]
            a = tl.load(x_lane + (x_image + (h * W + v) * C)[:, None] + c[None, :], mask=ok, other=0.0)
            place = (tap_h + j_h * TAP_STEP) * w_h + (tap_w + j_w * TAP_STEP) * w_w
            ok = (c < CW)[:, None] & ok_n[None, :]
            b = tl.load(w_lane_place + place + c[:, None] * w_in + n[None, :] * w_out, mask=ok, other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias + lane * bias_lane + n, mask=ok_n, other=0.0).to(tl.float32)[None, :]
    out = ((lane * images + image) * OH + i_h * out_stride + out_h) * OW + i_w * out_stride + out_w
    tl.store(y + out[:, None] * O + n[None, :], total.to(y.dtype.element_ty), mask=ok_m[:, None] & ok_n[None, :])


@triton.jit(do_not_specialize=["rows", "part", "parts", "H", "W", "RH", "RW", "KH", "KW", *WALK])
def correlate_gradient(
    x, g, dw, rows, part, parts, H, W, C, CW, O, RH, RW, KH, KW,
    stride, padding_h, padding_w, dilation,
    w_part, w_lane, w_out, w_in, w_h, w_w,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr, FLAT: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """A tile [BM outputs, BN inputs of a tap] of one lane's weight gradient, summed over one part of its rows."""
    which = tl.program_id(2)
    lane, turn = (which // parts).to(tl.int64), which % parts
    o = tl.program_id(1) * BM + tl.arange(0, BM)
    images = rows // (RH * RW)
    if FLAT:
        pixel = GROUP
    else:
        pixel = C
    x_lane, g_lane = x + lane * images * H * W * pixel, g + lane * rows * O
    if FLAT:
        n = tl.program_id(0) * BN + tl.arange(0, BN)
        c, taps = n % GROUP, n // GROUP
        j_h, j_w = taps // KW, taps % KW
        ok_n = taps < KH * KW
        offset = j_h * w_h + j_w * w_w + c * w_in
    else:
        blocks = tl.cdiv(C, BN)
        tap, c = tl.program_id(0) // blocks, (tl.program_id(0) % blocks) * BN + tl.arange(0, BN)
        j_h, j_w = tap // KW, tap % KW
        ok_n = c < C
        offset = (j_h * w_h + j_w * w_w) + c * w_in
    ok_o = o < O
    total = tl.zeros((BM, BN), dtype=tl.float32)
    last = tl.minimum(turn * part + part, rows)
    for start in range(turn * part, last, BK):
        m = start + tl.arange(0, BK)
        ok_m = m < last
        image, inside = m // (RH * RW), m % (RH * RW)
        i_h, i_w = inside // RW, inside % RW
        a = tl.load(g_lane + m[None, :] * O + o[:, None], mask=ok_m[None, :] & ok_o[:, None], other=0.0)
        if FLAT:
            h = (i_h * stride - padding_h)[:, None] + (j_h * dilation)[None, :]
            v = (i_w * stride - padding_w)[:, None] + (j_w * dilation)[None, :]
            ok = (h >= 0) & (h < H) & (v >= 0) & (v < W) & ok_m[:, None] & ok_n[None, :]
            b = tl.load(x_lane + (image[:, None] * (H * W) + h * W + v) * GROUP + c[None, :], mask=ok, other=0.0)
        else:
            h, v = i_h * stride - padding_h + j_h * dilation, i_w * stride - padding_w + j_w * dilation
            ok = (h >= 0) & (h < H) & (v >= 0) & (v < W) & ok_m
            b = tl.load(x_lane + ((image * H + h) * W + v)[:, None] * C + c[None, :], mask=ok[:, None] & ok_n[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    place = turn * w_part + lane * w_lane + o[:, None] * w_out + offset[None, :]
    tl.store(dw + place, total.to(dw.dtype.element_ty), mask=ok_o[:, None] & (ok_n & (c < CW))[None, :])


@dataclass(frozen=True)
class Geometry:
    """How a convolution moves over its images."""

    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    dilation: int = 1

    def outputs(self, inputs: torch.Size, kernel: torch.Size) -> tuple[int, int]:
        """Height and width of the outputs."""
        height, width = (
            (inputs[-2 + axis] + 2 * self.padding[axis] - self.dilation * (kernel[-2 + axis] - 1) - 1) // self.stride + 1
            for axis in (0, 1)
        )
        return height, width


@dataclass(frozen=True)
class Tile:
    """What one block of threads computes, and with how many of them."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def in_fours(x: Tensor) -> Tensor:
    """Images with channels innermost, their number made a multiple of 4 by zeros, so that a pixel is read at once."""
    more = -x.shape[1] % 4
    if not more:
        return x.contiguous(memory_format=torch.channels_last)
    wide = _images(x, x.shape[1] + more, x.shape[2], x.shape[3])
    wide[:, : x.shape[1]], wide[:, x.shape[1] :] = x, 0
    return wide


def convolve(x: Tensor, w: Tensor, bias: Tensor | None, geometry: Geometry, tile: Tile | None = None) -> Tensor:
    """x [L · B, C, H, W], w [L, O, C, KH, KW] of any strides, bias [L, O] → [L · B, O, OH, OW]; channels lie innermost.

    x may have more channels than w, all zero: see `in_fours`.
    """
    (lanes, outputs, _, *taps), (_, _, *size) = w.shape, x.shape
    height, width = geometry.outputs(x.shape, w.shape)
    y = _images(x, outputs, height, width)
    base = -geometry.padding[0], -geometry.padding[1]
    walk = (height, width), geometry.stride, base, geometry.dilation, (0, 0), 1, tuple(taps), 1, (0, 0)
    _correlate(x, w, bias, y, lanes, size, w.shape[2], w.stride(), walk, tile)
    return y


def input_gradient(g: Tensor, w: Tensor, size: tuple[int, int], geometry: Geometry, tile: Tile | None = None) -> Tensor:
    """The gradient of the images: for each residue of the input's position modulo the stride, a convolution of g."""
    stride, (lanes, _, inputs, *taps) = geometry.stride, w.shape
    if stride > 1 and geometry.dilation > 1:
        raise ValueError("a convolution with stride and dilation has no lane kernel")
    dx = _images(g, inputs, *size)
    w_lane, w_out, w_in, w_h, w_w = w.stride()
    step = -geometry.dilation if stride == 1 else -1
    for residue in product(range(stride), repeat=2):
        first = [(r + p) % stride for r, p in zip(residue, geometry.padding, strict=True)]
        base = [(r + p - f) // stride for r, p, f in zip(residue, geometry.padding, first, strict=True)]
        extent = [-(-(s - r) // stride) for s, r in zip(size, residue, strict=True)]
        count = [max(0, -(-(k - f) // stride)) for k, f in zip(taps, first, strict=True)]
        walk = extent, 1, base, step, first, stride, count, stride, residue
        _correlate(g, w, None, dx, lanes, g.shape[2:], g.shape[1], (w_lane, w_in, w_out, w_h, w_w), walk, tile)
    return dx


def weight_gradient(
    x: Tensor, g: Tensor, dw: Tensor, geometry: Geometry, tile: Tile | None = None, flat: bool | None = None
) -> None:
    """Write the gradient of the weight into dw [L, O, C, KH, KW], of any strides; x may have more channels.

    flat: whether a tile runs across taps.
    """
    (lanes, outputs, channels, *taps), inputs = dw.shape, x.shape[1]
    rows = len(x) // lanes * g.shape[2] * g.shape[3]
    flat = inputs < 32 if flat is None else flat
    columns = inputs * taps[0] * taps[1] if flat else inputs
    tile = tile or _gradient_tile(outputs, columns, rows)
    across = triton.cdiv(columns, tile.columns) * (1 if flat else taps[0] * taps[1])
    down = triton.cdiv(outputs, tile.rows)
    # few tiles and long sums: cut the sums into parts, enough of them to keep the device busy
    parts = max(1, min(PROGRAMS // (across * down * lanes), rows // (8 * tile.depth)))
    part = triton.cdiv(triton.cdiv(rows, parts), tile.depth) * tile.depth
    parts = triton.cdiv(rows, part)
    target = dw if parts == 1 else dw.new_empty((parts, *dw.shape), dtype=torch.float32)
    strides = (0, *dw.stride()) if parts == 1 else target.stride()
    correlate_gradient[(across, down, lanes * parts)](
        x, g, target, rows, part, parts, *x.shape[2:], inputs, channels, outputs, *g.shape[2:], *taps,
        geometry.stride, *geometry.padding, geometry.dilation, *strides,
        BM=tile.rows, BN=tile.columns, BK=tile.depth, PRECISION=_precision(x), FLAT=flat,
        GROUP=inputs if flat else 0, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if parts > 1:
        torch.sum(target, 0, out=dw) if dw.dtype == target.dtype else dw.copy_(target.sum(0))


def _correlate(x, w, bias, y, lanes, size, channels, strides, walk, tile):
    (extent, stride, base, step, tap, tap_step, taps, out_stride, out) = walk
    rows, inputs, outputs = len(x) // lanes * extent[0] * extent[1], x.shape[1], y.shape[1]
    flat = inputs % 16 != 0
    tile = tile or Tile(_block(rows, 128), _block(outputs, 128), 32 if flat else _block(inputs, 64), 4 if outputs <= 64 else 8, 3)
    correlate[(triton.cdiv(rows, tile.rows), triton.cdiv(outputs, tile.columns), lanes)](
        x, w, w if bias is None else bias, y, rows, *size, inputs, channels, outputs, *extent, *y.shape[2:],
        0 if bias is None else bias.stride(0), *strides,
        stride, *base, *tap, *taps, out_stride, *out,
        STEP=step, TAP_STEP=tap_step, FLAT=flat, GROUP=inputs if flat else 0, BIAS=bias is not None,
        BM=tile.rows, BN=tile.columns, BK=tile.depth, PRECISION=_precision(x),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def _gradient_tile(outputs: int, columns: int, rows: int) -> Tile:
    """As measured on an H200: large tiles where the weight is large, deep sums nowhere."""
    depth = _block(rows, 64)
    if outputs >= 512 and columns >= 128:
        return Tile(128, 128, depth, 8, 3)
    return Tile(_block(outputs, 128 if outputs >= 128 else 64), _block(columns, 64), depth, 4, 3)


def _images(like: Tensor, channels: int, height: int, width: int) -> Tensor:
    shape = len(like), channels, height, width
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _block(size: int, most: int) -> int:
    return max(16, min(most, triton.next_power_of_2(size)))


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"
