"""What the server does with the combined update: one file a rule."""

from fedlens.algorithms.server_rules.adagrad import ServerAdagrad
from fedlens.algorithms.server_rules.adam import ServerAdam
from fedlens.algorithms.server_rules.base import SERVER_RULES, Memory, ServerRule
from fedlens.algorithms.server_rules.momentum import ServerMomentum
from fedlens.algorithms.server_rules.sgd import ServerSGD
from fedlens.algorithms.server_rules.yogi import ServerYogi

__all__ = [
    "SERVER_RULES",
    "Memory",
    "ServerAdagrad",
    "ServerAdam",
    "ServerMomentum",
    "ServerRule",
    "ServerSGD",
    "ServerYogi",
]
