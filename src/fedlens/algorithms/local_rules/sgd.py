"""Plain local training: nothing is done to the gradient."""

from __future__ import annotations

from fedlens.algorithms.local_rules.base import LOCAL_RULES, LocalRule


@LOCAL_RULES.register("sgd", paper="McMahan et al. 2017, Communication-Efficient Learning (FedAvg)")
class SGD(LocalRule):
    """Stochastic gradient descent: w ← w − η g, with momentum, Nesterov, weight decay and clipping as options."""
