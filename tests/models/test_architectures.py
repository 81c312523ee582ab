"""Parameter counts of the papers, and every registered model at work."""

from __future__ import annotations

import pytest
import torch
import torchvision.models
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedlens.models import MODELS, FrozenBatchNorm, create_model, find_head, replace_batch_norm, set_dropout_key

WITHOUT_BATCH_NORM = {"cnn_mcmahan", "cnn_hsu", "cnn_hsu_valid", "vit_b_16"}


@pytest.fixture(autouse=True)
def _the_same_inputs_in_every_run() -> None:
    torch.manual_seed(0)


def count(model: nn.Module, trainable: bool = False) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad or not trainable)


@pytest.mark.parametrize(
    ("name", "arguments", "parameters"),
    [
        ("cnn_mcmahan", {"classes": 10, "channels": 1}, 582_026),
        ("cnn_hsu", {"classes": 10}, 1_756_426),  # specs/hsu-and-datasets.md 5.2
        ("cnn_hsu_valid", {"classes": 10}, 797_962),
        ("mobilenet_v2", {"classes": 1_203, "norm": "group"}, 3_764_915),
        ("mobilenet_v2", {"classes": 2_028, "norm": "group", "bottleneck": 64}, 2_437_676),
        ("resnet18", {"classes": 17, "norm": "group"}, 11_185_233),  # specs/flair.md 3.5
        ("resnet18", {"classes": 17, "norm": "frozen"}, 11_185_233),
        ("resnet18", {"classes": 1_628, "norm": "group"}, 12_011_676),
    ],
)
def test_models_have_as_many_parameters_as_in_the_papers(name, arguments, parameters):
    model = create_model(name, **arguments)
    assert count(model) == count(model, trainable=True) == parameters
    if name == "resnet18":
        assert len(list(model.parameters())) == 62


@pytest.mark.parametrize(("name", "million"), [("mobilenet_v3_large", 4.462), ("efficientnet_b0", 4.268), ("vit_b_16", 85.95)])
def test_models_of_fedcv_have_their_real_sizes_with_203_classes(name, million):
    """specs/fedcv.md 4.2, as counted in timm."""
    with torch.device("meta"):
        model = MODELS.get(name)(203, 3, 224)
    assert count(model) / 1e6 == pytest.approx(million, abs=0.006)


def test_with_a_frozen_backbone_the_two_last_layers_of_landmarks_are_trained():
    model = create_model("mobilenet_v2", 2_028, norm="group", bottleneck=64, freeze="backbone")
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert count(model, trainable=True) == 213_804
    assert trained == [f"classifier.1.{layer}.{part}" for layer in ("bottleneck", "classifier") for part in ("weight", "bias")]


def norms(model: nn.Module) -> set[str]:
    kinds = {"batch": _BatchNorm, "group": nn.GroupNorm, "frozen": FrozenBatchNorm}
    return {name for name, kind in kinds.items() if any(isinstance(layer, kind) for layer in model.modules())}


@pytest.mark.parametrize("name", [entry.name for entry in MODELS])
def test_every_model_runs_forward_and_backward(name):
    generator = torch.Generator().manual_seed(0)
    model = create_model(name, 5, image_size=32).train()
    set_dropout_key(model, torch.tensor(1))
    outputs = model(torch.randn(2, 3, 32, 32, generator=generator))
    assert outputs.shape == (2, 5)
    nn.functional.cross_entropy(outputs, torch.tensor([0, 3])).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients.values())
    assert gradients[f"{find_head(model, 5)}.weight"].any()


@pytest.mark.parametrize("name", [entry.name for entry in MODELS])
@pytest.mark.parametrize("norm", ["group", "frozen"])
def test_every_model_has_one_kind_of_norm_after_surgery_and_runs_or_says_that_it_has_none_to_replace(name, norm):
    with torch.device("meta"):
        model = MODELS.get(name)(5, 3, 32)
    replaced = replace_batch_norm(model, norm)
    assert norms(model) == (set() if name in WITHOUT_BATCH_NORM else {norm})
    assert (replaced == 0) == (name in WITHOUT_BATCH_NORM)
    assert model.eval()(torch.zeros(2, 3, 32, 32, device="meta")).shape == (2, 5)


@pytest.mark.parametrize("name", sorted(WITHOUT_BATCH_NORM - {"vit_b_16"}))
@pytest.mark.parametrize("norm", ["batch", "group", "frozen"])
def test_a_norm_for_a_model_without_batch_norm_is_refused(name, norm):
    with pytest.raises(ValueError, match=rf"norm='{norm}' is about BatchNorm layers, and model '{name}' has none"):
        create_model(name, 5, norm=norm)


@pytest.mark.parametrize("name", [entry.name for entry in MODELS if entry.name != "vit_b_16"])
@pytest.mark.parametrize("channels", [1, 4])
def test_images_may_have_any_number_of_channels(name, channels):
    with torch.device("meta"):
        model = MODELS.get(name)(5, channels, 32).eval()
        assert model(torch.zeros(2, channels, 32, 32)).shape == (2, 5)


def test_the_small_network_is_that_of_mcmahan_layer_by_layer():
    """As in the paper: ReLU after each convolution and before pooling, which gives the same numbers."""
    model = create_model("cnn_mcmahan", 10, channels=1)
    weights = list(model.parameters())
    x = torch.randn(3, 1, 28, 28)
    features = x
    for weight, bias in zip(weights[0:4:2], weights[1:4:2], strict=True):
        features = nn.functional.max_pool2d(nn.functional.conv2d(features, weight, bias).relu(), 2)
    hidden = nn.functional.linear(features.flatten(1), *weights[4:6]).relu()
    torch.testing.assert_close(model(x), nn.functional.linear(hidden, *weights[6:8]))


@pytest.mark.parametrize(("name", "smallest"), [("cnn_mcmahan", 16), ("cnn_hsu_valid", 16), ("cnn_hsu", 4)])
def test_an_image_of_which_nothing_is_left_is_refused(name, smallest):
    assert create_model(name, 2, image_size=smallest)(torch.zeros(1, 3, smallest, smallest)).shape == (1, 2)
    with pytest.raises(ValueError, match=rf"image_size={smallest - 1}: nothing is left"):
        create_model(name, 2, image_size=smallest - 1)


def test_the_stem_for_small_images_keeps_their_size():
    model = create_model("resnet18_cifar", 10).eval()
    sides = []
    model.layer4.register_forward_hook(lambda layer, inputs, output: sides.append(output.shape[2:]))
    model(torch.zeros(1, 3, 32, 32))
    assert sides == [(4, 4)]
    ordinary = torchvision.models.resnet18(num_classes=10)
    assert count(ordinary) - count(model) == 3 * 64 * (7 * 7 - 3 * 3)


def test_the_vision_transformer_takes_multiples_of_its_patches_only():
    with pytest.raises(ValueError, match="image_size=30: vit_b_16 cuts images into 16×16 patches"):
        create_model("vit_b_16", 2, image_size=30)
