"""How the cost of a round grows on a GPU: with the cohort, the population and the model; and how long a run of FLAIR's size takes.

Lanes, bfloat16, images of random bytes. Cohorts are drawn anew in every round, as in a real run, so that shapes of ragged rounds
are met that no round before had.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from fedlens.data import Assignment, Examples, Federation, Population
from fedlens.experiment import Experiment
from fedlens.recipe import Recipe
from fedlens.tracking.manifest import hardware
from fedlens.train import train
from gpu import GROUP, Sizes, equal, quantiles, ragged

EXAMPLES = """examples:
  python benchmarks/growth.py
  python benchmarks/growth.py --along cohort population --json benchmarks/results/growth.json
"""
STORED = 4096  # different images at most, which clients share: a round's cost does not depend on how many there are
CNN = {"name": "cnn_hsu"}
EPOCH = {"name": "epochs", "batch_size": 10}
MODELS = [  # model, pixels, parameters in millions are measured
    (CNN, 32),
    ({"name": "mobilenet_v2", **GROUP}, 224),
    ({"name": "resnet18", **GROUP}, 224),
    ({"name": "resnet50", **GROUP}, 224),
    ({"name": "vit_b_16"}, 224),
]
FLAIR = {"users": 41_131, "cohort": 200, "rounds": 5000, "every": 10, "measured": 39_239}


def population(sizes: Sizes, pixels: int, classes: int) -> Population:
    """Clients of these sizes, whose examples are drawn from a store of few images."""
    generator, total = np.random.default_rng(0), int(sizes.sum())
    count = min(STORED, total)
    columns = {
        "image": generator.integers(0, 256, (count, pixels, pixels, 3), dtype=np.uint8),
        "label": generator.integers(0, classes, count),
    }
    assignment = Assignment(np.concatenate(([0], np.cumsum(sizes))), generator.integers(0, count, total))
    return Population(Federation(Examples(columns, "random images"), assignment))


Settings = dict[str, Any]


def recipe(model: Settings, cohort: int, rounds: int, classes: int, device: str, local_work: Settings = EPOCH) -> Recipe:
    return Recipe(
        rounds=rounds,
        cohort_size=cohort,
        device=device,
        engine="lanes",
        precision="bfloat16",
        model=model,
        task={"classes": classes},
        local_work=local_work,
        local_rule={"learning_rate": 0.01},
    )


def rounds_of(chosen: Recipe, people: Population, last: int) -> dict[str, Any]:
    """The cost of the last rounds of a short run."""
    start = time.perf_counter()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    result = train(chosen, population=people, terminal=Console(quiet=True))
    rows = result.history
    seconds = [row["seconds/train"] + row["seconds/other"] for row in rows]
    images = [row["images"] for row in rows[-last:]]
    return {
        "seconds_a_round": round(float(np.median(seconds[-last:])), 5),
        "images_per_second": round(sum(images) / sum(seconds[-last:])),
        "fill": round(float(np.mean([row["fill"] for row in rows[-last:]])), 3),
        "parameters": result.state.x.numel(),
        "seconds_before_the_first_round": round(time.perf_counter() - start - sum(seconds), 2),
        "seconds_of_the_first_round": round(seconds[0], 2),
        "gigabytes": round(torch.cuda.max_memory_allocated() / 1e9, 1) if torch.cuda.is_available() else None,
    }


def along_cohort(device: str, sizes: tuple[int, ...] = (50, 200, 1000, 5000)) -> dict[str, Any]:
    people = population(equal(10_000, 50)(), 32, 10)
    return {f"{size:,} of 10,000 clients": rounds_of(recipe(CNN, size, 8, 10, device), people, 5) for size in sizes}


def along_population(device: str, sizes: tuple[int, ...] = (100, 10_000, 1_000_000)) -> dict[str, Any]:
    return {
        f"100 of {size:,} clients": rounds_of(recipe(CNN, 100, 13, 10, device), population(equal(size, 50)(), 32, 10), 10)
        for size in sizes
    }


def along_model(device: str, models: list[tuple[dict[str, Any], int]] = MODELS) -> dict[str, Any]:
    work = {"name": "epochs", "batch_size": 16}
    found = {}
    for model, pixels in models:
        people = population(equal(10, 64)(), pixels, 100)
        found[f"{model['name']}, {pixels} pixels"] = rounds_of(recipe(model, 10, 7, 100, device, work), people, 4)
    return found


def along_flair(device: str, rounds: int = 60, settings: dict[str, int] = FLAIR, pixels: int = 224) -> dict[str, Any]:
    """A run of 5,000 rounds, from the rounds and the evaluation that were measured; none of it is extrapolated but the count."""
    sizes = ragged(settings["users"], 2.5, 8.4, 512)()
    people, model = population(sizes, pixels, 17), {"name": "resnet18", **GROUP}
    chosen = recipe(model, settings["cohort"], rounds, 17, device, {"name": "epochs", "batch_size": 16, "epochs": 2})
    result = train(chosen, population=people, terminal=Console(quiet=True)).history
    seconds = np.array([row["seconds/train"] + row["seconds/other"] for row in result])
    measured, experiment = [], Experiment.of(chosen, population=people)
    one = Assignment(np.array([0, settings["measured"]]), np.arange(settings["measured"]) % len(people.data))
    for _ in range(3):
        start = time.perf_counter()
        sums = experiment.engine.evaluate(experiment.begin(), Federation(people.data, one), chosen.evaluation.batch_size)
        experiment.recipe.task.metrics(sums, experiment.facts)
        measured.append(time.perf_counter() - start)
    evaluations, half = settings["rounds"] // settings["every"], rounds // 2
    early, late = seconds[1:half].mean(), float(seconds[half:].mean())
    return {
        "sizes": quantiles(sizes),
        "images_a_round": round(float(np.mean([row["images"] for row in result]))),
        "fill": round(float(np.mean([row["fill"] for row in result])), 3),
        "seconds_a_round": {"first": round(float(seconds[0]), 2), "early": round(float(early), 4), "late": round(late, 4)},
        "quickest_and_slowest_late_round": [round(float(value), 4) for value in np.quantile(seconds[half:], (0, 1))],
        "images_per_second": round(sum(row["images"] for row in result[half:]) / seconds[half:].sum()),
        "seconds_an_evaluation": round(min(measured), 3),
        "evaluated_images_per_second": round(settings["measured"] / min(measured)),
        "minutes_of_the_whole_run": round((settings["rounds"] * late + evaluations * min(measured)) / 60, 1),
    }


ALONG = {"cohort": along_cohort, "population": along_population, "model": along_model, "flair": along_flair}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--along", nargs="+", choices=ALONG, default=list(ALONG), help="what grows (all, and FLAIR's run)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers and a description of the machine")
    options = parser.parse_args()
    found: dict[str, Any] = {"hardware": hardware(), "torch": torch.__version__}
    for name in options.along:
        found[name] = ALONG[name](options.device)
        print(name, json.dumps(found[name], indent=1), flush=True)
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
