"""The layout of a model as a flat vector."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedlens.models import FrozenBatchNorm
from fedlens.vector import Layout


@pytest.fixture(autouse=True)
def _the_same_inputs_in_every_run() -> None:
    torch.manual_seed(0)


class Mixed(nn.Module):
    """Convolution, BatchNorm, a scalar parameter and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.temperature = nn.Parameter(torch.tensor(2.0))
        self.embedding = nn.Linear(3, 4)
        self.head = nn.Linear(4, 5)
        self.embedding.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        features = self.norm(self.convolution(x)).relu().mean(dim=(2, 3))
        return self.head(self.embedding(features)) * self.temperature


class Tied(nn.Module):
    """Two layers with one weight, and one BatchNorm under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(3, 3), nn.Linear(3, 3)
        self.decoder.weight = self.encoder.weight
        self.first = self.second = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.decoder(self.first(self.encoder(x))))


def flat(value: Tensor) -> Tensor:
    """In the order of memory: images and their filters with channels innermost."""
    return (value.permute(0, 2, 3, 1) if value.ndim == 4 else value).reshape(-1)


def gradients(model: nn.Module, x: Tensor) -> Tensor:
    """The flat gradient by ordinary autograd on a copy of the model."""
    model = copy.deepcopy(model)
    model(x).square().sum().backward()
    return torch.cat([flat(p.grad) for p in model.parameters() if p.requires_grad])


def test_the_vector_is_the_trainable_parameters_in_the_order_of_the_module():
    model = Mixed()
    expected = [(name, p) for name, p in model.named_parameters() if name != "embedding.weight"]
    layout = Layout.of_parameters(model)
    assert layout.names == tuple(name for name, _ in expected)
    assert layout.size == sum(p.numel() for _, p in expected)
    assert torch.equal(layout.read(model), torch.cat([flat(p.detach()) for _, p in expected]))


def test_read_copies():
    model = Mixed()
    layout = Layout.of_parameters(model)
    before = layout.read(model)
    layout.read(model).zero_()
    assert torch.equal(layout.read(model), before)


@pytest.mark.parametrize("layout_of", [Layout.of_parameters, Layout.of_statistics, Layout.of_counters])
def test_what_is_written_is_read_again(layout_of):
    model = Mixed()
    layout = layout_of(model)
    vector = torch.arange(1, layout.size + 1).to(layout.dtype)
    layout.write(model, vector)
    assert torch.equal(layout.read(model), vector)


def test_writing_parameters_changes_nothing_else():
    model = Mixed()
    layout = Layout.of_parameters(model)
    before = copy.deepcopy(model.state_dict())
    layout.write(model, torch.full((layout.size,), 7.0))
    after = model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before if name not in layout.names)
    assert all((after[name] == 7).all() for name in layout.names)


@given(shapes=st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=5), clients=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_views_of_any_shapes_are_the_pieces_of_the_vector_and_of_every_row_of_a_matrix(shapes, clients):
    layout = Layout.of_parameters(nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes]))
    matrix = torch.arange(clients * layout.size, dtype=torch.float32).view(clients, layout.size)
    of_matrix = layout.views(matrix)
    for row in range(clients):
        of_row = layout.views(matrix[row])
        assert [list(view.shape) for view in of_row.values()] == shapes
        assert torch.equal(torch.cat([flat(view) for view in of_row.values()]), matrix[row])
        assert all(torch.equal(of_matrix[name][row], of_row[name]) for name in layout.names)


@pytest.mark.parametrize("leading", [(), (3,)])
def test_views_share_the_memory_of_the_vector(leading):
    layout = Layout.of_parameters(Mixed())
    vector = torch.zeros(*leading, layout.size)
    for view in layout.views(vector).values():
        view.add_(1)
    assert (vector == 1).all()


def test_a_vector_of_another_length_is_refused():
    layout = Layout.of_parameters(Mixed())
    with pytest.raises(ValueError, match=f"length {layout.size + 1} does not fit this layout of length {layout.size}"):
        layout.views(torch.zeros(layout.size + 1))


def test_gradient_through_views_is_that_of_ordinary_autograd_for_one_client_and_for_many():
    model = Mixed().eval()
    layout = Layout.of_parameters(model)
    x = torch.randn(3, 4, 2, 5, 5)  # three clients

    def loss(vector: Tensor, inputs: Tensor) -> Tensor:
        return functional_call(model, layout.views(vector), inputs).square().sum()

    expected = torch.stack([gradients(model, inputs) for inputs in x])
    start = layout.read(model)
    torch.testing.assert_close(torch.stack([grad(loss)(start, inputs) for inputs in x]), expected)
    torch.testing.assert_close(vmap(grad(loss))(start.expand(3, -1), x), expected, rtol=1e-4, atol=1e-4)


def test_backward_of_a_bound_model_adds_into_the_flat_gradient_what_ordinary_autograd_gives():
    model, x = Mixed(), torch.randn(4, 2, 5, 5)
    expected = gradients(model, x)
    layout = Layout.of_parameters(model)
    w = layout.read(model)
    g = torch.zeros_like(w)
    layout.bind(model, w, g)
    model(x).square().sum().backward()
    torch.testing.assert_close(g, expected)
    model(x).square().sum().backward()
    torch.testing.assert_close(g, 2 * expected)


def test_a_step_on_the_vector_of_a_bound_model_is_a_step_of_torch_sgd():
    model, x = Mixed(), torch.randn(4, 2, 5, 5)
    ordinary = copy.deepcopy(model)
    optimiser = torch.optim.SGD([p for p in ordinary.parameters() if p.requires_grad], lr=0.1)
    layout = Layout.of_parameters(model)
    w = layout.read(model)
    g = torch.zeros_like(w)
    layout.bind(model, w, g)
    for _ in range(3):
        optimiser.zero_grad()
        ordinary(x).square().mean().backward()
        optimiser.step()
        g.zero_()
        model(x).square().mean().backward()
        w.sub_(0.1 * g)
    torch.testing.assert_close(w, layout.read(ordinary))


def test_buffers_of_a_bound_model_change_in_the_vectors_as_batch_norm_changes_them():
    model, x = Mixed(), torch.randn(4, 2, 5, 5)
    ordinary = copy.deepcopy(model)
    statistics, counters = Layout.of_statistics(model), Layout.of_counters(model)
    s, c = statistics.read(model), counters.read(model)
    statistics.bind(model, s)
    counters.bind(model, c)
    for _ in range(2):
        model(x), ordinary(x)
    assert torch.equal(s, torch.cat([ordinary.norm.running_mean, ordinary.norm.running_var]))
    assert c.tolist() == [2]
    s.fill_(1)
    assert (model.norm.running_mean == 1).all()


def test_statistics_and_counters_are_apart_from_parameters_and_from_each_other():
    model = Mixed()
    assert Layout.of_statistics(model).names == ("norm.running_mean", "norm.running_var")
    assert Layout.of_counters(model).names == ("norm.num_batches_tracked",)
    assert Layout.of_counters(model).read(model).dtype == torch.int64
    assert not any(
        name.startswith("norm.") and name.split(".")[1] not in ("weight", "bias") for name in Layout.of_parameters(model).names
    )


def test_a_model_without_buffers_has_empty_layouts_that_work():
    model = nn.Linear(2, 2)
    for layout in (Layout.of_statistics(model), Layout.of_counters(model)):
        vector = layout.read(model)
        layout.bind(model, vector)
        layout.write(model, vector)
        assert (layout.size, vector.shape, vector.dtype) == (0, (0,), layout.dtype)


def test_constant_and_not_persistent_buffers_do_not_travel():
    model = nn.Sequential(FrozenBatchNorm(3), nn.BatchNorm1d(3))
    model.register_buffer("key", torch.zeros(2), persistent=False)
    assert Layout.of_statistics(model).names == ("1.running_mean", "1.running_var")


def test_other_precisions_are_refused_by_name():
    with pytest.raises(TypeError, match=r"parameter 'weight' is torch\.float64"):
        Layout.of_parameters(nn.Linear(2, 2).double())
    with pytest.raises(TypeError, match=r"buffer 'running_mean' is torch\.float16"):
        Layout.of_statistics(nn.BatchNorm1d(2).half())


def test_frozen_parameters_may_have_any_precision_but_one_parameter_must_train():
    model = nn.Sequential(nn.Linear(2, 2).half().requires_grad_(False), nn.Linear(2, 2))
    assert Layout.of_parameters(model).names == ("1.weight", "1.bias")
    with pytest.raises(ValueError, match="no trainable parameter"):
        Layout.of_parameters(model.requires_grad_(False))


def test_a_shared_parameter_is_in_the_vector_once_with_the_gradient_of_all_its_uses():
    model, x = Tied(), torch.randn(5, 3)
    layout = Layout.of_parameters(model)
    assert layout.names == ("encoder.weight", "encoder.bias", "decoder.bias", "first.weight", "first.bias")
    assert Layout.of_statistics(model).names == ("first.running_mean", "first.running_var")
    expected = gradients(model, x)
    w = layout.read(model)
    g = torch.zeros_like(w)
    layout.bind(model, w, g)
    model(x).square().sum().backward()
    torch.testing.assert_close(g, expected)
    w.fill_(3)
    assert model.decoder.weight is model.encoder.weight
    assert (model.decoder.weight == 3).all()


@pytest.mark.parametrize("patterns", ["*", "head.*", "*.bias", ["head.*", "convolution.weight"], ["embedding.bias", "head.weight"]])
def test_slices_are_the_places_of_the_matching_parameters_and_no_two_touch(patterns):
    model = Mixed()
    layout = Layout.of_parameters(model)
    matching = {
        "*": layout.names,
        "head.*": ("head.weight", "head.bias"),
        "*.bias": [n for n in layout.names if n.endswith("bias")],
    }
    chosen = {
        name for pattern in ([patterns] if isinstance(patterns, str) else patterns) for name in matching.get(pattern, [pattern])
    }
    places = torch.arange(layout.size)
    expected = torch.cat([flat(view) for name, view in layout.views(places).items() if name in chosen])
    slices = layout.slices(patterns)
    assert torch.equal(torch.cat([places[part] for part in slices]), expected)
    assert all(before.stop < after.start for before, after in pairwise(slices))


def test_a_pattern_that_matches_nothing_is_an_error_that_offers_the_nearest_name():
    with pytest.raises(ValueError, match=r"no trainable parameter matches 'haed\.weight': did you mean 'head\.weight'\?"):
        Layout.of_parameters(Mixed()).slices(["head.*", "haed.weight"])
