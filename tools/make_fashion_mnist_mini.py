"""Make the subset of Fashion-MNIST that ships in the package: the first 1,000 training and 200 test images of each class.

python tools/make_fashion_mnist_mini.py DIR        where DIR/FashionMNIST/raw holds the official files
"""

import sys
from pathlib import Path

import numpy as np

from fedlens.data.sources import FashionMNIST

TARGET = Path(__file__).parents[1] / "src/fedlens/data/sources/fashion_mnist_mini/images.npz"

arrays = {}
sources = FashionMNIST(path=sys.argv[1]).load()
for split, examples, count in (("train", sources.train, 1000), ("test", sources.test, 200)):
    label = examples.column("label")
    chosen = np.sort(np.concatenate([np.flatnonzero(label == c)[:count] for c in range(10)]))
    arrays[f"{split}_image"] = examples.column("image")[chosen]
    arrays[f"{split}_label"] = label[chosen].astype(np.uint8)
np.savez_compressed(TARGET, **arrays)
print(f"{TARGET}: {TARGET.stat().st_size / 1e6:.1f} MB")
