"""Steps without their Python: a step's kernels are captured as a CUDA graph and replayed for every step of the same shape.

A client's batch is small, so that starting its kernels one by one takes longer than running them. The same kernels run in
the same order as without a graph: results have the same bits.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlens.engines.batches import Batch

MOST = 1024  # shapes that are kept: ragged cohorts make many


@dataclass(frozen=True)
class Recording:
    """A graph, the memory from which it reads its batch, and where it leaves what it computes."""

    graph: torch.cuda.CUDAGraph
    batch: Batch
    result: Tensor


class Captured:
    """Runs a computation as it is when its shape is new, captures it the second time, and replays it from then on.

    Whatever the computation uses beside its batch must stay where it is in memory; if it moves, `forget` the recordings.
    """

    def __init__(self, device: torch.device):
        self.stream, self.possible = torch.cuda.Stream(device), True
        self.forget()

    def forget(self) -> None:
        self.seen: set[Hashable] = set()
        self.recordings: OrderedDict[Hashable, Recording] = OrderedDict()
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, shape: Hashable, compute: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
        recording = self.recordings.get(shape)
        if recording is None:
            if shape not in self.seen or not self.possible:  # kernels are compiled and algorithms chosen outside any capture
                self.seen.add(shape)
                return compute(batch)
            try:
                recording = self.recordings[shape] = self._record(compute, batch.clone())
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self.possible = False
                warnings.warn(f"steps run uncaptured, because the model or the task waits for the GPU: {error}", stacklevel=2)
                return compute(batch)
            if len(self.recordings) > MOST:
                self.recordings.popitem(last=False)
        self.recordings.move_to_end(shape)
        recording.batch.copy_(batch)
        recording.graph.replay()
        return recording.result

    def _record(self, compute: Callable[[Batch], Tensor], batch: Batch) -> Recording:
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            graph.capture_begin(pool=self.pool)
            try:
                result = compute(batch)
            finally:
                graph.capture_end()
        current.wait_stream(self.stream)
        return Recording(graph, batch, result)
