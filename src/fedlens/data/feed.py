"""Hand out examples as tensors on the device: resident there if they fit, gathered on the host if not."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlens.data.examples import Examples

RESIDENT_SHARE = 0.5  # of the accelerator's free memory that examples may take


class Feed:
    """Columns of a data set as tensors; on the CPU they share the memory, or the mapped file, of the columns."""

    def __init__(self, data: Examples, columns: Sequence[str], device: torch.device):
        self.device = device
        with warnings.catch_warnings():  # a mapped file is read-only, and nothing here writes
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            self.columns = {name: torch.from_numpy(data.column(name)) for name in columns}
        self.resident = device.type == "cpu"
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            self.resident = sum(values.nbytes for values in self.columns.values()) < RESIDENT_SHARE * free
            if self.resident:
                self.columns = {name: values.to(device) for name, values in self.columns.items()}

    def batch(self, ids: Tensor) -> dict[str, Tensor]:
        """The examples with these ids (a tensor where the columns are), on the device."""
        chosen = {name: values.index_select(0, ids) for name, values in self.columns.items()}
        if self.resident:
            return chosen
        return {name: values.pin_memory().to(self.device, non_blocking=True) for name, values in chosen.items()}

    def ids(self, ids: NDArray[np.int64]) -> Tensor:
        """Example ids as a tensor where the columns are."""
        return upload(ids, next(iter(self.columns.values())).device)


def upload(values: NDArray[Any], device: torch.device) -> Tensor:
    """An array as a tensor on a device; the host does not wait until it is there."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
