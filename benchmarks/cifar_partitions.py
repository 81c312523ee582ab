"""CIFAR-10 divided among 100 clients by Hsu et al.'s Dirichlet distributions, beside the published divisions.

For every α: mean EMD and classes of a client over some seeds, what the published files have (49,999 of 50,000 rows), and the band
that repeated draws of the same rule fall in. Writes a page, and figures like the paper's figure 3.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
from rich.console import Console
from rich.table import Table

from fedlens.data import CIFAR10, Federation, HsuDirichlet, federate
from fedlens.data.sources import Sources
from fedlens.data.statistics import LabelCounts
from fedlens.report.drawing import Plot, data, legend, spread_out, tips, titled
from fedlens.report.page import figures, page

EXAMPLES = """example:
  python benchmarks/cifar_partitions.py --data DIR --out cifar-partitions
"""
# α: published EMD, published classes of a client; mean and standard deviation of the EMD over 20 simulated seeds, where it varies
KNOWN: dict[float, tuple[float, float, float, float]] = {
    0: (1.8000, 1.00, 1.800, 0.000),
    0.05: (1.7519, 1.32, 1.761, 0.005),
    0.1: (1.7434, 1.54, 1.736, 0.008),
    0.2: (1.6884, 2.19, 1.694, 0.011),
    0.5: (1.5616, 3.57, 1.579, 0.018),
    1: (1.4386, 4.78, 1.437, 0.026),
    10: (0.7629, 9.28, 0.726, 0.020),
    100: (0.2550, 9.90, 0.259, 0.007),
}
DEVIATIONS = 4  # a mean over seeds may lie so many standard deviations off
DRAWN = 20  # clients of each α


def counts_of(sources: Sources, alpha: float, seed: int) -> LabelCounts:
    train: Federation = federate(sources, HsuDirichlet(clients=100, alpha=alpha), 0, seed).train
    counts = LabelCounts.of(train)
    assert counts is not None
    return counts


def measure(sources: Sources, seeds: int) -> tuple[list[dict[str, Any]], dict[float, LabelCounts]]:
    """A row for each α, and the first seed's clients."""
    rows, first = [], {}
    for alpha, (published, published_classes, center, deviation) in KNOWN.items():
        drawn = [counts_of(sources, alpha, seed) for seed in range(seeds)]
        distances = np.array([counts.mean_earth_movers_distance for counts in drawn])
        first[alpha] = drawn[0]
        band = max(DEVIATIONS * deviation, 0.0005)
        rows.append(
            {
                "alpha": alpha,
                "emd": float(distances.mean()),
                "sd": float(distances.std(ddof=1)) if seeds > 1 else 0.0,
                "least": float(distances.min()),
                "most": float(distances.max()),
                "classes": float(np.mean([counts.classes_per_client.mean() for counts in drawn])),
                "published": published,
                "published_classes": published_classes,
                "low": center - band,
                "high": center + band,
                "within": bool(abs(distances.mean() - center) <= band),
            }
        )
    return rows, first


def distances_plot(rows: list[dict[str, Any]], seeds: int) -> Plot:
    """EMD against α: what was drawn, and what is published."""
    rows = [{**row, "name": f"{row['alpha']:g}"} for row in rows]
    x = alt.X(
        "name:O", title="α, the concentration of clients' labels", sort=[row["name"] for row in rows], axis=alt.Axis(labelAngle=0)
    )
    y = alt.Y("emd:Q", title="mean EMD of a client's labels from all labels", scale=alt.Scale(domain=[0, 2]))
    told = tips(name="", emd=".4f", published=".4f", classes=".2f", published_classes=".2f")
    names = ["fedlens", "published"]
    color = alt.Color("kind:N", scale=alt.Scale(domain=names), legend=legend(names))
    points = [{**row, "kind": "fedlens"} for row in rows] + [{**row, "kind": "published", "emd": row["published"]} for row in rows]
    ranges = alt.Chart(data(rows)).mark_rule(strokeWidth=1.5, color="#888888").encode(x, alt.Y("least:Q"), alt.Y2("most:Q"))
    shape = alt.Shape("kind:N", scale=alt.Scale(domain=names, range=["circle", "diamond"]), legend=legend(names))
    marks = alt.Chart(data(points)).mark_point(size=90, opacity=1, strokeWidth=2).encode(x, y, color, shape, tooltip=told)
    said = f"CIFAR-10, 100 clients of 500; mean and range of {seeds} draws beside the published division"
    return titled(alt.LayerChart(layer=[ranges, marks]), "How far clients lie from the whole", said)


def proportions_plot(first: dict[float, LabelCounts]) -> Plot:
    """Clients' labels for every α, as in the paper's figure 3."""
    panels = []
    for alpha, counts in first.items():
        clients, shown = spread_out(counts.per_client, DRAWN, "client")
        shares, labels = counts.proportions(clients), list(counts.names)
        rows = [
            {"client": str(clients[k]), "label": labels[c], "order": c, "share": float(shares[k, c])}
            for k, c in np.argwhere(shares).tolist()
        ]
        x = alt.X(
            "share:Q",
            title=None,
            stack="zero",
            axis=alt.Axis(labels=False, ticks=False, grid=False),
            scale=alt.Scale(domain=[0, 1]),
        )
        named = alt.Axis(labels=False, ticks=False, domain=False)
        y = alt.Y("client:N", sort=[str(client) for client in clients], axis=named, title=None if panels else "client")
        color = alt.Color("label:N", title=None, scale=alt.Scale(domain=labels), sort=labels, legend=legend(labels))
        bars = alt.Chart(data(rows), width=88, height=260).mark_bar(aria=False)
        name = alt.Title(f"α = {alpha:g}", fontSize=12, fontWeight="normal", anchor="middle", offset=4)
        told = tips(client="", label="", share=".1%")
        panels.append(bars.encode(x, y, color, order="order:Q", tooltip=told).properties(title=name))
    return titled(alt.hconcat(*panels, spacing=12), "Which labels clients hold", f"CIFAR-10; for each α {shown}, a bar each")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="holds cifar-10-batches-py")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the page and the figures are written")
    parser.add_argument("--seeds", type=int, default=10, help="draws of every α (10)")
    options = parser.parse_args()
    rows, first = measure(CIFAR10(path=options.data).load(), options.seeds)
    table = Table("α", "EMD", "sd", "published", f"band of {DEVIATIONS} sd", "within", "classes", "published", box=None)
    facts = {}
    for row in rows:
        name, emd, published = f"{row['alpha']:g}", f"{row['emd']:.4f}", f"{row['published']:.4f}"
        band, within = f"{row['low']:.3f} … {row['high']:.3f}", "yes" if row["within"] else "no"
        classes = f"{row['classes']:.2f}", f"{row['published_classes']:.2f}"
        table.add_row(name, emd, f"{row['sd']:.4f}", published, band, within, *classes)
        facts[f"α = {name}"] = f"EMD {emd} (published {published}, band {band}); {classes[0]} classes of a client ({classes[1]})"
    Console().print(table)
    drawn = {"cifar10-distances": distances_plot(rows, options.seeds), "cifar10-proportions": proportions_plot(first)}
    figures(drawn, options.out)
    path = options.out / "cifar10.html"
    said = f"100 clients of 500 examples, {options.seeds} draws of each α"
    path.write_text(page("CIFAR-10, divided as in Hsu et al.", said, facts, list(drawn.values())), encoding="utf-8")
    print(f"written: {path} and {len(drawn)} figures")
    sys.exit(0 if all(row["within"] for row in rows) else 1)


if __name__ == "__main__":
    main()
