"""What is learnt: tasks, their metrics and the transforms of their images."""

from fedlens.tasks.base import TASKS, Batch, Facts, Sums, Task
from fedlens.tasks.classification import Classification
from fedlens.tasks.multilabel import MultiLabel
from fedlens.tasks.transforms import TRANSFORMS, Transform

__all__ = ["TASKS", "TRANSFORMS", "Batch", "Classification", "Facts", "MultiLabel", "Sums", "Task", "Transform"]
