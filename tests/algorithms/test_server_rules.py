import pytest
import torch

from fedlens.algorithms.schedules import Cosine, learning_rate
from fedlens.algorithms.server_rules import (
    SERVER_RULES,
    ServerAdagrad,
    ServerAdam,
    ServerMomentum,
    ServerSGD,
    ServerYogi,
)

UPDATES = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
START = torch.linspace(-1, 1, 5)


def walk(rule, updates=UPDATES, x=START):
    """x after each update."""
    memory, path = rule.begin(x), []
    for update in updates:
        x, memory = rule.step(x, update, memory, rule.learning_rate)
        path.append(x)
    return torch.stack(path)


def optimiser_walk(make, updates=UPDATES, x=START):
    """The same with an optimiser of PyTorch, whose gradient is −Δ."""
    parameter = torch.nn.Parameter(x.clone())
    optimiser, path = make([parameter]), []
    for update in updates:
        parameter.grad = -update
        optimiser.step()
        path.append(parameter.detach().clone())
    return torch.stack(path)


def test_fedavgm_takes_the_golden_path_of_an_undamped_heavy_ball():
    one = torch.ones(1)
    x, memory, velocities = torch.zeros(1), ServerMomentum(momentum=0.9).begin(one), []
    for _ in range(3):
        x, memory = ServerMomentum(momentum=0.9).step(x, -one, memory, 1.0)
        velocities.append(-memory["momentum"].item())
    assert velocities == pytest.approx([1, 1.9, 2.71])
    assert x.item() == pytest.approx(-5.61)


def test_fedavgm_without_momentum_is_fedavg():
    assert torch.equal(walk(ServerMomentum(momentum=0.0)), walk(ServerSGD()))


def test_fedavg_adds_the_updates():
    torch.testing.assert_close(walk(ServerSGD()), START + UPDATES.cumsum(0))


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_that_of_torch(nesterov):
    rule = ServerMomentum(momentum=0.8, learning_rate=0.3, nesterov=nesterov)
    expected = optimiser_walk(lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.8, nesterov=nesterov))
    torch.testing.assert_close(walk(rule), expected)


def test_adam_by_convention_of_torch_is_that_of_torch():
    rule = ServerAdam(learning_rate=0.1, beta1=0.8, beta2=0.95, epsilon=0.01, convention="torch")
    torch.testing.assert_close(walk(rule), optimiser_walk(lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.95), eps=0.01)))


def test_epsilon_hat_is_adam_of_torch_with_an_epsilon_that_shrinks_by_the_correction():
    # √c₂/c₁ · m / (√v + ε) = (m/c₁) / (√(v/c₂) + ε/√c₂)
    rule = ServerAdam(learning_rate=0.1, beta2=0.9, epsilon=0.1, convention="epsilon_hat")
    m, v, x = torch.zeros(5), torch.zeros(5), START
    for t, update in enumerate(UPDATES, start=1):
        m, v = 0.9 * m + 0.1 * update, 0.9 * v + 0.1 * update**2
        corrected = (v / (1 - 0.9**t)).sqrt() + 0.1 / (1 - 0.9**t) ** 0.5
        x = x + 0.1 * (m / (1 - 0.9**t)) / corrected
    torch.testing.assert_close(walk(rule)[-1], x)


def test_conventions_of_adam_agree_when_epsilon_vanishes_and_differ_when_it_does_not():
    tiny = [walk(ServerAdam(epsilon=1e-12, convention=name)) for name in ("torch", "epsilon_hat")]
    torch.testing.assert_close(*tiny)
    large = [walk(ServerAdam(epsilon=0.1, convention=name)) for name in ("torch", "epsilon_hat")]
    assert (large[0] - large[1]).abs().max() > 1e-3


def test_uncorrected_adam_and_yogi_start_from_tau_squared():
    update = torch.tensor([0.5])
    for rule, second in (
        (ServerAdam(beta1=0.0, beta2=0.9, epsilon=0.1, learning_rate=1.0), 0.9 * 0.01 + 0.1 * 0.25),
        (ServerYogi(beta1=0.0, beta2=0.9, tau=0.1, learning_rate=1.0), 0.01 + 0.1 * 0.25),
    ):
        moved, memory = rule.step(torch.zeros(1), update, rule.begin(update), 1.0)
        assert memory["v"].item() == pytest.approx(second)
        assert moved.item() == pytest.approx(0.5 / (second**0.5 + 0.1))


def test_yogi_lets_the_second_moment_shrink_by_what_adam_would_not():
    rule = ServerYogi(beta2=0.9)
    memory = {"m": torch.zeros(1), "v": torch.tensor([4.0])}
    _, memory = rule.step(torch.zeros(1), torch.tensor([1.0]), memory, 1.0)
    assert memory["v"].item() == pytest.approx(4.0 - 0.1 * 1.0)


def test_adagrad_is_that_of_torch():
    rule = ServerAdagrad(learning_rate=0.1, tau=0.2)
    expected = optimiser_walk(lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.04, eps=0.2))
    torch.testing.assert_close(walk(rule), expected)


@pytest.mark.parametrize("name", [entry.name for entry in SERVER_RULES])
def test_rules_change_nothing_in_place(name):
    rule = SERVER_RULES.get(name)()
    x, update = START.clone(), UPDATES[0].clone()
    _, memory = rule.step(x, update, rule.begin(x), 0.1)
    kept = {key: value.clone() for key, value in memory.items()}
    rule.step(x, update, memory, 0.1)
    assert torch.equal(x, START)
    assert torch.equal(update, UPDATES[0])
    assert all(torch.equal(memory[key], kept[key]) for key in kept)


@pytest.mark.parametrize("name", [entry.name for entry in SERVER_RULES])
def test_rules_move_along_the_update(name):
    rule = SERVER_RULES.get(name)()
    moved, _ = rule.step(torch.zeros(4), torch.tensor([1.0, -2.0, 3.0, 0.0]), rule.begin(torch.zeros(4)), 0.1)
    assert moved.sign().tolist() == [1, -1, 1, 0]


def test_server_learning_rate_follows_its_schedule():
    rule = ServerSGD(learning_rate=0.5, schedule=Cosine(final=0.1))
    assert [round(learning_rate(rule, t, 3), 6) for t in range(3)] == [0.5, 0.275, 0.05]
