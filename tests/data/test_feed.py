"""Columns as tensors."""

from __future__ import annotations

import threading
import warnings

import numpy as np
import pytest
import torch

from fedlens.data import Examples
from fedlens.data.feed import Feed


@pytest.fixture(params=["in memory", "mapped"])
def examples(request, tmp_path) -> Examples:
    image = np.random.default_rng(0).integers(0, 256, (7, 2, 3, 1), dtype=np.uint8)
    made = Examples({"image": image, "label": np.arange(7), "user": np.array(["u"] * 7)})
    return made if request.param == "in memory" else Examples.open(made.save(tmp_path))


def test_on_the_cpu_columns_share_the_memory_of_the_arrays(examples):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        feed = Feed(examples, ("image", "label"), torch.device("cpu"))
    assert set(feed.columns) == {"image", "label"}
    for name, tensor in feed.columns.items():
        assert tensor.data_ptr() == examples.column(name).ctypes.data
        np.testing.assert_array_equal(tensor.numpy(), examples.column(name))


def test_a_batch_is_the_examples_with_these_ids_in_their_order(examples):
    feed = Feed(examples, ("image", "label"), torch.device("cpu"))
    ids = np.array([5, 0, 5, 6])
    batch = feed.batch(feed.ids(ids))
    for name in ("image", "label"):
        np.testing.assert_array_equal(batch[name].numpy(), examples.column(name)[ids])
    batch["image"].zero_()  # a batch is a copy: nobody changes the data through it
    assert examples.column("image").any()


def test_what_is_gathered_ahead_is_what_would_be_gathered_when_it_is_asked_for(examples):
    feed = Feed(examples, ("image", "label"), torch.device("cpu"))
    parts = torch.tensor([5, 0, 5, 6, 1, 2, 3, 4, 0, 6]).split([1, 3, 0, 2, 1, 1, 2])
    assert list(feed.gathered(parts)) == [None] * 7  # resident: there is nothing to gather
    feed.resident = False
    for part, gathered in zip(parts, feed.gathered(parts), strict=True):
        one, other = feed.batch(part, gathered), feed.batch(part)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert list(feed.gathered([])) == []


def test_a_gathering_that_is_left_ends_its_thread_and_one_that_fails_says_so(examples):
    feed = Feed(examples, ("image", "label"), torch.device("cpu"))
    feed.resident, before = False, threading.active_count()
    left = feed.gathered([torch.tensor([0])] * 50)
    next(left)
    left.close()
    assert threading.active_count() == before
    with pytest.raises(IndexError):
        list(feed.gathered([torch.tensor([7])]))
