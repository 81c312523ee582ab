"""Seconds per round of federated averaging with Apple's pfl-research; `benchmarks/speed.py` runs this file.

The task: Fashion-MNIST's 60,000 training images split at random into 100 clients of 600; 10 clients a round, each one
local epoch of SGD (batch 20, rate 0.05) on the CNN of 582,026 parameters; an average weighted by datapoints; no
evaluation within the timed rounds. pfl needs Python 3.10 to 3.12 and gets an environment of its own:

    python3.11 -m venv pfl-venv
    pfl-venv/bin/pip install 'torch==2.15.0' 'pfl[pytorch]==0.6.0'
    pfl-venv/bin/python benchmarks/peers/pfl_round.py --data DIR --rounds 10 --warmup 3 --threads 2 --json

DIR holds FashionMNIST/raw/train-{images-idx3,labels-idx1}-ubyte, unpacked. Standard output gets one line of JSON; without
--json, standard error gets a summary too.
"""

import argparse
import itertools
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy
import torch
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

IMAGES, CLIENTS, COHORT, BATCH_SIZE, LOCAL_RATE, SEED = 60_000, 100, 10, 20, 0.05, 0


class ConvolutionalNetwork(nn.Sequential):
    def __init__(self) -> None:
        first, second = (nn.Conv2d(1, 32, 5), nn.MaxPool2d(2), nn.ReLU()), (nn.Conv2d(32, 64, 5), nn.MaxPool2d(2), nn.ReLU())
        super().__init__(*first, *second, nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10))

    def loss(self, images, labels):  # what pfl trains on
        return nn.functional.cross_entropy(self(images), labels)

    @torch.no_grad()
    def metrics(self, images, labels):  # what pfl evaluates, outside the timed rounds
        return {"loss": Weighted(self.loss(images, labels).item() * len(labels), len(labels))}


class Recorder(TrainingProcessCallback):
    """Notes when each round ended: from one note to the next lies everything that pfl does in a round."""

    def __init__(self) -> None:
        self.ends, self.losses = [], []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.ends.append(time.perf_counter())
        for name, value in aggregate_metrics.to_simple_dict().items():
            if "loss before local training" in name.lower():
                self.losses.append(float(value))
        return False, Metrics()


def read_clients(folder: Path) -> FederatedDataset:
    raw = folder / "FashionMNIST" / "raw"
    images = torch.from_numpy(numpy.fromfile(raw / "train-images-idx3-ubyte", numpy.uint8)[16:])
    labels = torch.from_numpy(numpy.fromfile(raw / "train-labels-idx1-ubyte", numpy.uint8)[8:])
    order = torch.from_numpy(numpy.random.default_rng(SEED).permutation(IMAGES))
    inputs = ((images.view(IMAGES, 1, 28, 28).float() / 255 - 0.286) / 0.353)[order].chunk(CLIENTS)
    targets = labels.long()[order].chunk(CLIENTS)
    # In memory, which pfl's guide "Fast distributed simulations" calls the fastest, and made once, so that a client
    # keeps its cache of batches. The sampler is the one pfl recommends: all clients take part before one does again.
    clients = [PyTorchTensorDataset(pair) for pair in zip(inputs, targets, strict=True)]
    return FederatedDataset(clients.__getitem__, get_user_sampler("minimize_reuse", range(CLIENTS)))


def measure(arguments: argparse.Namespace) -> dict:
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(SEED)
    numpy.random.seed(SEED)  # noqa: NPY002 (pfl draws from NumPy's global generator)
    clients = read_clients(arguments.data)
    network = ConvolutionalNetwork()
    assert sum(parameter.numel() for parameter in network.parameters()) == 582_026
    recorder, total = Recorder(), arguments.warmup + arguments.rounds
    FederatedAveraging().run(
        # pfl evaluates the cohort before and after its training when iteration % evaluation_frequency is 0, hence always
        # in the first one. This frequency leaves it to the first warm-up round and to one round after the timed ones.
        NNAlgorithmParams(total + 1, evaluation_frequency=total, train_cohort_size=COHORT, val_cohort_size=None),
        SimulatedBackend(training_data=clients, val_data=clients, postprocessors=[WeightByDatapoints()]),
        PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0)),
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LOCAL_RATE, local_batch_size=BATCH_SIZE),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[recorder],
        send_metrics_to_platform=False,  # else pfl prints the metrics to standard output after every round
    )
    seconds = [end - start for start, end in itertools.pairwise(recorder.ends[arguments.warmup - 1 : total])]
    images_per_round = COHORT * IMAGES // CLIENTS
    return {
        "name": f"pfl-research {version('pfl')}",
        "round_seconds": [round(value, 4) for value in seconds],
        "images_per_round": images_per_round,
        "images_per_second_median": round(images_per_round / statistics.median(seconds), 1),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": arguments.threads,
        "workers": arguments.workers,
        "train_loss_first": round(recorder.losses[0], 4),
        "train_loss_last": round(recorder.losses[-1], 4),
    }


def start_workers(count: int) -> int:
    """pfl's native multi-process simulation: this script once per worker, which two variables tell apart."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        addresses = ",".join([f"localhost:{probe.getsockname()[1]}"] * count)
    environments = [{"PFL_WORKER_ADDRESSES": addresses, "PFL_WORKER_RANK": str(rank)} for rank in range(count)]
    workers = [subprocess.Popen([sys.executable, *sys.argv], env=os.environ | added) for added in environments]
    return max(worker.wait() for worker in workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds FashionMNIST/raw")
    parser.add_argument("--rounds", type=int, default=10, help="timed rounds")
    parser.add_argument("--warmup", type=int, default=3, help="rounds before them; pfl evaluates in the first")
    parser.add_argument("--threads", type=int, default=2, help="PyTorch's threads in each worker")
    parser.add_argument("--workers", type=int, default=1, help="processes that share a round's clients")
    parser.add_argument("--json", action="store_true", help="print the line of JSON only")
    arguments = parser.parse_args()
    if min(arguments.rounds, arguments.warmup, arguments.threads, arguments.workers) < 1:
        parser.error("--rounds, --warmup, --threads and --workers must be at least 1")
    os.environ["PFL_PYTORCH_DEVICE"] = "cpu"  # else pfl looks for a GPU again with every batch
    if arguments.workers > 1 and "PFL_WORKER_RANK" not in os.environ:
        sys.exit(start_workers(arguments.workers))
    result = measure(arguments)
    if os.environ.get("PFL_WORKER_RANK", "0") == "0":
        if not arguments.json:
            print(f"{result['name']}: {result['images_per_second_median']:,.0f} images/s", file=sys.stderr)
        print(json.dumps(result))


if __name__ == "__main__":
    main()
