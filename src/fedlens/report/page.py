"""Pages that need neither a server nor a network, and figures for papers: both from the same plots."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from fedlens.report.drawing import DARK, LIGHT, Plot, specification

VEGA_LITE = alt.SCHEMA_VERSION.removeprefix("v").rpartition(".")[0]  # major.minor, as vl_convert names it

# The policy lets a browser load nothing at all; Vega compiles expressions, hence 'unsafe-eval'.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'"
_STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --text: #222222; --faint: #6b6b6b; --line: #e0e0e0; }
@media (prefers-color-scheme: dark) { :root { --back: #16181b; --text: #e4e4e4; --faint: #9a9a9a; --line: #34383d; } }
body { margin: 2rem auto; padding: 0 1.5rem; max-width: 84rem; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.6rem; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 15px; margin: 2.5rem 0 .5rem; }
p { color: var(--faint); margin: .2rem 0; }
table { border-collapse: collapse; margin: 1.5rem 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; font-weight: 400; padding: .25rem 2rem .25rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--faint); }
.plots { display: flex; flex-wrap: wrap; align-items: flex-start; gap: 2.5rem 3rem; margin: 2.5rem 0; }
.plot { max-width: 100%; overflow-x: auto; }
.row { display: flex; align-items: center; gap: 4px; margin: 4px 0; }
.row span { width: 14rem; flex: none; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.row img { width: 64px; height: 64px; object-fit: contain; image-rendering: pixelated; }
.pictures { overflow-x: auto; }
footer { margin-top: 3rem; color: var(--faint); font-size: 12px; overflow-wrap: anywhere; }
#vg-tooltip-element { font-family: inherit; }
"""
_LIBRARIES = "window.vegaEmbed = vegaEmbed;"
_SCRIPT = """
(() => {
  const { plots, light, dark } = JSON.parse(document.getElementById("plots").textContent);
  const night = window.matchMedia("(prefers-color-scheme: dark)");
  const draw = () => plots.forEach((plot, place) => window.vegaEmbed("#plot" + place, plot, {
    config: night.matches ? dark : light, renderer: "svg", tooltip: { theme: night.matches ? "dark" : "light" },
    actions: { export: true, source: false, compiled: false, editor: false },
  }));
  night.addEventListener("change", draw);
  draw();
})();
"""


def page(title: str, subtitle: str, facts: Mapping[str, str], plots: Sequence[Plot], pictures: str = "", footer: str = "") -> str:
    """An HTML page in one file: a table of facts, interactive plots, and `pictures`, which is HTML already."""
    content = {"plots": [specification(plot) for plot in plots], "light": LIGHT, "dark": DARK}
    rows = "\n".join(f"<tr><th scope='row'>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts.items())
    places = "\n".join(f"<div class='plot' id='plot{place}'></div>" for place in range(len(plots)))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p>{escape(subtitle)}</p>
<table>
{rows}
</table>
<noscript><p>The plots need JavaScript; nothing is loaded from anywhere.</p></noscript>
<div class="plots">
{places}
</div>
{pictures}
<footer>{escape(footer)}</footer>
<script type="application/json" id="plots">{_inside_script(content)}</script>
<script>{vl_convert.javascript_bundle(_LIBRARIES, VEGA_LITE)}</script>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def figures(plots: Mapping[str, Plot], folder: Path) -> list[Path]:
    """Write each plot as NAME.svg and NAME.pdf, in the colours for white paper."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, plot in plots.items():
        drawn = svg(plot)
        vector, document = folder / f"{name}.svg", folder / f"{name}.pdf"
        vector.write_text(drawn, encoding="utf-8")
        document.write_bytes(vl_convert.svg_to_pdf(drawn))
        written += [vector, document]
    return written


def svg(plot: Plot) -> str:
    """A plot as SVG, on white, in a font whose widths are the same everywhere: the room that words need is settled here."""
    paper = {**LIGHT, "font": "Arial, 'Liberation Sans', Helvetica, sans-serif", "background": "white", "padding": 10}
    return vl_convert.vegalite_to_svg(specification(plot, paper), vl_version=VEGA_LITE)


def _inside_script(content: Any) -> str:
    """JSON that cannot end the script it stands in, whatever names it holds."""
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
