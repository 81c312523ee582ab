"""Set bad rows of a large matrix to zero without reading the good ones, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8192


@triton.jit
def clear(rows, bad, size, stride, BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    if tl.load(bad + row):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(rows + row * stride + i, tl.zeros((BLOCK,), dtype=tl.float32), mask=i < size)


def clear_rows_(rows: Tensor, bad: Tensor) -> Tensor:
    """rows [m, P] with rows[k] = 0 where bad[k], in place."""
    clear[(triton.cdiv(rows.shape[1], BLOCK), len(rows))](rows, bad.to(rows.dtype), rows.shape[1], rows.stride(0), BLOCK=BLOCK)
    return rows
