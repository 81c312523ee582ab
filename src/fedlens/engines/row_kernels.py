"""Passes over matrices of many clients' rows [m, P], in Triton: what is read and written once instead of several times."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def clear(rows, bad, size, stride, BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    if tl.load(bad + row):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(rows + row * stride + i, tl.zeros((BLOCK,), dtype=tl.float32), mask=i < size)


@triton.jit
def descend(
    start, w, g, v, copy, x, ends, size, start_row, w_row, g_row, v_row, copy_row, rate, decay, momentum,
    DECAY: tl.constexpr, MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """g ← g + λ w,   v ← μ v + g,   w ← w − η v   (Nesterov: g + μ v for v), with w read at `start` and noted in `copy` too.

    Where a row `ends`, this was its last step: w − x takes the place of w.
    """
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < size
    weight = tl.load(start + row * start_row + i, mask=ok, other=0.0)
    step = tl.load(g + row * g_row + i, mask=ok, other=0.0).to(tl.float32)
    if DECAY:
        step += decay * weight
    if MOMENTUM:
        moved = momentum * tl.load(v + row * v_row + i, mask=ok, other=0.0) + step
        tl.store(v + row * v_row + i, moved, mask=ok)
        if NESTEROV:
            step += momentum * moved
        else:
            step = moved
    weight -= rate * step
    if tl.load(ends + row):
        tl.store(w + row * w_row + i, weight - tl.load(x + i, mask=ok, other=0.0), mask=ok)
    else:
        tl.store(w + row * w_row + i, weight, mask=ok)
        tl.store(copy + row * copy_row + i, weight.to(copy.dtype.element_ty), mask=ok)


def clear_rows_(rows: Tensor, bad: Tensor) -> Tensor:
    """rows[k] = 0 where bad[k], in place; good rows are not even read."""
    clear[(triton.cdiv(rows.shape[1], BLOCK), len(rows))](rows, bad.to(rows.dtype), rows.shape[1], rows.stride(0), BLOCK=BLOCK)
    return rows


def descend_(
    start: Tensor,
    w: Tensor,
    g: Tensor,
    v: Tensor | None,
    copy: Tensor,
    x: Tensor,
    ends: Tensor,
    rate: float,
    decay: float,
    momentum: float,
    nesterov: bool,
) -> None:
    """One step of SGD from `start` (rows, or one row expanded) to w in one pass, which writes w to `copy` too, in its precision;
    but to rows whose last step it is (`ends` [m], 1 or 0), w − x.
    """
    own = w if v is None else v
    strides = (value.stride(0) for value in (start, w, g, own, copy))
    descend[(triton.cdiv(w.shape[1], BLOCK), len(w))](
        start, w, g, own, copy, x, ends, w.shape[1], *strides, rate, decay, momentum,
        DECAY=decay != 0, MOMENTUM=v is not None, NESTEROV=nesterov, BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip
