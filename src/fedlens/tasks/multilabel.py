"""Any number of labels an image: binary cross-entropy, average precision, precision, recall and F1 over classes and pooled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedlens.data.examples import Examples
from fedlens.tasks.average_precision import (
    BINS,
    add_to_histograms,
    binned_average_precision,
    by_class,
    harmonic_mean,
    pooled,
    ratio,
)
from fedlens.tasks.base import TASKS, Batch, Facts, Sums, Task, check_channels, image_facts, prepare_images
from fedlens.tasks.transforms import Transform

NAMED = 100  # classes: with more, a row of numbers is not made longer by one for each
BLOCK = 1 << 24  # labels that are checked at a time
COUNTS = ("true_positives", "false_positives", "false_negatives")


@TASKS.register("multilabel")
class MultiLabel(Task):
    """Sigmoid cross-entropy, the mean over classes of each image; a class is predicted where its score is above ½.

    labels      the column that says what each image shows, zeros and ones [N, C]
    per_class   report the binned AP of each class that occurs by name; by default where there are at most 100 classes
    exact       keep all scores of an evaluation, 5 · N · C bytes, for exact AP and for the AP of each client

    Macro numbers are means over all classes, and pooled ones, called micro, count all pairs of image and class together. What
    is nothing over nothing is 0, so that classes without positives pull macro numbers down; F1 is the harmonic mean of the
    averages, not the average of harmonic means. `macro_ap` and `micro_ap` are those of 200 bins, as Keras has them. The best
    round is that of the lowest loss. That is how FLAIR's results were computed (Song et al. 2022).

    Clients have `micro_f1` and, of exact AP, the mean over all classes and that over the classes which they have pictures of.
    """

    labels: str = "labels"
    per_class: bool | None = None
    exact: bool = True

    @property
    def columns(self) -> tuple[str, ...]:
        return ("image", self.labels)

    def facts(self, data: Examples) -> Facts:
        classes = self._labels(data).shape[1]
        known = data.categories.get(self.labels, data.class_names if self.labels == "labels" else ())
        names = tuple(map(str, known if len(known) == classes else range(classes)))
        facts = image_facts(data, classes, names)
        self.check(data, facts)
        return facts

    def check(self, data: Examples, facts: Facts) -> None:
        labels = self._labels(data)
        if labels.shape[1] != facts.classes:
            raise ValueError(
                f"{data.name}: column '{self.labels}' has {labels.shape[1]} classes; the training set's has {facts.classes}"
            )
        step = max(1, BLOCK // facts.classes)
        for start in range(0, len(labels), step):
            rows = labels[start : start + step]
            if rows.dtype != bool and not ((rows == 0) | (rows == 1)).all():
                raise ValueError(f"{data.name}: column '{self.labels}' must hold zeros and ones; found {rows.min()}…{rows.max()}")
        check_channels(data, facts)

    def prepare(self, batch: Batch, facts: Facts, transforms: Sequence[Transform], uniform: Tensor | None) -> tuple[Tensor, Tensor]:
        return prepare_images(batch, facts, transforms, uniform), batch[self.labels].bool()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), reduction="none").mean(dim=1)

    def begin_sums(self, facts: Facts, groups: int, device: torch.device) -> Sums:
        """Beside the sums of each group [G] those of each class [C], and its histograms; what is kept for `exact` has a row for
        each image, and is joined where others are added.
        """

        def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        sums = {name: zeros(groups) for name in ("examples", "loss", *(f"group_{name}" for name in COUNTS))}
        sums |= {f"class_{name}": zeros(facts.classes) for name in COUNTS}
        sums["histograms"] = zeros(2, facts.classes, BINS)  # of negatives and positives
        if self.exact:
            sums["scores"] = zeros(0, facts.classes, dtype=torch.float32)
            sums["targets"], sums["group"] = zeros(0, facts.classes, dtype=torch.bool), zeros(0, dtype=torch.int64)
        return sums

    def add(self, sums: Sums, outputs: Tensor, targets: Tensor, group: Tensor) -> None:
        if outputs.shape != targets.shape:
            raise ValueError(
                f"the model's outputs have shape {list(outputs.shape)}; expected [images, classes], {list(targets.shape)}"
            )
        scores = outputs.float().sigmoid()
        sums["examples"].index_add_(0, group, sums["examples"].new_ones(1).expand(len(group)))
        sums["loss"].index_add_(0, group, self.loss(outputs, targets).double())
        predicted = scores > 0.5
        for name, counted in zip(COUNTS, (predicted & targets, predicted & ~targets, ~predicted & targets), strict=True):
            sums[f"group_{name}"].index_add_(0, group, counted.sum(dim=1).double())
            sums[f"class_{name}"] += counted.sum(dim=0)
        add_to_histograms(sums["histograms"], scores, targets)
        if self.exact:  # ranked by outputs: scores near 1 are rounded to 1
            for name, rows in (("scores", outputs.float()), ("targets", targets), ("group", group)):
                sums[name] = torch.cat([sums[name], rows])

    def metrics(self, sums: Sums, facts: Facts) -> dict[str, float]:
        of_class, histograms = [sums[f"class_{name}"] for name in COUNTS], sums["histograms"]
        ap = binned_average_precision(histograms)
        macro = (ap.mean(), *(share.mean() for share in _precision_and_recall(*of_class)))
        micro = (
            binned_average_precision(histograms.sum(dim=1)),
            *_precision_and_recall(*(counts.sum() for counts in of_class)),
        )
        metrics = {"loss": sums["loss"].sum() / sums["examples"].sum()}
        for kind, (binned, precision, recall) in (("macro", macro), ("micro", micro)):
            f1 = harmonic_mean(precision, recall)
            metrics |= {f"{kind}_ap": binned, f"{kind}_precision": precision, f"{kind}_recall": recall, f"{kind}_f1": f1}
        if self.exact:
            scores, targets = sums["scores"], sums["targets"]
            metrics["macro_exact_ap"] = by_class(scores, targets, torch.zeros_like(sums["group"]), 1)[0].mean()
            metrics["micro_exact_ap"] = pooled(scores, targets)
        some = bool(sums["examples"].sum() > 0)  # without any, there is nothing to report: NaN
        named = {name: float(value) if some else math.nan for name, value in metrics.items()}
        if self.per_class or (self.per_class is None and facts.classes <= NAMED):
            present = histograms[1].sum(dim=-1) > 0
            shown = zip(facts.class_names, present.tolist(), ap.tolist(), strict=True)
            named |= {f"ap/{name}": value for name, there, value in shown if there}
        return named

    def group_metrics(self, sums: Sums) -> dict[str, Tensor]:
        examples = sums["examples"]
        found = {"loss": sums["loss"] / examples}
        found["micro_f1"] = harmonic_mean(*_precision_and_recall(*(sums[f"group_{name}"] for name in COUNTS)))
        if self.exact:
            ap, positives = by_class(sums["scores"], sums["targets"], sums["group"], len(examples))
            found["macro_exact_ap"] = ap.mean(dim=1)
            found["own_classes_exact_ap"] = ap.sum(dim=1) / (positives > 0).sum(dim=1)
        return {name: values.where(examples > 0, torch.nan) for name, values in found.items()}

    def _labels(self, data: Examples) -> NDArray[Any]:
        labels = data.column(self.labels)
        if labels.ndim != 2 or not labels.shape[1] or not (labels.dtype == bool or np.issubdtype(labels.dtype, np.integer)):
            raise ValueError(
                f"{data.name}: multilabel needs zeros and ones [N, C]; column '{self.labels}' is {labels.dtype} {labels.shape}"
            )
        return labels


def _precision_and_recall(true_positives: Tensor, false_positives: Tensor, false_negatives: Tensor) -> tuple[Tensor, Tensor]:
    return ratio(true_positives, true_positives + false_positives), ratio(true_positives, true_positives + false_negatives)
