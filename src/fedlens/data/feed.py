"""Hand out examples as tensors on the device: resident there if they fit, gathered on the host if not."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlens.data.examples import Examples

Columns: TypeAlias = dict[str, Tensor]

AHEAD = 3  # parts that are gathered before they are asked for
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

    def batch(self, ids: Tensor, gathered: Columns | None = None) -> Columns:
        """The examples with these ids (a tensor where the columns are), on the device; what was `gathered` of them is only sent."""
        chosen = self._gather(ids) if gathered is None else gathered
        return chosen if self.resident else {name: values.to(self.device, non_blocking=True) for name, values in chosen.items()}

    def gathered(self, parts: Iterable[Tensor]) -> Iterator[Columns | None]:
        """For each part of ids its examples, where they are gathered on the host: a thread is some parts ahead of the device."""
        if self.resident:
            yield from (None for _ in parts)
            return
        with ThreadPoolExecutor(1) as thread:
            ahead: deque[Future[Columns]] = deque()
            try:
                for part in parts:
                    ahead.append(thread.submit(self._gather, part))
                    if len(ahead) > AHEAD:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                thread.shutdown(cancel_futures=True)

    def _gather(self, ids: Tensor) -> Columns:
        chosen = {name: values.index_select(0, ids) for name, values in self.columns.items()}
        pinned = not self.resident and self.device.type == "cuda"  # so that the host need not wait for the copy
        return {name: values.pin_memory() for name, values in chosen.items()} if pinned else chosen

    def ids(self, ids: NDArray[np.int64]) -> Tensor:
        """Example ids as a tensor where the columns are."""
        return upload(ids, next(iter(self.columns.values())).device)


def upload(values: NDArray[Any], device: torch.device) -> Tensor:
    """An array as a tensor on a device; the host does not wait until it is there."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
