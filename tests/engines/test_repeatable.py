"""What a library may do differently from run to run, or coarser than it says, is off while a model trains."""

from __future__ import annotations

import torch

from fedlens.engines import repeatable_layers

LIBRARY = torch.backends.cudnn


def settings() -> tuple[bool, bool, bool, bool]:
    return LIBRARY.enabled, LIBRARY.benchmark, LIBRARY.deterministic, LIBRARY.allow_tf32


def test_within_nothing_depends_on_a_clock_and_float32_is_float32_and_afterwards_all_is_as_before():
    before = True, True, False, True
    with LIBRARY.flags(*before[:2], deterministic=before[2], allow_tf32=before[3]):
        with repeatable_layers(torch.device("cpu")):
            assert settings() == (True, False, True, False)
        assert settings() == before
