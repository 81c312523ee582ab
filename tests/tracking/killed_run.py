"""Train in child processes that are killed at random moments, until one comes to the end: killed_run.py OUT KILLS.

The parent imports everything once and forks, so that a life costs tenths of a second; it computes nothing itself.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import nn

from fedlens import Recipe, train
from fedlens.data import Assignment, Examples, Federation, Population

RECIPE = Recipe(
    name="killed",
    rounds=240,
    cohort_size=4,
    local_work={"batch_size": 4},
    local_rule={"learning_rate": 0.1, "momentum": 0.5, "keep_momentum": True},
    server_rule={"name": "adam", "convention": "torch"},
    task={"train_transforms": ["horizontal_flip"]},
    evaluation={"every": 3},
    checkpoint_seconds=0,
)


def train_to_the_end(out: Path) -> None:
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    image = generator.integers(0, 256, (120, 8, 8, 1), dtype=np.uint8)
    data = Examples({"image": image, "label": image.mean(axis=(1, 2, 3)).astype(np.int64) % 3}, class_names=("a", "b", "c"))
    clients = Assignment(np.array([0, 10, 11, 40, 40, 80, 100]), np.arange(100))
    test = Federation(data, Assignment(np.array([0, 20]), np.arange(100, 120)))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(144, 3))
    resume = (out / "recipe.yaml").is_file()
    train(
        RECIPE,
        model=model,
        population=Population(Federation(data, clients), test=test),
        out=out,
        resume=resume,
        terminal=Console(quiet=True),
    )


def rounds_on_disk(out: Path) -> int:
    metrics = out / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def wait_for_a_random_moment(out: Path, child: int, kills: int) -> None:
    """A few rounds further than the life before, and then some; or, one time in four, soon after the start.

    Counted in rounds, so that the run outlives all its kills however fast the machine is.
    """
    if random.random() < 0.25:
        time.sleep(random.uniform(0, 0.15))
        return
    target = rounds_on_disk(out) + random.randint(0, RECIPE.rounds // (2 * kills))
    while rounds_on_disk(out) < target and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.0005)
    time.sleep(random.uniform(0, 0.005))


def main(out: Path, kills: int) -> None:
    killed = 0
    while True:
        child = os.fork()
        if child == 0:
            train_to_the_end(out)
            os._exit(0)
        if killed < kills:
            wait_for_a_random_moment(out, child, kills)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            killed += 1
            continue
        if os.WEXITSTATUS(status):
            sys.exit(f"a child failed after {killed} kills")
        if killed >= kills:
            return
        sys.exit(f"the run ended after {killed} kills: give it more rounds")


main(Path(sys.argv[1]), int(sys.argv[2]))
