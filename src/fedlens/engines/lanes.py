"""Train many clients at once on one device: the cohort is a matrix W [m, P], and a launch moves many of its rows.

    G_k = ∇ℓ_k(W_k) for all lanes k of a launch in one forward and one backward pass,   then the local rule on those rows

Every client has a row of its own for the whole round, so nothing starts or ends within a launch, the local rule sees a matrix
of rows as it would see a vector, and every row is what the sequential engine would have computed, up to rounding.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from fedlens.algorithms.local_rules import Context, LocalRule
from fedlens.algorithms.local_work import Plan
from fedlens.algorithms.updates import Updates
from fedlens.data.feed import upload
from fedlens.data.population import Federation, Indices
from fedlens.engines.batches import Batch
from fedlens.engines.captured import Captured
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
ALIGNED = 64  # rows begin at multiples of so many numbers, so that kernels read them in wide pieces


class Lanes:
    """The vectorised engine; what it shares with the sequential one (evaluation, first state, data) it takes from there."""

    name = "lanes"

    def __init__(self, reference: Sequential, limits: Limits | None = None):
        if reference.private:
            raise ValueError("the model has buffers that stay with it, which lanes cannot keep apart")
        self.reference, self.device, self.dtype = reference, reference.device, reference.dtype
        self.model = copy.deepcopy(reference.model)
        self.exact = any(isinstance(module, _BatchNorm) for module in self.model.modules())
        lanes_(self.model)
        self.frozen = {name: value.to(self.dtype) for name, value in self.model.named_parameters() if not value.requires_grad}
        image = reference.population.data.columns.get("image")
        pixels = 1 if image is None else int(np.prod(image.shape[1:3]))
        numbers = reference.parameters.size
        self.row = -(-numbers // ALIGNED) * ALIGNED
        self.limits = limits or Limits(slots=max(16, PIXELS // pixels), lanes=max(1, NUMBERS // numbers))
        self.fill = 1.0
        captured = reference.captured is not None and not len(reference.s) and not len(reference.c)
        self.captured = Captured(self.device) if captured else None
        self.weights = self.gradients = torch.empty(0, self.row, dtype=self.dtype, device=self.device)  # [lanes of a launch, P]
        self.first = self.weights.new_empty(self.row)  # x

    def begin(self) -> State:
        return self.reference.begin()

    def evaluate(self, state: State, federation: Federation, batch_size: int) -> Sums:
        return self.reference.evaluate(state, federation, batch_size)

    def prepare(self, plan: Plan, rule: LocalRule) -> list[Wave]:
        """Lay out a round in waves of as many rows as memory holds; nothing in it depends on the state."""
        most, count = self._rows_of_a_wave(rule), len(plan.clients)
        return [Wave.of(self, plan.part(first, min(first + most, count))) for first in range(0, count, most)]

    def run(self, waves: list[Wave], state: State, rule: LocalRule, learning_rate: float) -> Iterator[Updates]:
        """Train the clients of a plan and hand out their updates, wave by wave."""
        rates = self.reference.learning_rates(rule, learning_rate)
        context = Context(self._padded(state.x), self._padded(rates) if isinstance(rates, Tensor) else rates)
        while waves:
            yield self._train_within_memory(waves.pop(0), state, rule, context)

    def _padded(self, vector: Tensor) -> Tensor:
        """A vector as long as a row; what is added stays zero."""
        return F.pad(vector, (0, self.row - vector.shape[-1]))

    def _rows_of_a_wave(self, rule: LocalRule) -> int:
        if self.device.type == "cuda":
            memory = torch.cuda.get_device_properties(self.device).total_memory
        else:
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        row = 4 * self.row * (2 + len(rule.vectors))  # w, Δ and the vectors beside them
        return max(1, int(ROWS_SHARE * memory / row))

    def _train_within_memory(self, wave: Wave, state: State, rule: LocalRule, context: Context) -> Updates:
        """Train a wave; where a launch does not fit, start the wave again with smaller ones: no row was handed out yet."""
        while True:
            try:
                return self._train(wave, state, rule, context)
            except torch.OutOfMemoryError as error:
                if self.limits.slots == 1:
                    raise MemoryError("a single image of a single client does not fit the device: use a smaller model") from error
            self.limits = replace(self.limits, slots=self.limits.slots // 2, lanes=max(1, self.limits.lanes // 2))
            self._make_room(0)
            torch.cuda.empty_cache()
            wave = Wave.of(self, wave.plan)

    def _make_room(self, lanes: int) -> None:
        """Memory for the weights and gradients of a launch's lanes, at places that captured steps know."""
        if lanes <= len(self.weights) and lanes:
            return
        if self.captured is not None:
            self.captured.forget()
        self.weights = self.gradients = self.weights.new_empty(0, self.row)  # let go of the old before asking for the new
        self.weights, self.gradients = (self.weights.new_zeros(lanes, self.row) for _ in range(2))

    def _train(self, wave: Wave, state: State, rule: LocalRule, context: Context) -> Updates:
        launches, size = wave.packing.launches, self.reference.parameters.size
        self._make_room(max((launch.width for launch in launches), default=1))
        self.fill = wave.packing.fill
        rows = _Rows.begin(state, context.x, rule, wave.clients)
        self.first.copy_(context.x)
        for launch in launches:
            self._step(launch, wave.batch(launch), rows.part(launch.lanes), rule, context)
        return Updates(
            clients=rows.clients,
            sizes=wave.sizes,
            vectors=rule.update(rows.w, context)[:, :size],
            statistics=rows.statistics,
            counters=rows.counters,
            loss=rows.loss,
            trained=wave.trained,
            kept={name: rows.vectors[name][:, :size] for name in rule.kept},
        )

    def _step(self, launch: Launch, batch: Batch, rows: _Rows, rule: LocalRule, context: Context) -> None:
        """One step of the lanes of a launch."""
        compute = partial(self._gradients, launch.width, launch.first, rows)
        if not launch.first:
            self.weights[: launch.width].copy_(rows.w)
        if self.captured is None:
            losses = compute(batch)
        else:
            losses = self.captured((launch.width, launch.batch_size, launch.first), compute, batch)
        with torch.no_grad():
            rule.step(rows.w, self.gradients[: launch.width], rows.vectors, context)
            rows.loss.add_(losses)

    def _gradients(self, width: int, first: bool, rows: _Rows, batch: Batch) -> Tensor:
        """Fill G with the gradients of the lanes' losses at their weights; returns the sums of their examples' losses [w].

        Before their first step all lanes hold x: one weight, expanded over lanes, which the layers make use of.
        """
        engine = self.reference
        assert batch.weights is not None
        assert batch.real is not None
        weights = self._views(self.first.expand(width, -1) if first else self.weights[:width])
        places = self._views(self.gradients[:width])
        for name, weight in weights.items():
            weight.requires_grad_()
            weight.destination = places[name]  # type: ignore[attr-defined]
        buffers = engine.statistics.views(rows.statistics) | engine.counters.views(rows.counters)
        keys = dropout_keys(self.model, batch.keys) if batch.keys is not None else {}
        inputs, targets = batch.load(engine.feed(engine.population.train), engine.task, engine.facts)
        outputs = functional_call(self.model, self.frozen | weights | buffers | keys, (inputs.to(self.dtype),))
        losses = engine.task.loss(outputs.float(), targets).view(width, -1)  # [w, B]
        importance = batch.weights.view(width, -1)
        loss = (importance * losses).sum(1) / importance.sum(1).clamp(min=torch.finfo(importance.dtype).tiny)
        # a lane's loss depends on its own row alone, so the gradient of the sum holds every lane's own
        gradients = torch.autograd.grad(loss.sum(), list(weights.values()), allow_unused=True)
        for gradient, place in zip(gradients, places.values(), strict=True):
            if gradient is None:
                place.zero_()
            elif gradient.data_ptr() != place.data_ptr():  # it was not written where it belongs
                place.copy_(gradient)
        return (losses.detach() * batch.real.view(width, -1)).sum(1)

    def _views(self, rows: Tensor) -> dict[str, Tensor]:
        layout = self.reference.parameters
        return layout.views(rows[:, : layout.size])


@dataclass(frozen=True)
class _Rows:
    """What each lane holds: a row of every matrix, rows of P numbers padded to a whole multiple."""

    clients: Indices
    w: Tensor  # [m, P]
    vectors: dict[str, Tensor]  # [m, P] each
    statistics: Tensor  # [m, B]
    counters: Tensor  # [m, C]
    loss: Tensor  # [m]

    @classmethod
    def begin(cls, state: State, x: Tensor, rule: LocalRule, clients: Indices) -> _Rows:
        m, size = len(clients), len(state.x)
        vectors = {name: x.new_zeros(m, len(x)) for name in rule.vectors}
        for name in rule.kept:
            earlier = {lane: state.kept[client] for lane, client in enumerate(clients.tolist()) if client in state.kept}
            if earlier:
                vectors[name][list(earlier), :size] = torch.stack([kept[name] for kept in earlier.values()])
        w, statistics, counters = (value.repeat(m, 1) for value in (x, state.statistics, state.counters))
        return cls(clients, w, vectors, statistics, counters, x.new_zeros(m))

    def part(self, lanes: slice) -> _Rows:
        """The rows of some neighbouring lanes, as views."""
        vectors = {name: value[lanes] for name, value in self.vectors.items()}
        return _Rows(self.clients[lanes], self.w[lanes], vectors, self.statistics[lanes], self.counters[lanes], self.loss[lanes])


class Wave:
    """Some clients' work on the device: packed, drawn and uploaded for all launches at once."""

    def __init__(self, plan: Plan, packing: Packing, sizes: Tensor, slots: Batch):
        self.plan, self.packing, self.sizes, self.slots = plan, packing, sizes, slots
        self.clients = plan.clients[packing.slot_of_lane]
        self.trained = np.diff(plan.start_of_batch[plan.batch_of_slot])[packing.slot_of_lane]

    @classmethod
    def of(cls, lanes: Lanes, plan: Plan) -> Wave:
        engine, packing = lanes.reference, pack(plan, lanes.limits, lanes.exact)
        federation, example, device = engine.population.train, packing.example, engine.device
        draws, real = Draws.of(plan, engine.task, federation, engine.seed), packing.real.astype(np.float32)
        slots = Batch(
            ids=engine.feed(federation).ids(plan.examples[example]),
            keys=upload(draws.keys[packing.batch], device) if engine.has_dropout else None,
            uniform=None if draws.uniform is None else upload(draws.uniform[example], device),
            weights=upload(real if draws.weights is None else real * draws.weights[example], device),
            real=upload(real, device),
        )
        return cls(plan, packing, upload(plan.sizes[packing.slot_of_lane].astype(np.float32), device), slots)

    def batch(self, launch: Launch) -> Batch:
        """The slots of a launch, as views."""
        slots, place = self.slots, launch.slots
        assert slots.weights is not None
        assert slots.real is not None
        return Batch(
            ids=slots.ids[place],
            keys=None if slots.keys is None else slots.keys[launch.batches],
            uniform=None if slots.uniform is None else slots.uniform[place],
            weights=slots.weights[place],
            real=slots.real[place],
        )
