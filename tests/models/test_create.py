"""One call from a name to a model."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from fedlens.models import KeyedDropout, create_model


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([value.reshape(-1).double() for value in model.state_dict().values()])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("cnn_hsu", {}),
        ("resnet18", {"channels": 1, "norm": "group"}),
        ("resnet18_cifar", {"norm": "frozen"}),
        ("mobilenet_v2", {"bottleneck": 8, "norm": "group"}),
        ("mobilenet_v3_small", {}),
    ],
)
def test_the_same_arguments_give_the_same_weights_whatever_was_drawn_before(name, arguments):
    made = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        torch.rand(seed + 1)
        made.append(weights(create_model(name, 4, **arguments)))
    assert torch.equal(*made)
    assert not torch.equal(made[0], weights(create_model(name, 4, seed=1, **arguments)))


def test_no_global_generator_is_touched():
    def states() -> tuple[list[int], list[int], object]:
        return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002

    before = states()
    create_model("mobilenet_v2", 4, bottleneck=8)
    assert states() == before


def test_the_callers_default_device_does_not_matter():
    with torch.device("meta"):
        model = create_model("cnn_mcmahan", 4)
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    assert torch.equal(weights(model), weights(create_model("cnn_mcmahan", 4)))


def test_dropout_is_keyed_from_the_start():
    model = create_model("mobilenet_v3_small", 4)
    layers = [layer for layer in model.modules() if isinstance(layer, KeyedDropout)]
    assert [(layer.p, layer.layer) for layer in layers] == [(0.2, 0)]
    assert not any(isinstance(layer, nn.Dropout) for layer in model.modules())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "resnet81"}, r"unknown model 'resnet81': did you mean 'resnet18'\?"),
        ({"classes": 0}, "classes=0, expected at least 1"),
        ({"channels": 0}, "channels=0, expected at least 1"),
        ({"image_size": -1}, "image_size=-1, expected at least 1"),
        ({"bottleneck": 0}, "bottleneck=0, expected at least 1"),
        ({"norm": "group", "groups": 0}, "groups=0, expected at least 1"),
        ({"norm": "layer"}, "norm='layer', expected 'batch', 'group', 'frozen' or None"),
        ({"norm_init": "copy"}, "norm_init='copy', expected 'fresh' or 'affine'"),
        ({"groups": 8}, "groups=8 with norm=None: groups are for norm='group'"),
        ({"norm": "group", "norm_init": "affine"}, "norm_init='affine' needs norm='group' and pretrained weights"),
        ({"norm": "group", "groups": 7}, "7 groups do not divide its 64 channels"),
        ({"channels": 1, "pretrained": "imagenet"}, "channels=1: ImageNet weights are for 3 channels"),
        ({"name": "cnn_hsu", "norm": "batch"}, "norm='batch' is about BatchNorm layers, and model 'cnn_hsu' has none"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        create_model(**{"name": "resnet18_cifar", "classes": 4, **arguments})
