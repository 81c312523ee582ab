"""What can be drawn of a federation: all its plots, and a page with them and with pictures of some clients."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedlens import random
from fedlens.data.population import Federation, Population
from fedlens.data.statistics import LABEL_COLUMNS, PAIRED_CLIENTS, LabelCounts, pixel_distances
from fedlens.report import plots
from fedlens.report.drawing import Plot, plural, spread_out
from fedlens.report.page import page
from fedlens.tracking.console import data_rows

SHOWN_CLIENTS, SHOWN_IMAGES = 10, 10
PIXELS = 64  # the largest side of a picture on the page


def data_plots(federation: Federation, columns: Sequence[str] = LABEL_COLUMNS, seed: int = 0) -> dict[str, Plot]:
    """The plots that a federation's examples allow, by name; those of labels show the first of these columns that holds any."""
    if not len(federation.clients.examples):
        return {}
    found = {"sizes": plots.client_sizes(federation), "cumulative-sizes": plots.cumulative_size(federation)}
    counts = LabelCounts.of(federation, columns)
    if counts is not None and counts.total:
        found["label-counts"] = plots.label_counts(counts)
        found["distances"] = plots.client_distances(counts)
        found["client-proportions"] = plots.client_proportions(counts)
        found["label-shares"] = plots.class_shares(counts)
        found["heat-map"] = plots.heat_map(counts)
        if 2 <= np.count_nonzero(counts.per_client) <= PAIRED_CLIENTS:
            found["pairwise-distances"] = plots.client_pairs(counts)
    if distances := pixel_distances(federation, seed):
        found["pixel-distances"] = plots.pixel_curves(distances)
    return found


def data_page(population: Population, found: Mapping[str, Any], drawn: Mapping[str, Plot], headline: str, seed: int = 0) -> str:
    """A page about a population: what `describe` found, the plots, and pictures of some clients."""
    pictures = "" if "image" not in population.data.columns else sample_images(population.train, seed)
    return page(found["name"], headline, data_rows(found), list(drawn.values()), pictures, f"fingerprint {found['fingerprint']}")


def sample_images(federation: Federation, seed: int = 0) -> str:
    """Rows of pictures, a client each, as HTML: of clients spread over all sizes, images drawn at random."""
    clients, shown = spread_out(federation.clients.sizes, SHOWN_CLIENTS, "client")
    rows = []
    for client in clients.tolist():
        members = federation.clients.of_client(client)
        drawn = random.generator(seed, "pictures", client).permutation(members)[:SHOWN_IMAGES]
        name = f"client {federation.clients.client_name(client)}: {plural(len(members), 'image')}"
        images = "".join(f'<img src="{_png(federation.data.column("image")[example])}" alt="">' for example in drawn.tolist())
        rows.append(f'<div class="row"><span title="{escape(name)}">{escape(name)}</span>{images}</div>')
    return f'<h2>What clients see</h2>\n<p>{escape(shown)}</p>\n<div class="pictures">\n' + "\n".join(rows) + "\n</div>"


def _png(image: NDArray[np.uint8]) -> str:
    """A picture [height, width, channels] as a data URL; channels beyond three are left out."""
    channels = image.shape[2]
    picture = Image.fromarray(np.ascontiguousarray(image[:, :, :3] if channels >= 3 else image[:, :, 0]))
    picture.thumbnail((PIXELS, PIXELS))
    file = BytesIO()
    picture.save(file, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
