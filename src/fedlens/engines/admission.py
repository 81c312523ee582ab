"""Check what comes from clients before it touches the sum: a bad update is left out and named, the round goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedlens.algorithms.local_work import Plan
from fedlens.algorithms.updates import Updates

NOT_FINITE = "update is not finite"
BAD_WEIGHT = "weight is negative, not finite, or more than the client holds"


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


class Admission:
    """Passes a stream of updates on, without those that are malformed, unasked for, repeated, not finite or overweight.

    Shapes and names are checked on the host; numbers on the device, by setting bad rows and their weights to zero, so that
    nothing waits for a client's numbers until the round's report.
    """

    def __init__(self, plan: Plan, size: int):
        self.size = size
        self.planned = dict(zip(plan.clients.tolist(), plan.sizes.tolist(), strict=True))
        self.seen: set[int] = set()
        self.rejected: dict[int, str] = {}
        self.bytes_up = 0
        self.rows: list[tuple[Updates, dict[str, Tensor]]] = []

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
        if tuple(chunk.vectors.shape) != (rows, self.size):
            return f"update has shape {list(chunk.vectors.shape[1:])}; expected [{self.size}]"
        if chunk.vectors.dtype != torch.float32:
            return f"update is {chunk.vectors.dtype}; expected torch.float32"
        if any(len(values) != rows for values in (chunk.sizes, chunk.statistics, chunk.counters, chunk.loss)):
            return "update, weight, buffers and loss differ in their number of rows"
        return None

    def _judge(self, chunk: Updates) -> Updates:
        limit = torch.tensor([self.planned[client] for client in chunk.clients.tolist()], device=chunk.sizes.device)
        norm = torch.linalg.vector_norm(chunk.vectors, dim=1)
        finite = norm.isfinite() & chunk.statistics.isfinite().all(dim=1)
        weighted = (chunk.sizes >= 0) & (chunk.sizes <= limit)  # false for NaN too
        good = finite & weighted
        self.rows.append((chunk, {"finite": finite, "good": good, "norm": norm, "sizes": chunk.sizes}))
        bad = ~good[:, None]
        return Updates(
            clients=chunk.clients,
            sizes=torch.where(good, chunk.sizes, 0.0),
            vectors=chunk.vectors.masked_fill_(bad, 0.0),
            statistics=chunk.statistics.masked_fill(bad, 0.0),
            counters=chunk.counters.masked_fill(bad, 0),
            loss=chunk.loss,
            trained=chunk.trained,
        )

    def report(self) -> Report:
        """Fetch the verdicts: the one place where the host waits for the round."""
        report = Report(rejected=dict(self.rejected), bytes_up=self.bytes_up)
        if not self.rows:
            return report
        clients, trained = (np.concatenate([getattr(chunk, name) for chunk, _ in self.rows]) for name in ("clients", "trained"))
        columns = [torch.stack([row["finite"], row["good"], row["norm"], row["sizes"], chunk.loss]) for chunk, row in self.rows]
        finite, good, norm, sizes, loss = torch.cat(columns, dim=1).double().cpu().numpy()
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
            client: {name: values[row] for name, values in chunk.kept.items()}
            for chunk, _ in self.rows
            for row, client in enumerate(chunk.clients.tolist())
            if chunk.kept and client not in rejected
        }
