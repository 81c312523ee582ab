"""Worker processes compute what one thread computes, bit for bit, and end with the run."""

import gc
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedlens import Recipe, RecipeError, load_recipe, train
from fedlens.algorithms.local_rules import SGD
from fedlens.algorithms.local_work import Epochs
from fedlens.engines import Sequential, Workers
from fedlens.engines.workers import share_out
from fedlens.tasks import Classification

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch cannot fork beside a GPU")
TASK = Classification(train_transforms=({"name": "horizontal_flip"},))


def plan_for(population, cohort, round=0):
    clients = population.train.clients
    return Epochs(batch_size=5, epochs=2).plan(clients.offsets, clients.examples, np.array(cohort, dtype=np.int64), 0, round)


def reference_for(population, model):
    return Sequential(model, TASK, TASK.facts(population.data), population, 0, torch.device("cpu"))


def updates_of(engine, plan, state, rule):
    """What each client sends, copied: a row is used again."""
    found = {}
    for chunk in engine.run(engine.prepare(plan, rule), state, rule, 0.1):
        tensors = chunk.vectors, chunk.statistics, chunk.counters, chunk.sizes, chunk.loss, *chunk.kept.values()
        found[int(chunk.clients[0])] = [*(tensor.clone() for tensor in tensors), torch.from_numpy(chunk.trained)]
    return found


def same(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(a, b) for client in one for a, b in zip(one[client], other[client], strict=True)
    )


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("rule", [SGD(), SGD(momentum=0.9, keep_momentum=True)], ids=["plain", "kept momentum"])
def test_every_client_s_update_has_the_bits_of_one_trained_alone(population, linear, count, rule):
    model = nn.Sequential(*linear, nn.BatchNorm1d(10), nn.Dropout(0.3))
    cohort = [0, 1, 4, 5]
    reference = reference_for(population, model)
    workers, state = Workers(reference, count), reference.begin()
    for round in range(3):
        plan = plan_for(population, cohort, round)
        expected = updates_of(reference, plan, state, rule)
        assert same(expected, updates_of(workers, plan, state, rule))
        kept = {client: {"momentum": values[5][0]} for client, values in expected.items()} if rule.kept else {}
        state.__dict__["kept"] = kept


@pytest.mark.parametrize("cohort", [[], [2], [3], list(range(6))])
def test_any_cohort(population, linear, cohort):
    reference = reference_for(population, linear)
    plan, state = plan_for(population, cohort), reference.begin()
    assert same(updates_of(reference, plan, state, SGD()), updates_of(Workers(reference, 2), plan, state, SGD()))


def test_a_round_that_was_abandoned_leaves_no_trace_in_the_next(population, linear):
    reference = reference_for(population, linear)
    plan, state, workers = plan_for(population, range(6)), reference.begin(), Workers(reference, 2)
    next(workers.run(plan, state, SGD(), 0.1))
    assert same(updates_of(reference, plan, state, SGD()), updates_of(workers, plan, state, SGD()))


def test_a_worker_that_is_killed_is_said(population, linear):
    reference = reference_for(population, linear)
    plan, state, workers = plan_for(population, range(6)), reference.begin(), Workers(reference, 2)
    updates_of(workers, plan, state, SGD())
    os.kill(workers.workers[1].process.pid, signal.SIGKILL)
    workers.workers[1].process.join()
    with pytest.raises(RuntimeError, match="a worker process ended with code -9"):
        updates_of(workers, plan, state, SGD())


class Broken(SGD):
    """Fails at the end."""

    def update(self, w, context):
        raise ArithmeticError("what now?")


def test_what_fails_in_a_worker_is_said_with_its_trace(population, linear):
    reference = reference_for(population, linear)
    with pytest.raises(RuntimeError, match=r"(?s)failed in a worker process.*ArithmeticError: what now\?"):
        updates_of(Workers(reference, 2), plan_for(population, [0, 4]), reference.begin(), Broken())


def test_processes_end_with_the_engine(population, linear):
    reference = reference_for(population, linear)
    workers = Workers(reference, 2)
    updates_of(workers, plan_for(population, [0, 4]), reference.begin(), SGD())
    processes = [worker.process for worker in workers.workers]
    assert all(process.is_alive() for process in processes)
    del workers
    gc.collect()
    assert not any(process.is_alive() for process in processes)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(1, 6))
def test_work_is_shared_out_once_and_evenly(sizes, workers):
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    plan = Epochs(batch_size=4).plan(offsets, np.arange(offsets[-1]), np.arange(len(sizes)), 0, 0)
    order, worker_of = share_out(plan, workers)
    assert sorted(order) == list(range(len(sizes)))
    work = np.diff(plan.start_of_batch[plan.batch_of_slot])[order] + 1
    load = np.bincount(worker_of, work, workers)
    assert load.max() <= work.sum() / workers + work.max()  # Graham's bound


def test_a_run_by_workers_is_a_run_by_one_thread(quiet, tmp_path):
    changes = ["rounds=3", "cohort_size=5", "data.partition.clients=400", "checkpoint_seconds=0"]
    runs = {
        engine: train(load_recipe("quickstart", [*changes, f"engine={engine}"]), out=tmp_path / engine, terminal=quiet)
        for engine in ("sequential", "workers")
    }
    assert runs["workers"].summary["engine"] == "workers"
    torch.testing.assert_close(runs["workers"].state.x, runs["sequential"].state.x, rtol=1e-5, atol=1e-6)  # summed in another order
    again = train(load_recipe("quickstart", [*changes, "engine=workers"]), terminal=quiet)
    assert torch.equal(again.state.x, runs["workers"].state.x)


def test_beside_a_gpu_workers_are_refused(population, linear, quiet, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    recipe = Recipe(rounds=1, cohort_size=2, engine="workers", device="cpu")
    with pytest.raises(RecipeError, match="Linux without a GPU"):
        train(recipe, model=linear, population=population, terminal=quiet)


PARENT = """
import sys, time, os
import torch
from rich.console import Console
from fedlens.engines import workers
from fedlens import load_recipe, train
started = workers.Worker.__init__
def noted(self, *rest):
    started(self, *rest)
    print(self.process.pid, flush=True)
workers.Worker.__init__ = noted
train(load_recipe("quickstart", ["engine=workers", "rounds=4000", "evaluation.every=4000"]), terminal=Console(quiet=True))
"""


def test_workers_do_not_outlive_a_parent_that_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    pids = [int(parent.stdout.readline()) for _ in range(len(os.sched_getaffinity(0)))]
    time.sleep(1.5)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while any(running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(running(pid) for pid in pids)


def running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
