"""Weights from files."""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
import torchvision.models
from safetensors.torch import save_file
from torch import Tensor, nn

from fedlens.models import create_model, load_pretrained
from fedlens.models.pretrained import first_of


@pytest.fixture(autouse=True)
def _the_same_inputs_in_every_run() -> None:
    torch.manual_seed(0)


class Small(nn.Sequential):
    """A convolution, a norm and a head."""

    def __init__(self, classes: int = 3, norm: nn.Module | None = None):
        super().__init__(
            OrderedDict(
                convolution=nn.Conv2d(1, 4, 3, bias=False),
                norm=norm or nn.BatchNorm2d(4),
                flat=nn.Flatten(),
                head=nn.Linear(4, classes),
            )
        )


def random_state(model: nn.Module) -> dict[str, Tensor]:
    """Values unlike those of any fresh layer."""
    return {
        name: torch.rand(value.shape) + 2 if value.is_floating_point() else value + 5 for name, value in model.state_dict().items()
    }


def save(state: dict[str, Tensor], folder: Path, suffix: str = ".pth") -> Path:
    file = folder / f"weights{suffix}"
    save_file(state, file) if suffix == ".safetensors" else torch.save(state, file)
    return file


def same(model: nn.Module, state: dict[str, Tensor], names: list[str]) -> bool:
    found = model.state_dict()
    return bool(names) and all(torch.equal(found[name], state[name]) for name in names)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_what_is_saved_is_loaded_whole(tmp_path, suffix):
    state = random_state(Small())
    model = Small()
    loaded = load_pretrained(model, save(state, tmp_path, suffix), head="head")
    names = [name for name in state if name != "norm.num_batches_tracked"]
    assert same(model, state, names)
    assert (loaded.tensors_loaded, loaded.parameters_loaded) == (7, 4 * 9 + 8 + 15)
    assert (loaded.fresh, loaded.ignored) == ((), ())


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_a_state_dict_may_stand_under_a_key_and_have_the_prefix_of_a_parallel_model(tmp_path, key):
    state = random_state(Small())
    file = tmp_path / "checkpoint.pth"
    torch.save({key: {f"module.{name}": value for name, value in state.items()}, "epoch": 3}, file)
    model = Small()
    load_pretrained(model, file)
    assert same(model, state, ["convolution.weight", "norm.running_var", "head.bias"])


def test_a_file_with_the_trunk_only_leaves_the_head_fresh(tmp_path):
    state = {name: value for name, value in random_state(Small()).items() if not name.startswith("head.")}
    model = Small()
    before = model.head.weight.clone()
    loaded = load_pretrained(model, save(state, tmp_path), head="head")
    assert same(model, state, ["convolution.weight", "norm.weight"])
    assert torch.equal(model.head.weight, before)
    assert (loaded.fresh, loaded.ignored) == (("head.weight", "head.bias"), ())


def test_a_head_of_another_shape_is_left_out_and_reported(tmp_path):
    model = Small(classes=3)
    before = model.head.weight.clone()
    loaded = load_pretrained(model, save(random_state(Small(classes=9)), tmp_path), head="head")
    assert torch.equal(model.head.weight, before)
    assert loaded.fresh == loaded.ignored == ("head.weight", "head.bias")
    assert str(loaded).startswith("44 parameters (5 tensors) from ")
    assert str(loaded).endswith("; fresh: head.weight, head.bias; ignored: head.weight, head.bias")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("convolution.weight"), "missing: convolution.weight"),
        (lambda state: state.update(extra=torch.zeros(1)), "unexpected: extra"),
        (
            lambda state: state.update({"norm.bias": torch.zeros(5)}),
            "of another shape: norm.bias (5,) instead of (4,)",
        ),
        (lambda state: state["norm.running_mean"].__setitem__(2, float("nan")), "not finite: norm.running_mean"),
        (lambda state: state["convolution.weight"].fill_(float("inf")), "not finite: convolution.weight"),
        (lambda state: state.pop("head.bias"), "head.bias"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_names_and_changes_nothing(tmp_path, change, message):
    state = random_state(Small())
    change(state)
    model = Small()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    file = save(state, tmp_path)
    with pytest.raises(ValueError, match=rf"weights file '{file}' does not fit the model: .*{re.escape(message)}"):
        load_pretrained(model, file)
    assert same(model, before, list(before))


def test_half_a_head_is_not_taken(tmp_path):
    state = random_state(Small())
    del state["head.bias"]
    model = Small()
    before = model.head.weight.clone()
    loaded = load_pretrained(model, save(state, tmp_path), head="head")
    assert torch.equal(model.head.weight, before)
    assert (loaded.fresh, loaded.ignored) == (("head.weight", "head.bias"), ("head.weight",))


@pytest.mark.parametrize(("norm_init", "weight_comes"), [("fresh", False), ("affine", True)])
def test_group_norm_takes_of_batch_norm_nothing_or_weight_and_bias(tmp_path, norm_init, weight_comes):
    state = random_state(Small())
    model = Small(norm=nn.GroupNorm(2, 4))
    loaded = load_pretrained(model, save(state, tmp_path), head="head", norm_init=norm_init)
    assert same(model, state, ["convolution.weight", "head.weight"])
    assert torch.equal(model.norm.weight, state["norm.weight"] if weight_comes else torch.ones(4))
    assert torch.equal(model.norm.bias, state["norm.bias"] if weight_comes else torch.zeros(4))
    assert loaded.fresh == (() if weight_comes else ("norm.weight", "norm.bias"))
    assert {"norm.running_mean", "norm.running_var"} <= set(loaded.ignored)


def test_group_norm_of_the_file_comes_whole(tmp_path):
    state = random_state(Small(norm=nn.GroupNorm(2, 4)))
    model = Small(norm=nn.GroupNorm(2, 4))
    load_pretrained(model, save(state, tmp_path))
    assert same(model, state, list(state))


class Payload:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_code_in_a_pickle_is_refused_and_not_run(tmp_path):
    file, touched = tmp_path / "evil.pth", tmp_path / "touched"
    torch.save({"convolution.weight": Payload(touched)}, file)
    with pytest.raises(ValueError, match=f"cannot read weights file '{file}', expected a state dict of tensors"):
        load_pretrained(Small(), file)
    assert not touched.exists()
    torch.load(file, weights_only=False)  # the same file would have run it
    assert touched.exists()


@pytest.mark.parametrize("name", ["broken.pth", "broken.safetensors"])
def test_a_broken_file_is_an_error_that_names_it(tmp_path, name):
    (tmp_path / name).write_bytes(b"no weights at all")
    with pytest.raises(ValueError, match=f"cannot read weights file '{tmp_path / name}'"):
        load_pretrained(Small(), tmp_path / name)


@pytest.mark.parametrize(
    ("content", "message"),
    [({}, "holds a dict, expected a dict of named tensors"), ([1], "holds a list"), ({"lr": 0.1}, "entry 'lr' is of type float")],
)
def test_a_file_that_is_no_state_dict_is_refused(tmp_path, content, message):
    torch.save(content, tmp_path / "other.pth")
    with pytest.raises(ValueError, match=message):
        load_pretrained(Small(), tmp_path / "other.pth")


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"no weights file '{tmp_path / 'nothing.pth'}'"):
        create_model("cnn_mcmahan", 3, pretrained=tmp_path / "nothing.pth")


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    """torch.hub's folder, empty and put back afterwards."""
    monkeypatch.setattr(torch.hub, "_hub_dir", None)
    torch.hub.set_dir(str(tmp_path))
    return tmp_path / "checkpoints"


def test_imagenet_weights_that_are_not_there_are_an_error_that_says_where_they_belong(hub):
    file = hub / "resnet18-f37072fd.pth"
    message = rf"model 'resnet18': no file '{file}'. fedlens downloads nothing: put torchvision's .*IMAGENET1K_V1 there"
    with pytest.raises(FileNotFoundError, match=message):
        create_model("resnet18", 17, pretrained="imagenet")
    assert not hub.exists()


def test_a_model_that_torchvision_does_not_have_has_no_imagenet_weights(hub):
    with pytest.raises(ValueError, match="torchvision has no ImageNet weights for model 'cnn_hsu'; give pretrained= a path"):
        create_model("cnn_hsu", 17, pretrained="imagenet")


def test_imagenet_weights_give_the_trunk_with_its_statistics_and_for_1000_classes_the_head(hub):
    """As in FLAIR: norms are frozen first, then all but the head is loaded."""
    hub.mkdir()
    state = random_state(torchvision.models.resnet18())
    torch.save(state, hub / "resnet18-f37072fd.pth")
    model = create_model("resnet18", 17, norm="frozen", pretrained="imagenet")
    assert same(model, state, ["conv1.weight", "layer4.1.bn2.weight", "layer4.1.bn2.running_mean", "bn1.running_var"])
    assert torch.equal(model.fc.weight, create_model("resnet18", 17, norm="frozen").fc.weight)
    assert model.loaded.fresh == ("fc.weight", "fc.bias")
    assert model.loaded.parameters_loaded == 11_185_233 - 17 * 513
    assert same(create_model("resnet18", 1000, pretrained="imagenet"), state, ["fc.weight", "bn1.running_mean"])


def test_a_trunk_fits_a_model_with_group_norm_a_bottleneck_and_a_frozen_backbone(tmp_path):
    """The weights of Hsu et al.: MobileNetV2's features."""
    trunk = {name: value for name, value in random_state(torchvision.models.mobilenet_v2()).items() if name.startswith("features.")}
    model = create_model("mobilenet_v2", 9, norm="group", bottleneck=4, pretrained=save(trunk, tmp_path), freeze="backbone")
    convolutions = [f"{name}.weight" for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)]
    assert same(model, trunk, convolutions)
    assert model.loaded.tensors_loaded == len(convolutions) == 52
    norms = [
        f"{name}.{part}" for name, layer in model.named_modules() if isinstance(layer, nn.GroupNorm) for part in ("weight", "bias")
    ]
    head = [f"classifier.1.{layer}.{part}" for layer in ("bottleneck", "classifier") for part in ("weight", "bias")]
    assert sorted(model.loaded.fresh) == sorted(norms + head)


def test_without_a_file_nothing_is_loaded():
    assert create_model("cnn_mcmahan", 3).loaded is None


def test_long_lists_of_names_are_cut():
    assert [first_of(names) for names in ([], list("ab"), list("abcdef"))] == ["none", "a, b", "a, b, c, d and 2 more"]
