"""The GPU's kernels against PyTorch's own operations; without a GPU, Triton's interpreter runs them."""

import math

import pytest
import torch
import torch.nn.functional as F

from fedlens.algorithms.local_rules import SGD, Context
from fedlens.engines import depthwise_kernels
from fedlens.engines.channel_kernels import add_to_channels_, channel_sums, group_norm, group_norm_gradient, lane_sums
from fedlens.engines.lane_functions import cut_off
from fedlens.engines.lane_kernels import Geometry, Tile, convolve, in_fours, input_gradient, weight_gradient
from fedlens.engines.pool_kernels import max_pool, max_pool_gradient
from fedlens.engines.row_kernels import clear_rows_, descend_

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def inner(images):
    """Channels innermost."""
    return images.contiguous(memory_format=torch.channels_last)


# lanes, images a lane, inputs, outputs, kernel, stride, padding, dilation, size
CONVOLUTIONS = [
    (2, 3, 3, 8, 5, 1, 2, 1, 9),
    (3, 2, 16, 20, 3, 1, 1, 1, 8),
    (2, 2, 16, 8, 3, 2, 1, 1, 9),
    (2, 1, 3, 16, 7, 2, 3, 1, 15),
    (2, 2, 32, 16, 1, 2, 0, 1, 7),
    (1, 2, 16, 16, 3, 1, 2, 2, 8),
    (2, 1, 17, 33, 3, 1, 0, 1, 6),
    (2, 5, 48, 10, 1, 1, 0, 1, 1),
]


@pytest.mark.parametrize("shape", CONVOLUTIONS, ids=str)
def test_convolutions_with_a_weight_for_each_lane(shape):
    lanes, batch, inputs, outputs, taps, stride, padding, dilation, size = shape
    geometry = Geometry(stride, (padding, padding), dilation)
    x = inner(normal(lanes * batch, inputs, size, size)).requires_grad_()
    w = normal(lanes, outputs, taps, taps, inputs, seed=1).permute(0, 1, 4, 2, 3).requires_grad_()
    bias = normal(lanes, outputs, seed=2)
    parts = zip(x.split(batch), w, bias, strict=True)
    expected = torch.cat([F.conv2d(one, own, add, stride, padding, dilation) for one, own, add in parts])
    wide = in_fours(x.detach())
    assert wide.shape[1] % 4 == 0
    y = convolve(wide, w.detach(), bias, geometry)
    torch.testing.assert_close(y, expected, **CLOSE)
    assert not y._is_view()  # or autograd forbids to change it in place
    g = inner(normal(*expected.shape, seed=3))
    of_x, of_w = torch.autograd.grad(expected, (x, w), g)
    torch.testing.assert_close(input_gradient(g, w.detach(), (size, size), geometry), of_x, **CLOSE)
    for tile, flat in ((None, None), (Tile(16, 16, 16, 4, 1), None), (None, True)):  # the small one cuts long sums into parts
        found = torch.full_like(of_w, float("nan"))
        weight_gradient(wide, g, found, geometry, tile, flat)
        torch.testing.assert_close(found, of_w, rtol=1e-3, atol=1e-3)


# lanes, images a lane, channels, kernel, stride, padding, dilation, size
DEPTHWISE = [(2, 3, 8, 3, 1, 1, 1, 9), (3, 2, 24, 3, 2, 1, 1, 8), (1, 2, 16, 5, 2, 2, 1, 11), (2, 1, 130, 3, 1, 2, 2, 7)]


@pytest.mark.parametrize("shape", DEPTHWISE, ids=str)
def test_depthwise_convolutions_with_a_weight_for_each_lane(shape):
    lanes, batch, channels, taps, stride, padding, dilation, size = shape
    geometry = Geometry(stride, (padding, padding), dilation)
    x = inner(normal(lanes * batch, channels, size, size)).requires_grad_()
    w = normal(lanes, channels, 1, taps, taps, seed=1).requires_grad_()
    parts = zip(x.split(batch), w, strict=True)
    expected = torch.cat([F.conv2d(one, own, None, stride, padding, dilation, channels) for one, own in parts])
    y = depthwise_kernels.convolve(x.detach(), w.detach(), geometry)
    torch.testing.assert_close(y, expected, **CLOSE)
    assert not y._is_view()
    g = inner(normal(*expected.shape, seed=3))
    of_x, of_w = torch.autograd.grad(expected, (x, w), g)
    torch.testing.assert_close(depthwise_kernels.input_gradient(g, w.detach(), (size, size), geometry), of_x, **CLOSE)
    found = torch.full_like(of_w, float("nan"))
    depthwise_kernels.weight_gradient(x.detach(), g, found, geometry)
    torch.testing.assert_close(found, of_w, **CLOSE)


FOLLOWED = {"": (False, None), "rectified": (False, math.inf), "up to 1": (False, 1.0), "beside a shortcut": (True, math.inf)}


@pytest.mark.parametrize("lanes", [None, 1, 2])
@pytest.mark.parametrize("followed", FOLLOWED)
@pytest.mark.parametrize(("channels", "groups", "size"), [(8, 2, 5), (24, 3, 4), (64, 32, 7), (16, 16, 30), (20, 1, 1)])
def test_group_norm(channels, groups, size, followed, lanes):
    beside, cap = FOLLOWED[followed]
    x = inner(1 + normal(4, channels, size, size)).requires_grad_()
    shortcut = inner(normal(*x.shape, seed=4)).requires_grad_() if beside else None
    weight, bias = (None, None) if lanes is None else (normal(lanes, channels, seed=1), normal(lanes, channels, seed=2))
    detached = None if shortcut is None else shortcut.detach()
    normed = group_norm(x.detach(), weight, bias, groups, 1e-5, detached, cap)
    expected, inputs = F.group_norm(x, groups), [x, *([shortcut] if beside else [])]
    if lanes is not None:
        inputs += weight.requires_grad_(), bias.requires_grad_()
        expected = expected.unflatten(0, (lanes, -1)) * weight[:, None, :, None, None] + bias[:, None, :, None, None]
        expected = expected.flatten(0, 1)
    expected = cut_off(expected, shortcut, cap)
    torch.testing.assert_close(normed.y, expected, **CLOSE)
    g = inner(normal(*x.shape, seed=3))
    gradients = torch.autograd.grad(expected, inputs, g)
    own = None if weight is None else weight.detach()
    dx, total, product, passed = group_norm_gradient(g, x.detach(), own, normed, beside, cap)
    found = [dx, *([passed] if beside else [])]
    if lanes is not None:
        found += [lane_sums(table, torch.empty_like(weight)) for table in (product, total)]
    for one, gradient in zip(found, gradients, strict=True):
        torch.testing.assert_close(one, gradient, **CLOSE)


def test_what_is_not_a_number_is_not_cut_off():
    x = inner(normal(1, 4, 3, 3))
    x[0, 0, 0, 0] = float("nan")
    assert group_norm(x, None, None, 2, 1e-5, None, math.inf).y[0, :2].isnan().all()


@pytest.mark.parametrize("mean", [10.0, 1000.0])
def test_group_norm_of_numbers_far_from_zero(mean):
    x = inner(mean + normal(2, 16, 12, 12)).requires_grad_()
    normed = group_norm(x.detach(), None, None, 4, 1e-5)
    expected = F.group_norm(x.double(), 4)
    torch.testing.assert_close(normed.y.double(), expected, rtol=0, atol=1e-6 * mean)
    g = inner(normal(*x.shape, seed=1))
    (of_x,) = torch.autograd.grad(expected, x, g.double())
    torch.testing.assert_close(group_norm_gradient(g, x.detach(), None, normed)[0], of_x, rtol=0, atol=1e-6 * mean)


def test_sums_of_lanes_go_into_rows_that_lie_apart():
    a, out = normal(6, 130), torch.zeros(3, 200, device=DEVICE)
    lane_sums(a, out[:, 10:140])
    torch.testing.assert_close(out[:, 10:140], a.view(3, 2, 130).sum(1), **CLOSE)
    assert out[:, :10].eq(0).all()
    assert out[:, 140:].eq(0).all()
    images = inner(normal(6, 5, 30, 30))
    torch.testing.assert_close(channel_sums(images, 3), images.view(3, 2, 5, 900).sum((1, 3)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("taps", "stride", "padding", "size"), [(2, 2, 0, 8), (3, 2, 1, 9), (3, 1, 1, 5), (2, 2, 0, 5), (3, 3, 0, 10), (3, 3, 0, 9)]
)
def test_max_pooling(taps, stride, padding, size):
    x = inner(normal(3, 5, size, size).mul(2).round()).requires_grad_()  # with ties
    expected = F.max_pool2d(x, taps, stride, padding)
    y, which = max_pool(x.detach(), taps, stride, padding)
    assert torch.equal(y, expected)
    assert not y._is_view()
    g = inner(normal(*expected.shape, seed=1))
    (of_x,) = torch.autograd.grad(expected, x, g)
    torch.testing.assert_close(max_pool_gradient(g, which, (size, size), taps, stride, padding), of_x)


def test_what_is_not_a_number_is_the_largest():
    x = inner(normal(1, 1, 4, 4))
    x[0, 0, 1, 0] = float("nan")
    y, _ = max_pool(x, 2, 2, 0)
    torch.testing.assert_close(y, F.max_pool2d(x, 2, 2), equal_nan=True)


def test_bad_rows_become_zero_and_good_ones_stay():
    matrix = normal(4, 10_000)
    matrix[1, 3], matrix[2] = float("nan"), float("inf")
    expected = matrix.clone()
    expected[1:3] = 0
    padded = torch.nn.functional.pad(matrix, (0, 48))
    found = clear_rows_(padded[:, :10_000], torch.tensor([False, True, True, False], device=DEVICE))
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("decay", "momentum", "nesterov"), [(0, 0, False), (0.01, 0, False), (0.01, 0.9, False), (0, 0.9, True)])
@pytest.mark.parametrize("first", [False, True])
def test_a_step_in_one_pass_is_the_rule_s_and_the_last_one_leaves_the_update(decay, momentum, nesterov, first):
    rule = SGD(momentum=momentum, nesterov=nesterov, weight_decay=decay)
    w, g, v = normal(3, 5000), normal(3, 5000, seed=1).to(torch.bfloat16), normal(3, 5000, seed=2)
    start = normal(5000, seed=3).expand(3, -1) if first else w
    expected, vectors = start.clone(), {"momentum": v.clone()}
    x, ends = normal(5000, seed=4), torch.tensor([0, 1, 0], dtype=torch.uint8, device=DEVICE)
    rule.step(expected, g, vectors, Context(x, 0.1))
    copy = torch.zeros(3, 6000, dtype=torch.bfloat16, device=DEVICE)[:, 500:5500]
    descend_(start, w, g, v if momentum else None, copy, x, ends, 0.1, decay, momentum, nesterov)
    torch.testing.assert_close(w[::2], expected[::2], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(w[1], expected[1] - x, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(v, vectors["momentum"], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(copy[::2], w[::2].to(torch.bfloat16))


@pytest.mark.parametrize(("lanes", "rows", "channels"), [(1, 1, 1), (3, 10, 200), (2, 70, 33)])
def test_a_bias_of_each_lane_is_added_in_place(lanes, rows, channels):
    y, bias = normal(lanes, rows, channels), normal(lanes, channels + 8, seed=1)[:, 4:-4]
    expected = y + bias[:, None]
    assert add_to_channels_(y, bias) is y
    torch.testing.assert_close(y, expected)
