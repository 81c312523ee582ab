"""Pictures of a federation, each a function from its clients, or from how often they hold which label, to an Altair plot.

They are the papers': cumulative sizes (Song et al. 2022, FLAIR, figure 2; Hsu, Qi and Brown 2020, figure 2), label counts (FLAIR,
figure 3), proportions of labels (Hsu et al., figures 3 and 10), labels × clients and who shares a label (He et al. 2021, FedCV,
figures 3, 10 and 11). A large federation is binned, or shown by clients spread over all sizes, and the picture says so.
"""

from __future__ import annotations

import altair as alt
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import squareform

from fedlens.data.population import Federation, Indices
from fedlens.data.statistics import LabelCounts, PixelDistances, cumulative_sizes, pairwise_distances
from fedlens.report.drawing import (
    BARS,
    CATEGORIES,
    HEIGHT,
    RANKED,
    WIDTH,
    Plot,
    between,
    data,
    edges,
    gradient,
    histogram,
    legend,
    percent,
    places,
    plural,
    spread_out,
    step,
    tips,
    titled,
    whole,
)

COLUMNS, STACKS, PAIRS = 100, 30, 40  # clients that a heat map, stacked bars, a matrix of distances show
ROWS, NAMED_ROWS = 203, 80  # labels that a heat map shows, and that are named on an axis
NAMED_COLUMNS = 40  # clients that are named beneath a heat map
SKEWED = 20  # times the median is the largest where a scale is logarithmic
RANKS = {1: "the largest holder", 5: "2nd to 5th", 20: "6th to 20th", None: "all others"}


def client_sizes(federation: Federation) -> Plot:
    """How many clients hold how many examples."""
    sizes = federation.clients.sizes
    held = sizes[sizes > 0]
    skewed = _skewed(held)
    bounds = edges(held, skewed)
    low, high = int(bounds[0]), int(bounds[-1])
    margin = 0 if skewed else max(3, (high - low) // 50)
    scale = alt.Scale(type="log" if skewed else "linear", domain=[max(0, low - margin), high + margin], nice=False)
    ranges = [between(first, end - 1) for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]
    centred = 0.5 if not skewed and bounds[1] - bounds[0] == 1 else 0.0  # where a bin is one number, its bar stands over it
    bars = histogram(
        held, bounds - centred, ranges, "examples of a client" + _logarithmic(skewed), scale, whole(high - low, grid=False)
    )
    empty = len(sizes) - len(held)
    said = f"{plural(len(sizes), 'client')}, {plural(int(sizes.sum()), 'example')}"
    return titled(bars, "How much clients hold", said + (f"; {plural(empty, 'client')} without any" if empty else ""))


def cumulative_size(federation: Federation) -> Plot:
    """The share of all examples that the largest clients hold together."""
    count = len(federation.clients)
    shares = cumulative_sizes(federation.clients.sizes)
    rows = [{"count": place, "clients": place / count, "examples": float(shares[place])} for place in places(count).tolist()]
    x = alt.X("clients:Q", title="share of the clients, the largest first", axis=percent())
    y = alt.Y("examples:Q", title="share of all examples", axis=percent(), scale=alt.Scale(domain=[0, 1]))
    told = tips(count=",d", clients=".1%", examples=".1%")
    curve = alt.Chart(data(rows)).mark_line(strokeWidth=2.5).encode(x, y, tooltip=told)
    ends = data([{"clients": 0, "examples": 0}, {"clients": 1, "examples": 1}])
    equal = alt.Chart(ends).mark_line(strokeDash=[4, 4], strokeWidth=1.5, color="#888888").encode(x, y)
    note = alt.Chart(data([{"clients": 0.7, "examples": 0.7}])).mark_text(text="if all were equal", align="left", dx=8, dy=14)
    said = f"the largest tenth of {plural(count, 'client')} holds {shares[max(1, count // 10)]:.0%}"
    return titled(alt.LayerChart(layer=[equal, curve, note.encode(x, y)]), "How unequal clients are", said)


def label_counts(counts: LabelCounts) -> Plot:
    """How often each label occurs, and what share of the clients hold it: by name if they are few, else by rank."""
    order = np.argsort(-counts.per_label, kind="stable")[: np.count_nonzero(counts.per_label)]
    totals, shares = counts.per_label[order].tolist(), counts.share_of_holders[order].tolist()
    rows = [
        {"label": counts.names[c], "rank": rank, "examples": total, "clients": share}
        for rank, (c, total, share) in enumerate(zip(order.tolist(), totals, shares, strict=True), start=1)
    ]
    told = tips(label="", rank=",d", examples=",d", clients=".2%")
    largest, total, share = max(totals, default=0), "examples with the label", "share of clients that hold it"
    if len(rows) > NAMED_ROWS:
        points = alt.Chart(data([rows[place] for place in places(len(rows) - 1).tolist()]), width=WIDTH // 2, height=HEIGHT)
        rank = alt.X("rank:Q", title="rank of the label", axis=whole(3), scale=alt.Scale(nice=False, domain=[0, len(rows)]))
        y = alt.Y("examples:Q", title=total + _logarithmic(True), scale=alt.Scale(type="log"), axis=whole(5))
        left = points.mark_circle(size=16, opacity=1).encode(rank, y, tooltip=told)
        right = points.mark_circle(size=16, opacity=1).encode(rank, alt.Y("clients:Q", title=share, axis=percent()), tooltip=told)
    else:
        height = step(len(rows))
        names = alt.Y("label:N", sort=[row["label"] for row in rows], title=None, axis=_named(True, height))
        bars = alt.Chart(data(rows), width=WIDTH // 2, height=alt.Step(height)).mark_bar()
        left = bars.encode(alt.X("examples:Q", title=total, axis=whole(largest)), names, tooltip=told)
        right = bars.encode(alt.X("clients:Q", title=share, axis=percent()), names.axis(None), tooltip=told)
    absent = len(counts.names) - len(rows)
    said = f"{plural(len(rows), 'label')}, the most frequent first" + (
        f"; {plural(absent, 'label')} nobody holds" if absent else ""
    )
    return titled(alt.hconcat(left, right), "How frequent labels are", said)


def heat_map(counts: LabelCounts) -> Plot:
    """How many examples of each label each client holds: labels × clients."""
    clients, shown = spread_out(counts.per_client, COLUMNS, "client")
    classes, named = spread_out(counts.per_label, ROWS, "label")
    classes = np.sort(classes)
    table, names = counts.table(clients)[:, classes], _names(counts, clients)
    labels = [counts.names[c] for c in classes.tolist()]
    rows = [{"client": names[k], "label": labels[c], "examples": int(table[k, c])} for k, c in np.argwhere(table).tolist()]
    skewed = _skewed(table[table > 0])
    width, height = step(len(clients)), step(len(classes))
    x = alt.X("client:N", sort=names, title="client, the largest first", axis=_named(len(names) <= NAMED_COLUMNS, width))
    y = alt.Y("label:N", sort=labels, title="label", axis=_named(len(labels) <= NAMED_ROWS, height))
    scale = alt.Scale(type="log" if skewed else "linear")
    shades = alt.Legend(format=",d", tickCount=max(1, min(5, int(table.max(initial=0)))))
    color = alt.Color("examples:Q", title="examples" + _logarithmic(skewed), scale=scale, legend=shades)
    cells = alt.Chart(data(rows), view=alt.ViewBackground(stroke="#888888", strokeOpacity=0.5)).mark_rect(aria=False)
    plot = cells.encode(x, y, color, tooltip=tips(client="", label="", examples=",d"))
    return titled(plot.properties(width=alt.Step(width), height=alt.Step(height)), "Who holds which labels", f"{shown}; {named}")


def class_shares(counts: LabelCounts) -> Plot:
    """How each label's examples are divided among the clients: by client if they are few, else among its largest holders."""
    classes, named = spread_out(counts.per_label, NAMED_ROWS, "label")
    clients = np.flatnonzero(counts.per_client)
    if few := len(clients) <= len(CATEGORIES):
        held, parts = counts.table(clients)[:, classes], _names(counts, clients)
    else:
        held, parts = _by_rank(counts, classes), list(RANKS.values())
    shares, labels = held / held.sum(axis=0), [counts.names[c] for c in classes.tolist()]
    rows = [
        {"label": labels[c], "holder": parts[k], "order": k, "share": float(shares[k, c]), "examples": int(held[k, c])}
        for k, c in np.argwhere(held).tolist()
    ]
    scale = alt.Scale(domain=parts) if few else alt.Scale(domain=parts, range=RANKED)
    color = alt.Color("holder:N", scale=scale, sort=parts, legend=legend(parts, "client" if few else None))
    told = tips(label="", holder="", share=".1%", examples=",d")
    said = named if few else f"{named}; {plural(len(clients), 'client')}, ranked anew for each label"
    return titled(_stacks(rows, "label", labels, "share of the label's examples", color, told), "Who shares a label", said)


def client_proportions(counts: LabelCounts) -> Plot:
    """What share of a client's labels each label is, for clients spread over all sizes."""
    clients, shown = spread_out(counts.per_client, STACKS, "client")
    shares, names, labels = counts.proportions(clients), _names(counts, clients), list(counts.names)
    rows = [
        {"client": names[k], "label": labels[c], "order": c, "share": float(shares[k, c])} for k, c in np.argwhere(shares).tolist()
    ]
    if few := len(labels) <= len(CATEGORIES):
        color = alt.Color("label:N", title=None, scale=alt.Scale(domain=labels), sort=labels, legend=legend(labels))
    else:
        color = alt.Color("order:O", scale=alt.Scale(domain=list(range(len(labels))), range=gradient(len(labels))), legend=None)
    said = shown if few else f"{shown}; {plural(len(labels), 'label')}, dark to light in the order of their numbers"
    told = tips(client="", label="", share=".1%")
    return titled(_stacks(rows, "client", names, "share of the client's labels", color, told), "Which labels a client holds", said)


def client_distances(counts: LabelCounts) -> Plot:
    """How far clients' label distributions lie from the whole's: how many clients at which EMD."""
    distances = counts.earth_movers_distances
    held, bounds, mean = distances[~np.isnan(distances)], np.linspace(0, 2, BARS + 1), counts.mean_earth_movers_distance
    ranges = [f"{low:.2f} to {high:.2f}" for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]
    title, scale = "EMD of a client's labels from all labels: 0 the same, 2 nothing in common", alt.Scale(domain=[0, 2])
    bars = histogram(held, bounds, ranges, title, scale, alt.Axis(format=".1f"))
    line = alt.Chart(data([{"mean": mean}])).mark_rule()
    rule = line.encode(alt.X("mean:Q", scale=scale), tooltip=tips(mean=".4f"))
    said = f"{plural(len(held), 'client')}; the line is their mean, weighted by how much they hold: {mean:.4f}"
    return titled(alt.LayerChart(layer=[bars, rule]), "How far clients lie from the whole", said)


def client_pairs(counts: LabelCounts) -> Plot:
    """How far the label distributions of every two clients lie apart, with clients of like labels side by side."""
    clients, shown = spread_out(counts.per_client, PAIRS, "client")
    proportions = counts.proportions(clients)
    order = np.lexsort((-proportions.max(axis=1), proportions.argmax(axis=1)))
    names = _names(counts, clients[order])
    tables = {name: squareform(found, checks=False) for name, found in pairwise_distances(proportions[order]).items()}
    rows = [
        {"client": one, "other": other, **{name: float(table[i, j]) for name, table in tables.items()}}
        for i, one in enumerate(names)
        for j, other in enumerate(names)
    ]
    size = step(len(names), 220)
    x, y = (
        encode(f"{field}:N", sort=names, title="client", axis=_named(len(names) <= 20, size))
        for encode, field in ((alt.X, "client"), (alt.Y, "other"))
    )
    cells = alt.Chart(data(rows), width=alt.Step(size), height=alt.Step(size)).mark_rect(aria=False)
    told = tips(client="", other="", l1=".3f", jensen_shannon=".3f")
    kinds = {"l1": ("EMD, from 0 to 2", 2), "jensen_shannon": ("Jensen–Shannon distance, from 0 to 1", 1)}
    panels = [
        cells.encode(x, y, alt.Color(f"{name}:Q", title=None, scale=alt.Scale(domain=[0, most])), tooltip=told).properties(
            title=alt.Title(title, fontSize=12, fontWeight="normal", offset=6)
        )
        for name, (title, most) in kinds.items()
    ]
    plot = alt.hconcat(*panels, spacing=30).resolve_scale(color="independent")
    return titled(plot, "How far clients lie apart", f"{shown}; ordered by their most frequent label")


def pixel_curves(distances: PixelDistances) -> Plot:
    """Whether clients' images differ in brightness beyond chance: the federation beside the same images dealt out at random."""
    kinds = {"as they are held": np.sort(distances.held), "dealt out at random": np.sort(distances.dealt_anew)}
    count = len(distances.held)
    rows = [
        {"images": name, "distance": float(ordered[place - 1]), "clients": place / count}
        for name, ordered in kinds.items()
        for place in places(count)[1:].tolist()
    ]
    x = alt.X("distance:Q", title="EMD of a client's pixel values from those of all, in grey levels of 255")
    y = alt.Y("clients:Q", title="share of clients with at most this EMD", axis=percent(), scale=alt.Scale(domain=[0, 1]))
    color = alt.Color("images:N", sort=list(kinds), legend=legend(list(kinds)))
    lines = alt.Chart(data(rows)).mark_line(strokeWidth=2.5, interpolate="step-after")
    means = f"mean {distances.held.mean():.1f}, at random {distances.dealt_anew.mean():.1f}"
    said = f"{means}; a sample of {plural(count, 'client')}"
    told = tips(images="", distance=".2f", clients=".0%")
    return titled(lines.encode(x, y, color, tooltip=told), "Whether clients' images look different", said)


def _stacks(
    rows: list[dict[str, object]], field: str, names: list[str], title: str, color: alt.Color, told: list[alt.Tooltip]
) -> alt.Chart:
    """A bar of 100 % for each name, divided in shares."""
    height = step(len(names))
    x = alt.X("share:Q", title=title, axis=percent(), stack="zero", scale=alt.Scale(domain=[0, 1]))
    y = alt.Y(f"{field}:N", sort=names, title=field, axis=_named(len(names) <= NAMED_ROWS, height))
    bars = alt.Chart(data(rows), width=WIDTH, height=alt.Step(height)).mark_bar()
    return bars.encode(x, y, color, order="order:Q", tooltip=told)


def _skewed(values: Indices) -> bool:
    return len(values) > 0 and bool(values.max() > SKEWED * np.median(values))


def _logarithmic(skewed: bool) -> str:
    return " (logarithmic)" if skewed else ""


def _names(counts: LabelCounts, clients: Indices) -> list[str]:
    return [counts.federation.clients.client_name(client) for client in clients.tolist()]


def _named(named: bool, size: int) -> alt.Axis:
    """The axis of cells or bars that are `size` pixels wide, with their names if there are few."""
    return alt.Axis(labels=named, ticks=False, domain=False, labelFontSize=max(7, min(11, size)))


def _by_rank(counts: LabelCounts, classes: Indices) -> NDArray[np.int64]:
    """How many examples of each of these labels its largest holder has, the next ones, and so on, [ranks, labels]."""
    order = np.lexsort((-counts.count, counts.label))
    label, count = counts.label[order], counts.count[order]
    rank = np.arange(len(label)) - np.searchsorted(label, label) + 1  # 1, 2, … anew for each label
    part = np.searchsorted([last for last in RANKS if last is not None], rank)
    table = np.zeros((len(RANKS), len(counts.names)), dtype=np.int64)
    np.add.at(table, (part, label), count)
    return table[:, classes]
