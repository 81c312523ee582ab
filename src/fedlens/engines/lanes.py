"""Train many clients at once on one device: the cohort is a matrix W [m, P], and a launch moves many of its rows.

    G_k = ∇ℓ_k(W_k) for all lanes k of a launch in one forward and one backward pass,   then the local rule on those rows

Every client has a row of its own for the whole round, so nothing starts or ends within a launch, the local rule sees a matrix
of rows as it would see a vector, and every row is what the sequential engine would have computed, up to rounding.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

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
from fedlens.engines import lane_functions
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
MOST_LANES = 65_535  # that a kernel can be started for
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
        self.limits = limits or self._limits(pixels)
        self.fill = 1.0
        self.first = torch.empty(self.row, dtype=self.dtype, device=self.device)  # x
        captures = reference.captured is not None and not len(reference.s) and not len(reference.c)
        self.stages = {tail: Stage(self.first, captures) for tail in (False, True)}

    def _limits(self, pixels: int) -> Limits:
        slots = max(16, PIXELS // pixels)
        narrow = slots // 4 if self.device.type == "cuda" else 0
        return Limits(slots, min(MOST_LANES, max(1, NUMBERS // self.row)), max(16, slots // 128), narrow)

    def begin(self) -> State:
        return self.reference.begin()

    def in_float32(self) -> Lanes:
        return Lanes(self.reference.in_float32(), self.limits)

    def evaluate(self, state: State, federation: Federation, batch_size: int | None = None) -> Sums:
        """As one lane that holds all images: its layers are faster than the model's own."""
        engine = self.reference
        tensors = self._views(self._padded(state.x).to(self.dtype)[None])
        tensors |= engine.statistics.views(state.statistics[None]) | engine.counters.views(state.counters[None])

        def outputs_of(inputs: Tensor) -> Tensor:
            return functional_call(self.model, self.frozen | tensors, (inputs.to(self.dtype),)).float()

        return engine.measure(self.model, outputs_of, federation, batch_size)

    def prepare(self, plan: Plan, rule: LocalRule) -> list[Wave]:
        """Lay out a round in waves of as many rows as memory holds; nothing in it depends on the state."""
        most, count = self._rows_of_a_wave(rule), len(plan.clients)
        return [Wave.of(self, plan.part(first, min(first + most, count))) for first in range(0, count, most)]

    def run(self, waves: list[Wave], state: State, rule: LocalRule, learning_rate: float) -> Iterator[Updates]:
        """Train the clients of a plan and hand out their updates, wave by wave."""
        rates = self.reference.learning_rates(rule, learning_rate)
        context = Context(self._padded(state.x), self._padded(rates) if isinstance(rates, Tensor) else rates)
        slots = used = 0
        while waves:
            wave = waves.pop(0)
            if wave.limits != self.limits:  # laid out before memory was found to be short
                wave = Wave.of(self, wave.plan)
            try:
                updates = self._train(wave, state, rule, context)
            except torch.OutOfMemoryError as error:
                waves[:0] = self._smaller(wave, error)
                continue
            yield updates
            del updates  # or its rows would stay while the next wave needs room
            slots, used = slots + len(wave.packing.real), used + int(wave.packing.real.sum())
        self.fill = used / slots if slots else 1.0

    def _padded(self, vector: Tensor) -> Tensor:
        """A vector as long as a row; what is added stays zero."""
        return F.pad(vector, (0, self.row - vector.shape[-1]))

    def _rows_of_a_wave(self, rule: LocalRule) -> int:
        if self.device.type == "cuda":
            examples = self.reference.feed(self.reference.population.train).columns.values()
            memory = torch.cuda.get_device_properties(self.device).total_memory - sum(v.nbytes for v in examples if v.is_cuda)
        else:
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        row = 4 * self.row * (2 + len(rule.vectors))  # w, Δ and the vectors beside them
        return min(MOST_LANES, max(1, int(ROWS_SHARE * memory / row)))

    def _smaller(self, wave: Wave, error: torch.OutOfMemoryError) -> list[Wave]:
        """A wave that did not fit, in halves and with smaller launches: of its rows none was handed out yet."""
        count = len(wave.plan.clients)
        if self.limits.slots == count == 1:
            raise MemoryError("a single image of a single client does not fit the device: use a smaller model") from error
        slots, lanes = max(1, self.limits.slots // 2), max(1, self.limits.lanes // 2)
        self.limits = replace(self.limits, slots=slots, lanes=lanes)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # nobody may still write to what is given back
        for stage in self.stages.values():
            stage.make_room(0)
        torch.cuda.empty_cache()
        cuts = [0, count // 2, count] if count > 1 else [0, 1]
        return [Wave.of(self, wave.plan.part(first, last)) for first, last in pairwise(cuts)]

    def _train(self, wave: Wave, state: State, rule: LocalRule, context: Context) -> Updates:
        launches, size = wave.packing.launches, self.reference.parameters.size
        fused = lane_functions.by_kernels(context.x) and rule.is_plain(context)
        rows = _Rows.begin(state, context.x, rule, wave.clients, written=wave.packing.working if fused else None)
        self.first.copy_(context.x)
        for tail, stage in self.stages.items():
            stage.make_room(max((launch.width for launch in launches if launch.tail == tail), default=1))
            stage.wait_for_others()
        feed = self.reference.feed(self.reference.population.train)
        for launch, gathered in zip(launches, feed.gathered(wave.slots.ids[launch.slots] for launch in launches), strict=True):
            stage = self.stages[launch.tail]
            with stage.at_work():
                part, batch = rows.part(launch.lanes), replace(wave.batch(launch), gathered=gathered)
                part.loss.add_(self._losses(stage, launch, batch, part))
                self._move(stage, launch, part, rule, context, wave.ends[launch.batches] if fused else None)
        for stage in self.stages.values():
            stage.let_others_wait()
        return Updates(
            clients=rows.clients,
            sizes=wave.sizes,
            vectors=(rows.w if fused else rule.update(rows.w, context))[:, :size],
            statistics=rows.statistics,
            counters=rows.counters,
            loss=rows.loss,
            trained=wave.trained,
            kept={name: rows.vectors[name][:, :size] for name in rule.kept},
        )

    def _losses(self, stage: Stage, launch: Launch, batch: Batch, rows: _Rows) -> Tensor:
        """Fill the stage with the gradients of a launch's lanes; returns the sums of their examples' losses [w]."""
        if not launch.first and not stage.holds(launch.lanes):
            stage.weights[: launch.width].copy_(rows.w)
        compute = partial(self._gradients, stage, launch.width, launch.first, rows)
        return stage.run((launch.width, launch.batch_size, launch.first), compute, batch)

    @torch.no_grad()
    def _move(self, stage: Stage, launch: Launch, rows: _Rows, rule: LocalRule, context: Context, ends: Tensor | None) -> None:
        """The local rule on the rows of a launch. Fused, where it is told which rows end, it is one pass, which leaves the new
        weights on the stage too, and of rows that end the update.
        """
        gradients, weights = stage.gradients[: launch.width], stage.weights[: launch.width]
        stage.held = None if ends is None else launch.lanes
        if ends is None:
            rule.step(rows.w, gradients, rows.vectors, context)
            return
        from fedlens.engines.row_kernels import descend_

        start = context.x.expand(launch.width, -1) if launch.first else rows.w
        rate = float(context.learning_rate)
        settings = rule.weight_decay, rule.momentum, rule.nesterov
        descend_(start, rows.w, gradients, rows.vectors.get("momentum"), weights, context.x, ends, rate, *settings)

    def _gradients(self, stage: Stage, width: int, first: bool, rows: _Rows, batch: Batch) -> Tensor:
        """What `_losses` computes on the stage, and what is captured of it.

        Before their first step all lanes hold x: one weight, expanded over lanes, which the layers make use of.
        """
        engine = self.reference
        assert batch.weights is not None
        assert batch.real is not None
        weights = self._views(self.first.expand(width, -1) if first else stage.weights[:width])
        places = self._views(stage.gradients[:width])
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


class Stage:
    """Where launches run, one after another: a stream, and memory for the weights and gradients of a launch's lanes.

    That memory stays where it is, so that captured steps find it; rows are copied to it in the precision of the arithmetic.
    """

    def __init__(self, like: Tensor, captures: bool):
        self.weights = self.gradients = like.new_empty(0, len(like))  # [lanes of a launch, P]
        self.held: slice | None = None
        self.stream = torch.cuda.Stream(like.device) if like.is_cuda else None
        self.captured = Captured(like.device) if captures else None

    def holds(self, lanes: slice) -> bool:
        """Whether the weights of these lanes are the first on the stage already."""
        return self.held is not None and self.held.start == lanes.start and self.held.stop >= lanes.stop

    def make_room(self, lanes: int) -> None:
        """For so many lanes; 0 lets go of all memory."""
        self.held = None
        if 0 < lanes <= len(self.weights):
            return
        if self.captured is not None:
            self.captured.forget()
        width = self.weights.shape[1]
        self.weights = self.gradients = self.weights.new_empty(0, width)  # let go of the old before asking for the new
        if lanes:
            lanes = 1 << (lanes - 1).bit_length()  # some more, so that a round that is a little wider finds room
        self.weights, self.gradients = (self.weights.new_zeros(lanes, width) for _ in range(2))

    def run(self, shape: tuple[int, int, bool], compute: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
        return compute(batch) if self.captured is None else self.captured(shape, compute, batch)

    def at_work(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def wait_for_others(self) -> None:
        """Begin only when the stream from which this is called has done what it was given so far."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))

    def let_others_wait(self) -> None:
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)


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
    def begin(cls, state: State, x: Tensor, rule: LocalRule, clients: Indices, written: int | None = None) -> _Rows:
        """All lanes at x; unless so many are written from their first step on, and end as updates: then that of the others is 0."""
        m, size = len(clients), len(state.x)
        vectors = {name: x.new_zeros(m, len(x)) for name in rule.vectors}
        for name in rule.kept:
            earlier = {lane: state.kept[client] for lane, client in enumerate(clients.tolist()) if client in state.kept}
            if earlier:
                vectors[name][list(earlier), :size] = torch.stack([kept[name] for kept in earlier.values()])
        statistics, counters = (value.repeat(m, 1) for value in (state.statistics, state.counters))
        w = x.repeat(m, 1) if written is None else x.new_empty(m, len(x))
        w[m if written is None else written :] = 0
        return cls(clients, w, vectors, statistics, counters, x.new_zeros(m))

    def part(self, lanes: slice) -> _Rows:
        """The rows of some neighbouring lanes, as views."""
        vectors = {name: value[lanes] for name, value in self.vectors.items()}
        return _Rows(self.clients[lanes], self.w[lanes], vectors, self.statistics[lanes], self.counters[lanes], self.loss[lanes])


class Wave:
    """Some clients' work on the device: packed, drawn and uploaded for all launches at once."""

    def __init__(self, plan: Plan, limits: Limits, packing: Packing, sizes: Tensor, slots: Batch):
        self.plan, self.limits, self.packing, self.sizes, self.slots = plan, limits, packing, sizes, slots
        self.clients = plan.clients[packing.slot_of_lane]
        self.trained = np.diff(plan.start_of_batch[plan.batch_of_slot])[packing.slot_of_lane]
        last = np.isin(packing.batch, plan.batch_of_slot[1:] - 1)
        self.ends = upload(last.astype(np.uint8), sizes.device)  # [launched batches] whether it is a client's last

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
        return cls(plan, lanes.limits, packing, upload(plan.sizes[packing.slot_of_lane].astype(np.float32), device), slots)

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
