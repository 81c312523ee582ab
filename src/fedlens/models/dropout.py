"""Dropout whose masks are a function of a key, so that a client's randomness never depends on where or when it runs.

`torch.nn.Dropout` draws from the global generator: its mask depends on what ran before it, and on the device. Here the
mask of unit i in layer l under key k is a hash of (k, l, i), taken from SplitMix64 (Steele, Lea & Flood 2014, "Fast
splittable pseudorandom number generators"): the same on every device, for one client or many under `torch.func.vmap`.

Only modules can be converted: a call of `torch.nn.functional.dropout` inside some forward function cannot be seen.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torchvision.ops import DropBlock2d, DropBlock3d, StochasticDepth

from fedlens.models.surgery import replace_layers


def signed(bits: int) -> int:
    """The int64 that has the same 64 bits as this unsigned number."""
    bits &= (1 << 64) - 1
    return bits - (1 << 64) if bits >> 63 else bits


# SplitMix64's constants.
INCREMENT = 0x9E3779B97F4A7C15
FIRST_MULTIPLIER = signed(0xBF58476D1CE4E5B9)
SECOND_MULTIPLIER = signed(0x94D049BB133111EB)


def shift_right(bits: Tensor, by: int) -> Tensor:
    """Logical shift of int64: its own shift copies the sign bit, which the mask takes away."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def mix(bits: Tensor) -> Tensor:
    """SplitMix64's finaliser: every bit of the result depends on every bit of the input (int64, wrapping around)."""
    bits = (bits ^ shift_right(bits, 30)) * FIRST_MULTIPLIER
    bits = (bits ^ shift_right(bits, 27)) * SECOND_MULTIPLIER
    return bits ^ shift_right(bits, 31)


def keyed_uniform(key: Tensor, layer: int, shape: torch.Size, device: torch.device) -> Tensor:
    """Float32 numbers in [0, 1), a function of key, layer and position.

    stream = mix(mix(key) + layer · INCREMENT)
    u_i = (upper 24 bits of mix(stream + i · INCREMENT)) / 2^24 for i = 1, 2, …
    """
    stream = mix(mix(key) + signed(layer * INCREMENT))
    position = torch.arange(1, shape.numel() + 1, device=device).view(shape)
    bits = mix(stream + position * signed(INCREMENT))
    return shift_right(bits, 40).to(torch.float32) * 2.0**-24  # 24 bits are what float32 holds exactly


class KeyedDropout(nn.Module):
    """Zero each unit with probability p and scale the rest by 1/(1 − p); the mask is a function of (key, layer, unit).

    `end` says what a unit is: one index into the dimensions [:end] of the input. None makes it every element, 1 every row,
    0 the whole batch, −2 every channel of images (three dimensions are then one image).
    A layer that a forward function calls twice uses the same mask twice: give each call a layer of its own.
    """

    constant_buffers = True  # the key is set anew for each step; nothing is learnt in it
    key: Tensor

    def __init__(self, p: float, end: int | None = None, layer: int = 0):
        super().__init__()
        self.p = p
        self.end = end
        self.layer = layer
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        uniform = keyed_uniform(self.key, self.layer, self.mask_shape(x.shape), x.device)
        scale = 1 / (1 - self.p) if self.p < 1 else 0.0
        return x * ((uniform >= self.p).to(x.dtype) * scale)

    def mask_shape(self, shape: torch.Size) -> torch.Size:
        if self.end is not None and self.end < 0 and len(shape) not in (1 - self.end, 2 - self.end):
            expected = f"[batch,] channels and {-self.end} more dimensions"
            raise ValueError(f"{self} drops channels: input has shape {tuple(shape)}, expected {expected}")
        own = shape[: self.end]
        return own + (1,) * (len(shape) - len(own))

    def extra_repr(self) -> str:
        return f"p={self.p}, end={self.end}, layer={self.layer}"


END: dict[type[nn.Module], int | None] = {nn.Dropout: None, nn.Dropout1d: -1, nn.Dropout2d: -2, nn.Dropout3d: -3}
# Other modules that draw random numbers in training, and those that do so when their `dropout` is positive.
RANDOM = (_DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d, DropBlock2d, DropBlock3d)
RANDOM_WITH_DROPOUT = (nn.MultiheadAttention, nn.RNNBase)


def keyed(name: str, layer: nn.Module) -> KeyedDropout | None:
    """The layer to put in this one's place; None where nothing is random, an error where it has no keyed form."""
    if isinstance(layer, _DropoutNd) and type(layer) in END:
        return KeyedDropout(layer.p, END[type(layer)])
    if isinstance(layer, StochasticDepth):
        return KeyedDropout(layer.p, 1 if layer.mode == "row" else 0)
    if isinstance(layer, RANDOM) or (isinstance(layer, RANDOM_WITH_DROPOUT) and layer.dropout > 0):
        raise ValueError(
            f"layer '{name}' ({type(layer).__name__}) draws from torch's global generator, so a client's result would "
            "depend on what ran before it; use nn.Dropout, nn.Dropout1d/2d/3d or torchvision's StochasticDepth, or set "
            "its dropout to 0"
        )
    return None


def keyed_layers(module: nn.Module) -> dict[str, KeyedDropout]:
    """Every keyed layer of a module under its name."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, KeyedDropout)}


def keyed_dropout_(module: nn.Module) -> int:
    """Put keyed layers in the place of all dropout and stochastic depth (in place); the number of layers replaced."""
    replaced = replace_layers(module, keyed)
    for number, layer in enumerate(keyed_layers(module).values()):
        layer.layer = number
    return replaced


def set_dropout_key(module: nn.Module, key: Tensor) -> None:
    """Give every keyed layer the key of the step to come: int64, 0-dim. Each layer mixes in its own number."""
    check_key(key)
    for layer in keyed_layers(module).values():
        layer.key = key


def dropout_keys(module: nn.Module, key: Tensor) -> dict[str, Tensor]:
    """The buffers that hold the key, or a key for each lane [L], by name: for `torch.func.functional_call`."""
    check_key(key, most_dimensions=1)
    return {f"{name}.key" if name else "key": key for name in keyed_layers(module)}


def check_key(key: Tensor, most_dimensions: int = 0) -> None:
    if key.dtype != torch.int64 or key.ndim > most_dimensions:
        expected = "a 0-dim int64 tensor" + (", or [L] for lanes" if most_dimensions else "")
        raise ValueError(f"dropout key: got {key.dtype} of shape {tuple(key.shape)}, expected {expected}")
