"""Time fedlens against a hand-written loop and against pfl-research, on the same work and in one run.

The work: Fashion-MNIST's 60,000 training images dealt out to 100 clients of 600; 10 clients a round, each one local epoch
of SGD (batch 20, rate 0.05) on the CNN of 582,026 parameters; an average weighted by examples; no evaluation in the timed
rounds. Every block of rounds runs in a process of its own and starts from a new model; the contenders take turns, so that
what else the machine does strikes all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from fedlens.algorithms.local_rules import SGD, Context
from fedlens.data.sources.fashion_mnist import FashionMNIST
from fedlens.recipe import Recipe
from fedlens.tasks import Classification
from fedlens.tracking.manifest import hardware
from fedlens.train import train

IMAGES, CLIENTS, COHORT, BATCH_SIZE, LEARNING_RATE, SEED = 60_000, 100, 10, 20, 0.05, 0
IMAGES_PER_ROUND = COHORT * IMAGES // CLIENTS
MEAN, DEVIATION = 0.286, 0.353
FEDLENS, LOOP, LOOP_CHANNELS_LAST, PFL = "fedlens", "hand-written", "hand-written, channels last", "pfl-research"

EXAMPLES = """examples:
  python benchmarks/speed.py --data DIR
  python benchmarks/speed.py --data DIR --pfl pfl-venv/bin/python --json benchmarks/results/speed-cpu-2cores.json
  python benchmarks/speed.py --data DIR --threads 1 --blocks 5 --rounds 4
DIR holds FashionMNIST/raw/*-ubyte, unpacked. benchmarks/README.md says what is measured, and how pfl gets its environment.
"""

State = dict[str, Tensor]
Result = dict[str, Any]


# The hand-written loop: what one writes without a library.


class Network(nn.Module):
    """The same CNN as fedlens' cnn_mcmahan and as the one in peers/pfl_round.py."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution1, self.convolution2 = nn.Conv2d(1, 32, 5), nn.Conv2d(32, 64, 5)
        self.pool, self.relu = nn.MaxPool2d(2), nn.ReLU(inplace=True)
        self.dense1, self.dense2 = nn.Linear(1024, 512), nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.pool(self.convolution1(x)))
        x = self.relu(self.pool(self.convolution2(x)))
        return self.dense2(self.relu(self.dense1(x.flatten(1))))


def hand_written(data: Path, rounds: int, memory_format: torch.memory_format) -> Result:
    """Federated averaging with one module, one optimiser and all images ready in memory as normalised floats."""
    torch.manual_seed(SEED)
    images, labels = training_images(data)
    images = images.to(memory_format=memory_format)
    clients = torch.randperm(IMAGES).chunk(CLIENTS)
    held = [(images[ids], labels[ids]) for ids in clients]
    model = Network().to(memory_format=memory_format)
    optimiser = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    state, seconds, losses = copied(model.state_dict()), [], []
    for _ in range(rounds):
        start = time.perf_counter()
        cohort = torch.randperm(CLIENTS)[:COHORT].tolist()
        total = sum(len(held[client][1]) for client in cohort)
        average, round_loss = None, torch.zeros(())
        for client in cohort:
            model.load_state_dict(state)
            round_loss += train_client(model, optimiser, *held[client])
            share = len(held[client][1]) / total
            average = weighted_sum(average, model.state_dict(), share)
        state = average
        losses.append(float(round_loss) / total)
        seconds.append(time.perf_counter() - start)
    model.load_state_dict(state)
    return {"round_seconds": seconds, "train_loss": losses, "final_loss": training_loss(model, images, labels)}


def train_client(model: nn.Module, optimiser: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> Tensor:
    """One epoch in a new order; returns the sum of the examples' losses."""
    total = torch.zeros(())
    for ids in torch.randperm(len(labels)).split(BATCH_SIZE):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(images[ids]), labels[ids])
        loss.backward()
        optimiser.step()
        total += loss.detach() * len(ids)
    return total


def weighted_sum(total: State | None, state: State, share: float) -> State:
    if total is None:
        return {name: value * share for name, value in state.items()}
    return {name: total[name].add_(value, alpha=share) for name, value in state.items()}


def copied(state: State) -> State:
    return {name: value.clone() for name, value in state.items()}


# fedlens: a recipe, and two parts of it that note the time where they are called.


class Clock:
    """Seconds of each gradient step: from the moment its batch is ready to the moment the rule has moved the weights."""

    start = 0.0
    steps: list[float] = []  # noqa: RUF012 (parts are frozen and hold no state: it has to live here)


class TimedClassification(Classification):
    """Notes when a batch is ready."""

    def prepare(self, *arguments: Any) -> tuple[Tensor, Tensor]:
        prepared = super().prepare(*arguments)
        Clock.start = time.perf_counter()
        return prepared


class TimedSGD(SGD):
    """Notes when a step is done."""

    def step(self, w: Tensor, g: Tensor, vectors: dict[str, Tensor], context: Context) -> None:
        super().step(w, g, vectors, context)
        Clock.steps.append(time.perf_counter() - Clock.start)


def fedlens(data: Path, rounds: int) -> Result:
    """The same through a recipe; a round is everything but the evaluation, which comes once, after the last."""
    recipe = Recipe(
        rounds=rounds,
        cohort_size=COHORT,
        seed=SEED,
        device="cpu",
        engine="sequential",
        data={"source": {"name": "fashion_mnist", "path": data}, "partition": {"name": "iid", "clients": CLIENTS}},
        model="cnn_mcmahan",
        task=TimedClassification(),
        local_work={"name": "epochs", "epochs": 1, "batch_size": BATCH_SIZE},
        local_rule=TimedSGD(learning_rate=LEARNING_RATE),
        aggregator="weighted_mean",
        server_rule={"name": "sgd", "learning_rate": 1.0},
        evaluation={"every": rounds},
    )
    result = train(recipe, terminal=Console(quiet=True))
    seconds = [row["seconds/train"] + row["seconds/other"] for row in result.history]
    steps = IMAGES_PER_ROUND // BATCH_SIZE
    inside = np.reshape(Clock.steps[-rounds * steps :], (rounds, steps)).sum(axis=1)  # without the trial step before the run
    images, labels = training_images(data)
    return {
        "round_seconds": seconds,
        "overhead_share": (1 - inside / np.array(seconds)).tolist(),
        "train_loss": [row["train/loss"] for row in result.history],
        "final_loss": training_loss(result.model, images, labels),
    }


def training_images(data: Path) -> tuple[Tensor, Tensor]:
    """All training images as normalised floats [N, 1, 28, 28], and their labels."""
    columns = FashionMNIST(path=data).load().train.columns
    images = torch.from_numpy(np.array(columns["image"])).view(IMAGES, 1, 28, 28)
    return (images.float() / 255 - MEAN) / DEVIATION, torch.from_numpy(columns["label"])


@torch.no_grad()
def training_loss(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The mean loss of the global model over all training images."""
    model.eval()
    parts = zip(images.split(500), labels.split(500), strict=True)
    return sum(float(nn.functional.cross_entropy(model(x), y, reduction="sum")) for x, y in parts) / len(labels)


# Processes: each block of rounds gets a new one.


def run_block(name: str, options: argparse.Namespace) -> Result:
    """Run the warm-up and the timed rounds of one contender in a process of its own."""
    common = ["--data", options.data, "--rounds", options.rounds, "--warmup", options.warmup]
    if name == PFL:
        threads = max(1, options.threads // options.pfl_workers)
        script = [options.pfl, Path(__file__).parent / "peers" / "pfl_round.py", "--json"]
        command = [*script, *common, "--threads", threads, "--workers", options.pfl_workers]
    else:
        command = [sys.executable, __file__, "--contender", name, *common, "--threads", options.threads]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{name} failed:\n{done.stderr[-3000:]}")
    result = json.loads(done.stdout.strip().splitlines()[-1])
    return {"final_loss": result["train_loss_last"], **result} if name == PFL else result


def contend(name: str, options: argparse.Namespace) -> Result:
    """What the process of a block does: all rounds, of which the first are for warming up."""
    torch.set_num_threads(options.threads)
    rounds = options.warmup + options.rounds
    if name == FEDLENS:
        result = fedlens(options.data, rounds)
    else:
        memory_format = torch.channels_last if name == LOOP_CHANNELS_LAST else torch.contiguous_format
        result = hand_written(options.data, rounds, memory_format)
    kept = {key: values[options.warmup :] for key, values in result.items() if isinstance(values, list)}
    return result | kept


class Bystanders:
    """How many cores other processes kept busy since this was made; None where Linux' /proc/stat is not there."""

    def __init__(self) -> None:
        self.start, self.before = time.monotonic(), self._busy()

    def load(self) -> float | None:
        now = self._busy()
        if now is None or self.before is None:
            return None
        return round(max(0.0, now - self.before) / (time.monotonic() - self.start), 2)

    @staticmethod
    def _busy() -> float | None:
        try:
            with open("/proc/stat") as file:
                user, nice, system, _, _, interrupts, soft_interrupts, steal = map(int, file.readline().split()[1:9])
        except OSError:
            return None
        total = (user + nice + system + interrupts + soft_interrupts + steal) / os.sysconf("SC_CLK_TCK")
        return total - sum(os.times()[:4])  # less this process and its finished children


# What came out.


def summarise(blocks: list[Result]) -> Result:
    """Median and quartiles over the timed rounds of all blocks."""
    seconds = np.array([block["round_seconds"] for block in blocks])
    low, median, high = np.quantile(IMAGES_PER_ROUND / seconds, (0.25, 0.5, 0.75))
    summary = {
        "images_per_second": {"median": round(median, 1), "quartiles": [round(low, 1), round(high, 1)]},
        "round_seconds": {"median": round(float(np.median(seconds)), 4), "blocks": seconds.round(4).tolist()},
        "final_loss": [round(block["final_loss"], 4) for block in blocks],
    }
    if "overhead_share" in blocks[0]:
        shares = np.array([block["overhead_share"] for block in blocks])
        summary["overhead_share"] = {
            "median": round(float(np.median(shares)), 4),
            "quartiles": np.quantile(shares, (0.25, 0.75)).round(4).tolist(),
        }
    summary |= {key: blocks[0][key] for key in ("name", "python", "torch", "workers") if key in blocks[0]}
    return summary


def report(found: dict[str, Result]) -> dict[str, float]:
    """Print a table and what fedlens makes of it; returns the ratios."""
    print(f"\n{'':30}{'images/s':>10}{'quartiles':>18}{'s/round':>10}{'loss after':>12}")
    for name, summary in found.items():
        speed, (low, high) = summary["images_per_second"]["median"], summary["images_per_second"]["quartiles"]
        spread, loss = f"{low:,.0f} … {high:,.0f}", float(np.median(summary["final_loss"]))
        print(f"{summary.get('name', name):30}{speed:10,.0f}{spread:>18}{summary['round_seconds']['median']:10.3f}{loss:12.3f}")
    own = found[FEDLENS]
    ratios = {
        name: round(own["images_per_second"]["median"] / summary["images_per_second"]["median"], 3)
        for name, summary in found.items()
        if name != FEDLENS
    }
    print()
    for name, ratio in ratios.items():
        print(f"fedlens / {name}: {ratio:.2f}")
    print(f"fedlens outside its gradient steps: {own['overhead_share']['median']:.1%} of a round")
    losses = [np.median(summary["final_loss"]) for summary in found.values()]
    apart = max(losses) / min(losses) - 1
    print(f"training losses lie {apart:.0%} apart{'' if apart < 0.1 else ': the contenders do not learn the same thing'}")
    return ratios


def compare(options: argparse.Namespace) -> None:
    """Let the contenders take turns, print what came out, and write it down."""
    names = [LOOP, LOOP_CHANNELS_LAST, FEDLENS, *([PFL] if options.pfl else [])]
    if not options.pfl:
        print("pfl-research is left out: give --pfl the interpreter of an environment that has it")
    others, blocks = Bystanders(), {name: [] for name in names}
    for number in range(options.blocks):
        turn = names[number % len(names) :] + names[: number % len(names)]  # nobody is always first
        for name in turn:
            blocks[name].append(run_block(name, options))
            speed = IMAGES_PER_ROUND / np.median(blocks[name][-1]["round_seconds"])
            print(f"block {number + 1}/{options.blocks}  {name:28} {speed:8,.0f} images/s", flush=True)
    load = others.load()
    found = {name: summarise(results) for name, results in blocks.items()}
    ratios = report(found)
    if load is not None:
        print(f"other processes kept {load} cores busy meanwhile{'' if load < 0.3 else ': repeat it on a quiet machine'}")
    if options.json:
        settings = {name: getattr(options, name) for name in ("blocks", "rounds", "warmup", "threads")}
        versions = {package: version(package) for package in ("fedlens", "torch", "numpy")}
        tuned = {name: value for name, value in os.environ.items() if name.startswith(("MALLOC_", "OMP_", "KMP_", "GOMP_"))}
        whole = {"settings": settings, "hardware": hardware(), "versions": versions, "environment": tuned, "load_of_others": load}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(whole | {"fedlens_over": ratios, "contenders": found}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds FashionMNIST/raw")
    parser.add_argument("--pfl", metavar="PYTHON", help="interpreter of an environment with pfl-research; left out if not given")
    parser.add_argument("--pfl-workers", type=int, default=1, help="processes of pfl, which share the threads")
    parser.add_argument("--blocks", type=int, default=3, help="how often the contenders take turns")
    parser.add_argument("--rounds", type=int, default=8, help="timed rounds in each block")
    parser.add_argument("--warmup", type=int, default=2, help="rounds before them")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="PyTorch's threads for each contender (all cores)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers and a description of the machine")
    parser.add_argument("--contender", choices=(LOOP, LOOP_CHANNELS_LAST, FEDLENS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if min(options.blocks, options.rounds, options.warmup, options.threads, options.pfl_workers) < 1:
        parser.error("--blocks, --rounds, --warmup, --threads and --pfl-workers must be at least 1")
    if options.contender:
        print(json.dumps(contend(options.contender, options)))
    else:
        torch.set_num_threads(options.threads)  # for the description of the machine
        compare(options)


if __name__ == "__main__":
    main()
