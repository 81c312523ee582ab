"""Images per second of federated averaging with Apple's pfl-research on a GPU; `benchmarks/gpu.py --pfl PYTHON` runs this file.

Standard input says what to train, as JSON: network ("cnn" or "resnet18"), classes, size of the images, sizes of the clients,
batch_size, epochs, rounds, warmup, learning_rate. All clients take part in every round. Images lie on the GPU as normalised floats,
and arithmetic is in bfloat16 by pfl's own mixed precision. Standard output gets one line of JSON.
"""

import itertools
import json
import os
import sys
import time
from importlib.metadata import version

import numpy
import torch
import torchvision
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn

DEVICE = os.environ.setdefault("PFL_PYTORCH_DEVICE", "cuda")


def network(name: str, classes: int) -> nn.Module:
    if name == "resnet18":
        return torchvision.models.resnet18(num_classes=classes, norm_layer=lambda channels: nn.GroupNorm(32, channels))
    first = nn.Conv2d(3, 64, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()
    second = nn.Conv2d(64, 64, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()
    dense = nn.Linear(4096, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, classes)
    return nn.Sequential(*first, *second, *dense)


class Learner(nn.Module):
    """What pfl wants of a module: its loss, and its metrics (which it computes outside the timed rounds)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, images, labels):
        return nn.functional.cross_entropy(self.inner(images), labels)

    @torch.no_grad()
    def metrics(self, images, labels):
        return {"loss": Weighted(self.loss(images, labels).item() * len(labels), len(labels))}


class Recorder(TrainingProcessCallback):
    """Notes when each round ended."""

    def __init__(self) -> None:
        self.ends = []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        if DEVICE != "cpu":
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())
        return False, Metrics()


def examples(count: int, task: dict):
    images = torch.randn(count, 3, task["size"], task["size"], device=DEVICE)
    return images, torch.randint(0, task["classes"], (count,), device=DEVICE)


def main() -> None:
    task = json.load(sys.stdin)
    torch.manual_seed(0)
    numpy.random.seed(0)  # noqa: NPY002 (pfl draws from NumPy's global generator)
    sizes, total = task["sizes"], task["warmup"] + task["rounds"]
    clients = [PyTorchTensorDataset(examples(count, task)) for count in sizes]
    dataset = FederatedDataset(clients.__getitem__, get_user_sampler("minimize_reuse", range(len(sizes))))
    learner, recorder = Learner(network(task["network"], task["classes"])).to(DEVICE), Recorder()
    FederatedAveraging().run(
        # with this frequency pfl evaluates in the first warm-up round and once after the timed rounds, as it must
        NNAlgorithmParams(total + 1, evaluation_frequency=total, train_cohort_size=len(sizes), val_cohort_size=None),
        SimulatedBackend(training_data=dataset, val_data=dataset, postprocessors=[WeightByDatapoints()]),
        PyTorchModel(learner, torch.optim.SGD, torch.optim.SGD(learner.parameters(), lr=1.0), amp_dtype=torch.bfloat16),
        NNTrainHyperParams(
            local_num_epochs=task["epochs"], local_learning_rate=task["learning_rate"], local_batch_size=task["batch_size"]
        ),
        NNEvalHyperParams(local_batch_size=task["batch_size"]),
        callbacks=[recorder],
        send_metrics_to_platform=False,
    )
    seconds = [end - start for start, end in itertools.pairwise(recorder.ends[task["warmup"] - 1 : total])]
    print(json.dumps({"name": f"pfl-research {version('pfl')}", "images": task["epochs"] * sum(sizes), "round_seconds": seconds}))


if __name__ == "__main__":
    main()
