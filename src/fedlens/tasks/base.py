"""What is learnt: how a batch is made ready, what its loss is, and what is measured. Algorithms never see a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, TypeAlias

import torch
from pydantic import field_validator
from torch import Tensor

from fedlens.data.examples import Examples
from fedlens.registry import Part, Registry, chosen_from
from fedlens.tasks.example_weights import EXAMPLE_WEIGHTS, ExampleWeights
from fedlens.tasks.transforms import TRANSFORMS, Transform

TASKS: Registry[type[Task]] = Registry("task")

Batch: TypeAlias = dict[str, Tensor]  # columns of some examples, on the device
Sums: TypeAlias = dict[str, Tensor]  # additive measurements: sums over examples, first axis = group


@dataclass(frozen=True)
class Facts:
    """What a task has to know about the data: resolved once, from a recipe's settings and the examples."""

    classes: int
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    standard_deviation: tuple[float, ...]
    device: torch.device | None = None
    shift: Tensor = field(init=False, repr=False, compare=False)  # [C, 1, 1]: −mean / deviation
    scale: Tensor = field(init=False, repr=False, compare=False)  # [C, 1, 1]: 1 / (255 deviation)

    def __post_init__(self) -> None:
        mean, deviation = (
            torch.tensor(values, device=self.device)[:, None, None] for values in (self.mean, self.standard_deviation)
        )
        object.__setattr__(self, "shift", -mean / deviation)
        object.__setattr__(self, "scale", 1 / (255 * deviation))

    def to(self, device: torch.device) -> Facts:
        """The same facts with their tensors on a device, so that no batch has to take them there."""
        return replace(self, device=device)


class Task(Part):
    """A learning problem over columns of examples.

    Losses come per example, so that examples can be weighted; measurements are sums, so that batches, clients and
    machines can be added up. A task brings its own columns, targets (a tensor or anything its loss understands) and sums.
    """

    in_lanes: ClassVar[bool] = True  # whether losses come per image, so that many clients' batches can be computed as one

    train_transforms: tuple[Annotated[Transform, chosen_from(TRANSFORMS)], ...] = ()
    evaluation_transforms: tuple[Annotated[Transform, chosen_from(TRANSFORMS)], ...] = ()
    example_weights: Annotated[ExampleWeights, chosen_from(EXAMPLE_WEIGHTS)] | None = None

    @field_validator("evaluation_transforms")
    @classmethod
    def _nothing_random(cls, transforms: tuple[Transform, ...]) -> tuple[Transform, ...]:
        if random := [transform.name for transform in transforms if transform.draws]:
            raise ValueError(f"evaluation must not be random, and {', '.join(random)} is (use resize or center_crop)")
        return transforms

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the examples that the task reads."""
        raise NotImplementedError

    @property
    def best_metric(self) -> tuple[str, bool]:
        """The metric by which the best round is chosen, and whether higher is better."""
        return "loss", False

    def facts(self, data: Examples) -> Facts:
        """Check that the examples fit the task, and note what is needed of them."""
        raise NotImplementedError

    def check(self, data: Examples, facts: Facts) -> None:
        """Refuse examples, such as those of an evaluation set, that do not fit what was noted of the training set."""
        raise NotImplementedError

    def prepare(self, batch: Batch, facts: Facts, transforms: Sequence[Transform], uniform: Tensor | None) -> tuple[Tensor, Any]:
        """Make inputs and targets of some examples; random transforms use the draws `uniform` [B, k] one after another."""
        raise NotImplementedError

    def loss(self, outputs: Tensor, targets: Any) -> Tensor:
        """The loss of each example, [B]."""
        raise NotImplementedError

    def begin_sums(self, facts: Facts, groups: int, device: torch.device) -> Sums:
        """Zeros to add measurements to; groups are clients, or just one."""
        raise NotImplementedError

    def add(self, sums: Sums, outputs: Tensor, targets: Any, group: Tensor) -> None:
        """Add a batch's measurements, in place and on the device; `group` [B] says to which row each example belongs."""
        raise NotImplementedError

    def metrics(self, sums: Sums, facts: Facts) -> dict[str, float]:
        """Named numbers over all groups together."""
        raise NotImplementedError

    def group_metrics(self, sums: Sums) -> dict[str, Tensor]:
        """A few named numbers for each group, [G]; NaN where a group has no example."""
        raise NotImplementedError


def image_facts(data: Examples, classes: int, names: tuple[str, ...]) -> Facts:
    """What a task on images notes: its classes, and what the images are normalised by."""
    channels = data.column("image").shape[-1]
    for values, what in ((data.mean, "means"), (data.standard_deviation, "standard deviations")):
        if values and len(values) != channels:
            raise ValueError(f"{data.name}: {len(values)} {what} for images with {channels} channels")
    return Facts(classes, names, data.mean or (0.5,) * channels, data.standard_deviation or (0.5,) * channels)


def check_channels(data: Examples, facts: Facts) -> None:
    channels = data.column("image").shape[-1]
    if channels != len(facts.mean):
        raise ValueError(f"{data.name}: images with {channels} channels; the training set's have {len(facts.mean)}")


def prepare_images(batch: Batch, facts: Facts, transforms: Sequence[Transform], uniform: Tensor | None) -> Tensor:
    """Images [B, H, W, C] uint8 → inputs [B, C, H, W] float32: transformed, then (v / 255 − mean) / standard deviation."""
    images = batch["image"].permute(0, 3, 1, 2).float()
    first = 0
    for transform in transforms:
        draws = uniform[:, first : first + transform.draws] if uniform is not None else images.new_empty(len(images), 0)
        images = transform.apply(images, draws)
        first += transform.draws
    return torch.addcmul(facts.shift, images, facts.scale)
