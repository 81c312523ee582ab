"""Classification: its loss and its metrics."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlens.data import Examples
from fedlens.tasks import Classification, Facts

CPU = torch.device("cpu")


def facts(classes: int) -> Facts:
    return Facts(classes, tuple(f"class {c}" for c in range(classes)), (0.5,), (0.5,))


def examples(label: np.ndarray, channels: int = 3, **known) -> Examples:
    return Examples({"image": np.zeros((len(label), 2, 2, channels), np.uint8), "label": label}, "mine", **known)


def measurements(count: int = 40, classes: int = 5, groups: int = 3, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = np.random.default_rng(seed)
    return (
        torch.from_numpy(generator.normal(size=(count, classes)).astype(np.float32)),
        torch.from_numpy(generator.integers(0, classes, count)),
        torch.from_numpy(generator.integers(0, groups, count)),
    )


def add_up(
    task: Classification, outputs: Tensor, targets: Tensor, group: Tensor, groups: int, cuts: list[int]
) -> dict[str, Tensor]:
    sums = task.begin_sums(facts(outputs.shape[1]), groups, CPU)
    edges = [0, *sorted(cuts), len(outputs)]
    for start, stop in pairwise(edges):
        task.add(sums, outputs[start:stop], targets[start:stop], group[start:stop])
    return sums


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_the_loss_of_each_example_is_pytorchs_cross_entropy(label_smoothing):
    outputs, targets, _ = measurements()
    losses = Classification(label_smoothing=label_smoothing).loss(outputs, targets)
    each = [F.cross_entropy(outputs[i : i + 1], targets[i : i + 1], label_smoothing=label_smoothing) for i in range(len(outputs))]
    assert losses.shape == (40,)
    torch.testing.assert_close(losses, torch.stack(each))


def test_label_smoothing_mixes_the_uniform_distribution_in():
    outputs, targets, _ = measurements()
    log_shares = outputs.double().numpy() - np.log(np.exp(outputs.double().numpy()).sum(axis=1, keepdims=True))
    truth = 0.9 * np.eye(5)[targets] + 0.1 / 5
    np.testing.assert_allclose(
        Classification(label_smoothing=0.1).loss(outputs, targets), -(truth * log_shares).sum(axis=1), rtol=1e-5
    )


@given(count=st.integers(1, 30), classes=st.integers(4, 6), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_metrics_are_their_definitions(count, classes, seed):
    outputs, targets, group = measurements(count, classes, 3, seed)
    task = Classification(top_k=(2, 3))
    metrics = task.metrics(add_up(task, outputs, targets, group, 3, []), facts(classes))
    scores, labels = outputs.numpy().astype(np.float64), targets.numpy()
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(count), labels]
    rank = (scores > scores[np.arange(count), labels][:, None]).sum(axis=1)
    of_class = {c: (rank[labels == c] == 0).mean() for c in set(labels.tolist())}
    expected = {"loss": losses.mean(), "accuracy": (rank == 0).mean(), "top2_accuracy": (rank < 2).mean()}
    expected["top3_accuracy"] = (rank < 3).mean()
    expected |= {"macro_accuracy": np.mean(list(of_class.values()))} | {f"accuracy/class {c}": of_class[c] for c in of_class}
    assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-6)


@given(cuts=st.lists(st.integers(0, 40), max_size=6))
@settings(max_examples=30, deadline=None)
def test_measurements_of_any_batches_add_up_to_the_same(cuts):
    task, measured = Classification(top_k=(2, 3)), measurements()
    whole, parts = add_up(task, *measured, 3, []), add_up(task, *measured, 3, cuts)
    for name, values in whole.items():
        torch.testing.assert_close(parts[name], values, rtol=1e-6 if name == "loss" else 0, atol=0, msg=name)


def test_measurements_of_two_machines_can_be_added():
    task, (outputs, targets, group) = Classification(), measurements()
    whole = add_up(task, outputs, targets, group, 3, [])
    halves = [add_up(task, outputs[part], targets[part], group[part], 3, []) for part in (slice(0, 13), slice(13, None))]
    added = {name: halves[0][name] + halves[1][name] for name in whole}
    assert task.metrics(added, facts(5)) == pytest.approx(task.metrics(whole, facts(5)))


def test_each_client_has_the_metrics_of_its_own_examples_and_none_without_any():
    task, (outputs, targets, group) = Classification(), measurements()
    group = group * 2  # of clients 0 … 5, the odd ones have none
    of_clients = task.group_metrics(add_up(task, outputs, targets, group, 6, [7]))
    for client in range(6):
        mine = group == client
        if not mine.any():
            assert of_clients["accuracy"][client].isnan()
            assert of_clients["loss"][client].isnan()
            continue
        alone = task.metrics(add_up(task, outputs[mine], targets[mine], torch.zeros_like(group[mine]), 1, []), facts(5))
        assert {name: float(values[client]) for name, values in of_clients.items()} == pytest.approx(
            {name: alone[name] for name in ("loss", "accuracy")}
        )
    assert of_clients["accuracy"].isnan().sum() == 3


def test_classes_are_counted_for_each_client():
    sums = add_up(Classification(), *measurements(), 3, [])
    _, targets, group = measurements()
    expected = [[int(((group == client) & (targets == label)).sum()) for label in range(5)] for client in range(3)]
    assert sums["class_examples"].tolist() == expected
    assert torch.equal(sums["class_correct"].sum(dim=1), sums["correct"])


def test_many_small_losses_add_up_without_loss_of_precision():
    """In float32 the sum would stop to grow."""
    task, count = Classification(), 2**12
    sums = task.begin_sums(facts(2), 1, CPU)
    sums["loss"] += 2.0**24
    outputs, targets = torch.zeros(count, 2), torch.zeros(count, dtype=torch.int64)
    for i in range(0, count, 1024):
        task.add(sums, outputs[i : i + 1024], targets[i : i + 1024], torch.zeros(1024, dtype=torch.int64))
    assert sums["loss"].item() - 2.0**24 == pytest.approx(count * np.log(2), rel=1e-6)


def test_accuracy_of_classes_is_left_out_if_not_wanted():
    task, measured = Classification(per_class=False), measurements()
    assert set(task.metrics(add_up(task, *measured, 3, []), facts(5))) == {"loss", "accuracy", "macro_accuracy"}


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "int64"])
def test_labels_of_any_integers_can_be_learnt_and_measured(dtype):
    task, data = Classification(top_k=(2,)), examples(np.array([0, 2, 1], dtype))
    known = task.facts(data)
    batch = {name: torch.from_numpy(data.column(name)) for name in task.columns}
    inputs, targets = task.prepare(batch, known, (), None)
    outputs = torch.eye(3)[[0, 2, 2]]
    assert inputs.shape == (3, 3, 2, 2)
    torch.testing.assert_close(task.loss(outputs, targets), F.cross_entropy(outputs, torch.tensor([0, 2, 1]), reduction="none"))
    sums = task.begin_sums(known, 1, CPU)
    task.add(sums, outputs, targets, torch.zeros(3, dtype=torch.int64))
    assert sums["class_correct"].tolist() == [[1, 0, 1]]


def test_facts_come_from_the_settings_or_the_names_of_classes_or_the_labels():
    label = np.array([0, 3, 1])
    assert Classification(classes=7).facts(examples(label)).classes == 7
    assert Classification().facts(examples(label, class_names=tuple("abcde"))).classes == 5
    assert Classification().facts(examples(label)).classes == 4
    assert Classification().facts(examples(np.zeros(3, int))).classes == 2
    assert Classification().facts(examples(label, class_names=tuple("abcd"))).class_names == ("a", "b", "c", "d")
    assert Classification(classes=5).facts(examples(label, class_names=tuple("abcd"))).class_names == ("0", "1", "2", "3", "4")


def test_mean_and_deviation_are_those_of_the_data_or_a_half():
    label = np.array([0, 1])
    known = Classification().facts(examples(label, mean=(0.1, 0.2, 0.3), standard_deviation=(0.4, 0.5, 0.6)))
    assert (known.mean, known.standard_deviation) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    known = Classification().facts(examples(label, channels=1))
    assert (known.mean, known.standard_deviation) == ((0.5,), (0.5,))


@pytest.mark.parametrize(
    ("task", "data", "message"),
    [
        (
            {},
            examples(np.array([0.0, 1.0])),
            r"classification needs integer labels \[N\] that int64 can hold; column 'label' is float64 \(2,\)",
        ),
        ({}, examples(np.array([[0], [1]])), r"needs integer labels \[N\] that int64 can hold; column 'label' is int64 \(2, 1\)"),
        ({}, examples(np.array([0, 1], np.uint64)), r"that int64 can hold; column 'label' is uint64 \(2,\)"),
        ({"classes": 3}, examples(np.array([0, 3])), "labels must lie in 0…2; found 0…3"),
        ({}, examples(np.array([-1, 3])), "labels must lie in 0…3; found -1…3"),
        ({"classes": 5, "top_k": [5]}, examples(np.array([0, 3])), r"task\.top_k: 5 must be less than the number of classes, 5"),
        ({}, examples(np.array([0, 1]), mean=(0.5,)), "1 means for images with 3 channels"),
        ({}, examples(np.array([0, 1]), standard_deviation=(1.0, 1.0)), "2 standard deviations for images with 3 channels"),
    ],
)
def test_data_that_do_not_fit_are_refused(task, data, message):
    with pytest.raises(ValueError, match=message):
        Classification(**task).facts(data)


def test_the_best_round_is_that_of_highest_accuracy():
    assert Classification().best_metric == ("accuracy", True)


@pytest.mark.parametrize("shape", [(4, 2), (4, 4), (4, 3, 1), (3, 3), (4,)])
def test_outputs_of_another_shape_than_images_by_classes_are_refused(shape):
    task = Classification()
    facts = task.facts(examples(np.array([0, 1, 2, 0])))
    sums = task.begin_sums(facts, 1, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"outputs have shape \[.*\]; expected \[images, classes\], \[4, 3\]"):
        task.add(sums, torch.zeros(shape), torch.tensor([0, 1, 2, 0]), torch.zeros(4, dtype=torch.long))
