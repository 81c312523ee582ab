"""Lanes compute what the sequential engine computes: every layer, rule, shape of cohort and way to pack it."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.ops.misc import Conv2dNormActivation

from fedlens.algorithms.local_rules import SGD
from fedlens.algorithms.local_work import Epochs, Steps
from fedlens.data import Assignment, Federation, Population
from fedlens.engines import Lanes, Sequential
from fedlens.engines.packing import Limits
from fedlens.models import FrozenBatchNorm, KeyedDropout, create_model, freeze
from fedlens.tasks import Classification
from fedlens.tasks.example_weights import ByClass

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EVERYONE = np.arange(6)
NARROW = Limits(slots=8, lanes=2, overhead=0)
WIDE = Limits(slots=10_000, lanes=10_000, overhead=10_000)  # all lanes of a step in one launch
TAIL = Limits(slots=10_000, lanes=10_000, overhead=0, narrow=10)  # the longest two lanes apart
RANDOM = {"train_transforms": ({"name": "horizontal_flip"}, {"name": "random_crop", "size": 28, "padding": 2})}


def convolutional(*inside):
    with torch.random.fork_rng():
        torch.manual_seed(2)
        first, last = nn.Conv2d(1, 8, 3, stride=3, bias=False), nn.Linear(72, 10)
        for parameter in nn.Sequential(*inside).parameters():
            if parameter.ndim < 4:  # norms: away from ones and zeros
                nn.init.normal_(parameter, mean=0.3, std=0.3)
        return nn.Sequential(first, *inside, nn.ReLU(), nn.AvgPool2d(3), nn.Flatten(), last)


def plan_for(population, work, cohort=EVERYONE, round=3):
    clients = population.train.clients
    return work.plan(clients.offsets, clients.examples, np.asarray(cohort), 7, round)


def engines_for(model, population, task=None, limits=NARROW, precision="float32"):
    task = task or Classification(**RANDOM)
    reference = Sequential(model, task, task.facts(population.data), population, 7, DEVICE, precision)
    return reference, Lanes(reference, limits)


def by_client(chunks):
    found = {}
    for chunk in chunks:
        for row, client in enumerate(chunk.clients.tolist()):
            kept = {name: values[row] for name, values in chunk.kept.items()}
            tensors = {"vector": chunk.vectors[row], "statistics": chunk.statistics[row], "counters": chunk.counters[row]}
            numbers = {"size": chunk.sizes[row], "loss": chunk.loss[row], "trained": torch.tensor(int(chunk.trained[row]))}
            found[client] = tensors | numbers | kept
    return found


def updates_of(engine, plan, state, rule=None, learning_rate=0.1):
    """What an engine makes of a plan, by client."""
    rule = rule or SGD()
    return by_client(engine.run(engine.prepare(plan, rule), state, rule, learning_rate))


def assert_same(one, other):
    """Up to rounding, which may put a unit on the other side of a ReLU: so numbers are compared together, by their norm."""
    assert one.keys() == other.keys()
    for client in one:
        for name, value in one[client].items():
            error = torch.linalg.vector_norm((other[client][name] - value).double())
            assert error <= 5e-4 * torch.linalg.vector_norm(value.double()) + 1e-6, (client, name, error)


def compare(model, population, work=None, rule=None, learning_rate=0.1, **settings):
    reference, lanes = engines_for(model, population, **settings)
    plan, rule, state = plan_for(population, work or Epochs(batch_size=5, epochs=2)), rule or SGD(), reference.begin()
    expected = updates_of(reference, plan, state, rule, learning_rate=learning_rate)
    assert all(client["vector"].isfinite().all() for client in expected.values())
    assert_same(expected, updates_of(lanes, plan, state, rule, learning_rate=learning_rate))
    longest = expected[plan.clients[plan.sizes.argmax()]]
    moved = replace(state, x=state.x + longest["vector"], statistics=longest["statistics"], counters=longest["counters"])
    one, other = (engine.evaluate(moved, population.test, 7) for engine in (reference, lanes))
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
    return lanes


LAYERS = {
    "plain": [],
    "linear": [nn.Linear(9, 9), nn.ReLU(inplace=True), nn.Linear(9, 9, bias=False), nn.ReLU(inplace=True)],
    "batch norm": [nn.BatchNorm2d(8)],
    "batch norm, cumulative": [nn.BatchNorm2d(8, momentum=None)],
    "batch norm without affine": [nn.BatchNorm2d(8, affine=False)],
    "frozen batch norm": [FrozenBatchNorm(8)],
    "group norm": [nn.GroupNorm(2, 8), nn.ReLU(inplace=True)],
    "layer norm": [nn.LayerNorm([8, 9, 9]), nn.ReLU(inplace=True)],
    "layer norm without affine": [nn.LayerNorm([9], elementwise_affine=False)],
    "instance norm": [nn.InstanceNorm2d(8, affine=True)],
    "dropout": [KeyedDropout(0.4)],
    "dropout of channels": [nn.Dropout2d(0.4)],
    "depthwise": [nn.Conv2d(8, 8, 3, padding=1, groups=8)],
    "dilated, biased": [nn.Conv2d(8, 8, 3, padding=2, dilation=2)],
    "reflected": [nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect")],
    "same": [nn.Conv2d(8, 8, 3, padding="same")],
    "prelu": [nn.PReLU()],
}


@pytest.mark.parametrize("limits", [NARROW, WIDE, TAIL], ids=["narrow", "wide", "tail"])
@pytest.mark.parametrize("kind", LAYERS)
def test_every_layer_is_computed_as_one_client_alone_would(population, kind, limits):
    compare(convolutional(*LAYERS[kind]), population, limits=limits)


RULES = {
    "momentum": SGD(momentum=0.9),
    "nesterov, decay": SGD(momentum=0.9, nesterov=True, weight_decay=0.01),
    "clipped": SGD(clip_gradient_norm=0.5),
    "kept momentum": SGD(momentum=0.5, keep_momentum=True),
    "rates by parameter": SGD(learning_rate_factors={"0.*": 0.1}),
}


@pytest.mark.parametrize("name", RULES)
def test_every_rule_moves_rows_as_it_moves_a_vector(population, name):
    compare(convolutional(), population, rule=RULES[name])


def test_what_a_client_kept_is_given_back_to_it(population):
    reference, lanes = engines_for(convolutional(), population)
    rule, state = SGD(momentum=0.9, keep_momentum=True), reference.begin()
    plan = plan_for(population, Epochs(batch_size=5), [0, 1, 4])
    kept = {
        int(chunk.clients[0]): {"momentum": chunk.kept["momentum"][0]}
        for chunk in reference.run(reference.prepare(plan, rule), state, rule, 0.1)
    }
    state.__dict__["kept"] = kept
    plan = plan_for(population, Epochs(batch_size=5), round=4)
    expected = updates_of(reference, plan, state, rule)
    assert_same(expected, updates_of(lanes, plan, state, rule))


WORK = {
    "one epoch": Epochs(batch_size=5),
    "batches larger than most clients": Epochs(batch_size=16, epochs=2),
    "dropped last batches": Epochs(batch_size=4, last_batch="drop"),
    "as many steps for all": Steps(batch_size=3, steps=4),
    "batches of one": Epochs(batch_size=1),
}


@pytest.mark.parametrize("name", WORK)
def test_ragged_clients_empty_ones_and_giants(population, name):
    lanes = compare(convolutional(nn.GroupNorm(2, 8)), population, work=WORK[name], limits=WIDE)
    assert 0 < lanes.fill <= 1


@pytest.mark.parametrize("cohort", [[], [2], [2, 3], [4], [0, 1, 4, 5]])
def test_any_cohort(population, cohort):
    reference, lanes = engines_for(convolutional(), population)
    plan, state = plan_for(population, Epochs(batch_size=5), np.array(cohort, dtype=np.int64)), reference.begin()
    assert_same(
        updates_of(reference, plan, state),
        updates_of(lanes, plan, state),
    )


def test_example_weights_and_batches_of_weight_zero(population):
    weights = ByClass(weights=(0, 0, 3, 1, 2, 0.5, 0, 1, 1, 1))
    compare(convolutional(), population, work=Epochs(batch_size=2), task=Classification(example_weights=weights, **RANDOM))


@pytest.mark.parametrize("pattern", ["backbone", "*.bias", "0.weight"])
def test_frozen_parameters_stay_and_are_not_sent(population, pattern):
    model = convolutional(nn.GroupNorm(2, 8))
    freeze(model, pattern, head="5")
    lanes = compare(model, population)
    assert len(lanes.begin().x) == sum(value.numel() for value in model.parameters() if value.requires_grad)


def test_waves_give_what_one_sweep_gives(population, monkeypatch):
    reference, lanes = engines_for(convolutional(), population)
    plan, state = plan_for(population, Epochs(batch_size=5, epochs=2)), reference.begin()
    together = updates_of(lanes, plan, state)
    monkeypatch.setattr(lanes, "_rows_of_a_wave", lambda rule: 2)
    chunks = list(lanes.run(lanes.prepare(plan, SGD()), state, SGD(), 0.1))
    assert [len(chunk.clients) for chunk in chunks] == [2, 2, 2]
    assert_same(together, by_client(chunks))


def test_out_of_memory_starts_the_wave_again_with_smaller_launches(population, monkeypatch):
    reference, lanes = engines_for(convolutional(), population, limits=WIDE)
    plan, state, step = plan_for(population, Epochs(batch_size=5)), reference.begin(), Lanes._losses
    expected = updates_of(lanes, plan, state, SGD(momentum=0.5))
    most = [0]

    def scarce(self, stage, launch, *rest):
        if launch.width * launch.batch_size > 12:
            raise torch.OutOfMemoryError("there is no more")
        most[0] = max(most[0], launch.width * launch.batch_size)
        return step(self, stage, launch, *rest)

    monkeypatch.setattr(Lanes, "_losses", scarce)
    assert_same(expected, updates_of(lanes, plan, state, SGD(momentum=0.5)))
    assert 6 < most[0] <= 12

    def none(self, *rest):
        raise torch.OutOfMemoryError("there is none")

    monkeypatch.setattr(Lanes, "_losses", none)
    with pytest.raises(MemoryError, match="single image of a single client"):
        list(lanes.run(lanes.prepare(plan, SGD()), state, SGD(), 0.1))


def test_the_state_and_the_model_it_was_given_stay_as_they_are(population):
    model = convolutional(nn.BatchNorm2d(8))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    _, lanes = engines_for(model, population)
    state = lanes.begin()
    x = state.x.clone()
    list(lanes.run(lanes.prepare(plan_for(population, Epochs(batch_size=5)), SGD()), state, SGD(), 0.1))
    assert torch.equal(state.x, x)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_batch_norm_that_keeps_no_statistics_is_refused(population):
    with pytest.raises(ValueError, match="use the sequential engine"):
        engines_for(convolutional(nn.BatchNorm2d(8, track_running_stats=False)), population)


def test_half_precision_follows_full_precision(population):
    plan, model = plan_for(population, Epochs(batch_size=5, epochs=2)), convolutional(nn.GroupNorm(2, 8))
    full, _ = engines_for(model, population)
    exact = updates_of(full, plan, full.begin(), learning_rate=0.05)
    for engine in engines_for(model, population, precision="bfloat16"):
        found = updates_of(engine, plan, engine.begin(), learning_rate=0.05)
        for client in (0, 1, 3, 4, 5):
            error = (found[client]["vector"] - exact[client]["vector"]).norm() / exact[client]["vector"].norm()
            assert 1e-5 < error < 0.05, (engine.name, client, error)


NETWORKS = ["cnn_mcmahan", "resnet18_cifar", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "vit_b_16"]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_networks_of_the_papers(name, pictures):
    """GroupNorm, squeeze and excitation, attention, class tokens, dropout; few steps, so that no rounding grows."""
    size = 32
    settings = {"norm": "group"} if name not in ("cnn_mcmahan", "vit_b_16") else {}
    task = Classification(train_transforms=({"name": "resize", "size": size},))
    clients = Assignment(np.array([0, 3, 5]), np.arange(5))
    population = Population(Federation(pictures, clients))
    model = create_model(name, 10, channels=1, image_size=size, **settings)
    reference, lanes = engines_for(model, population, task=task, limits=WIDE)
    plan, state = plan_for(population, Epochs(batch_size=2), [0, 1]), reference.begin()
    expected = updates_of(reference, plan, state, learning_rate=0.01)
    found = updates_of(lanes, plan, state, learning_rate=0.01)
    for client in (0, 1):
        error = (found[client]["vector"] - expected[client]["vector"]).norm() / expected[client]["vector"].norm()
        assert error < 1e-3, error


@pytest.mark.parametrize("limits", [NARROW, WIDE, TAIL], ids=["narrow", "wide", "tail"])
@pytest.mark.parametrize("rule", ["momentum", "nesterov, decay", "clipped"])
def test_the_kernels_fit_together(population, monkeypatch, limits, rule):
    """Also without a GPU, where Triton's interpreter runs them."""
    monkeypatch.setattr("fedlens.engines.lane_functions.by_kernels", lambda x: True)
    pooled = [nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1), nn.ReLU(inplace=True)]
    depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.ReLU(inplace=True)
    normed = nn.GroupNorm(4, 16), nn.Upsample(9), nn.Linear(9, 9), nn.ReLU(inplace=True)
    model = convolutional(*pooled, nn.Conv2d(8, 16, 3, padding=1), *depthwise, *normed)
    model[-1] = nn.Linear(144, 10)
    compare(model, population, limits=limits, work=Epochs(batch_size=16, epochs=2), rule=RULES[rule])


def test_blocks_of_networks_go_through_the_kernels_too(population, monkeypatch):
    monkeypatch.setattr("fedlens.engines.lane_functions.by_kernels", lambda x: True)
    norm = partial(nn.GroupNorm, 2)
    wider = nn.Sequential(nn.Conv2d(8, 16, 1, stride=2), norm(16))
    blocks = BasicBlock(8, 8, norm_layer=norm), Bottleneck(8, 4, 2, wider, norm_layer=norm)
    activated = Conv2dNormActivation(16, 16, 3, norm_layer=norm, activation_layer=nn.ReLU6)
    model = convolutional(*blocks, activated, nn.Upsample(9))
    model[-1] = nn.Linear(144, 10)
    lanes = compare(model, population, limits=WIDE, work=Epochs(batch_size=16))
    assert [type(layer).__name__ for layer in lanes.model[1:4]] == [
        "LaneBasicBlock",
        "LaneBottleneck",
        "LaneConvolutionNormActivation",
    ]


class HeldStill(nn.Sequential):
    """Keeps its BatchNorm and its dropout as they are in evaluation, as fine-tuning often does."""

    def train(self, mode=True):
        super().train(mode)
        for layer in self:
            if isinstance(layer, nn.BatchNorm2d | nn.Dropout | KeyedDropout):
                layer.eval()
        return self


def test_layers_that_a_model_holds_still_are_held_still_in_lanes(population):
    compare(HeldStill(*convolutional(nn.BatchNorm2d(8), nn.Dropout(0.5))), population)


def test_one_layer_under_two_names_is_one_layer(population):
    norm = nn.BatchNorm2d(8)
    compare(convolutional(nn.Sequential(norm), nn.ReLU(), nn.Sequential(norm)), population, work=Steps(batch_size=3, steps=2))


def test_memory_that_is_short_halves_waves_and_launches_once_for_all_waves(population, monkeypatch):
    reference, lanes = engines_for(convolutional(), population, limits=Limits(slots=64, lanes=64, overhead=1000))
    plan, state, losses = plan_for(population, Epochs(batch_size=5)), reference.begin(), Lanes._losses
    expected = updates_of(lanes, plan, state)

    def scarce(self, stage, launch, *rest):
        if launch.width * launch.batch_size > 10:
            raise torch.OutOfMemoryError("there is no more")
        return losses(self, stage, launch, *rest)

    monkeypatch.setattr(Lanes, "_losses", scarce)
    monkeypatch.setattr(lanes, "_rows_of_a_wave", lambda rule: 3)
    assert_same(expected, updates_of(lanes, plan, state))
    assert lanes.limits.slots >= 8
    assert 0 < lanes.fill <= 1


def test_examples_that_do_not_fit_the_device_are_gathered_ahead_and_train_the_same(population):
    reference, lanes = engines_for(convolutional(nn.GroupNorm(2, 8)), population)
    plan, state = plan_for(population, Epochs(batch_size=5, epochs=2)), reference.begin()
    resident = [updates_of(engine, plan, state) for engine in (reference, lanes)]
    measured = reference.evaluate(state, population.test, 7)
    for federation in (population.train, population.test):
        reference.feed(federation).resident = False
    for engine, expected in zip((reference, lanes), resident, strict=True):
        found = updates_of(engine, plan, state)
        assert all(torch.equal(found[client]["vector"], expected[client]["vector"]) for client in expected)
    again = reference.evaluate(state, population.test, 7)
    assert all(torch.equal(again[name], measured[name]) for name in measured)
