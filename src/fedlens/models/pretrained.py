"""Start from weights in a file: what fits is loaded, what stays fresh is reported, anything else is an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torchvision.models
from safetensors.torch import load_file
from torch import Tensor, nn

COUNTER = "num_batches_tracked"  # of BatchNorm; old files lack it, and it has no effect with a momentum


@dataclass(frozen=True)
class Loaded:
    """What came from a weights file, which of the model's tensors stayed fresh, which of the file's were left out."""

    source: str
    tensors_loaded: int
    parameters_loaded: int
    fresh: tuple[str, ...]
    ignored: tuple[str, ...]

    def __str__(self) -> str:
        loaded = f"{self.parameters_loaded:,} parameters ({self.tensors_loaded} tensors) from {self.source}"
        return f"{loaded}; fresh: {first_of(self.fresh)}; ignored: {first_of(self.ignored)}"


def first_of(names: Sequence[str], most: int = 4) -> str:
    """The first of the names, and how many there are besides."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return ", ".join(names) or "none"


def imagenet_file(name: str) -> Path:
    """Where torch.hub keeps torchvision's ImageNet weights (IMAGENET1K_V1) of a model; nothing is downloaded."""
    if name not in torchvision.models.list_models(module=torchvision.models):
        raise ValueError(f"torchvision has no ImageNet weights for model '{name}'; give pretrained= a path instead")
    weights = torchvision.models.get_model_weights(name)["IMAGENET1K_V1"]
    file = Path(torch.hub.get_dir()) / "checkpoints" / Path(weights.url).name
    if not file.is_file():
        raise FileNotFoundError(
            f"model '{name}': no file '{file}'. fedlens downloads nothing: put torchvision's {weights} there "
            "under that name, or give pretrained= a path instead"
        )
    return file


def load_pretrained(
    model: nn.Module, file: Path, head: str | None = None, norm_init: Literal["fresh", "affine"] = "fresh"
) -> Loaded:
    """Load a weights file into a model (in place); a file that does not fit changes nothing.

    A head that the file lacks, or has in another shape, stays fresh. A GroupNorm that is BatchNorm in the file stays fresh
    too, or with norm_init='affine' takes BatchNorm's weight and bias.
    """
    found = read_tensors(file)
    wanted = {name: tensor for name, tensor in model.state_dict().items() if not name.endswith(COUNTER)}
    apart = names_of_other_norms(model, found, norm_init) | names_of_other_head(wanted, found, head)
    used = {name: tensor for name, tensor in found.items() if name not in apart}
    check_fit(file, {name: tensor for name, tensor in wanted.items() if name not in apart}, used)
    model.load_state_dict(used, strict=False)
    return Loaded(
        source=str(file),
        tensors_loaded=len(used),
        parameters_loaded=sum(parameter.numel() for name, parameter in model.named_parameters() if name in used),
        fresh=tuple(name for name in wanted if name not in used),
        ignored=tuple(name for name in found if name not in used),
    )


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The named tensors of a .safetensors or torch file, on the CPU.

    They may stand under 'state_dict' or 'model', and have the prefix 'module.' of a parallel model.
    """
    content = read_file(file)
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not content:
        raise ValueError(f"weights file '{file}' holds a {type(content).__name__}, expected a dict of named tensors")
    for name, value in content.items():
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise ValueError(f"weights file '{file}': entry '{name}' is of type {kind}, expected only tensors")
    prefix = "module." if all(name.startswith("module.") for name in content) else ""
    return {name.removeprefix(prefix): tensor for name, tensor in content.items() if not name.endswith(COUNTER)}


def read_file(file: Path) -> Any:
    if not file.is_file():
        raise FileNotFoundError(f"no weights file '{file}'")
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # of which type depends on where the file is broken
        reason = str(error).split("\n")[0]
        raise ValueError(f"cannot read weights file '{file}', expected a state dict of tensors: {reason}") from error


def names_of_other_norms(model: nn.Module, found: dict[str, Tensor], norm_init: str) -> set[str]:
    """What a BatchNorm layer of the file does not give to the GroupNorm layer of that name in the model."""
    layers = [name for name, layer in model.named_modules() if isinstance(layer, nn.GroupNorm)]
    affine = ("weight", "bias") if norm_init == "fresh" else ()
    parts = ("running_mean", "running_var", *affine)
    return {f"{name}.{part}" for name in layers if f"{name}.running_mean" in found for part in parts}


def names_of_other_head(wanted: dict[str, Tensor], found: dict[str, Tensor], head: str | None) -> set[str]:
    """All names of both heads, unless the file's head is the model's in names and shapes: it is taken whole or not."""
    if head is None:
        return set()
    model_head, file_head = (
        {name: tensor.shape for name, tensor in tensors.items() if name.startswith(f"{head}.")} for tensors in (wanted, found)
    )
    return set() if model_head == file_head else {*model_head, *file_head}


def check_fit(file: Path, wanted: dict[str, Tensor], used: dict[str, Tensor]) -> None:
    """Every tensor that is wanted must be there, in its shape and finite, and no other."""
    common = [name for name in wanted if name in used]
    problems = {
        "missing": [name for name in wanted if name not in used],
        "unexpected": [name for name in used if name not in wanted],
        "of another shape": [
            f"{name} {tuple(used[name].shape)} instead of {tuple(wanted[name].shape)}"
            for name in common
            if used[name].shape != wanted[name].shape
        ],
        "not finite": [name for name in common if not torch.isfinite(used[name]).all()],
    }
    text = "; ".join(f"{what}: {first_of(names)}" for what, names in problems.items() if names)
    if text:
        raise ValueError(f"weights file '{file}' does not fit the model: {text}")
