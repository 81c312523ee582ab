"""Differential privacy: what it costs."""

from fedlens.privacy.accounting import Guarantee, Mechanism, Plan, calibrate, delta_of, spent

__all__ = ["Guarantee", "Mechanism", "Plan", "calibrate", "delta_of", "spent"]
