"""What a client does with its gradients: one file a rule."""

from fedlens.algorithms.local_rules.base import LOCAL_RULES, Context, LocalRule, Vectors
from fedlens.algorithms.local_rules.sgd import SGD

__all__ = ["LOCAL_RULES", "SGD", "Context", "LocalRule", "Vectors"]
