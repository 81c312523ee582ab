"""Where and how a plan is carried out; never what is computed."""

from fedlens.engines.admission import Admission, Report
from fedlens.engines.choice import Engine, EngineName, choose
from fedlens.engines.lanes import Lanes
from fedlens.engines.repeatable import repeatable_layers
from fedlens.engines.sequential import Precision, Sequential
from fedlens.engines.workers import Workers

__all__ = [
    "Admission",
    "Engine",
    "EngineName",
    "Lanes",
    "Precision",
    "Report",
    "Sequential",
    "Workers",
    "choose",
    "repeatable_layers",
]
