"""Where and how a plan is carried out; never what is computed."""

from fedlens.engines.admission import Admission, Report
from fedlens.engines.sequential import Sequential

__all__ = ["Admission", "Report", "Sequential"]
