import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedlens.algorithms.local_rules import SGD, Context
from fedlens.algorithms.local_work import Epochs
from fedlens.engines import Sequential
from fedlens.models import FrozenBatchNorm, KeyedDropout
from fedlens.tasks import Classification
from fedlens.tasks.example_weights import ByClass
from fedlens.tasks.transforms import HorizontalFlip

CPU = torch.device("cpu")
EVERYONE = np.arange(6)


def engine_for(model, population, task=None, seed=0):
    task = task or Classification()
    return Sequential(model, task, task.facts(population.data), population, seed, CPU)


def plan_for(population, cohort=EVERYONE, round=0, **work):
    clients = population.train.clients
    return Epochs(**({"batch_size": 5} | work)).plan(clients.offsets, clients.examples, np.array(cohort), 0, round)


def train(engine, plan, rule=None, state=None, learning_rate=0.1):
    """Every client's update, by client."""
    chunks = engine.run(engine.prepare(plan, rule or SGD()), state or engine.begin(), rule or SGD(), learning_rate)
    return {int(chunk.clients[0]): chunk for chunk in chunks}


def by_hand(model, population, plan, slot, learning_rate=0.1, **options):
    """A client of a plan, trained with an ordinary model and optimiser."""
    model = copy.deepcopy(model).train()
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=learning_rate, **options)
    data, facts = population.data, Classification().facts(population.data)
    for batch in range(plan.batch_of_slot[slot], plan.batch_of_slot[slot + 1]):
        ids = plan.examples[plan.start_of_batch[batch] : plan.start_of_batch[batch + 1]]
        images = torch.from_numpy(data.column("image")[ids]).permute(0, 3, 1, 2).float() / 255
        images = (images - facts.mean[0]) / facts.standard_deviation[0]
        optimiser.zero_grad()
        F.cross_entropy(model(images), torch.from_numpy(data.column("label")[ids])).backward()
        optimiser.step()
    return model


def convolutional(norm=None):
    layers = [nn.Conv2d(1, 8, 3, stride=3), *([norm] if norm else []), nn.ReLU(), nn.AvgPool2d(3), nn.Flatten(), nn.Linear(72, 10)]
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = nn.Sequential(*layers)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(parameter.numel()))
    return model


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}])
def test_every_client_ends_where_an_ordinary_training_loop_ends(population, options):
    model, plan = convolutional(), plan_for(population, epochs=2)
    found = train(engine_for(model, population), plan, SGD(**options))
    for slot, client in enumerate(EVERYONE):
        trained = by_hand(model, population, plan, slot, **options)
        expected = nn.utils.parameters_to_vector(trained.parameters()) - nn.utils.parameters_to_vector(model.parameters())
        torch.testing.assert_close(found[client].vectors[0], expected.detach(), rtol=1e-4, atol=1e-6)


def test_the_second_client_starts_from_the_global_model_and_the_first_one_s_update_stays(population, linear):
    engine = engine_for(linear, population)
    state = engine.begin()
    before = state.x.clone()
    together = list(engine.run(engine.prepare(plan_for(population, [0, 4]), SGD()), state, SGD(), 0.1))
    alone = train(engine, plan_for(population, [4]))[4]
    assert torch.equal(together[1].vectors, alone.vectors)
    assert not torch.equal(together[0].vectors, together[1].vectors)
    assert torch.equal(together[0].vectors, train(engine, plan_for(population, [0]))[0].vectors)
    assert torch.equal(state.x, before)


@pytest.mark.parametrize("norm", [None, nn.BatchNorm2d(8), nn.GroupNorm(2, 8), FrozenBatchNorm(8), nn.Dropout(0.5)])
def test_a_client_s_update_does_not_depend_on_who_trains_before_it(population, norm):
    engine = engine_for(convolutional(norm), population, Classification(train_transforms=({"name": "horizontal_flip"},)))
    cohort = [0, 1, 4, 5]
    one, other = train(engine, plan_for(population, cohort)), train(engine, plan_for(population, cohort[::-1]))
    for client in cohort:
        for name in ("vectors", "statistics", "counters", "loss"):
            assert torch.equal(getattr(one[client], name), getattr(other[client], name))


def test_an_empty_client_moves_nothing_and_weighs_nothing(population, linear):
    chunk = train(engine_for(linear, population), plan_for(population))[2]
    assert chunk.sizes.tolist() == [0]
    assert torch.equal(chunk.vectors, torch.zeros_like(chunk.vectors))
    assert chunk.trained.tolist() == [0]


def test_the_given_model_stays_as_it_was(population):
    model = convolutional(nn.BatchNorm2d(8))
    before = copy.deepcopy(model.state_dict())
    train(engine_for(model, population), plan_for(population))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_batch_norm_statistics_are_those_of_an_ordinary_loop_and_travel_beside_the_vector(population):
    model = convolutional(nn.BatchNorm2d(8))
    engine, plan = engine_for(model, population), plan_for(population)
    chunk, trained = train(engine, plan)[0], by_hand(model, population, plan, 0)
    torch.testing.assert_close(chunk.statistics[0], torch.cat([trained[1].running_mean, trained[1].running_var]))
    assert chunk.counters.tolist() == [[3]]
    assert chunk.vectors.shape[1] == sum(parameter.numel() for parameter in model.parameters())


def test_frozen_parameters_are_not_sent_and_do_not_move(population):
    model = convolutional()
    model[0].requires_grad_(False)
    chunk = train(engine_for(model, population), plan_for(population))[0]
    assert chunk.vectors.shape[1] == 730
    assert chunk.vectors.abs().max() > 0


def test_example_weights_are_those_of_cross_entropy(population, linear):
    weights = tuple(0.0 if label == 3 else 1.0 + label for label in range(10))
    engine = engine_for(linear, population, Classification(example_weights=ByClass(weights=weights)))
    plan = plan_for(population, [4], batch_size=30)
    found = train(engine, plan)[4].vectors[0]
    model = copy.deepcopy(linear)
    facts, data = engine.facts, population.data
    images = torch.from_numpy(data.column("image")[plan.examples]).permute(0, 3, 1, 2).float() / 255
    labels = torch.from_numpy(data.column("label")[plan.examples])
    F.cross_entropy(model((images - facts.mean[0]) / facts.standard_deviation[0]), labels, torch.tensor(weights)).backward()
    torch.testing.assert_close(found, -0.1 * torch.cat([p.grad.flatten() for p in model.parameters()]), rtol=1e-4, atol=1e-6)


def test_a_batch_whose_examples_weigh_nothing_is_no_step(population, linear):
    engine = engine_for(linear, population, Classification(example_weights=ByClass(weights=(0.0,) * 10)))
    chunk = train(engine, plan_for(population))[0]
    assert torch.equal(chunk.vectors, torch.zeros_like(chunk.vectors))


def test_kept_momentum_goes_on_where_the_client_left_off(population, linear):
    engine, rule = engine_for(linear, population), SGD(momentum=0.9, keep_momentum=True)
    plan = plan_for(population, [4])
    first = train(engine, plan, rule)[4]
    momentum = torch.full_like(engine.begin().x, 0.5)
    state = replace(engine.begin(), kept={4: {"momentum": momentum.clone()}})
    second = train(engine, plan, rule, state)[4]
    assert not torch.equal(first.vectors, second.vectors)
    assert torch.equal(state.kept[4]["momentum"], momentum)
    steps = len(plan.start_of_batch) - 1
    carried = 0.1 * 0.5 * sum(0.9 ** (i + 1) for i in range(steps))  # to first order, what the old momentum adds
    assert (second.vectors - first.vectors).mean().item() == pytest.approx(-carried, rel=0.2)


def test_random_transforms_change_with_the_round_and_the_seed_only(population, linear):
    task = Classification(train_transforms=(HorizontalFlip(),))
    base = train(engine_for(linear, population, task), plan_for(population, [4]))[4].vectors
    assert torch.equal(base, train(engine_for(linear, population, task), plan_for(population, [4, 0]))[4].vectors)
    other_seed = train(engine_for(linear, population, task, seed=1), plan_for(population, [4]))[4].vectors
    assert not torch.equal(base, other_seed)


def test_learning_rate_factors_apply_to_the_parameters_they_name(population, linear):
    engine = engine_for(linear, population)
    chunk = train(engine, plan_for(population, [4]), SGD(learning_rate_factors={"2.weight": 0.0}))[4]
    assert torch.equal(chunk.vectors[0, :490], torch.zeros(490))
    assert chunk.vectors[0, 490:].abs().min() > 0


def test_no_global_generator_is_touched(population):
    engine = engine_for(convolutional(nn.Dropout(0.5)), population)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    train(engine, plan_for(population))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


def test_losses_are_summed_over_what_was_trained_on(population, linear):
    engine = engine_for(linear, population)
    chunk = train(engine, plan_for(population, [4], batch_size=30))[4]
    sums = engine.evaluate(engine.begin(), type(population.train)(population.data, population.train.clients.only(4)), 7)
    assert chunk.loss.item() == pytest.approx(sums["loss"].item(), rel=1e-4)
    assert chunk.trained.tolist() == [30]


def test_evaluation_does_not_depend_on_the_batch_size_and_uses_evaluation_mode(population):
    engine = engine_for(convolutional(nn.Dropout(0.9)), population)
    one, other = (engine.evaluate(engine.begin(), population.test, size) for size in (7, 60))
    assert set(one) == set(other)
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=1e-5)
    assert one["examples"].tolist() == [20, 40]


def test_the_local_rule_is_given_the_global_vector(population, linear):
    seen = []

    class Watching(SGD):
        def gradient(self, g, w, context: Context):
            seen.append((context.x, (w - context.x).abs().max().item()))
            return g

    engine = engine_for(linear, population)
    state = engine.begin()
    train(engine, plan_for(population, [4], batch_size=10), Watching(), state)
    assert all(x is state.x for x, _ in seen)
    assert seen[0][1] == 0.0 < seen[1][1] < seen[2][1]


def test_dropout_draws_anew_for_every_step_round_and_client_whoever_made_the_layer(population):
    for layer in (nn.Dropout(0.5), KeyedDropout(0.5)):
        engine = engine_for(convolutional(layer), population)
        one, other = (train(engine, plan_for(population, [4], round=round, batch_size=30)) for round in (0, 1))
        # all its pictures in one batch: without other masks the two would differ by rounding only
        assert (one[4].vectors - other[4].vectors).norm() > 0.05 * one[4].vectors.norm()


class Remembers(nn.Module):
    """Adds up what it has seen in a buffer of some kind."""

    def __init__(self, buffer, persistent=True, replaces=False):
        super().__init__()
        self.register_buffer("seen", buffer, persistent=persistent)
        self.replaces = replaces

    def forward(self, x):
        if self.replaces:
            self.seen = self.seen + 1
        else:
            self.seen += 1
        return x * self.seen.float()


def with_memory(linear, *arguments, **options):
    return nn.Sequential(Remembers(*arguments, **options), *linear)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.float64])
def test_buffers_that_are_not_sent_begin_anew_with_each_client(linear, population, dtype):
    engine = engine_for(with_memory(linear, torch.ones((), dtype=dtype), persistent=False), population)
    both, alone = train(engine, plan_for(population, [0, 4])), train(engine, plan_for(population, [4]))
    assert torch.equal(both[4].vectors, alone[4].vectors)


def test_buffers_that_are_neither_sent_nor_private_are_refused(linear, population):
    with pytest.raises(TypeError, match=r"'0\.seen' is torch\.int32"):
        engine_for(with_memory(linear, torch.ones((), dtype=torch.int32)), population)


def test_buffers_that_are_replaced_are_refused(linear, population):
    engine = engine_for(with_memory(linear, torch.ones(()), replaces=True), population)
    with pytest.raises(TypeError, match=r"'0\.seen' was replaced"):
        train(engine, plan_for(population, [4]))
