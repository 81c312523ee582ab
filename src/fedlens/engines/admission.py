"""Check what comes from clients before it touches the sum: a bad update is left out and named, the round goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlens.algorithms.local_work import Plan
from fedlens.algorithms.updates import Updates
from fedlens.state import State

NOT_FINITE = "update or loss is not finite"
BAD_WEIGHT = "weight is negative, not finite, or more than the client holds"
COLUMNS = {  # of an update: how a message calls it, and its type
    "vectors": ("update", torch.float32),
    "sizes": ("weight", torch.float32),
    "statistics": ("vector of statistics", torch.float32),
    "counters": ("vector of counters", torch.int64),
    "loss": ("loss", torch.float32),
}


@dataclass
class Report:
    """What became of a cohort's updates."""

    admitted: int = 0
    empty: int = 0
    rejected: dict[int, str] = field(default_factory=dict)  # client → reason
    images: int = 0  # trained on, by whoever was admitted
    loss: float = float("nan")  # mean over those images
    update_norm: float = float("nan")  # mean over admitted clients
    bytes_up: int = 0  # what all who answered have sent
    kept: dict[int, dict[str, Tensor]] = field(default_factory=dict)  # by client: what it keeps until its next turn


class Verdict(NamedTuple):
    """What is kept of some updates until the round's report: not the vectors, which are gone once they are added up."""

    clients: NDArray[np.int64]
    trained: NDArray[np.int64]
    kept: Mapping[str, Tensor]
    numbers: Tensor  # [5, m]: is it finite, is it good, its norm, weight and loss


class Admission:
    """Passes a stream of updates on, without those that are malformed, unasked for, repeated, not finite or overweight.

    Shapes and names are checked on the host; numbers on the device, by setting bad rows and their weights to zero, so that
    nothing waits for a client's numbers until the round's report.
    """

    def __init__(self, plan: Plan, state: State):
        self.row_shapes = {"vectors": state.x.shape, "statistics": state.statistics.shape, "counters": state.counters.shape}
        self.statistics = state.statistics
        self.planned = dict(zip(plan.clients.tolist(), plan.sizes.tolist(), strict=True))
        self.seen: set[int] = set()
        self.rejected: dict[int, str] = {}
        self.bytes_up = 0
        self.verdicts: list[Verdict] = []

    def admit(self, updates: Iterable[Updates]) -> Iterator[Updates]:
        for chunk in updates:
            clients = chunk.clients.tolist()
            self.bytes_up += chunk.sent_bytes
            if reason := self._malformed(chunk):
                self.rejected.update(dict.fromkeys(clients, reason))
                continue
            self.seen.update(clients)
            yield self._judge(chunk)

    def _malformed(self, chunk: Updates) -> str | None:
        clients, rows = chunk.clients.tolist(), len(chunk.clients)
        if unknown := [client for client in clients if client not in self.planned]:
            return f"client {unknown[0]} is not in the cohort"
        if len(set(clients)) < rows or self.seen.intersection(clients):
            return "second update of a client in one round"
        for name, (what, dtype) in COLUMNS.items():
            values: Tensor = getattr(chunk, name)
            expected = (rows, *self.row_shapes.get(name, ()))
            if values.shape != expected:
                return f"{what} has shape {list(values.shape)}; expected {list(expected)}"
            if values.dtype != dtype:
                return f"{what} is {values.dtype}; expected {dtype}"
        if len(chunk.trained) != rows:
            return f"{len(chunk.trained)} counts of images for {rows} clients"
        return None

    def _judge(self, chunk: Updates) -> Updates:
        limit = torch.tensor([self.planned[client] for client in chunk.clients.tolist()], device=chunk.sizes.device)
        norm = torch.linalg.vector_norm(chunk.vectors, dim=1)
        finite = norm.isfinite() & self._sound(chunk.statistics) & chunk.loss.isfinite()
        weighted = (chunk.sizes >= 0) & (chunk.sizes <= limit)  # false for NaN too
        good = finite & weighted
        numbers = torch.stack([finite, good, norm, chunk.sizes, chunk.loss])
        self.verdicts.append(Verdict(chunk.clients, chunk.trained, chunk.kept, numbers))
        bad = ~good[:, None]  # what is not finite would spoil the sum even with weight zero
        return Updates(
            clients=chunk.clients,
            sizes=torch.where(good, chunk.sizes, 0.0),
            vectors=clear_rows_(chunk.vectors, ~good),
            statistics=chunk.statistics.masked_fill(bad, 0.0),
            counters=chunk.counters,  # no integer can spoil a maximum in which rows without weight do not count
            loss=chunk.loss,
            trained=chunk.trained,
        )

    def _sound(self, statistics: Tensor) -> Tensor:
        """Which rows [m, B] are finite; where the state is not, as in a mask of −∞, a row has to leave it as it is."""
        return torch.where(self.statistics.isfinite(), statistics.isfinite(), statistics == self.statistics).all(dim=1)

    def report(self) -> Report:
        """Fetch the verdicts: the one place where the host waits for the round."""
        report = Report(rejected=dict(self.rejected), bytes_up=self.bytes_up)
        if not self.verdicts:
            return report
        clients = np.concatenate([verdict.clients for verdict in self.verdicts])
        trained = np.concatenate([verdict.trained for verdict in self.verdicts])
        finite, good, norm, sizes, loss = torch.cat([verdict.numbers for verdict in self.verdicts], dim=1).double().cpu().numpy()
        for client, is_finite in zip(clients[good == 0].tolist(), finite[good == 0], strict=True):
            report.rejected[client] = BAD_WEIGHT if is_finite else NOT_FINITE
        worked = (good == 1) & (sizes > 0)
        report.admitted, report.empty = int(worked.sum()), int(((good == 1) & (sizes == 0)).sum())
        if report.admitted:
            report.images = int(trained[worked].sum())
            report.loss = float(loss[worked].sum() / max(1, report.images))
            report.update_norm = float(norm[worked].mean())
        report.kept = self._kept(report.rejected)
        return report

    def _kept(self, rejected: Mapping[int, str]) -> dict[int, dict[str, Tensor]]:
        return {
            # a row of its own: a view would keep the rows of the whole wave
            client: {name: values[row] if len(values) == 1 else values[row].clone() for name, values in verdict.kept.items()}
            for verdict in self.verdicts
            for row, client in enumerate(verdict.clients.tolist())
            if verdict.kept and client not in rejected
        }


def clear_rows_(rows: Tensor, bad: Tensor) -> Tensor:
    """rows [m, P] with rows[k] = 0 where bad[k], in place; on a GPU, good rows are not even read."""
    if rows.is_cuda:
        from fedlens.engines import row_kernels

        return row_kernels.clear_rows_(rows, bad)
    return rows.masked_fill_(bad[:, None], 0.0)
