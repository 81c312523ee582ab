"""Federated learning for computer vision."""

__version__ = "0.1.0"
