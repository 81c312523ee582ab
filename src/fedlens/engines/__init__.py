"""Where and how a plan is carried out; never what is computed."""

from fedlens.engines.admission import Admission, Report
from fedlens.engines.lanes import Lanes
from fedlens.engines.sequential import Precision, Sequential

__all__ = ["Admission", "Lanes", "Precision", "Report", "Sequential"]
