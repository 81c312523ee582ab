"""Average precision against other libraries, its definition in plain Python, and closed forms."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score
from torch import Tensor
from torchmetrics.functional.classification import multilabel_average_precision

from fedlens.tasks import average_precision
from fedlens.tasks.average_precision import (
    BINS,
    add_to_histograms,
    binned_average_precision,
    bins_of,
    by_class,
    harmonic_mean,
    pooled,
    ratio,
)

NAMES = [f"{setting}-{start}-{classes}" for classes in (17, 1628) for start in "RF" for setting in ("C", "FL", "PFL")]
PRINTED = {  # Table 1 of FLAIR's paper, in per cent: precision, recall and F1, of classes and overall
    name: numbers
    for name, *numbers in zip(
        NAMES,
        (71.7, 58.1, 29.1, 76.9, 74.0, 49.1, 25.6, 0.8, 0, 32.4, 1.6, 0.2),
        (49.3, 37.0, 18.6, 55.2, 49.5, 32.1, 6.7, 0.2, 0, 10.2, 0.4, 0),
        (58.4, 45.1, 22.7, 64.3, 59.3, 38.8, 10.6, 0.4, 0, 15.6, 0.6, 0),
        (81.8, 78.9, 67.9, 85.1, 82.8, 77.8, 66.9, 63.4, 0, 68.6, 64.5, 53.9),
        (74.2, 67.7, 45.7, 77.8, 77.2, 63.8, 25.5, 6.9, 0, 30.0, 10.5, 0.2),
        (77.8, 72.8, 54.6, 81.3, 79.9, 70.1, 36.9, 12.4, 0, 41.7, 18.0, 0.4),
        strict=True,
    )
}


def drawn(count: int, classes: int, seed: int, ties: bool = False) -> tuple[Tensor, Tensor]:
    """Logits that know something, and targets; with ties, few different logits."""
    generator = np.random.default_rng(seed)
    targets = generator.random((count, classes)) < generator.uniform(0, 0.6, classes)
    logits = generator.normal(size=(count, classes)) + targets
    return torch.from_numpy((np.round(logits) if ties else logits).astype(np.float32)), torch.from_numpy(targets)


def histograms_of(scores: Tensor, targets: Tensor) -> Tensor:
    histograms = torch.zeros(2, scores.shape[1], BINS, dtype=torch.float64)
    add_to_histograms(histograms, scores, targets)
    return histograms


def by_thresholds(scores: list[float], targets: list[bool]) -> float:
    """What Keras' thresholds mean, one by one: predicted is what lies above; the first lies below all scores, the last above."""
    thresholds = [Fraction(-1), *(Fraction(j, BINS - 1) for j in range(1, BINS - 1)), Fraction(2)]
    recall, precision = [], []
    for threshold in thresholds:
        predicted = [target for score, target in zip(scores, targets, strict=True) if Fraction(score) > threshold]
        recall.append(sum(predicted) / sum(targets) if any(targets) else 0.0)
        precision.append(sum(predicted) / len(predicted) if predicted else 0.0)
    return -sum((recall[j + 1] - recall[j]) * precision[j] for j in range(BINS - 1))


def of_sklearn(targets: Tensor, scores: Tensor) -> float:
    return average_precision_score(targets.numpy(), scores.numpy()) if targets.any() else 0.0  # it warns, and says 0 too


@pytest.mark.parametrize(
    ("score", "bin"), [(0, 0), (1e-9, 0), (1 / 200, 0), (1.01 / 199, 1), (0.5, 99), (0.999, 198), (1, 198), (float("nan"), 0)]
)
def test_a_scores_bin_is_how_many_thresholds_lie_below_it(score, bin):
    assert bins_of(torch.tensor([score], dtype=torch.float32)).item() == bin


@given(count=st.integers(1, 60), seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_binned_ap_is_that_of_kerass_thresholds(count, seed):
    logits, targets = drawn(count, 3, seed)
    scores = logits.sigmoid()
    found = binned_average_precision(histograms_of(scores, targets))
    expected = [by_thresholds(scores[:, c].tolist(), targets[:, c].tolist()) for c in range(3)]
    assert found.tolist() == pytest.approx(expected)


def test_binned_ap_is_torchmetrics_of_200_thresholds():
    logits, targets = drawn(500, 6, seed=1)
    scores = logits.sigmoid()
    expected = multilabel_average_precision(scores, targets.long(), 6, average="none", thresholds=BINS)
    torch.testing.assert_close(binned_average_precision(histograms_of(scores, targets)).float(), expected)


def test_binned_ap_is_the_exact_ap_of_bins():
    logits, targets = drawn(300, 5, seed=2)
    bins = bins_of(logits.sigmoid())
    expected, _ = by_class(bins.float(), targets, torch.zeros(300, dtype=torch.int64), 1)
    torch.testing.assert_close(binned_average_precision(histograms_of(logits.sigmoid(), targets))[None], expected)
    pooled_histograms = histograms_of(logits.sigmoid(), targets).sum(dim=1)
    torch.testing.assert_close(binned_average_precision(pooled_histograms), pooled(bins.float(), targets))


@given(count=st.integers(1, 50), classes=st.integers(1, 5), ties=st.booleans(), seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_exact_ap_is_scikit_learns(count, classes, ties, seed):
    logits, targets = drawn(count, classes, seed, ties)
    found, positives = by_class(logits, targets, torch.zeros(count, dtype=torch.int64), 1)
    assert found[0].tolist() == pytest.approx([of_sklearn(targets[:, c], logits[:, c]) for c in range(classes)])
    assert positives[0].tolist() == targets.sum(dim=0).tolist()
    assert pooled(logits, targets).item() == pytest.approx(of_sklearn(targets.flatten(), logits.flatten()))


@given(count=st.integers(1, 60), ties=st.booleans(), seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_each_group_has_the_ap_of_its_own_rows(count, ties, seed):
    logits, targets = drawn(count, 3, seed, ties)
    group = torch.from_numpy(np.random.default_rng(seed).integers(0, 4, count))
    found, positives = by_class(logits, targets, group, 5)
    assert found.shape == positives.shape == (5, 3)
    for client in range(5):
        mine = group == client
        expected = [of_sklearn(targets[mine, c], logits[mine, c]) for c in range(3)]
        assert found[client].tolist() == pytest.approx(expected)
        assert positives[client].tolist() == targets[mine].sum(dim=0).tolist()


def test_classes_ranked_in_parts_are_ranked_as_together(monkeypatch):
    logits, targets = drawn(40, 7, seed=3)
    group = torch.arange(40) % 3
    together = by_class(logits, targets, group, 3)
    monkeypatch.setattr(average_precision, "NUMBERS", 100)
    for part, whole in zip(by_class(logits, targets, group, 3), together, strict=True):
        assert torch.equal(part, whole)


def test_scores_of_any_size_and_sign_are_ranked():
    scores = torch.tensor([-float("inf"), -1e30, -2.0, -1e-40, 0.0, 1e-40, 3.0, 1e30, float("inf")])[torch.randperm(9)]
    for k in range(9):
        targets = scores == scores.sort().values[k]  # nothing but the k-th lowest is positive: 9 − k are as high
        assert pooled(scores[:, None], targets[:, None]).item() == pytest.approx(1 / (9 - k))


def test_zero_and_minus_zero_are_equal_scores():
    assert pooled(torch.tensor([[0.0], [-0.0]]), torch.tensor([[True], [False]])).item() == 0.5
    assert pooled(torch.tensor([[-0.0], [0.0]]), torch.tensor([[True], [False]])).item() == 0.5


@pytest.mark.parametrize("negatives", [0, 1, 30])
@pytest.mark.parametrize("positives", [1, 20])
def test_the_best_the_worst_and_the_flat_ranking_have_their_closed_forms(positives, negatives):
    targets = torch.arange(positives + negatives)[:, None] < positives
    worst = np.mean([i / (negatives + i) for i in range(1, positives + 1)])
    falling = torch.linspace(0.99, 0.01, len(targets))[:, None]  # no two in a bin
    flat = torch.full_like(falling, 0.3)
    for scores, expected in ((falling, 1), (1 - falling, worst), (flat, positives / len(targets))):
        assert pooled(scores, targets).item() == pytest.approx(expected)
        assert binned_average_precision(histograms_of(scores, targets)).item() == pytest.approx(expected)


def test_nothing_at_all_has_an_ap_of_nought():
    nothing = torch.zeros(0, 3)
    assert pooled(nothing, nothing.bool()).item() == 0
    assert by_class(nothing, nothing.bool(), torch.zeros(0, dtype=torch.int64), 2)[0].tolist() == [[0] * 3] * 2
    assert binned_average_precision(torch.zeros(2, 3, BINS, dtype=torch.float64)).tolist() == [0] * 3


def test_nothing_over_nothing_is_nought():
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    assert (ratio(zero, zero).item(), ratio(one, 2 * one).item()) == (0, 0.5)
    assert (harmonic_mean(zero, zero).item(), harmonic_mean(one, zero).item()) == (0, 0)


@pytest.mark.parametrize("name", NAMES)
def test_f1_is_the_harmonic_mean_of_the_printed_precision_and_recall(name):
    """As far as numbers tell that are rounded to 0.1 and are means of five runs."""
    numbers = torch.tensor(PRINTED[name], dtype=torch.float64).view(2, 3)  # of classes and overall
    for precision, recall, f1 in numbers:
        low, high = (harmonic_mean((precision + by).clamp(min=0), (recall + by).clamp(min=0)) for by in (-0.05, 0.05))
        assert low - 0.1 < f1 < high + 0.1
