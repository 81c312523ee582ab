"""How well scores rank images that show a class above those that do not: average precision, binned as in papers, and exact.

    AP = Σ_j (R_j − R_{j+1}) P_j,   thresholds rising with j,   which is the mean of the precision at each positive's own score

Ties count together, and where there is no positive AP is 0, as all that is nothing over nothing here.
"""

from __future__ import annotations

import torch
from torch import Tensor

BINS = 200  # of scores from 0 to 1, as Keras has them: its AUC's thresholds
NUMBERS = 1 << 24  # that are sorted at a time, where they need not be sorted together


def ratio(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole, and 0 for 0 / 0."""
    return part / whole.clamp(min=torch.finfo(whole.dtype).tiny)


def harmonic_mean(one: Tensor, other: Tensor) -> Tensor:
    """F1 = 2 P R / (P + R)."""
    return ratio(2 * one * other, one + other)


def bins_of(scores: Tensor) -> Tensor:
    """The bin ⌈199 s⌉ − 1 of scores s from 0 to 1; 0 for s = 0, and for what is no number."""
    return (scores.nan_to_num(0) * (BINS - 1)).ceil().long().sub_(1).clamp_(0, BINS - 1)


def add_to_histograms(histograms: Tensor, scores: Tensor, targets: Tensor) -> None:
    """Count the scores [B, C] of a batch in histograms [2, C, BINS] of negatives and positives, without waiting for the device."""
    classes = torch.arange(scores.shape[1], device=scores.device)
    cell = (targets.long() * scores.shape[1] + classes) * BINS + bins_of(scores)
    one = histograms.new_ones(1).expand(cell.numel())
    histograms.view(-1).index_add_(0, cell.flatten(), one)


def binned_average_precision(histograms: Tensor) -> Tensor:
    """AP [...] over 200 thresholds, from histograms [2, ..., BINS] of negatives and positives."""
    negatives, positives = histograms.flip(-1)  # recall grows from the highest bin on
    found = positives.cumsum(-1)
    precision = ratio(found, found + negatives.cumsum(-1))
    return ratio((positives * precision).sum(-1), found[..., -1])


def average_precision(scores: Tensor, targets: Tensor, ranking: Tensor, rankings: int) -> tuple[Tensor, Tensor]:
    """Exact AP of many rankings at once, and how many positives each has, both [rankings].

    scores, targets, ranking   all [n]: float32, whether positive, and the number of the ranking to which each belongs

    At a positive's score, precision is the number of positives that score as high over the number of all that do; both are
    counted by bisection in sorted keys, which have the ranking in their upper half and the score in the lower.
    """
    key = (ranking << 32) + _ordered(scores)
    positive = key[targets].sort().values
    own = positive >> 32
    precision = _as_high(positive, positive, own) / _as_high(key.sort().values, positive, own)
    count = torch.bincount(own, minlength=rankings)
    # in order: adding up by index would give other bits every time on a GPU
    return ratio(torch.segment_reduce(precision, "sum", lengths=count), count.double()), count.double()


def by_class(scores: Tensor, targets: Tensor, group: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Exact AP of each group's scores [n, C] for each class, and the numbers of positives, both [groups, C]."""
    found = []
    step = max(1, NUMBERS // max(1, len(scores)))
    for some, hits in zip(scores.split(step, dim=1), targets.split(step, dim=1), strict=True):
        count = some.shape[1]
        ranking = group[:, None] * count + torch.arange(count, device=group.device)
        numbers = average_precision(some.flatten(), hits.flatten(), ranking.flatten(), groups * count)
        found.append(torch.stack(numbers).view(2, groups, count))
    precision, positives = torch.cat(found, dim=2)
    return precision, positives


def pooled(scores: Tensor, targets: Tensor) -> Tensor:
    """Exact AP of all scores [n, C] in one ranking."""
    nowhere = torch.zeros(1, dtype=torch.int64, device=scores.device).expand(scores.numel())
    return average_precision(scores.flatten(), targets.flatten(), nowhere, 1)[0][0]


def _as_high(keys: Tensor, key: Tensor, ranking: Tensor) -> Tensor:
    """How many of a ranking's sorted keys are as large as each of some: from its place to where the next ranking begins."""
    return (torch.searchsorted(keys, (ranking + 1) << 32) - torch.searchsorted(keys, key)).double()


def _ordered(scores: Tensor) -> Tensor:
    """float32 numbers as int64 from 0 to 2³² − 1 in the same order: the bits, of negative numbers inverted, from the lowest on."""
    bits = (scores.float() + 0.0).view(torch.int32)  # −0 is 0
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() + (1 << 31)
