"""Time what stands between pictures on a disk and a run: decoding them once, and opening the store that comes of it.

prepare     images a second by one thread, by one for each core, and by the loop one writes without a library
open        a store of 400,000 images of 51,000 clients: seconds and memory until a federation of them is there
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedlens.data import Examples
from fedlens.data.listing import Listing
from fedlens.data.prepare import Shape, prepare
from fedlens.tracking.manifest import hardware

IMAGES, CLIENTS, SIZE = 400_000, 51_000, 256


def by_hand(files: list[Path], size: int) -> float:
    """Seconds of a loop with Pillow: the shorter side becomes `size`, the middle is cut out."""
    out, start = np.empty((len(files), size, size, 3), dtype=np.uint8), time.perf_counter()
    for row, file in enumerate(files):
        picture = Image.open(file).convert("RGB")
        scale = size / min(picture.size)
        width, height = (max(size, round(extent * scale)) for extent in picture.size)
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        left, top = (picture.width - size) // 2, (picture.height - size) // 2
        out[row] = picture.crop((left, top, left + size, top + size))
    return time.perf_counter() - start


def prepared(files: list[Path], size: int, threads: int) -> float:
    listing = Listing(files, {"label": np.zeros(len(files), dtype=np.int64)}, "pictures")
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        prepare(listing, Path(folder) / "train", Shape(size), "refuse", threads, lambda done: None)
        return time.perf_counter() - start


def store(folder: Path) -> None:
    """A store as large as FLAIR; its images are a hole in the file, which takes no room on the disk."""
    folder.mkdir(parents=True)
    np.lib.format.open_memmap(folder / "image.npy", mode="w+", dtype=np.uint8, shape=(IMAGES, SIZE, SIZE, 3))
    generator = np.random.default_rng(0)
    columns = {"label": generator.integers(0, 17, IMAGES), "client": generator.integers(0, CLIENTS, IMAGES)}
    for name, values in columns.items():
        np.save(folder / f"{name}.npy", values)
    names = {"client": np.array([f"{number:08}@N{number % 100:02}" for number in range(CLIENTS)])}
    image = {"image": np.lib.format.open_memmap(folder / "image.npy", mode="r")}
    Examples(columns | image, "as large as FLAIR", tuple(str(c) for c in range(17)), categories=names).save_facts(folder)


OPEN = """
import json, os, sys, time
from fedlens.data import Natural, Packed, federate
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
before, start = resident(), time.perf_counter()
population = federate(Packed(path=sys.argv[1]).load(), Natural(), 0.0, 0)
seconds = round(time.perf_counter() - start, 3)
print(json.dumps({"seconds": seconds, "megabytes": round(resident() - before), "clients": len(population)}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", type=Path, nargs="?", help="a folder of JPEGs, for the first part")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {"hardware": hardware()}
    if options.pictures is not None:
        files = sorted(file for file in options.pictures.rglob("*") if file.suffix.lower() in (".jpg", ".jpeg"))
        cores = len(os.sched_getaffinity(0))
        by_hand(files[:100], options.size)  # the files are in the system's cache from here on, for all alike
        contenders = {"pillow": partial(by_hand, files, options.size)}
        for count in (1, cores):
            contenders[f"prepare, {count} threads"] = partial(prepared, files, options.size, count)
        sizes = [Image.open(file).size for file in files]
        found["pictures"] = {"count": len(files), "median size": np.median(sizes, axis=0).tolist(), "to": options.size}
        for name, run in contenders.items():
            found[name] = {"images_per_second": round(len(files) / run())}
            print(name, found[name], flush=True)
    with tempfile.TemporaryDirectory() as folder:
        store(Path(folder) / "train")
        done = subprocess.run([sys.executable, "-c", OPEN, folder], capture_output=True, text=True, check=True)
        found["open"] = {"images": IMAGES, **json.loads(done.stdout)}
        print("open", found["open"])
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
