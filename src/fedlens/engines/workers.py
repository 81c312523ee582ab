"""Several clients at once on a CPU: processes of one thread each, because a client's small batches gain little from more.

Every client is trained as the sequential engine would with one thread. Who trains whom, and in which order updates come back,
follows from the plan: the pace of the workers changes no bit of the result.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlens.algorithms.local_rules import LocalRule
from fedlens.algorithms.local_work import Plan
from fedlens.algorithms.updates import Updates
from fedlens.data.population import Federation
from fedlens.engines.sequential import Sequential
from fedlens.state import State
from fedlens.tasks import Sums

ROWS = 3  # updates that a worker may be ahead of the one that is added up


@dataclass(frozen=True)
class Shared:
    """Memory that all processes see: the state that a round starts from, and a worker's updates until they are added up."""

    state: State
    vectors: Tensor  # [ROWS, P]
    statistics: Tensor  # [ROWS, B]
    counters: Tensor  # [ROWS, C]

    @classmethod
    def of(cls, state: State, like: State) -> Shared:
        rows = (value.new_empty(ROWS, *value.shape).share_memory_() for value in (like.x, like.statistics, like.counters))
        return cls(state, *rows)


class Worker:
    """One process: it is sent clients' work, and answers with a row of its memory for each of them, in order."""

    def __init__(self, engine: Sequential, shared: Shared):
        context = multiprocessing.get_context("fork")
        self.shared, self.free = shared, context.Semaphore(ROWS)
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(engine, shared, self.free, other, self.connection), daemon=True)
        self.process.start()
        other.close()

    def send(self, message: Any) -> None:
        try:
            self.connection.send(message)
        except OSError as error:
            raise self._ended() from error

    def receive(self) -> Updates:
        """The next update; it lies in a row of the shared memory until `free` is released."""
        try:
            answer = self.connection.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if isinstance(answer, str):
            raise RuntimeError(f"a client's training failed in a worker process:\n{answer}")
        row, clients, size, loss, trained, kept = answer
        place, shared = slice(row, row + 1), self.shared
        return Updates(
            clients=clients,
            sizes=torch.from_numpy(size),
            vectors=shared.vectors[place],
            statistics=shared.statistics[place],
            counters=shared.counters[place],
            loss=torch.from_numpy(loss),
            trained=trained,
            kept={name: torch.from_numpy(value) for name, value in kept.items()},
        )

    def _ended(self) -> RuntimeError:
        self.process.join()
        return RuntimeError(f"a worker process ended with code {self.process.exitcode}: out of memory? (sequential needs least)")


def end(workers: list[Worker]) -> None:
    for worker in workers:
        worker.connection.close()
        worker.process.terminate()
        worker.process.join()
    workers.clear()


class Workers:
    """The engine of many cores; what it shares with the sequential one (evaluation, first state, data) it takes from there."""

    name = "workers"
    fill = 1.0

    def __init__(self, reference: Sequential, count: int | None = None):
        if sys.platform != "linux" or torch.cuda.is_available():
            raise ValueError("worker processes are for Linux without a GPU: PyTorch cannot fork beside one")
        self.reference, self.device = reference, reference.device
        self.count = count or len(os.sched_getaffinity(0))
        self.workers: list[Worker] = []
        self.end = weakref.finalize(self, end, self.workers)  # with the engine, its processes end
        self.given = self.reference.given
        self.busy = False

    def begin(self) -> State:
        return self.reference.begin()

    def evaluate(self, state: State, federation: Federation, batch_size: int | None = None) -> Sums:
        return self.reference.evaluate(state, federation, batch_size)

    def prepare(self, plan: Plan, rule: LocalRule) -> Plan:
        return plan

    def run(self, plan: Plan, state: State, rule: LocalRule, learning_rate: float) -> Iterator[Updates]:
        """Train the clients of a plan, and hand out their updates one by one, in the order in which they should be done."""
        if self.busy or not self.workers:
            self._start(state)
        self.busy = True  # until every answer is in: an abandoned round leaves workers that know nothing of it
        for name in ("x", "statistics", "counters"):
            getattr(self.given, name).copy_(getattr(state, name))
        order, worker_of = share_out(plan, len(self.workers))
        for number, worker in enumerate(self.workers):
            slots = order[worker_of == number].tolist()
            kept = {client: state.kept[client] for client in plan.clients[slots].tolist() if client in state.kept}
            worker.send(([plan.part(slot, slot + 1) for slot in slots], _plain(kept), rule, learning_rate))
        with _one_thread():  # this process only adds up; threads of its own would take the workers' cores to wait on
            for number in worker_of.tolist():
                yield self.workers[number].receive()
                self.workers[number].free.release()
        self.busy = False

    def _start(self, state: State) -> None:
        end(self.workers)
        x, statistics, counters = (value.clone().share_memory_() for value in (state.x, state.statistics, state.counters))
        self.given = State(0, x, statistics, counters)
        self.workers += [Worker(self.reference, Shared.of(self.given, state)) for _ in range(self.count)]


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def share_out(plan: Plan, workers: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The order in which slots should be done, and who does each: longest first, always by the one with least to do."""
    work = np.diff(plan.start_of_batch[plan.batch_of_slot]) + 1  # also a client with nothing to do takes a moment
    load, done, worker_of = np.zeros(workers, dtype=np.int64), np.zeros_like(work), np.zeros_like(work)
    for slot in np.argsort(-work, kind="stable").tolist():
        worker_of[slot] = load.argmin()
        load[worker_of[slot]] += work[slot]
        done[slot] = load[worker_of[slot]]
    order = np.argsort(done, kind="stable")
    return order, worker_of[order]


def _serve(engine: Sequential, shared: Shared, free: Any, connection: Connection, other: Connection) -> None:
    """What a worker does until nobody is at the other end."""
    other.close()  # or this process would keep its own pipe open
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    row, parent = 0, os.getppid()
    while True:
        try:
            parts, kept, rule, learning_rate = connection.recv()
        except EOFError:
            return
        state = State(0, shared.state.x, shared.state.statistics, shared.state.counters, kept=_tensors(kept))
        try:
            for part in parts:
                for update in engine.run(engine.prepare(part, rule), state, rule, learning_rate):
                    while not free.acquire(timeout=1):
                        if os.getppid() != parent:  # it was killed, and will take no more
                            return
                    connection.send(_put(shared, row, update))
                    row = (row + 1) % ROWS
        except Exception:
            connection.send(traceback.format_exc())


def _put(shared: Shared, row: int, update: Updates) -> tuple[Any, ...]:
    """Write an update into a row; what is small, or kept by the client, goes through the pipe."""
    shared.vectors[row], shared.statistics[row], shared.counters[row] = update.vectors[0], update.statistics[0], update.counters[0]
    kept = {name: value.numpy() for name, value in update.kept.items()}
    return row, update.clients, update.sizes.numpy(), update.loss.numpy(), update.trained, kept


def _plain(kept: Any) -> Any:
    """What clients keep, as arrays: tensors would be sent as handles of files."""
    return {client: {name: value.numpy() for name, value in vectors.items()} for client, vectors in kept.items()}


def _tensors(kept: Any) -> Any:
    return {client: {name: torch.from_numpy(value) for name, value in vectors.items()} for client, vectors in kept.items()}
