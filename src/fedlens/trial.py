"""Before anything is written: measure and train on an example or two, so that parts that do not fit each other are refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlens.algorithms.local_work import Plan
from fedlens.data import Assignment, Federation, Population
from fedlens.data.population import Indices
from fedlens.engines import Engine, Lanes
from fedlens.recipe import Recipe
from fedlens.recipe_text import RecipeError
from fedlens.tasks import Facts

MEASURED, TRAINED = 2, 8  # examples at most
COMPARED, COMPARED_RATE, TOLERANCE = 3, 1e-3, 1e-2  # clients, the learning rate at which they are, the relative difference


def check_data(recipe: Recipe, population: Population, facts: Facts) -> None:
    """Hold the evaluation sets against what the training set says."""
    for split, federation in population.evaluations().items():
        if not len(federation.clients.examples):
            raise RecipeError(f"data: the {split} set is empty: no example to measure the model on")
        recipe.task.check(federation.data, facts)


def try_out(engine: Engine, recipe: Recipe, population: Population, trainees: Indices) -> None:
    """Refuse what an engine cannot measure or train; `trainees` are the clients that may come up."""
    clients = population.train.clients
    plan = recipe.local_work.smallest(clients.offsets, clients.examples, trainees, TRAINED)
    drawn = _drawn(engine.device)
    # measured first: that a model has another number of outputs is said there, and on a GPU training would die of it
    for split, federation in (population.evaluations() or {"training": population.train}).items():
        few = federation.clients.examples[:MEASURED]
        with _said_of(f"a trial evaluation failed, on {len(few)} images of the {split} set"):
            engine.evaluate(engine.begin(), Federation(federation.data, Assignment(np.array([0, len(few)]), few)), MEASURED)
    with _said_of(f"a trial step failed, on {len(plan.examples)} images of a client"):
        for _ in engine.run(engine.prepare(plan, recipe.local_rule), engine.begin(), recipe.local_rule, 0.0):
            pass
    if drawn != _drawn(engine.device):
        raise RecipeError(
            "the model draws from a global generator (PyTorch's, as F.dropout does, or NumPy's or Python's), so that no run could "
            "be repeated: use modules for it (nn.Dropout and its kin), which fedlens gives keys of their own"
        )


def compare(lanes: Lanes, recipe: Recipe, population: Population, trainees: Indices) -> None:
    """Refuse lanes that make something else of a few clients than one client after another does.

    A model of one's own may mix images, or read its weights in ways that no check of its layers foresees: two steps of
    several clients, in batches of the size that was tried, show it. In float32 whatever the run's precision is: rounding to
    bfloat16 moves a deep network's gradients by a third, which would hide what is looked for.
    """
    lanes = lanes.in_float32()
    clients = population.train.clients
    smallest = recipe.local_work.smallest(clients.offsets, clients.examples, trainees, TRAINED)
    count, chosen = len(smallest.examples), trainees[np.argsort(-clients.sizes[trainees], kind="stable")[:COMPARED]]
    chosen = chosen[clients.sizes[chosen] > 0]
    plan = Plan(
        round=0,
        clients=chosen,
        sizes=np.minimum(2 * count, clients.sizes[chosen]),
        examples=np.concatenate([np.resize(clients.of_client(client), 2 * count) for client in chosen]),
        place=np.tile(np.arange(2 * count), len(chosen)),
        start_of_batch=np.arange(2 * len(chosen) + 1) * count,
        batch_of_slot=np.arange(len(chosen) + 1) * 2,
    )
    found: list[dict[int, Tensor]] = []
    for each in (lanes.reference, lanes):
        with _said_of(f"a trial of {len(chosen)} clients failed"):
            work: Any = each.prepare(plan, recipe.local_rule)
            updates = each.run(work, each.begin(), recipe.local_rule, COMPARED_RATE)
            found.append({
                int(client): torch.cat([chunk.vectors[row], chunk.statistics[row]]).double().clone()
                for chunk in updates
                for row, client in enumerate(chunk.clients)
            })  # fmt: skip
    for client, expected in found[0].items():
        error = float((found[1][client] - expected).norm() / expected.norm().clamp(min=1e-30))
        if expected.isfinite().all() and not error < TOLERANCE:
            raise RecipeError(f"lanes compute something else than the clients one by one (relative difference {error:.2g})")


@contextmanager
def _said_of(what: str) -> Iterator[None]:
    """Whatever a model, a task or a rule raises when it is tried out, in one line and with the recipe's name before it."""
    try:
        yield
    except Exception as error:
        raise RecipeError(f"{what}: {' '.join(str(error).split()) or type(error).__name__}") from error


def _drawn(device: torch.device) -> list[str]:
    """The states of the global generators: others when something was drawn from them."""
    states = [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])
    kind, words, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 (only looked at)
    return [*(str(state.tolist()) for state in states), f"{kind}{np.asarray(words).tolist()}{rest}", str(random.getstate())]
