"""The parts of an algorithm: who takes part, what each does, how updates are combined, what the server makes of them."""

from fedlens.algorithms.aggregators import AGGREGATORS, Aggregator, UniformMean, WeightedMean
from fedlens.algorithms.local_rules import LOCAL_RULES, SGD, LocalRule
from fedlens.algorithms.local_work import LOCAL_WORK, Epochs, LocalWork, Resampled, Steps
from fedlens.algorithms.samplers import SAMPLERS, All, Poisson, Proportional, Sampler, Uniform
from fedlens.algorithms.schedules import SCHEDULES, Constant, Cosine, Exponential, Linear, Schedule
from fedlens.algorithms.server_rules import (
    SERVER_RULES,
    ServerAdagrad,
    ServerAdam,
    ServerMomentum,
    ServerRule,
    ServerSGD,
    ServerYogi,
)

__all__ = [
    "AGGREGATORS",
    "LOCAL_RULES",
    "LOCAL_WORK",
    "SAMPLERS",
    "SCHEDULES",
    "SERVER_RULES",
    "SGD",
    "Aggregator",
    "All",
    "Constant",
    "Cosine",
    "Epochs",
    "Exponential",
    "Linear",
    "LocalRule",
    "LocalWork",
    "Poisson",
    "Proportional",
    "Resampled",
    "Sampler",
    "Schedule",
    "ServerAdagrad",
    "ServerAdam",
    "ServerMomentum",
    "ServerRule",
    "ServerSGD",
    "ServerYogi",
    "Steps",
    "Uniform",
    "UniformMean",
    "WeightedMean",
]
