"""IDX, the format of MNIST and its relatives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedlens.data.sources.checks import require_file


def read_idx(path: Path, dimensions: int, torchvision_name: str) -> NDArray[np.uint8]:
    """Map an IDX file of bytes: two zeros, type 8, the number of dimensions, each as a big-endian int32, then the values."""
    require_file(path, f"torchvision.datasets.{torchvision_name}(PATH, download=True) puts it there")
    header = np.fromfile(path, dtype=">i4", count=1 + dimensions)
    if len(header) != 1 + dimensions or header[0] != 0x0800 + dimensions:
        raise ValueError(f"{path} is no IDX file of bytes with {dimensions} dimensions")
    shape, start = tuple(int(extent) for extent in header[1:]), header.nbytes
    expected = start + int(np.prod(shape))
    if path.stat().st_size != expected:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes; its header promises {expected:,}: truncated download?")
    return np.memmap(path, dtype=np.uint8, mode="r", offset=start, shape=shape)
