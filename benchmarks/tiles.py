"""Time the convolution kernels of lanes with other tiles than those they choose, layer by layer: TFLOP/s in bfloat16.

python benchmarks/tiles.py            the layers of the CIFAR CNN and of ResNet-18 as their benchmarks launch them
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from triton.testing import do_bench

from fedlens.engines import lane_kernels
from fedlens.engines.lane_kernels import Geometry, Tile, convolve, in_fours, input_gradient, weight_gradient

# name: lanes, images a lane, channels in and out, taps, stride, height and width
LAYERS = {
    "cnn 1": (50, 50, 3, 64, 5, 1, 32),
    "cnn 2": (50, 50, 64, 64, 5, 1, 16),
    "cnn 2, batch 10": (200, 10, 64, 64, 5, 1, 16),
    "resnet stem": (20, 16, 3, 64, 7, 2, 224),
    "resnet 64": (20, 16, 64, 64, 3, 1, 56),
    "resnet 128": (20, 16, 128, 128, 3, 1, 28),
    "resnet 256": (20, 16, 256, 256, 3, 1, 14),
    "resnet 512": (20, 16, 512, 512, 3, 1, 7),
}
SQUARE = Tile(128, 128, 64, 8, 3)
FORWARD = [Tile(128, 64, 64, 4, 3), Tile(128, 64, 64, 4, 4), Tile(256, 64, 64, 8, 3), Tile(256, 64, 32, 8, 4), SQUARE]
BACKWARD = [Tile(64, 64, 64, 4, 3), Tile(64, 128, 64, 4, 3), Tile(64, 128, 64, 4, 4), Tile(64, 256, 64, 8, 3), SQUARE]


def measure(layer: tuple[int, ...], tiles: bool = True) -> list[dict[str, Any]]:
    lanes, batch, inputs, outputs, taps, stride, size = layer
    geometry = Geometry(stride, (taps // 2, taps // 2))
    images: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"}
    x = in_fours(torch.randn(lanes * batch, inputs, size, size, **images))
    w = torch.randn(lanes, outputs, taps, taps, inputs, **images).permute(0, 1, 4, 2, 3)
    g = convolve(x, w, None, geometry)
    g, dw = torch.randn_like(g, memory_format=torch.channels_last), torch.empty_like(w)
    work = 2 * g.numel() * inputs * taps**2
    runs: dict[str, tuple[Callable[..., Any], list[Tile]]] = {
        "forward": (partial(convolve, x, w, None, geometry), FORWARD),
        "weights": (partial(weight_gradient, x, g, dw, geometry), BACKWARD),
    }
    if inputs > 4:
        runs["images"] = partial(input_gradient, g, w, (size, size), geometry), FORWARD
    found = []
    for kind, (run, choices) in runs.items():
        for flat in (None, True) if kind == "weights" and 32 <= inputs <= 128 else (None,):
            for tile in [None, *choices] if tiles else [None]:
                if tile is None and flat:
                    continue
                call = partial(run, tile=tile) if flat is None else partial(run, tile=tile, flat=flat)
                numbers = "chosen" if tile is None else tuple(asdict(tile).values())
                row: dict[str, Any] = {"kind": kind, "tile": numbers, "flat": flat}
                try:
                    milliseconds = float(do_bench(call, warmup=20, rep=60, return_mode="median"))
                    found.append(row | {"teraflops": round(work / milliseconds / 1e9), "milliseconds": round(milliseconds, 4)})
                except Exception as error:  # a tile may need more than the device has
                    found.append(row | {"failed": type(error).__name__})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", nargs="+", choices=LAYERS, default=list(LAYERS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = {}
    for name in options.layer:
        found[name] = measure(LAYERS[name])
        for row in found[name]:
            speed = row.get("failed") or f"{row['teraflops']:5} TFLOP/s {row['milliseconds']:8.3f} ms"
            print(f"{name:16} {row['kind']:8} {row['tile']!s:24} {'flat' if row['flat'] else '':5} {speed}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"programs": lane_kernels.PROGRAMS, "found": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
