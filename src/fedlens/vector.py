"""A model as one flat vector: where each trainable parameter lies in x ∈ ℝᴾ, and the buffers beside it.

    x = [vec(θ₁) | vec(θ₂) | …]        for the parameters that train, in the order of the module

Everything between client and server is such a vector; many clients are a matrix [m, P]. Buffers (BatchNorm's running
statistics) travel in a vector of their own and are averaged as statistics, never treated as weights; integer buffers
(counters) are kept apart again, because an average of counters is no counter.

A convolution's weight [O, I, height, width] lies in the vector as [O, height, width, I]: with the input channels innermost,
as fast convolutions read it, so that no engine has to turn it round. Algorithms do not see the difference.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from fedlens.registry import nearest


@dataclass(frozen=True)
class Layout:
    """Names, shapes and places of tensors that lie one after another in a flat vector of one dtype."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    dtype: torch.dtype = torch.float32

    @classmethod
    def of_parameters(cls, module: nn.Module) -> Layout:
        """The layout of the parameters that train (`requires_grad`); frozen ones are not in it and are never sent."""
        trainable = {name: value for name, value in module.named_parameters() if value.requires_grad}
        for name, value in trainable.items():
            if value.dtype != torch.float32:
                raise TypeError(f"parameter '{name}' is {value.dtype}; trainable parameters must be float32 (use model.float())")
        if not trainable:
            raise ValueError("the model has no trainable parameter: every one is frozen (requires_grad=False)")
        return cls(tuple(trainable), tuple(value.shape for value in trainable.values()))

    @classmethod
    def of_statistics(cls, module: nn.Module) -> Layout:
        """The layout of floating-point buffers that training changes, such as BatchNorm's running mean and variance."""
        return cls._of_buffers(module, torch.float32)

    @classmethod
    def of_counters(cls, module: nn.Module) -> Layout:
        """The layout of integer buffers, such as BatchNorm's number of batches seen."""
        return cls._of_buffers(module, torch.int64)

    @classmethod
    def _of_buffers(cls, module: nn.Module, dtype: torch.dtype) -> Layout:
        found = {name: value for name, value in _travelling_buffers(module) if value.dtype == dtype}
        return cls(tuple(found), tuple(value.shape for value in found.values()), dtype)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(shape.numel() for shape in self.shapes)

    @property
    def size(self) -> int:
        """P, the length of the vector."""
        return sum(self.sizes)

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Name the pieces of a vector [P] (or of a matrix [m, P]) without copying; differentiable, its backward one `cat`."""
        if vector.shape[-1] != self.size:
            raise ValueError(f"a vector of length {vector.shape[-1]} does not fit this layout of length {self.size}")
        return self.shaped(vector.split(self.sizes, dim=-1))

    def shaped(self, pieces: Sequence[Tensor]) -> dict[str, Tensor]:
        """Name the pieces [P_i] of a vector, or [m, P_i] of a matrix, that were split from it by `sizes`: views of them."""
        return dict(zip(self.names, map(_shaped, pieces, self.shapes), strict=True))

    def read(self, module: nn.Module) -> Tensor:
        """Copy the module's tensors into a new vector [P]."""
        values = [_flat(value.detach()) for value in self._tensors(module)]
        return torch.cat(values) if values else torch.empty(0, dtype=self.dtype, device=_device(module))

    def write(self, module: nn.Module, vector: Tensor) -> None:
        """Copy a vector [P] into the module's own tensors."""
        with torch.no_grad():
            for target, value in zip(self._tensors(module), self.views(vector).values(), strict=True):
                target.copy_(value)

    def bind(self, module: nn.Module, vector: Tensor, gradient: Tensor | None = None) -> None:
        """Make the module's tensors views of `vector`, and its gradients views of `gradient`.

        From then on a step of the optimiser is one operation on the vector, and backward writes into `gradient`
        directly (it adds: set it to zero before).
        """
        values = self.views(vector)
        gradients = self.views(gradient) if gradient is not None else {}
        for name in self.names:
            owner, attribute = _owner(module, name)
            if attribute in owner._parameters:
                parameter = owner.get_parameter(attribute)
                parameter.data = values[name]
                parameter.grad = gradients.get(name)
            else:
                owner._buffers[attribute] = values[name]

    def check_bound(self, module: nn.Module, vector: Tensor) -> None:
        """Refuse a module that has put another tensor in the place of one that is bound: the vector would not hear of it."""
        for name, value in zip(self.names, self._tensors(module), strict=True):
            if value.untyped_storage().data_ptr() != vector.untyped_storage().data_ptr():
                raise TypeError(f"'{name}' was replaced while the model ran; change it in place (value.copy_(…), value.mul_(…))")

    def slices(self, patterns: str | Iterable[str]) -> list[slice]:
        """The places of all tensors whose name matches one of the glob patterns, neighbours joined."""
        chosen = self._matching([patterns] if isinstance(patterns, str) else list(patterns))
        ends = list(accumulate(self.sizes))
        found: list[slice] = []
        for name, size, end in zip(self.names, self.sizes, ends, strict=True):
            if name in chosen:
                start = end - size
                if found and found[-1].stop == start:
                    start = found.pop().start
                found.append(slice(start, end))
        return found

    def _matching(self, patterns: Sequence[str]) -> set[str]:
        chosen: set[str] = set()
        for pattern in patterns:
            matches = fnmatch.filter(self.names, pattern)
            if not matches:
                raise ValueError(f"no trainable parameter matches '{pattern}': {nearest(pattern, self.names)}")
            chosen.update(matches)
        return chosen

    def _tensors(self, module: nn.Module) -> Iterator[Tensor]:
        for name in self.names:
            owner, attribute = _owner(module, name)
            yield getattr(owner, attribute)


def _shaped(piece: Tensor, shape: torch.Size) -> Tensor:
    """A piece [P_i] of a vector, or [m, P_i] of a matrix, as the tensor that it is: a view."""
    leading = piece.shape[:-1]
    if len(shape) == 4:
        outputs, inputs, height, width = shape
        return piece.view((*leading, outputs, height, width, inputs)).movedim(-1, -3)
    return piece.view((*leading, *shape))


def _flat(value: Tensor) -> Tensor:
    """A tensor as the piece of a vector: what `_shaped` undoes."""
    return value.movedim(1, -1).reshape(-1) if value.ndim == 4 else value.reshape(-1)


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, attribute = name.rpartition(".")
    return module.get_submodule(path), attribute


def private_buffers(module: nn.Module) -> list[Tensor]:
    """Buffers that stay with the model: not persistent ones, and masks. Whatever a client does to them ends with it."""
    return [value for _, value, travels in _buffers(module) if not travels]


def _travelling_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Buffers that a client changes and the server must hear of."""
    for name, value, travels in _buffers(module):
        if travels:
            if value.dtype not in (torch.float32, torch.int64):
                raise TypeError(
                    f"buffer '{name}' is {value.dtype}; buffers that travel must be float32 or int64 "
                    "(or be registered with persistent=False, and stay with the model)"
                )
            yield name, value


def _buffers(module: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """Name and value of each buffer that is not declared constant, and whether it is sent."""
    seen: dict[int, str] = {}
    for path, owner in module.named_modules():
        if getattr(owner, "constant_buffers", False):
            continue
        for name, value in owner._buffers.items():
            if value is not None:
                travels = name not in owner._non_persistent_buffers_set and value.dtype != torch.bool
                full_name = f"{path}.{name}" if path else name
                if travels and value.numel() and (other := seen.setdefault(value.data_ptr(), full_name)) != full_name:
                    raise TypeError(f"buffers '{other}' and '{full_name}' are one tensor; give each its own (clone it)")
                yield full_name, value, travels
