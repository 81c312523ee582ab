"""A recipe made real: the data divided, the model built, the engine ready; and what `setting` means for a round."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedlens.algorithms.local_work import Plan
from fedlens.algorithms.schedules import learning_rate
from fedlens.data import IID, Federation, Natural, Partition, Population, federate, mean_earth_movers_distance
from fedlens.data.population import Indices
from fedlens.data.sources import Sources
from fedlens.engines import Engine, Lanes, Report, Sequential, choose, repeatable_layers
from fedlens.recipe import Data, Recipe
from fedlens.recipe_text import RecipeError
from fedlens.state import State
from fedlens.tasks import Facts
from fedlens.tracking.checkpoints import tensors_in
from fedlens.trial import check_data, compare, try_out
from fedlens.vector import Layout


@dataclass(frozen=True)
class Work:
    """A round before it is trained: who takes part, what each does as index batches, and the same as the engine wants it."""

    round: int
    cohort: Indices
    plan: Plan
    prepared: Any


class Agenda:
    """Lays out rounds, the next one already while the device is busy with the one before."""

    def __init__(self, experiment: Experiment):
        self.experiment = experiment
        self.ahead: Work | None = None

    def work(self, round: int) -> Work:
        if self.ahead is None or self.ahead.round != round:
            return self.experiment.work(round)
        return self.ahead

    def look_ahead(self, round: int) -> None:
        self.ahead = self.experiment.work(round) if round < self.experiment.rounds else None


@dataclass(frozen=True)
class Experiment:
    """Everything that stays as it is while a model trains."""

    recipe: Recipe
    population: Population
    facts: Facts
    model: nn.Module  # as built; the engine trains a copy
    engine: Engine
    why: str  # that engine
    alone: Indices | None  # with setting 'local': the clients that train, one after another

    @classmethod
    def of(cls, recipe: Recipe, model: nn.Module | None = None, population: Population | None = None) -> Experiment:
        """Make the parts that the recipe names; a model or a population of your own takes the place of the recipe's."""
        with _errors_of(f"recipe {recipe.name}"):
            return cls._of(recipe.resolved(), model, population)

    @classmethod
    def _of(cls, recipe: Recipe, model: nn.Module | None, population: Population | None) -> Experiment:
        device = _device(recipe.device)
        population = _population_of(recipe) if population is None else population
        for tracker in recipe.trackers:
            tracker.check()
        if recipe.setting == "centralised":
            population = population.pool()
        recipe.sampler.check(population.sizes, recipe.cohort_size)
        facts = recipe.task.facts(population.data)
        if model is None:
            if recipe.model is None:
                raise RecipeError("model: is missing: name one, or give train() a module")
            _, channels, _, image_size = _input_shape(recipe, population, facts)
            model = recipe.model.build(facts.classes, channels, image_size, recipe.seed)
        try:
            reference = Sequential(model, recipe.task, facts, population, recipe.seed, device, recipe.precision)
        except RuntimeError as error:
            raise RecipeError(
                "the model cannot be copied or laid out as a vector: call a lazy module on a batch before; take weight_norm "
                f"from torch.nn.utils.parametrizations ({' '.join(str(error).split())})"
            ) from error
        alone = None
        if recipe.setting == "local":
            alone = recipe.sampler.sample(population.sizes, recipe.cohort_size, recipe.seed, 0)
            if not len(alone):
                raise RecipeError(f"setting: local, but sampler '{recipe.sampler.name}' drew no client; use sampler=uniform")
        check_data(recipe, population, facts)
        trainees = np.arange(len(population)) if alone is None else alone
        with repeatable_layers(device):
            try_out(reference, recipe, population, trainees)
            engine, why = choose(recipe.engine, reference, recipe.local_rule, alone=recipe.setting != "federated")
            if engine is not reference:
                try:
                    try_out(engine, recipe, population, trainees)
                    if isinstance(engine, Lanes):
                        compare(engine, recipe, population, trainees)
                except RecipeError as error:  # a model of one's own may do what cannot be vectorised
                    if recipe.engine == engine.name:
                        raise
                    engine, why = reference, f"no lanes: {error}"
        return cls(recipe, population, facts, model, engine, why, alone)

    @property
    def rounds(self) -> int:
        """How many rounds there are in all: with setting 'local', those of each client one after another."""
        return self.recipe.rounds * (1 if self.alone is None else len(self.alone))

    def begin(self) -> State:
        """The state before the first round."""
        state = self.engine.begin()
        return replace(state, memory=self.recipe.server_rule.begin(state.x))

    def enter(self, round: int, state: State) -> State:
        """The state with which a round starts: the one before it, but alone every client starts from the same model."""
        if self.alone is not None and round % self.recipe.rounds == 0:
            return replace(self.begin(), round=round)
        return state

    def cohort(self, round: int) -> Indices:
        """Who takes part in a round."""
        if self.alone is not None:
            client = round // self.recipe.rounds
            return self.alone[client : client + 1]
        return self.recipe.sampler.sample(self.population.sizes, self.recipe.cohort_size, self.recipe.seed, round)

    def work(self, round: int) -> Work:
        """Who takes part in a round, and what each does."""
        clients, cohort = self.population.train.clients, self.cohort(round)
        plan = self.recipe.local_work.plan(clients.offsets, clients.examples, cohort, self.recipe.seed, round)
        return Work(round, cohort, plan, self.engine.prepare(plan, self.recipe.local_rule))

    def learning_rates(self, round: int) -> tuple[float, float]:
        """η of clients and server in a round."""
        place, rounds = round % self.recipe.rounds, self.recipe.rounds
        return learning_rate(self.recipe.local_rule, place, rounds), learning_rate(self.recipe.server_rule, place, rounds)

    def row(self, round: int, cohort: Indices, state: State, report: Report) -> dict[str, Any]:
        """What is known of a round before the model is measured; where nothing is federated, nothing is sent."""
        local, server = self.learning_rates(round)
        alone = {} if self.alone is None else {"client": self.population.train.clients.client_name(int(cohort[0]))}
        down, up = (len(cohort) * state.sent_bytes, report.bytes_up) if self.recipe.setting == "federated" else (0, 0)
        rates = {"learning_rate": local, "server_learning_rate": server}
        return {**alone, "cohort": len(cohort), "fill": self.engine.fill, "bytes_down": down, "bytes_up": up, **rates}

    def due(self, round: int) -> bool:
        """Whether the model is measured after this round."""
        place = round % self.recipe.rounds + 1
        return place % self.recipe.evaluation.every == 0 or place == self.recipe.rounds

    def evaluate(self, state: State, round: int) -> dict[str, float]:
        """Measure the model on every evaluation set: numbers named 'test/accuracy' and, over clients, 'test/clients/…'."""
        measured: dict[str, float] = {}
        for split, federation in self.population.evaluations().items():
            if self.alone is not None:
                federation = self._own(federation, round)
            sums = self.engine.evaluate(state, federation, self.recipe.evaluation.batch_size)
            numbers = self.recipe.task.metrics(sums, self.facts)
            if len(federation.clients) > 1:
                numbers |= _spread(self.recipe.task.group_metrics(sums))
            measured |= {f"{split}/{name}": value for name, value in numbers.items()}
        return measured

    def _own(self, federation: Federation, round: int) -> Federation:
        """Of a set that is grouped by the clients that train, the part of the one that trains alone."""
        if len(federation.clients) != len(self.population):
            return federation
        return Federation(federation.data, federation.clients.only(int(self.cohort(round)[0])))

    def score(self) -> tuple[str, bool] | None:
        """The number by which the best round is chosen, on the validation set if there is one; and is higher better?"""
        splits = list(self.population.evaluations())
        if not splits or self.alone is not None:
            return None
        metric, higher = self.recipe.task.best_metric
        return f"{splits[0]}/{metric}", higher

    def trained(self, state: State) -> nn.Module:
        """The model with a state's weights and buffers, on the CPU, ready to be used."""
        model = copy.deepcopy(self.model).cpu().eval()
        for layout, values in (
            (Layout.of_parameters(model), state.x),
            (Layout.of_statistics(model), state.statistics),
            (Layout.of_counters(model), state.counters),
        ):
            layout.write(model, values.cpu())
        return model

    def describe(self) -> dict[str, Any]:
        """What must be the same when a run goes on: the recipe, the data, the model before the first round."""
        begin, train = self.engine.begin(), self.population.train
        digest = hashlib.blake2b(digest_size=16)
        for _, value in tensors_in(self.model.state_dict()):
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return {
            "recipe": self.recipe.to_dict(),
            "data": {
                "name": train.data.name,
                "train_examples": len(train.clients.examples),
                "clients": len(train.clients),
                "evaluation": {name: len(part.clients.examples) for name, part in self.population.evaluations().items()},
                "fingerprint": self.population.fingerprint(),
            },
            "model": {
                "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
                "trainable": begin.x.numel(),
                "sent_numbers": begin.x.numel() + begin.statistics.numel() + begin.counters.numel(),
                "initial_weights": digest.hexdigest(),
                "pretrained": str(loaded) if (loaded := getattr(self.model, "loaded", None)) else None,
            },
        }

    def headline(self) -> str:
        """One line that says what is run, on what, and with what."""
        recipe, train = self.recipe, self.population.train
        data = f"{train.data.name}: {len(train.clients.examples):,} images"
        if recipe.setting != "centralised":
            data += f", {len(train.clients):,} clients"
            if recipe.data is not None:
                data += f", {_in_short(recipe.data.partition)}"
            label = train.data.columns.get("label")
            if label is not None and label.ndim == 1:
                data += f", EMD {mean_earth_movers_distance(train, self.facts.classes):.2f}"
        model = recipe.model.name if recipe.model else type(self.model).__name__
        device = self.engine.device
        where = f"{torch.get_num_threads()} threads" if device.type == "cpu" else torch.cuda.get_device_name(device)
        rule = recipe.server_rule.name if recipe.setting == "federated" else recipe.setting
        size = Layout.of_parameters(self.model).size
        return f"{recipe.name} · {rule} · {data} · {model}, {size:,} parameters · {self.engine.name} engine ({self.why}), {where}"


def _in_short(partition: Partition) -> str:
    """Its name, its numbers, and what else is not as it is by default."""
    fields = type(partition).model_fields
    values = {key: getattr(partition, key) for key in fields if key != "clients"}
    shown = [v for key, v in values.items() if v is not None and (isinstance(v, int | float) or v != fields[key].default)]
    return " ".join(map(str, [partition.name, *shown]))


@contextmanager
def _errors_of(whose: str) -> Iterator[None]:
    """Parts that do not fit each other or the data are the recipe's fault, and said in its name."""
    try:
        yield
    except (ValueError, TypeError, KeyError, FileNotFoundError) as error:
        message = error.args[0] if isinstance(error, KeyError) else error
        raise RecipeError(f"{whose}: {message}") from error


def population_of(recipe: Recipe) -> Population:
    """The data that a recipe names, divided as it says."""
    with _errors_of(f"recipe {recipe.name}"):
        return _population_of(recipe)


def population_in(data: Data, seed: int = 0) -> Population:
    """A data set without a recipe: divided as it says, else among its own clients, else in one hand."""
    with _errors_of(f"data {data.source.name}"):
        sources = data.source.load()
        own = Natural() if "client" in sources.train.columns else IID(clients=1)
        partition = data.partition if "partition" in data.model_fields_set else own
        return _federated(sources, partition, data, seed)


def _population_of(recipe: Recipe) -> Population:
    if recipe.data is None:
        raise RecipeError("data: is missing: name a source, or give train() a population")
    sources = recipe.data.source.load()
    recipe.task.facts(sources.train)  # a partition may go by the labels, and would only stumble over bad ones
    return _federated(sources, recipe.data.partition, recipe.data, recipe.seed)


def _federated(sources: Sources, partition: Partition, data: Data, seed: int) -> Population:
    return federate(sources, partition, data.validation, seed, data.test, data.aside, data.shift)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device, seen = torch.device(name), torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= seen:
        raise RecipeError(f"device: '{name}' is not there: CUDA GPUs that PyTorch sees: {seen} (use cpu or auto)")
    return device


def _input_shape(recipe: Recipe, population: Population, facts: Facts) -> torch.Size:
    """The shape that the task gives to one example: [1, C, H, W]."""
    batch = {name: torch.from_numpy(np.array(population.data.column(name)[:1])) for name in recipe.task.columns}
    inputs, _ = recipe.task.prepare(batch, facts, recipe.task.evaluation_transforms, None)
    return inputs.shape


def _spread(group_metrics: dict[str, Tensor]) -> dict[str, float]:
    """How a metric is distributed over clients, those without examples left out."""
    found: dict[str, float] = {}
    for name, values in group_metrics.items():
        known = values[~values.isnan()].cpu().numpy()
        if len(known):
            quantiles = dict(zip(("min", "q10", "median", "q90", "max"), np.quantile(known, (0, 0.1, 0.5, 0.9, 1)), strict=True))
            numbers = {"mean": known.mean(), "std": known.std(), **quantiles}
            found |= {f"clients/{name}/{what}": float(value) for what, value in numbers.items() if math.isfinite(value)}
    return found
