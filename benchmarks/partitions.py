"""How long it takes to divide a million examples among a hundred thousand clients, with every partition there is."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from fedlens.data import PARTITIONS, Examples
from fedlens.tracking.manifest import hardware

EXAMPLES = """examples:
  python benchmarks/partitions.py
  python benchmarks/partitions.py --only hsu_dirichlet pachinko --json benchmarks/results/partitions.json
"""
FROM_FILES = {"published"}  # read from tables, which take as long as their reading
CLASSES, GROUPS, CATEGORIES = 100, 20, 80  # as CIFAR-100's labels and coarse labels, and COCO's categories


def single_labels(count: int, clients: int) -> Examples:
    """A label, a coarse label and a user for each example."""
    generator = np.random.default_rng(0)
    label = generator.integers(0, CLASSES, count)
    return Examples({"label": label, "coarse_label": label * GROUPS // CLASSES, "client": generator.integers(0, clients, count)})


def several_labels(count: int, clients: int) -> Examples:
    """Categories as frequent as rank^−1, and numbers of boxes of each."""
    generator = np.random.default_rng(0)
    often = 0.5 / np.arange(1, CATEGORIES + 1)
    labels = (generator.random((count, CATEGORIES), dtype=np.float32) < often).astype(np.uint8)
    return Examples({"labels": labels, "label_counts": labels * generator.integers(1, 9, labels.shape, dtype=np.uint8)})


def places(count: int, clients: int) -> Examples:
    """Coordinates around a thousand towns, which are larger and smaller; one in fifty unknown."""
    generator = np.random.default_rng(0)
    town = np.minimum(generator.zipf(1.3, count), 1_000) - 1
    latitude = np.degrees(np.arcsin(generator.uniform(-1, 1, 1_000)))[town] + generator.normal(0, 0.5, count)
    longitude = generator.uniform(-180, 180, 1_000)[town] + generator.normal(0, 0.5, count)
    latitude[generator.random(count) < 0.02] = np.nan
    return Examples({"latitude": np.clip(latitude, -90, 90), "longitude": np.clip(longitude, -180, 180)})


def cases(count: int, clients: int) -> dict[str, tuple[Callable[[int, int], Examples], list[dict[str, Any]]]]:
    """For every partition its data and settings; where so many clients make no sense, as many as do."""
    many, each = {"clients": clients}, count // clients
    few = {"clients": min(clients, CATEGORIES // 2)}  # a client takes a whole category
    rules = [{"counts": c, "on_exhaust": e} for c, e in (("multinomial", "renormalize"), ("quota", "redraw"))]
    return {
        "iid": (single_labels, [many]),
        "natural": (single_labels, [{}]),
        "grouped_natural": (single_labels, [{"group_size": 10}]),
        "shards": (single_labels, [many]),
        "pathological": (single_labels, [many]),
        "quantity": (single_labels, [many]),
        "hsu_dirichlet": (single_labels, [{**many, "alpha": alpha, **rule} for alpha in (0.5, 100.0) for rule in rules]),
        "class_dirichlet": (single_labels, [{**many, "alpha": 1.0, "least": 0}]),
        "fedcv_lda": (single_labels, [{**many, "alpha": 1.0, "least": 0}]),
        "pachinko": (single_labels, [{**many, "size": each}]),
        "first_class_lda": (several_labels, [{**many, "least": 0}]),
        "rarest_class_lda": (several_labels, [{**many, "least": 0}]),
        "dominant_class_lda": (several_labels, [{**many, "least": 0}]),
        "coco_greedy": (several_labels, [few]),
        "geographic": (places, [{"most": 3000}, {"most": 10 * each}]),
    }


def measure(names: list[str], count: int, clients: int) -> list[dict[str, Any]]:
    """Divide once with each partition and settings; data are made once for all that take the same."""
    rows, made = [], {}
    for name in names:
        data_of, settings = cases(count, clients)[name]
        if data_of not in made:
            made = {data_of: data_of(count, clients)}
        for setting in settings:
            part = PARTITIONS.build({"name": name, **setting})
            start = time.perf_counter()
            assignment = part.assign(made[data_of], seed=0)
            rows.append(
                {
                    "partition": name,
                    "settings": {key: value for key, value in setting.items() if key != "clients"},
                    "clients": len(assignment),
                    "examples": len(assignment.examples),
                    "seconds": round(time.perf_counter() - start, 2),
                }
            )
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--only", nargs="+", choices=cases(1, 1), default=list(cases(1, 1)), metavar="PARTITION")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers and a description of the machine")
    options = parser.parse_args()
    if left_out := {entry.name for entry in PARTITIONS} - cases(1, 1).keys() - FROM_FILES:
        sys.exit(f"there are partitions that are not measured: {', '.join(sorted(left_out))}")
    rows = measure(options.only, options.examples, options.clients)
    table = Table("partition", "settings", "clients", "examples held", "seconds")
    table.columns[1].overflow = "fold"
    for row in rows:
        written = ", ".join(f"{key}={value}" for key, value in row["settings"].items())
        table.add_row(row["partition"], written, f"{row['clients']:,}", f"{row['examples']:,}", f"{row['seconds']:.2f}")
    Console().print(table)
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{gigabytes:.1f} GB at most, with the data")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        found = {"hardware": hardware(), "numpy": np.__version__, "gigabytes": round(gigabytes, 1), "partitions": rows}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
