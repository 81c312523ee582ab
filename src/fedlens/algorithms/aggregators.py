"""From many updates to one: Σ_k p_k Δ_k, a matrix-vector product."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from fedlens.algorithms.updates import Combined, Updates
from fedlens.registry import Part, Registry

AGGREGATORS: Registry[type[Aggregator]] = Registry("aggregator")


class Aggregator(Part):
    """Combines the updates of a cohort as they come in; buffers are averaged with the same weights, counters by maximum."""

    def weights(self, sizes: Tensor) -> Tensor:
        """What each update weighs, from n_k; a client that did nothing has n_k = 0 and must weigh nothing."""
        raise NotImplementedError

    def combine(self, updates: Iterable[Updates]) -> Combined | None:
        """Σ_k w_k Δ_k / Σ_k w_k over the whole stream; None if it is empty."""
        total: Combined | None = None
        for chunk in updates:
            weights = self.weights(chunk.sizes)
            silent = (weights == 0)[:, None]
            if total is None:
                total = _nothing(chunk)
                least, most = torch.full_like(total.statistics, math.inf), torch.full_like(total.statistics, -math.inf)
            total.vector.addmv_(chunk.vectors.T, weights)
            if chunk.statistics.numel():
                total.statistics.addmv_(chunk.statistics.T, weights)
                least = torch.minimum(least, chunk.statistics.masked_fill(silent, math.inf).amin(dim=0))
                most = torch.maximum(most, chunk.statistics.masked_fill(silent, -math.inf).amax(dim=0))
            if chunk.counters.numel():
                counters = chunk.counters.masked_fill(silent, torch.iinfo(chunk.counters.dtype).min)
                torch.maximum(total.counters, counters.amax(dim=0), out=total.counters)
            total.weight.add_(weights.sum())
        if total is not None:
            scale = torch.where(total.weight > 0, 1 / total.weight, 0)  # on the device: no round waits for this number
            total.vector.mul_(scale)
            total.statistics.mul_(scale)
            # what all agree on stays to the bit: rounding moves no constant, and 0 · ∞ spoils no mask of −∞
            total.statistics.copy_(torch.where(least == most, least, total.statistics))
        return total


@AGGREGATORS.register("weighted_mean", paper="McMahan et al. 2017, Communication-Efficient Learning (FedAvg)")
class WeightedMean(Aggregator):
    """Every example counts the same: w_k = n_k."""

    def weights(self, sizes: Tensor) -> Tensor:
        return sizes


@AGGREGATORS.register("uniform_mean", paper="Hsu, Qi and Brown 2020 (FedVC)")
class UniformMean(Aggregator):
    """Every client counts the same: w_k = 1 if it trained, 0 if it had nothing to train on."""

    def weights(self, sizes: Tensor) -> Tensor:
        return (sizes > 0).to(sizes.dtype)


def _nothing(like: Updates) -> Combined:
    return Combined(
        torch.zeros_like(like.vectors[0]),
        torch.zeros_like(like.statistics[0]),
        torch.full_like(like.counters[0], torch.iinfo(like.counters.dtype).min),
        torch.zeros_like(like.sizes[0]),
    )
