"""The same bits every time on one GPU, and all of a number's bits: no algorithm of a library that adds up in whatever order
threads arrive, and no product that rounds its float32 inputs to ten bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextmanager
def repeatable_layers(device: torch.device) -> Iterator[None]:
    """Within, cuDNN chooses among its deterministic algorithms, and by rule instead of by the clock; attention is plain.

    What is called float32 is that: PyTorch lets cuDNN round to TF32 by itself.
    """
    with (
        torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False),
        sdpa_kernel(SDPBackend.MATH) if device.type == "cuda" else nullcontext(),
    ):
        yield


@contextmanager
def repeatable_sums() -> Iterator[None]:
    """Within, adding into rows by index happens in order."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
