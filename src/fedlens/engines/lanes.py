"""Train many clients at once on one device: the cohort is a matrix W [m, P], and a launch moves many of its rows.

    G_k = ∇ℓ_k(W_k) for all lanes k of a launch in one forward and one backward pass,   then the local rule on those rows

Every client has a row of its own for the whole round, so nothing starts or ends within a launch, the local rule sees a matrix
of rows as it would see a vector, and every row is what the sequential engine would have computed, up to rounding.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from fedlens.algorithms.local_rules import Context, LocalRule
from fedlens.algorithms.local_work import Plan
from fedlens.algorithms.updates import Updates
from fedlens.data.population import Federation, Indices
from fedlens.engines.draws import Draws
from fedlens.engines.lane_layers import lanes_
from fedlens.engines.packing import Launch, Limits, Packing, pack
from fedlens.engines.sequential import Sequential
from fedlens.models.dropout import dropout_keys
from fedlens.state import State
from fedlens.tasks import Sums

ROWS_SHARE = 0.4  # of the device's memory, for the rows of a wave and for what is made of them
PIXELS = 1 << 24  # in a launch: about 330 images of 224 × 224 keep a large GPU busy
NUMBERS = 1 << 30  # in the weights of a launch


class Lanes:
    """The vectorised engine; what it shares with the sequential one (evaluation, first state, data) it takes from there."""

    name = "lanes"

    def __init__(self, reference: Sequential, limits: Limits | None = None):
        self.reference, self.device = reference, reference.device
        self.model = copy.deepcopy(reference.model)
        self.exact = any(isinstance(module, _BatchNorm) for module in self.model.modules())
        lanes_(self.model)
        self.dtype = reference.dtype
        self.frozen = {name: value.to(self.dtype) for name, value in self.model.named_parameters() if not value.requires_grad}
        image = reference.population.data.columns.get("image")
        pixels = 1 if image is None else int(np.prod(image.shape[1:3]))
        numbers = reference.parameters.size
        self.limits = limits or Limits(slots=max(16, PIXELS // pixels), lanes=max(1, NUMBERS // numbers))
        self.fill = 1.0

    def begin(self) -> State:
        return self.reference.begin()

    def evaluate(self, state: State, federation: Federation, batch_size: int) -> Sums:
        return self.reference.evaluate(state, federation, batch_size)

    def run(self, plan: Plan, state: State, rule: LocalRule, learning_rate: float) -> Iterator[Updates]:
        """Train the clients of a plan and hand out their updates, in waves of as many rows as memory holds."""
        context = Context(state.x, self.reference.learning_rates(rule, learning_rate))
        most = self._rows_of_a_wave(rule)
        slots = used = 0
        for first in range(0, len(plan.clients), most):
            wave = plan.part(first, min(first + most, len(plan.clients)))
            packing, updates = self._train_within_memory(wave, state, rule, context)
            slots, used = slots + len(packing.real), used + int(packing.real.sum())
            yield updates
        self.fill = used / slots if slots else 1.0

    def _rows_of_a_wave(self, rule: LocalRule) -> int:
        if self.device.type == "cuda":
            memory = torch.cuda.get_device_properties(self.device).total_memory
        else:
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        row = 4 * self.reference.parameters.size * (2 + len(rule.vectors))  # w, Δ and the vectors beside them
        return max(1, int(ROWS_SHARE * memory / row))

    def _train_within_memory(self, plan: Plan, state: State, rule: LocalRule, context: Context) -> tuple[Packing, Updates]:
        """Train a wave; where a launch does not fit, start the wave again with smaller ones: no row was handed out yet."""
        while True:
            try:
                return self._train(plan, state, rule, context)
            except torch.OutOfMemoryError as error:
                if self.limits.slots == 1:
                    raise MemoryError("a single image of a single client does not fit the device: use a smaller model") from error
            self.limits = replace(self.limits, slots=self.limits.slots // 2, lanes=max(1, self.limits.lanes // 2))
            torch.cuda.empty_cache()

    def _train(self, plan: Plan, state: State, rule: LocalRule, context: Context) -> tuple[Packing, Updates]:
        packing = pack(plan, self.limits, self.exact)
        slots = _Slots(self.reference, plan, packing)
        rows = _Rows.begin(state, rule, plan.clients[packing.slot_of_lane])
        first = [piece.to(self.dtype) for piece in state.x.split(self.reference.parameters.sizes)]
        for launch in packing.launches:
            self._step(launch, slots, rows.part(launch.lanes), first, rule, context)
        examples = np.diff(plan.start_of_batch[plan.batch_of_slot])
        return packing, Updates(
            clients=rows.clients,
            sizes=torch.from_numpy(plan.sizes[packing.slot_of_lane].astype(np.float32)).to(self.device),
            vectors=rule.update(rows.w, context),
            statistics=rows.statistics,
            counters=rows.counters,
            loss=rows.loss,
            trained=examples[packing.slot_of_lane],
            kept={name: rows.vectors[name] for name in rule.kept},
        )

    def _step(self, launch: Launch, slots: _Slots, rows: _Rows, first: Sequence[Tensor], rule: LocalRule, context: Context) -> None:
        """One step of the lanes of a launch."""
        keys, inputs, targets, importance, real = slots.take(launch)
        engine, width = self.reference, launch.width
        weights, into = self._weights(launch, rows, first)
        buffers = engine.statistics.views(rows.statistics) | engine.counters.views(rows.counters)
        tensors = self.frozen | weights | buffers | dropout_keys(self.model, keys)
        outputs = functional_call(self.model, tensors, (inputs.to(self.dtype),))
        losses = engine.task.loss(outputs.float(), targets).view(width, -1)  # [w, B]
        loss = (importance * losses).sum(1) / importance.sum(1).clamp(min=torch.finfo(importance.dtype).tiny)
        # a lane's loss depends on its own row alone, so the gradient of the sum holds every lane's own
        self._collect(torch.autograd.grad(loss.sum(), list(weights.values()), allow_unused=True), into)
        with torch.no_grad():
            rule.step(rows.w, into.float(), rows.vectors, context)
            rows.loss.add_((losses * real).sum(1))

    def _weights(self, launch: Launch, rows: _Rows, first: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """The model's weights [w, …] in the precision of its arithmetic, and the matrix [w, P] that takes their gradients.

        Before their first step all lanes hold x: one weight, expanded over lanes, which the layers make use of.
        """
        layout = self.reference.parameters
        if launch.first:
            pieces = [piece.expand(launch.width, -1) for piece in first]
        else:
            pieces = [piece.to(self.dtype) for piece in rows.w.split(layout.sizes, dim=1)]
        into = torch.empty_like(rows.w, dtype=self.dtype)
        weights = layout.shaped(pieces)
        for weight, place in zip(weights.values(), layout.views(into).values(), strict=True):
            weight.requires_grad_()
            weight.destination = place  # type: ignore[attr-defined]
        return weights, into

    def _collect(self, gradients: Sequence[Tensor | None], into: Tensor) -> None:
        """Bring together the gradients that were not written where they belong."""
        for gradient, place in zip(gradients, self.reference.parameters.views(into).values(), strict=True):
            if gradient is None:
                place.zero_()
            elif gradient.data_ptr() != place.data_ptr():
                place.copy_(gradient)


@dataclass(frozen=True)
class _Rows:
    """What each lane holds: a row of every matrix."""

    clients: Indices
    w: Tensor  # [m, P]
    vectors: dict[str, Tensor]  # [m, P] each
    statistics: Tensor  # [m, B]
    counters: Tensor  # [m, C]
    loss: Tensor  # [m]

    @classmethod
    def begin(cls, state: State, rule: LocalRule, clients: Indices) -> _Rows:
        m = len(clients)
        vectors = {name: state.x.new_zeros(m, len(state.x)) for name in rule.vectors}
        for name in rule.kept:
            earlier = {lane: state.kept[client] for lane, client in enumerate(clients.tolist()) if client in state.kept}
            if earlier:
                vectors[name][list(earlier)] = torch.stack([kept[name] for kept in earlier.values()])
        w, statistics, counters = (value.expand(m, -1).clone() for value in (state.x, state.statistics, state.counters))
        return cls(clients, w, vectors, statistics, counters, state.x.new_zeros(m))

    def part(self, lanes: slice) -> _Rows:
        """The rows of some neighbouring lanes, as views."""
        vectors = {name: value[lanes] for name, value in self.vectors.items()}
        return _Rows(self.clients[lanes], self.w[lanes], vectors, self.statistics[lanes], self.counters[lanes], self.loss[lanes])


class _Slots:
    """What is in a round's slots, on the device: drawn and uploaded for all launches at once."""

    def __init__(self, engine: Sequential, plan: Plan, packing: Packing):
        federation, example = engine.population.train, packing.example
        self.engine, self.feed = engine, engine.feed(federation)
        self.ids = self.feed.ids(torch.from_numpy(plan.examples[example]))
        self.real = self._tensor(packing.real.astype(np.float32))
        draws = Draws.of(plan, engine.task, federation, engine.seed)
        self.weights = self.real if draws.weights is None else self.real * self._tensor(draws.weights[example])
        self.uniform = None if draws.uniform is None else self._tensor(draws.uniform[example])
        self.keys = self._tensor(draws.keys[packing.batch])

    def take(self, launch: Launch) -> tuple[Tensor, Tensor, Any, Tensor, Tensor]:
        """Keys [w], inputs [w · B, …], targets [w · B, …], weights [w, B] and which slots are real [w, B], of a launch."""
        engine, place, shape = self.engine, launch.slots, (launch.width, launch.batch_size)
        uniform = self.uniform[place] if self.uniform is not None else None
        inputs, targets = engine.task.prepare(self.feed.batch(self.ids[place]), engine.facts, engine.task.train_transforms, uniform)
        return self.keys[launch.batches], inputs, targets, self.weights[place].view(shape), self.real[place].view(shape)

    def _tensor(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(self.engine.device)
