"""One label an image: cross-entropy, accuracy, accuracy of each class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedlens.data.examples import Examples
from fedlens.tasks.base import TASKS, Batch, Facts, Sums, Task, check_channels, image_facts, prepare_images
from fedlens.tasks.transforms import Transform


@TASKS.register("classification")
class Classification(Task):
    """Softmax cross-entropy over classes 0 … C − 1, with label smoothing if wanted.

    `top_k` adds the share of images whose label is among the k likeliest classes. The number of classes is taken from
    the data unless given; `per_class` reports the accuracy of each class by name.
    """

    classes: Annotated[int, Field(ge=2)] | None = None
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    top_k: tuple[Annotated[int, Field(ge=2)], ...] = ()
    per_class: bool = True

    @property
    def columns(self) -> tuple[str, ...]:
        return ("image", "label")

    @property
    def best_metric(self) -> tuple[str, bool]:
        return "accuracy", True

    def facts(self, data: Examples) -> Facts:
        classes = self.classes or len(data.class_names) or max(2, int(_labels(data).max(initial=0)) + 1)
        for k in self.top_k:
            if k >= classes:
                raise ValueError(f"task.top_k: {k} must be less than the number of classes, {classes}")
        names = data.class_names if len(data.class_names) == classes else tuple(str(c) for c in range(classes))
        facts = image_facts(data, classes, names)
        self.check(data, facts)
        return facts

    def check(self, data: Examples, facts: Facts) -> None:
        label = _labels(data)
        low, high = int(label.min(initial=0)), int(label.max(initial=0))
        if low < 0 or high >= facts.classes:
            raise ValueError(f"{data.name}: labels must lie in 0…{facts.classes - 1}; found {low}…{high}")
        check_channels(data, facts)

    def prepare(self, batch: Batch, facts: Facts, transforms: Sequence[Transform], uniform: Tensor | None) -> tuple[Tensor, Tensor]:
        return prepare_images(batch, facts, transforms, uniform), batch["label"].long()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=self.label_smoothing)

    def begin_sums(self, facts: Facts, groups: int, device: torch.device) -> Sums:
        names = ["examples", "loss", "correct", *(f"top{k}" for k in self.top_k)]
        sums = {name: torch.zeros(groups, dtype=torch.float64, device=device) for name in names}
        for name in ("class_examples", "class_correct"):
            sums[name] = torch.zeros(groups, facts.classes, dtype=torch.float64, device=device)
        return sums

    def add(self, sums: Sums, outputs: Tensor, targets: Tensor, group: Tensor) -> None:
        expected = (len(targets), sums["class_examples"].shape[1])
        if outputs.shape != expected:
            raise ValueError(f"the model's outputs have shape {list(outputs.shape)}; expected [images, classes], {list(expected)}")
        correct = (outputs.argmax(dim=1) == targets).double()
        measured = {"examples": torch.ones_like(correct), "loss": self.loss(outputs, targets).double(), "correct": correct}
        if self.top_k:
            hit = outputs.topk(max(self.top_k), dim=1).indices == targets[:, None]
            measured |= {f"top{k}": hit[:, :k].any(dim=1).double() for k in self.top_k}
        for name, values in measured.items():
            sums[name].index_add_(0, group, values)
        cell = group * sums["class_examples"].shape[1] + targets
        sums["class_examples"].view(-1).index_add_(0, cell, measured["examples"])
        sums["class_correct"].view(-1).index_add_(0, cell, correct)

    def metrics(self, sums: Sums, facts: Facts) -> dict[str, float]:
        total = {name: values.sum(dim=0) for name, values in sums.items()}
        examples = total["examples"]  # without any, there is nothing to report: NaN
        metrics = {"loss": total["loss"] / examples, "accuracy": total["correct"] / examples}
        metrics |= {f"top{k}_accuracy": total[f"top{k}"] / examples for k in self.top_k}
        present = total["class_examples"] > 0
        of_class = total["class_correct"] / total["class_examples"].clamp(min=1)
        metrics["macro_accuracy"] = of_class.sum() / present.sum()
        named = {name: float(value) for name, value in metrics.items()}
        if self.per_class:
            shown = zip(facts.class_names, present.tolist(), of_class.tolist(), strict=True)
            named |= {f"accuracy/{name}": value for name, there, value in shown if there}
        return named

    def group_metrics(self, sums: Sums) -> dict[str, Tensor]:
        return {"loss": sums["loss"] / sums["examples"], "accuracy": sums["correct"] / sums["examples"]}


def _labels(data: Examples) -> NDArray[np.integer[Any]]:
    label = data.column("label")
    if label.ndim != 1 or not np.issubdtype(label.dtype, np.integer) or not np.can_cast(label.dtype, np.int64):
        raise ValueError(
            f"{data.name}: classification needs integer labels [N] that int64 can hold; "
            f"column 'label' is {label.dtype} {label.shape}"
        )
    return label
