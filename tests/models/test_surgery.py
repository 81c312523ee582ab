"""Norms, heads and frozen parameters."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fedlens.models import FrozenBatchNorm, create_model, find_head, freeze, replace_batch_norm, replace_head
from fedlens.models.surgery import replace_layers

SHAPES = [(nn.BatchNorm1d, (6, 4)), (nn.BatchNorm1d, (6, 4, 5)), (nn.BatchNorm2d, (6, 4, 3, 5)), (nn.BatchNorm3d, (6, 4, 2, 3, 2))]


@pytest.fixture(autouse=True)
def _the_same_inputs_in_every_run() -> None:
    torch.manual_seed(0)


def used_batch_norm(kind: type[nn.Module] = nn.BatchNorm2d, channels: int = 4, **settings) -> nn.Module:
    """A BatchNorm that has seen data."""
    layer = kind(channels, **settings)
    for value in (layer.weight, layer.bias, layer.running_mean):
        if value is not None:
            nn.init.normal_(value)
    nn.init.uniform_(layer.running_var, 0.1, 3)
    layer.num_batches_tracked += 5
    return layer


def frozen_form(layer: nn.Module) -> FrozenBatchNorm:
    model = nn.Sequential(copy.deepcopy(layer))
    assert replace_batch_norm(model, "frozen") == 1
    return model[0]


class Shared(nn.Module):
    """One BatchNorm and one dropout under two names, and a block under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = nn.BatchNorm2d(4)
        self.block = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
        self.again = self.block


@pytest.mark.parametrize(("kind", "shape"), SHAPES)
@pytest.mark.parametrize("affine", [True, False])
def test_frozen_batch_norm_is_batch_norm_in_eval_mode_also_while_it_trains(kind, shape, affine):
    layer = used_batch_norm(kind, affine=affine, eps=1e-3)
    frozen = frozen_form(layer).train()
    statistics = frozen.running_mean.clone(), frozen.running_var.clone()
    results = []
    for module in (layer.eval(), frozen):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0), requires_grad=True)
        y = module(x)
        y.pow(3).sum().backward()
        results.append([y, x.grad, *(parameter.grad for parameter in module.parameters())])
    assert len(results[0]) == len(results[1]) == (4 if affine else 2)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert torch.equal(frozen.running_mean, statistics[0])
    assert torch.equal(frozen.running_var, statistics[1])


def test_frozen_batch_norm_loads_state_dicts_of_batch_norm_and_leaves_them_as_they_are():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), used_batch_norm())
    state = model.state_dict()
    names = list(state)
    frozen = nn.Sequential(nn.Conv2d(3, 4, 1), FrozenBatchNorm(4))
    frozen.load_state_dict(state, strict=True)
    assert list(state) == names
    x = torch.randn(2, 3, 5, 5)
    torch.testing.assert_close(frozen(x), model.eval()(x))
    assert "1.num_batches_tracked" not in frozen.state_dict()


def test_a_network_with_frozen_norms_computes_what_it_did_in_eval_mode():
    model = create_model("resnet18_cifar", 5)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.running_mean, std=0.1)
            nn.init.uniform_(layer.running_var, 0.5, 2)
    x = torch.randn(2, 3, 16, 16)
    expected = model.eval()(x)
    assert replace_batch_norm(model, "frozen") == 20
    torch.testing.assert_close(model.train()(x), expected, rtol=1e-3, atol=1e-3)


def test_batch_norm_without_statistics_cannot_be_frozen():
    with pytest.raises(ValueError, match="layer '0' keeps no running statistics"):
        replace_batch_norm(nn.Sequential(nn.BatchNorm2d(4, track_running_stats=False)), "frozen")


@pytest.mark.parametrize(
    ("name", "layers", "groups"),
    [("resnet18", 20, {32}), ("resnet18_cifar", 20, {32}), ("mobilenet_v2", 52, {8}), ("mobilenet_v3_small", 34, {8})],
)
def test_group_norm_has_the_groups_of_the_papers(name, layers, groups):
    """FLAIR: 32 in ResNets; Hsu et al. 2020: 8 in MobileNets."""
    found = [layer for layer in create_model(name, 5, norm="group").modules() if isinstance(layer, nn.GroupNorm)]
    assert len(found) == layers
    assert {layer.num_groups for layer in found} == groups
    assert all(layer.affine and layer.eps == 1e-5 for layer in found)


@pytest.mark.parametrize(("channels", "groups", "expected"), [(64, None, 32), (16, None, 16), (16, 4, 4), (16, 1, 1)])
def test_elsewhere_group_norm_has_32_groups_or_one_a_channel_or_as_many_as_are_asked_for(channels, groups, expected):
    model = nn.Sequential(used_batch_norm(channels=channels))
    replace_batch_norm(model, "group", groups)
    assert (model[0].num_groups, model[0].num_channels) == (expected, channels)
    assert (model[0].weight == 1).all()  # fresh
    assert (model[0].bias == 0).all()


@pytest.mark.parametrize(("channels", "groups"), [(48, None), (16, 3), (16, 32)])
def test_groups_that_do_not_divide_the_channels_are_an_error_that_names_the_layer(channels, groups):
    model = nn.Sequential(nn.Sequential(nn.BatchNorm2d(channels)))
    with pytest.raises(ValueError, match=rf"layer '0\.0': {groups or 32} groups do not divide its {channels} channels"):
        replace_batch_norm(model, "group", groups)


@pytest.mark.parametrize("norm", ["group", "frozen"])
def test_shared_layers_stay_shared(norm):
    model = Shared()
    assert replace_batch_norm(model, norm) == 2
    assert model.first is model.second
    assert model.again is model.block
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in model.modules())


def test_replaced_layers_keep_mode_precision_and_what_is_not_replaced():
    model = nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)).double()
    model[0].eval()
    convolution = model[1]
    replace_batch_norm(model, "group")
    assert (model[0].training, model.training) == (False, True)
    assert model[0].weight.dtype == torch.float64
    assert model[1] is convolution


def test_a_model_that_is_itself_the_layer_cannot_be_replaced_in_place():
    with pytest.raises(ValueError, match=r"the model is itself the layer to replace.*wrap it in nn\.Sequential"):
        replace_layers(nn.BatchNorm2d(4), lambda name, layer: nn.Identity())


def test_the_head_is_the_last_linear_layer_with_an_output_for_each_class():
    assert find_head(create_model("resnet18_cifar", 7), 7) == "fc"
    assert find_head(create_model("mobilenet_v2", 7), 7) == "classifier.1"
    assert find_head(nn.Sequential(nn.Linear(3, 7), nn.Linear(7, 4)), 7) is None
    assert find_head(nn.Conv2d(3, 7, 1), 7) is None


def test_a_new_head_is_linear_in_the_features_and_with_a_bottleneck_of_its_rank():
    model = nn.Sequential(nn.Flatten(), nn.Linear(20, 3)).double()
    replace_head(model, "1", classes=9, bottleneck=4)
    x = torch.randn(30, 20, dtype=torch.float64)
    y = model(x) - model(torch.zeros_like(x))  # without biases
    torch.testing.assert_close(model(2 * x) - model(0 * x), 2 * y)  # no activation between
    assert torch.linalg.matrix_rank(y) == 4
    replace_head(model, "1.classifier", classes=5)
    assert model(x).shape == (30, 5)
    with pytest.raises(ValueError, match="head '0' is Flatten, expected the name of a linear layer"):
        replace_head(model, "0", classes=9)


@pytest.mark.parametrize(
    ("patterns", "frozen"),
    [
        ("features.*", {"features.0", "features.1"}),
        (["*.bias"], {"bias"}),
        (["features.0.*", "classifier.*"], {"features.0", "classifier"}),
        ("backbone", {"features.0", "features.1", "hidden"}),
    ],
)
def test_frozen_are_the_parameters_that_match_a_pattern_and_no_others(patterns, frozen):
    model = create_model("cnn_mcmahan", 4, freeze=patterns)
    for name, parameter in model.named_parameters():
        matches = name.endswith("bias") if frozen == {"bias"} else name.startswith(tuple(frozen))
        assert parameter.requires_grad != matches, name


def test_the_backbone_includes_layers_whose_names_only_begin_like_that_of_the_head():
    model = nn.ModuleDict({"fc_before": nn.Linear(3, 3), "fc": nn.Linear(3, 2)})
    freeze(model, "backbone", head="fc")
    assert [name for name, parameter in model.named_parameters() if parameter.requires_grad] == ["fc.weight", "fc.bias"]


def test_a_pattern_that_freezes_nothing_is_an_error_that_offers_the_nearest_name():
    with pytest.raises(ValueError, match=r"freeze='clasifier\.weight' matches no parameter: did you mean 'classifier\.weight'\?"):
        create_model("cnn_mcmahan", 4, freeze="clasifier.weight")


def test_the_backbone_of_a_model_without_a_head_is_not_known():
    with pytest.raises(ValueError, match="freeze='backbone': the model has no known head"):
        freeze(nn.Conv2d(1, 1, 1), "backbone", head=None)
