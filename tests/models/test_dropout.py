"""Dropout as a function of a key."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torchvision.ops import DropBlock2d, StochasticDepth

from fedlens import random
from fedlens.models import KeyedDropout, create_model, dropout_keys, keyed_dropout_, set_dropout_key
from fedlens.models.dropout import keyed_uniform

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@pytest.fixture(autouse=True)
def _the_same_inputs_in_every_run() -> None:
    torch.manual_seed(0)


def key(value: int) -> Tensor:
    return torch.tensor(value, dtype=torch.int64)


def keyed(layer: nn.Module) -> nn.Module:
    """The keyed form of a layer, number 0."""
    model = nn.Sequential(layer)
    assert keyed_dropout_(model) == 1
    return model[0]


def dropped(layer: nn.Module, shape: tuple[int, ...], of_key: int = 1) -> Tensor:
    """Which elements are zero."""
    set_dropout_key(layer, key(of_key))
    return layer(torch.ones(shape)) == 0


class Two(nn.Module):
    """Two dropout layers of one probability on the same input."""

    def __init__(self, p: float = 0.5):
        super().__init__()
        self.first, self.second = nn.Dropout(p), nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.first(x), self.second(x)])


@pytest.mark.parametrize("of_key", [0, 1, -1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("layer", [0, 1, 77])
def test_draws_are_splitmix64_as_in_numpy(of_key, layer):
    """u_i = mix(mix(mix(key) + layer · golden) + i · golden), in NumPy's unsigned arithmetic."""

    def mix(word: np.ndarray) -> np.ndarray:
        return random._mix(word - GOLDEN)  # which adds it

    stream = mix(mix(np.array([of_key]).astype(np.uint64)) + np.array([layer], dtype=np.uint64) * GOLDEN)
    expected = (mix(stream + np.arange(1, 13, dtype=np.uint64) * GOLDEN) >> np.uint64(40)).astype(np.float32) / 2**24
    drawn = keyed_uniform(key(of_key), layer, torch.Size((3, 4)), torch.device("cpu"))
    np.testing.assert_array_equal(drawn.numpy().reshape(-1), expected)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_a_share_p_is_dropped_and_the_rest_scaled_so_that_the_mean_stays(p):
    layer, number = keyed(nn.Dropout(p)), 100_000
    output = layer(torch.ones(number))
    kept = output[output != 0]
    assert torch.allclose(kept, torch.tensor(1 / (1 - p)))
    assert abs(len(kept) - (1 - p) * number) < 4 * np.sqrt(p * (1 - p) * number)


def test_one_unit_is_dropped_under_a_share_p_of_keys():
    layer, number = keyed(nn.Dropout(0.3)), 4_000
    shares = torch.stack([dropped(layer, (5,), of_key) for of_key in range(number)]).float().mean(dim=0)
    assert (shares - 0.3).abs().max() < 4.5 * np.sqrt(0.3 * 0.7 / number)


def test_masks_of_layers_and_of_keys_are_independent():
    model = Two()
    assert keyed_dropout_(model) == 2
    masks = torch.cat([dropped(model, (10_000,), of_key) for of_key in (1, 2)]).float()
    correlations = torch.corrcoef(masks) - torch.eye(4)
    assert correlations.abs().max() < 4.5 / 100


@pytest.mark.parametrize("layer", [nn.Dropout(0.4), nn.Dropout2d(0.4), StochasticDepth(0.4, "row")])
def test_clients_under_vmap_have_the_masks_that_each_has_alone(layer):
    model = nn.Sequential(nn.Conv2d(2, 3, 1), layer)
    keyed_dropout_(model)
    x, keys = torch.randn(5, 4, 2, 6, 6), torch.tensor([0, 1, 2, 7, -3])

    def client(inputs: Tensor, of_client: Tensor) -> Tensor:
        return functional_call(model, dropout_keys(model, of_client), inputs)

    together = vmap(client)(x, keys)
    alone = []
    for inputs, of_client in zip(x, keys, strict=True):
        set_dropout_key(model, of_client)
        alone.append(model(inputs))
    alone = torch.stack(alone)
    assert torch.equal(together == 0, alone == 0)
    torch.testing.assert_close(together, alone)
    assert len({tuple((output == 0).flatten().tolist()) for output in alone}) > 1


def test_a_key_always_gives_the_same_mask_and_no_global_generator_is_touched():
    layer = keyed(nn.Dropout(0.5))
    before = torch.get_rng_state()
    first = dropped(layer, (1000,), 3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(dropped(layer, (1000,), 3), first)
    assert not torch.equal(dropped(layer, (1000,), 4), first)


def test_evaluation_and_probability_zero_change_nothing_and_probability_one_leaves_nothing():
    x = torch.randn(10)
    assert torch.equal(keyed(nn.Dropout(0.5)).eval()(x), x)
    assert torch.equal(keyed(nn.Dropout(0.0))(x), x)
    assert torch.equal(keyed(nn.Dropout(1.0))(x), torch.zeros(10))
    assert torch.equal(keyed(StochasticDepth(1.0, "batch"))(x), torch.zeros(10))


@pytest.mark.parametrize(
    ("layer", "shape", "units"),
    [
        (nn.Dropout(0.5), (40, 6), 2),
        (nn.Dropout1d(0.5), (40, 6, 5), 2),
        (nn.Dropout1d(0.5), (40, 5), 1),
        (nn.Dropout2d(0.5), (40, 6, 5, 4), 2),
        (nn.Dropout3d(0.5), (40, 6, 3, 2, 2), 2),
        (nn.Dropout3d(0.5), (40, 3, 2, 2), 1),
        (StochasticDepth(0.5, "row"), (40, 6, 3, 3), 1),
        (StochasticDepth(0.5, "batch"), (40, 6, 3, 3), 0),
    ],
)
def test_units_are_dropped_whole_as_in_pytorch(layer, shape, units):
    """Elements, channels, rows or the whole batch; without a batch dimension the first one is the channels."""
    size = math.prod(shape[units:])
    ours = torch.stack([dropped(keyed(layer), shape, of_key) for of_key in range(8)]).reshape(8, -1, size)
    theirs = torch.stack([layer(torch.ones(shape)) == 0 for _ in range(8)]).reshape(8, -1, size)
    for masks in (ours, theirs):
        assert torch.equal(masks.all(dim=2), masks.any(dim=2))  # a unit is dropped whole
    shares = ours.float().mean(dim=(1, 2))
    assert 0 < shares.mean() < 1
    assert units == 0 or ((shares > 0) & (shares < 1)).all()  # and not all of them together


def test_an_image_without_a_batch_loses_channels():
    """Where PyTorch still takes three dimensions for a batch of sequences, and warns that it will not always."""
    masks = dropped(keyed(nn.Dropout2d(0.5)), (40, 5, 4)).flatten(1)
    assert torch.equal(masks.all(dim=1), masks.any(dim=1))
    assert 0 < masks.float().mean() < 1


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.Dropout2d(0.5), (4, 5)), (nn.Dropout2d(0.5), (2, 3, 4, 5, 6)), (nn.Dropout1d(0.5), (5,))]
)
def test_channels_of_an_input_that_has_none_are_refused(layer, shape):
    with pytest.raises(ValueError, match=r"drops channels: input has shape .*, expected \[batch,\] channels and"):
        keyed(layer)(torch.ones(shape))


@pytest.mark.parametrize(
    "layer",
    [
        nn.AlphaDropout(0.1),
        nn.FeatureAlphaDropout(0.1),
        nn.RReLU(),
        nn.FractionalMaxPool2d(2, output_size=2),
        DropBlock2d(0.1, 3),
        nn.MultiheadAttention(4, 2, dropout=0.1),
        nn.LSTM(4, 4, num_layers=2, dropout=0.1),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_that_draw_from_the_global_generator_are_refused_by_name(layer):
    kind = type(layer).__name__
    with pytest.raises(ValueError, match=rf"layer 'deep\.layer' \({kind}\) draws from torch's global generator"):
        keyed_dropout_(nn.ModuleDict({"deep": nn.ModuleDict({"layer": layer})}))


def test_layers_whose_dropout_is_zero_are_not_random():
    model = nn.ModuleList([nn.MultiheadAttention(4, 2), nn.LSTM(4, 4)])
    assert keyed_dropout_(model) == 0


@pytest.mark.parametrize("name", ["efficientnet_b0", "mobilenet_v3_small"])
def test_a_whole_network_is_a_function_of_its_key(name):
    model = create_model(name, 3, norm="group").train()
    x = torch.randn(2, 3, 64, 64)
    outputs = []
    for of_key in (1, 1, 2):
        set_dropout_key(model, key(of_key))
        torch.rand(of_key)
        outputs.append(model(x))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    layers = [layer.layer for layer in model.modules() if isinstance(layer, KeyedDropout)]
    assert layers == list(range(len(layers)))


def test_a_shared_layer_stays_shared():
    model = Two()
    model.second = model.first
    assert keyed_dropout_(model) == 1
    assert model.first is model.second


def test_keys_are_no_state_of_the_model():
    assert keyed(nn.Dropout(0.5)).state_dict() == {}


@pytest.mark.parametrize("wrong", [torch.tensor([[1]]), torch.tensor(1.0), torch.tensor(1, dtype=torch.int32)])
def test_a_key_is_one_int64(wrong):
    for give in (set_dropout_key, dropout_keys):
        with pytest.raises(ValueError, match="expected a 0-dim int64 tensor"):
            give(nn.Sequential(KeyedDropout(0.5)), wrong)


def test_only_lanes_take_several_keys():
    with pytest.raises(ValueError, match="expected a 0-dim int64 tensor"):
        set_dropout_key(nn.Sequential(KeyedDropout(0.5)), torch.tensor([1, 2]))
    assert dropout_keys(nn.Sequential(KeyedDropout(0.5)), torch.tensor([1, 2]))["0.key"].tolist() == [1, 2]
