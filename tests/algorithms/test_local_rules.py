import pytest
import torch
from pydantic import ValidationError

from fedlens.algorithms.local_rules import LOCAL_RULES, SGD, Context

OPTIONS = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.8, "nesterov": True},
    {"weight_decay": 0.1},
    {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
]
GRADIENTS = torch.randn(4, 3, 7, generator=torch.Generator().manual_seed(0))  # [steps, clients, P]
START = torch.linspace(-1, 1, 7)


def walk(rule, gradients, learning_rate=0.1):
    """w after all steps, for one client [P] or for many [m, P]."""
    w = START.expand(gradients.shape[1:]).clone()
    vectors = {name: torch.zeros_like(w) for name in rule.vectors}
    for g in gradients:
        rule.step(w, g.clone(), vectors, Context(START, learning_rate))
    return w


@pytest.mark.parametrize("options", OPTIONS)
def test_sgd_is_that_of_torch(options):
    parameter = torch.nn.Parameter(START.clone())
    optimiser = torch.optim.SGD([parameter], lr=0.1, **options)
    for g in GRADIENTS[:, 0]:
        parameter.grad = g.clone()
        optimiser.step()
    torch.testing.assert_close(walk(SGD(**options), GRADIENTS[:, 0]), parameter.detach())


@pytest.mark.parametrize("options", [*OPTIONS, {"clip_gradient_norm": 1.0, "momentum": 0.5}])
@pytest.mark.parametrize("name", [entry.name for entry in LOCAL_RULES])
def test_many_clients_at_once_are_as_one_by_one(name, options):
    rule = LOCAL_RULES.get(name)(**options)
    together = walk(rule, GRADIENTS)
    alone = torch.stack([walk(rule, GRADIENTS[:, client]) for client in range(3)])
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 1e4])
def test_clipping_is_that_of_torch(scale):
    g = GRADIENTS[0, 0] * scale
    parameter = torch.nn.Parameter(START.clone())
    parameter.grad = g.clone()
    torch.nn.utils.clip_grad_norm_([parameter], 0.5)
    w = walk(SGD(clip_gradient_norm=0.5), g[None])
    torch.testing.assert_close(w, START - 0.1 * parameter.grad, rtol=1e-5, atol=1e-7)


def test_a_vector_of_learning_rates_works_coordinate_by_coordinate():
    rates = torch.arange(7) * 0.01
    w = walk(SGD(), GRADIENTS[:1, 0], rates)
    torch.testing.assert_close(w, START - rates * GRADIENTS[0, 0])


def test_the_update_is_how_far_the_client_moved():
    rule = SGD()
    w = walk(rule, GRADIENTS)
    assert torch.equal(rule.update(w, Context(START, 0.1)), w - START)


def test_options_that_need_momentum_are_refused_without_it():
    for options in ({"nesterov": True}, {"keep_momentum": True}):
        with pytest.raises(ValidationError, match="need momentum"):
            SGD(**options)
