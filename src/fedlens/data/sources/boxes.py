"""Boxes as columns: from one line for each box to one row for each picture."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def box_columns(
    row: NDArray[np.int64], boxes: NDArray[np.float32], label: NDArray[np.int64], pictures: int, classes: int
) -> dict[str, NDArray[Any]]:
    """Boxes [B, 4] of known pictures and classes, as columns that have a row for each picture, also for one without boxes.

    boxes [N, M, 4] and box_label [N, M], −1 where a picture has fewer than M;   label_counts [N, C];   labels = label_counts > 0
    """
    order = np.argsort(row, kind="stable")
    row, boxes, label = row[order], boxes[order], label[order]
    held = np.bincount(row, minlength=pictures)
    place = np.arange(len(row)) - (np.cumsum(held) - held)[row]
    most = max(1, int(held.max(initial=0)))
    placed = np.zeros((pictures, most, 4), dtype=np.float32)
    placed[row, place] = boxes
    box_label = np.full((pictures, most), -1, dtype=np.int64)
    box_label[row, place] = label
    counts = np.bincount(row * classes + label, minlength=pictures * classes).reshape(pictures, classes)
    labels = (counts > 0).astype(np.uint8)
    return {"boxes": placed, "box_label": box_label, "labels": labels, "label_counts": counts.astype(np.int32)}
