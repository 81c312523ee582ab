"""The reference engine: one client after another, with an ordinary module and autograd."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from fedlens.algorithms.local_rules import Context, LocalRule
from fedlens.algorithms.local_work import Plan
from fedlens.algorithms.updates import Updates
from fedlens.data.feed import Feed, upload
from fedlens.data.population import Federation, Population
from fedlens.engines.batches import Batch
from fedlens.engines.captured import Captured
from fedlens.engines.draws import Draws
from fedlens.engines.repeatable import repeatable_sums
from fedlens.models.dropout import keyed_dropout_, keyed_layers, set_dropout_key
from fedlens.state import State
from fedlens.tasks import Facts, Sums, Task
from fedlens.vector import Layout, private_buffers

PIXELS = 1 << 26  # measured at a time on a GPU: about 1,300 images of 224 × 224

Precision: TypeAlias = Literal["float32", "bfloat16"]


class Sequential:
    """Holds one model whose parameters and gradients are views of two flat vectors, w and g, and takes clients through it.

    No model, optimiser or list of tensors is made for a client: it starts with w ← x, and every step is a handful of
    operations on whole vectors.
    """

    name = "sequential"
    fill = 1.0

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        facts: Facts,
        population: Population,
        seed: int,
        device: torch.device,
        precision: Precision = "float32",
        feeds: dict[int, Feed] | None = None,
    ):
        self.task, self.facts, self.population, self.seed, self.device = task, facts.to(device), population, seed, device
        self.dtype = getattr(torch, precision)
        self.model = copy.deepcopy(model).to(device).train()
        keyed_dropout_(self.model)
        self.has_dropout = bool(keyed_layers(self.model))
        self.parameters = Layout.of_parameters(self.model)
        self.statistics, self.counters = Layout.of_statistics(self.model), Layout.of_counters(self.model)
        self.w, self.s, self.c = (layout.read(self.model) for layout in (self.parameters, self.statistics, self.counters))
        self.g = torch.zeros_like(self.w)
        self.parameters.bind(self.model, self.w, self.g)
        self.statistics.bind(self.model, self.s)
        self.counters.bind(self.model, self.c)
        self.private = [(value, value.clone()) for value in private_buffers(self.model)]
        self.given = State(0, self.w.clone(), self.s.clone(), self.c.clone())
        self.feeds: dict[int, Feed] = {} if feeds is None else feeds
        self.captured = Captured(device) if device.type == "cuda" and self.feed(population.train).resident else None

    def begin(self) -> State:
        """The state before the first round: the model as it was given."""
        return self.given

    def in_float32(self) -> Sequential:
        """An engine like this one that computes in full precision, on the same examples."""
        return Sequential(self.model, self.task, self.facts, self.population, self.seed, self.device, feeds=self.feeds)

    def prepare(self, plan: Plan, rule: LocalRule) -> Batches:
        """Lay out a round: nothing in it depends on the state, so that it can be done while another one is trained."""
        return Batches(self, plan)

    def run(self, batches: Batches, state: State, rule: LocalRule, learning_rate: float) -> Iterator[Updates]:
        """Train the clients of a plan, each from the same state, and hand out their updates one by one."""
        plan = batches.plan
        context = Context(state.x, self.learning_rates(rule, learning_rate))
        vectors = {name: torch.empty_like(self.w) for name in rule.vectors}
        gathered = self.feed(self.population.train).gathered(batches.ids.split(batches.held))
        for slot, client in enumerate(plan.clients.tolist()):
            self._load(state)
            earlier = state.kept.get(client, {})
            for name, vector in vectors.items():
                vector.copy_(earlier[name]) if name in earlier else vector.zero_()
            loss = torch.zeros((), device=self.device)
            for number in range(plan.batch_of_slot[slot], plan.batch_of_slot[slot + 1]):
                batch = replace(batches[number], gathered=next(gathered))
                loss += self._gradient(batch) if self.captured is None else self.captured(len(batch.ids), self._gradient, batch)
                with torch.no_grad():
                    rule.step(self.w, self.g, vectors, context)
            yield Updates(
                clients=plan.clients[slot : slot + 1],
                sizes=batches.sizes[slot : slot + 1],
                vectors=rule.update(self.w, context)[None],
                statistics=self.s.clone()[None],
                counters=self.c.clone()[None],
                loss=loss[None],
                trained=batches.trained[slot : slot + 1],
                kept={name: vectors[name].clone()[None] for name in rule.kept},
            )
        for layout, vector in ((self.parameters, self.w), (self.statistics, self.s), (self.counters, self.c)):
            layout.check_bound(self.model, vector)

    def evaluate(self, state: State, federation: Federation, batch_size: int | None = None) -> Sums:
        """Measure a state on a federation's examples, with one row of sums for each of its clients."""
        self._load(state)
        return self.measure(self.model, self._outputs, federation, batch_size)

    def measure(
        self, model: nn.Module, outputs_of: Callable[[Tensor], Tensor], federation: Federation, batch_size: int | None
    ) -> Sums:
        """The sums of what a model puts out, in evaluation mode meanwhile."""
        feed, batch_size = self.feed(federation), batch_size or self._batch_size(federation)
        ids = feed.ids(federation.clients.examples)
        group = torch.from_numpy(federation.clients.client_of_each()).to(self.device)
        sums = self.task.begin_sums(self.facts, len(federation.clients), self.device)
        model.eval()
        with torch.no_grad():
            parts = ids.split(batch_size)
            for part, gathered, groups in zip(parts, feed.gathered(parts), group.split(batch_size), strict=True):
                columns = feed.batch(part, gathered)
                inputs, targets = self.task.prepare(columns, self.facts, self.task.evaluation_transforms, None)
                outputs = outputs_of(inputs)
                with repeatable_sums():
                    self.task.add(sums, outputs, targets, groups)
        model.train()
        return sums

    def _batch_size(self, federation: Federation) -> int:
        """How many images are measured at a time: a GPU is filled, a CPU's caches are not overrun."""
        image = federation.data.columns.get("image")
        if self.device.type == "cpu" or image is None:
            return 500
        return min(1 << 14, max(64, PIXELS // int(np.prod(image.shape[1:3]))))

    def _load(self, state: State) -> None:
        self.w.copy_(state.x)
        self.s.copy_(state.statistics)
        self.c.copy_(state.counters)
        for value, given in self.private:
            value.copy_(given)

    def _gradient(self, batch: Batch) -> Tensor:
        """Fill g with the gradient of a batch's loss at w; returns the sum of the examples' losses."""
        if batch.keys is not None:
            set_dropout_key(self.model, batch.keys)
        inputs, targets = batch.load(self.feed(self.population.train), self.task, self.facts)
        self.g.zero_()
        losses = self.task.loss(self._outputs(inputs), targets)
        if batch.weights is None:
            losses.mean().backward()
        else:  # a batch of weight zero has loss zero
            (batch.weights @ losses / batch.weights.sum().clamp(min=torch.finfo(losses.dtype).tiny)).backward()
        return losses.detach().sum()

    def _outputs(self, inputs: Tensor) -> Tensor:
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            outputs = self.model(inputs)
        return outputs.float()

    def learning_rates(self, rule: LocalRule, learning_rate: float) -> float | Tensor:
        """η for each parameter, or one for all."""
        if not rule.learning_rate_factors:
            return learning_rate
        rates = torch.full_like(self.w, learning_rate)
        for pattern, factor in rule.learning_rate_factors.items():
            for place in self.parameters.slices(pattern):
                rates[place] *= factor
        return rates

    def feed(self, federation: Federation) -> Feed:
        """The examples of a federation as tensors, made once for each data set."""
        key = id(federation.data)
        if key not in self.feeds:
            self.feeds[key] = Feed(federation.data, self.task.columns, self.device)
        return self.feeds[key]


class Batches:
    """A plan's batches as tensors: what is random about them is drawn for the whole round at once."""

    def __init__(self, engine: Sequential, plan: Plan):
        federation = engine.population.train
        self.plan, self.starts, self.held = plan, plan.start_of_batch.tolist(), np.diff(plan.start_of_batch).tolist()
        self.ids = engine.feed(federation).ids(plan.examples)
        self.sizes = upload(plan.sizes.astype(np.float32), engine.device)
        self.trained = np.diff(plan.start_of_batch[plan.batch_of_slot])
        draws = Draws.of(plan, engine.task, federation, engine.seed)
        self.uniform = None if draws.uniform is None else upload(draws.uniform, engine.device)
        self.weights = None if draws.weights is None else upload(draws.weights, engine.device)
        self.keys = upload(draws.keys, engine.device) if engine.has_dropout else None

    def __getitem__(self, number: int) -> Batch:
        place = slice(self.starts[number], self.starts[number + 1])
        return Batch(
            ids=self.ids[place],
            keys=None if self.keys is None else self.keys[number],
            uniform=None if self.uniform is None else self.uniform[place],
            weights=None if self.weights is None else self.weights[place],
        )
