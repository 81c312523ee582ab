"""What all plots share: colours that a colour-blind reader can tell apart, on a light and on a dark page; data, titles, samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import altair as alt
import numpy as np
from numpy.typing import NDArray

from fedlens.data.population import Indices

Plot: TypeAlias = alt.Chart | alt.LayerChart | alt.HConcatChart

# Tol's muted scheme, told apart with any kind of colour blindness
CATEGORIES = ["#332288", "#CC6677", "#88CCEE", "#117733", "#DDCC77", "#44AA99", "#AA4499", "#999933", "#882255", "#BBBBBB"]
DARK_CATEGORIES = ["#7B6CD9", "#CC6677", "#88CCEE", "#2F9E4F", "#DDCC77", "#44AA99", "#C565B5", "#ABAB4A", "#B0416F", "#BBBBBB"]
# ColorBrewer's YlGn without its lightest step, which could not be told from a cell without examples
HEAT = ["#f7fcb9", "#d9f0a3", "#addd8e", "#78c679", "#41ab5d", "#238443", "#006837", "#004529"]
WIDTH, HEIGHT = 520, 260
BARS = 40  # of a histogram
POINTS = 200  # of a curve
RANKED = ["#E69F00", "#0072B2", "#56B4E9", "#b8b8b8"]  # the first few (Okabe and Ito), and the grey rest
VIRIDIS = ["#482878", "#3e4a89", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"]


def _config(text: str, faint: str, line: str, accent: str, second: str, categories: list[str], heat: list[str]) -> dict[str, Any]:
    """A Vega-Lite configuration: what every plot has in common, so that none says it itself."""
    axis = {"labelColor": text, "titleColor": text, "gridColor": faint, "domainColor": line, "tickColor": line}
    return {
        "background": None,
        "font": "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif",
        "view": {"stroke": None},
        "title": {
            "anchor": "start",
            "frame": "group",
            "offset": 12,
            "fontSize": 15,
            "fontWeight": 600,
            "color": text,
            "subtitleFontSize": 12,
            "subtitleColor": line,
            "subtitlePadding": 4,
        },
        "axis": {**axis, "labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": 400, "titlePadding": 8, "labelLimit": 140},
        "legend": {"labelColor": text, "titleColor": text, "titleFontWeight": 400, "titleFontSize": 12, "labelFontSize": 11},
        "header": {"labelColor": text, "titleColor": text},
        "range": {"category": categories, "heatmap": heat, "ramp": heat},
        "mark": {"color": accent},
        "rule": {"color": second, "strokeWidth": 2},
        "text": {"color": text, "fontSize": 12},
    }


LIGHT = _config("#222222", "#e6e6e6", "#6b6b6b", "#0072B2", "#D55E00", CATEGORIES, HEAT)
DARK = _config("#e4e4e4", "#34383d", "#9a9a9a", "#56B4E9", "#E69F00", DARK_CATEGORIES, HEAT[::-1][1:])


def specification(plot: Plot, config: dict[str, Any] | None = None) -> dict[str, Any]:
    """A plot as Vega-Lite, in the colours of a page or, without `config`, in none."""
    found: dict[str, Any] = plot.to_dict()
    found.pop("config", None)
    return found if config is None else {**found, "config": config}


def data(rows: Iterable[dict[str, Any]]) -> alt.Data:
    """Rows by name, inside the plot; six decimals are more than a picture shows."""

    def short(value: Any) -> Any:
        return round(value, 6) if isinstance(value, float) else value

    return alt.Data(values=[{name: short(value) for name, value in row.items()} for row in rows])


def titled(plot: Plot, title: str, subtitle: str) -> Plot:
    """Say what is seen, and of how much of the federation; plots without a size of their own get the common one."""
    if not isinstance(plot, alt.HConcatChart):
        sizes = {"width": WIDTH, "height": HEIGHT}
        plot = plot.properties(**{name: size for name, size in sizes.items() if plot[name] is alt.Undefined})
    return plot.properties(title=alt.Title(title, subtitle=subtitle))


def whole(largest: int, **settings: Any) -> alt.Axis:
    """An axis of whole numbers: no more ticks than there are numbers."""
    return alt.Axis(format=",d", tickCount=max(1, min(5, largest)), **settings)


def percent() -> alt.Axis:
    return alt.Axis(format="%", tickCount=5)


def tips(**formats: str) -> list[alt.Tooltip]:
    """What a pointer is told: fields, and how their numbers are written; without a format, words."""
    return [
        alt.Tooltip(f"{field}:Q", title=field.replace("_", " "), format=shape) if shape else alt.Tooltip(f"{field}:N")
        for field, shape in formats.items()
    ]


def histogram(
    values: NDArray[Any], bounds: NDArray[Any], ranges: list[str], title: str, scale: alt.Scale, axis: alt.Axis
) -> alt.Chart:
    """How many clients have a value in each bin; `ranges` says in words what a bin holds."""
    counts = np.histogram(values, bounds)[0].tolist()
    bins = zip(bounds[:-1].tolist(), bounds[1:].tolist(), counts, ranges, strict=True)
    rows = [{"from": low, "to": high, "clients": count, "range": words} for low, high, count, words in bins if count]
    x = alt.X("from:Q", bin="binned", title=title, scale=scale, axis=axis)
    y = alt.Y("clients:Q", title="clients", axis=whole(max(counts, default=0)))
    return alt.Chart(data(rows)).mark_bar(binSpacing=1).encode(x, alt.X2("to"), y, tooltip=tips(range="", clients=",d"))


def legend(names: list[str], title: str | None = None) -> alt.Legend:
    """Names above a plot, in rows."""
    return alt.Legend(orient="top", columns=min(5, len(names)), symbolLimit=0, title=title, labelLimit=150, columnPadding=20)


def step(count: int, room: int = 720) -> int:
    """Pixels of a cell or a bar, so that few are large and many fit."""
    return max(3, min(18, room // max(1, count)))


def plural(count: int, thing: str) -> str:
    return f"{count:,} {thing}" + ("" if count == 1 else "s")


def between(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def places(last: int) -> Indices:
    """Whole numbers 0 … last to draw a curve at: all, or some that are dense at the start, where curves bend."""
    if last <= POINTS:
        return np.arange(last + 1)
    dense, even = np.geomspace(1, last, POINTS // 2), np.linspace(0, last, POINTS // 2)
    return np.unique(np.rint(np.concatenate((dense, even))).astype(np.int64))


def edges(values: Indices, skewed: bool) -> Indices:
    """Bounds of bins of whole numbers, [low, high) each: equally wide, or equally wide on a logarithmic axis."""
    if not len(values):
        return np.array([0, 1])
    low, end = int(values.min()), int(values.max()) + 1
    if skewed:
        return np.unique(np.rint(np.geomspace(low, end, BARS + 1)).astype(np.int64))
    step = -(-(end - low) // BARS)
    return np.arange(low, end + step, step)


def spread_out(sizes: Indices, most: int, thing: str) -> tuple[Indices, str]:
    """Those that hold anything, the largest first, or `most` of them spread over all sizes; and words that say which."""
    order = np.argsort(-sizes, kind="stable")[: np.count_nonzero(sizes)]
    if len(order) <= most:
        return order, plural(len(order), thing)
    chosen = np.rint(np.linspace(0, len(order) - 1, most)).astype(np.int64)
    return order[chosen], f"{most} of {plural(len(order), thing)}, spread over all sizes"


def gradient(count: int) -> list[str]:
    """Colours from dark to light."""
    anchors = np.array([[int(color[place : place + 2], 16) for place in (1, 3, 5)] for color in VIRIDIS])  # [anchors, 3]
    where = np.linspace(0, len(anchors) - 1, count)
    mixed = np.stack([np.interp(where, np.arange(len(anchors)), anchors[:, channel]) for channel in range(3)], axis=1)
    return ["#{:02x}{:02x}{:02x}".format(*color) for color in np.rint(mixed).astype(int).tolist()]
