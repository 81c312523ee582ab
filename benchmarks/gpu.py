"""Time one round of federated training on a GPU, by fedlens and by what one would use instead, on the same work, in one run.

Each contender runs in a process of its own; a round is all that happens between two rounds' ends: choosing the cohort, laying
out its batches, training, checking, averaging, the server's step, the bookkeeping. Images are random bytes, which makes
no difference to speed. All contenders compute in bfloat16 and keep their weights in float32.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor, nn

from fedlens.data import Assignment, Examples, Federation, Population
from fedlens.experiment import Experiment
from fedlens.models import create_model
from fedlens.recipe import Recipe
from fedlens.tracking.manifest import hardware
from fedlens.train import train

EXAMPLES = """examples:
  python benchmarks/gpu.py
  python benchmarks/gpu.py --work cnn-10 resnet18 --contender lanes centralised --json benchmarks/results/gpu.json
"""

Sizes = NDArray[np.int64]


def equal(clients: int, images: int) -> Callable[[], Sizes]:
    return lambda: np.full(clients, images)


def ragged(clients: int, median: float, mean: float, most: int) -> Callable[[], Sizes]:
    """Lognormal sizes with this median and about this mean, between 1 and `most`, as FLAIR's users have: the quantiles
    (k + ½) / clients of that distribution, in a random order."""

    def draw() -> Sizes:
        spread = np.sqrt(2 * np.log(mean / median))
        normal = [NormalDist().inv_cdf((k + 0.5) / clients) for k in range(clients)]
        sizes = np.clip(np.rint(median * np.exp(spread * np.array(normal))), 1, most).astype(np.int64)
        return np.random.default_rng(0).permutation(sizes)

    return draw


@dataclass(frozen=True)
class Work:
    """What is trained on what; a cohort is everybody, so that all contenders do the same in every round."""

    about: str
    model: dict[str, Any]
    classes: int
    size: int  # of the square images
    clients: Callable[[], Sizes]
    local_work: dict[str, Any]
    central: tuple[int, ...]  # batch sizes of the centralised contender, of which the best counts
    pfl: str | None = None  # the same network as peers/pfl_gpu.py has it
    learning_rate: float = 0.01

    @property
    def batch_size(self) -> int:
        return int(self.local_work["batch_size"])


GROUP = {"norm": "group"}
WORKS = {
    "cnn-10": Work(
        "CIFAR CNN, 200 clients × 50 images, batch 10",
        {"name": "cnn_hsu"}, 10, 32, equal(200, 50), {"name": "epochs", "batch_size": 10}, (2000, 8000), "cnn",
    ),
    "cnn-50": Work(
        "CIFAR CNN, 50 clients × 500 images, batch 50",
        {"name": "cnn_hsu"}, 10, 32, equal(50, 500), {"name": "epochs", "batch_size": 50}, (2000, 8000), "cnn",
    ),
    "resnet18": Work(
        "ResNet-18/GroupNorm 224, 200 ragged clients, batch 16, 2 epochs",
        {"name": "resnet18", **GROUP}, 17, 224, ragged(200, 2.5, 8.4, 512),
        {"name": "epochs", "batch_size": 16, "epochs": 2}, (256, 512), "resnet18",
    ),
    "mobilenet": Work(
        "MobileNetV2/GroupNorm 224, 10 clients × 256 images, batch 64",
        {"name": "mobilenet_v2", **GROUP}, 1000, 224, equal(10, 256), {"name": "resampled", "batch_size": 64}, (256,),
    ),
    "vit-head": Work(
        "ViT-B/16, head only, 10 clients × 64 images, batch 16",
        {"name": "vit_b_16", "freeze": "backbone"}, 100, 224, equal(10, 64), {"name": "epochs", "batch_size": 16}, (256,),
    ),
    "vit": Work(
        "ViT-B/16, 10 clients × 64 images, batch 16",
        {"name": "vit_b_16"}, 100, 224, equal(10, 64), {"name": "epochs", "batch_size": 16}, (256,),
    ),
}  # fmt: skip


def population(work: Work) -> Population:
    sizes, generator = work.clients(), np.random.default_rng(1)
    count = int(sizes.sum())
    images = generator.integers(0, 256, (count, work.size, work.size, 3), dtype=np.uint8)
    data = Examples({"image": images, "label": generator.integers(0, work.classes, count)}, "random images")
    return Population(Federation(data, Assignment(np.concatenate(([0], np.cumsum(sizes))), np.arange(count))))


def fedlens(work: Work, engine: str, rounds: int) -> list[tuple[int, float, float]]:
    """Images, seconds and fill of each round."""
    people = population(work)
    recipe = Recipe(
        rounds=rounds,
        cohort_size=len(people),
        sampler="all",
        device="cuda",
        engine=engine,
        precision="bfloat16",
        model=work.model,
        task={"classes": work.classes},
        local_work=work.local_work,
        local_rule={"learning_rate": work.learning_rate},
    )
    history = train(recipe, population=people, terminal=Console(quiet=True)).history
    return [(row["images"], row["seconds/train"] + row["seconds/other"], row["fill"]) for row in history]


def evaluation(work: Work, rounds: int) -> list[tuple[int, float, float]]:
    """Measuring a model with fedlens: inference, metrics of each class and of each client."""
    people, measured = population(work), []
    recipe = Recipe(rounds=1, cohort_size=1, device="cuda", precision="bfloat16", model=work.model, task={"classes": work.classes})
    experiment = Experiment.of(recipe, population=people)
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        sums = experiment.engine.evaluate(experiment.begin(), people.train, recipe.evaluation.batch_size)
        recipe.task.metrics(sums, experiment.facts)
        measured.append((len(people.data), time.perf_counter() - start, 1.0))
    return measured


def loop(work: Work, rounds: int) -> list[tuple[int, float, float]]:
    """What one writes without a library: clients one after another, one module, one optimiser, autocast; channels last."""
    people, device = population(work), torch.device("cuda")
    images, labels = on_device(people, device)
    model = network(work).to(device, memory_format=torch.channels_last)
    optimiser = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=work.learning_rate)
    clients = [torch.from_numpy(people.train.clients.of_client(k)).to(device) for k in range(len(people))]
    state, measured = {name: value.clone() for name, value in model.state_dict().items()}, []
    passes = work.local_work.get("epochs", 1)
    total = sum(map(len, clients))
    for _ in range(rounds):
        torch.cuda.synchronize()
        start, average = time.perf_counter(), {name: torch.zeros_like(value) for name, value in state.items()}
        for ids in clients:
            model.load_state_dict(state)
            for _ in range(passes):
                for part in ids[torch.randperm(len(ids), device=device)].split(work.batch_size):
                    optimiser.zero_grad()
                    step(model, images[part], labels[part]).backward()
                    optimiser.step()
            for name, value in model.state_dict().items():
                average[name].add_(value, alpha=len(ids) / total)
        state = average
        torch.cuda.synchronize()
        measured.append((passes * total, time.perf_counter() - start, 1.0))
    return measured


def centralised(work: Work, rounds: int) -> list[tuple[int, float, float]]:
    """Ordinary training with large batches, compiled, autocast, channels last; the best of some batch sizes."""
    found: list[list[tuple[int, float, float]]] = []
    device = torch.device("cuda")
    generator = torch.Generator().manual_seed(0)
    torch.backends.cudnn.benchmark = True
    for batch_size in work.central:
        count = 2 * batch_size
        images = torch.randint(0, 256, (count, work.size, work.size, 3), dtype=torch.uint8, generator=generator).to(device)
        labels = torch.randint(0, work.classes, (count,), generator=generator).to(device)
        model = network(work).to(device, memory_format=torch.channels_last)
        optimiser = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=work.learning_rate)
        compiled, measured = torch.compile(step), []
        for turn in range(3 + rounds):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(8 if turn >= 3 else 1):
                ids = torch.randint(0, count, (batch_size,), device=device)
                optimiser.zero_grad()
                compiled(model, images[ids], labels[ids]).backward()
                optimiser.step()
            torch.cuda.synchronize()
            measured.append((8 * batch_size, time.perf_counter() - start, 1.0))
        found.append(measured[3:])
        torch._dynamo.reset()
    return max(found, key=lambda rounds: np.median([images / seconds for images, seconds, _ in rounds]))


def network(work: Work) -> nn.Module:
    settings = dict(work.model)
    return create_model(settings.pop("name"), work.classes, channels=3, image_size=work.size, **settings).train()


def on_device(people: Population, device: torch.device) -> tuple[Tensor, Tensor]:
    columns = people.data.columns
    return torch.from_numpy(columns["image"]).to(device), torch.from_numpy(columns["label"]).to(device)


def step(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """The loss of a batch of bytes."""
    with torch.autocast("cuda", torch.bfloat16):
        inputs = ((images.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5).contiguous(memory_format=torch.channels_last)
        return nn.functional.cross_entropy(model(inputs), labels)


def pfl(work: Work, rounds: int, python: str) -> list[tuple[int, float, float]]:
    """Apple's simulator, by the interpreter of an environment that has it."""
    task = {
        "network": work.pfl,
        "classes": work.classes,
        "size": work.size,
        "sizes": work.clients().tolist(),
        "batch_size": work.batch_size,
        "epochs": work.local_work.get("epochs", 1),
        "rounds": rounds - 1,
        "warmup": 1,
        "learning_rate": work.learning_rate,
    }
    script = Path(__file__).parent / "peers" / "pfl_gpu.py"
    done = subprocess.run([python, script], input=json.dumps(task), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-1500:])
    result = json.loads(done.stdout.strip().splitlines()[-1])
    return [(result["images"], seconds, 1.0) for seconds in result["round_seconds"]]


CONTENDERS: dict[str, Callable[[Work, int], list[tuple[int, float, float]]]] = {
    "loop": loop,
    "sequential": lambda work, rounds: fedlens(work, "sequential", rounds),
    "lanes": lambda work, rounds: fedlens(work, "lanes", rounds),
    "centralised": centralised,
    "evaluation": evaluation,
}


def measure(work: Work, contender: str, rounds: int, warmup: int, python: str | None) -> dict[str, Any]:
    start = time.perf_counter()
    if contender == "pfl":
        measured = pfl(work, rounds + warmup, python or sys.executable)[-rounds:]
    else:
        measured = CONTENDERS[contender](work, rounds + (warmup if contender != "centralised" else 0))[-rounds:]
    speeds = [images / seconds for images, seconds, _ in measured]
    low, median, high = np.quantile(speeds, (0.25, 0.5, 0.75))
    return {
        "images_per_second": {"median": round(median), "quartiles": [round(low), round(high)]},
        "images_per_round": measured[-1][0],
        "fill": round(measured[-1][2], 3),
        "gigabytes": round(torch.cuda.max_memory_allocated() / 1e9, 1),
        "seconds_in_all": round(time.perf_counter() - start, 1),
    }


def run_alone(work: str, contender: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure in a new process, which leaves nothing behind on the GPU."""
    settings = ["--rounds", str(options.rounds), "--warmup", str(options.warmup)]
    settings += ["--pfl", options.pfl] if options.pfl else []
    command = [sys.executable, __file__, "--alone", "--work", work, "--contender", contender, *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"failed": done.stderr.strip()[-1500:]}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", nargs="+", choices=WORKS, default=list(WORKS), help="what to train (all)")
    names = [*CONTENDERS, "pfl"]
    parser.add_argument("--contender", nargs="+", choices=names, default=names[:-1], help="who trains it (all but pfl)")
    parser.add_argument("--pfl", metavar="PYTHON", help="interpreter of an environment with pfl-research, for the contender pfl")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds")
    parser.add_argument("--warmup", type=int, default=3, help="rounds before them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers and a description of the machine")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(measure(WORKS[options.work[0]], options.contender[0], options.rounds, options.warmup, options.pfl)))
        return
    found: dict[str, dict[str, Any]] = {}
    for work in options.work:
        for contender in options.contender:
            if contender == "pfl" and WORKS[work].pfl is None:
                continue
            result = found.setdefault(work, {})[contender] = run_alone(work, contender, options)
            if "failed" in result:
                print(f"{work:10} {contender:12} failed: {result['failed']}", flush=True)
                continue
            speed, (low, high) = result["images_per_second"]["median"], result["images_per_second"]["quartiles"]
            rest = f"fill {result['fill']:.2f}  {result['gigabytes']:5.1f} GB  {result['seconds_in_all']:5.1f} s in all"
            print(f"{work:10} {contender:12} {speed:10,} images/s ({low:,} … {high:,})  {rest}", flush=True)
            if options.json:
                write(options, found)


def write(options: argparse.Namespace, found: dict[str, dict[str, Any]]) -> None:
    """All numbers so far, and a description of the machine."""
    versions: dict[str, str | None] = {}
    for package in ("fedlens", "torch", "triton", "numpy"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:  # run from the source
            versions[package] = None
    about = {name: {"about": WORKS[name].about, "sizes": quantiles(WORKS[name].clients())} for name in found}
    settings = {"rounds": options.rounds, "warmup": options.warmup}
    whole = {"hardware": hardware(), "versions": versions, "settings": settings, "works": about, "found": found}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(whole, indent=1) + "\n")


def quantiles(sizes: Sizes) -> dict[str, float]:
    named = dict(zip(("min", "q25", "median", "q75", "q90", "max"), np.quantile(sizes, (0, 0.25, 0.5, 0.75, 0.9, 1)), strict=True))
    return {"clients": len(sizes), "mean": float(sizes.mean()), **{name: float(value) for name, value in named.items()}}


if __name__ == "__main__":
    main()
