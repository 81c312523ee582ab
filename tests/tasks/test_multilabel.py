"""Several labels an image: the task's loss and metrics, the same in lanes, and learnt from pictures of shapes."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, precision_recall_fscore_support
from torch import Tensor, nn

from fedlens import Recipe, train
from fedlens.algorithms.local_rules import SGD
from fedlens.algorithms.local_work import Epochs
from fedlens.data import Assignment, Examples, Federation, Population
from fedlens.data.sources.shapes import Shapes
from fedlens.engines import Lanes, Sequential
from fedlens.engines.packing import Limits
from fedlens.tasks import Facts, MultiLabel

CPU = torch.device("cpu")


def facts(classes: int) -> Facts:
    return Facts(classes, tuple(f"class {c}" for c in range(classes)), (0.5,), (0.5,))


def examples(labels: np.ndarray, column: str = "labels", channels: int = 3, **known) -> Examples:
    return Examples({"image": np.zeros((len(labels), 2, 2, channels), np.uint8), column: labels}, "mine", **known)


def measurements(count: int = 40, classes: int = 5, groups: int = 3, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs that know something, targets (of the last class none), groups in no order."""
    generator = np.random.default_rng(seed)
    targets = generator.random((count, classes)) < generator.uniform(0.1, 0.6, classes)
    targets[:, -1] = False
    return (
        torch.from_numpy((2 * generator.normal(size=(count, classes)) + targets).astype(np.float32)),
        torch.from_numpy(targets),
        torch.from_numpy(generator.integers(0, groups, count)),
    )


def add_up(task: MultiLabel, outputs: Tensor, targets: Tensor, group: Tensor, groups: int, cuts=()) -> dict[str, Tensor]:
    sums = task.begin_sums(facts(outputs.shape[1]), groups, CPU)
    for start, stop in pairwise([0, *sorted(cuts), len(outputs)]):
        task.add(sums, outputs[start:stop], targets[start:stop], group[start:stop])
    return sums


def measured(task: MultiLabel, outputs: Tensor, targets: Tensor) -> dict[str, float]:
    alone = torch.zeros(len(outputs), dtype=torch.int64)
    return task.metrics(add_up(task, outputs, targets, alone, 1), facts(outputs.shape[1]))


def ap_of(targets: Tensor, outputs: Tensor) -> float:
    return average_precision_score(targets.numpy(), outputs.numpy()) if targets.any() else 0.0  # it warns, and says 0 too


def test_the_loss_of_each_example_is_the_mean_of_its_classes_cross_entropies():
    outputs, targets, _ = measurements()
    score = 1 / (1 + np.exp(-outputs.double().numpy()))
    expected = -np.where(targets, np.log(score), np.log(1 - score)).mean(axis=1)
    np.testing.assert_allclose(MultiLabel().loss(outputs, targets), expected, rtol=1e-5)
    torch.testing.assert_close(
        MultiLabel().loss(outputs, targets).mean(), F.binary_cross_entropy_with_logits(outputs, targets.float())
    )


@given(count=st.integers(1, 40), classes=st.integers(2, 6), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_metrics_are_scikit_learns_and_f1_is_the_harmonic_mean_of_averages(count, classes, seed):
    outputs, targets, _ = measurements(count, classes, seed=seed)
    metrics, predicted = measured(MultiLabel(), outputs, targets), outputs.sigmoid() > 0.5
    expected = {"loss": MultiLabel().loss(outputs, targets).mean().item()}
    for kind in ("macro", "micro"):
        numbers = precision_recall_fscore_support(targets.numpy(), predicted.numpy(), average=kind, zero_division=0)
        precision, recall = numbers[:2]
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        expected |= {f"{kind}_precision": precision, f"{kind}_recall": recall, f"{kind}_f1": f1}
    expected["macro_exact_ap"] = np.mean([ap_of(targets[:, c], outputs[:, c]) for c in range(classes)])
    expected["micro_exact_ap"] = ap_of(targets.flatten(), outputs.flatten())
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-5, abs=1e-6)
    of_class = [value for name, value in metrics.items() if name.startswith("ap/")]
    assert metrics["macro_ap"] == pytest.approx(sum(of_class) / classes)  # those that do not occur count 0


def test_binned_and_exact_ap_are_nearly_the_same_on_many_images():
    outputs, targets, _ = measurements(4000)
    metrics = measured(MultiLabel(), outputs, targets)
    for kind in ("macro", "micro"):
        assert metrics[f"{kind}_ap"] == pytest.approx(metrics[f"{kind}_exact_ap"], abs=0.01)
        assert metrics[f"{kind}_ap"] != metrics[f"{kind}_exact_ap"]


def test_f1_is_no_mean_of_f1s():
    """P = (1, ½) and R = (½, 1): each class's F1 is ⅔, that of the means ¾."""
    targets = torch.tensor([[1, 1], [1, 0]]).bool()
    predicted = torch.tensor([[1, 1], [0, 1]]) * 2.0 - 1
    metrics = measured(MultiLabel(), predicted, targets)
    assert [metrics[f"macro_{name}"] for name in ("precision", "recall", "f1")] == pytest.approx([0.75] * 3)


def test_all_right_with_a_class_that_never_occurs():
    targets = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 0]]).bool()
    metrics = measured(MultiLabel(), targets * 20.0 - 10, targets)
    for name in ("ap", "exact_ap", "precision", "recall", "f1"):
        assert metrics[f"micro_{name}"] == pytest.approx(1), name
        assert metrics[f"macro_{name}"] == pytest.approx(0.75), name
    assert {name for name in metrics if name.startswith("ap/")} == {"ap/class 0", "ap/class 1", "ap/class 2"}
    assert metrics["loss"] == pytest.approx(math.log1p(math.exp(-10)), rel=0.01)


def test_all_wrong():
    """Each class's one positive of three comes last."""
    targets = torch.eye(3).bool()
    metrics = measured(MultiLabel(), 10 - targets * 20.0, targets)
    for kind in ("macro", "micro"):
        assert [metrics[f"{kind}_{name}"] for name in ("precision", "recall", "f1")] == [0, 0, 0]
        assert metrics[f"{kind}_ap"] == metrics[f"{kind}_exact_ap"] == pytest.approx(1 / 3)


def test_a_score_of_a_half_predicts_nothing():
    targets = torch.ones(2, 2).bool()
    assert measured(MultiLabel(), torch.zeros(2, 2), targets)["micro_recall"] == 0
    assert measured(MultiLabel(), torch.full((2, 2), 1e-6), targets)["micro_recall"] == 1


def test_outputs_whose_scores_are_rounded_to_one_are_still_ranked():
    outputs, targets = torch.tensor([[40.0], [30.0]]), torch.tensor([[True], [False]])
    metrics = measured(MultiLabel(), outputs, targets)
    assert (metrics["macro_exact_ap"], metrics["macro_ap"]) == (1, 0.5)


def test_outputs_that_are_no_numbers_break_nothing():
    outputs, targets, _ = measurements()
    metrics = measured(MultiLabel(), outputs * torch.nan, targets)
    assert math.isnan(metrics["loss"])
    assert metrics["micro_recall"] == 0


@given(cuts=st.lists(st.integers(0, 40), max_size=6))
@settings(max_examples=30, deadline=None)
def test_measurements_of_any_batches_add_up_to_the_same(cuts):
    task, given = MultiLabel(), measurements()
    whole, parts = add_up(task, *given, 3), add_up(task, *given, 3, cuts)
    for name, values in whole.items():
        torch.testing.assert_close(parts[name], values, rtol=1e-6 if name == "loss" else 0, atol=0, msg=name)


def test_measurements_of_two_machines_can_be_added_and_what_is_kept_joined():
    task, (outputs, targets, group) = MultiLabel(), measurements()
    whole = add_up(task, outputs, targets, group, 3)
    halves = [add_up(task, outputs[part], targets[part], group[part], 3) for part in (slice(0, 13), slice(13, None))]
    kept = {"scores", "targets", "group"}
    added = {name: torch.cat([h[name] for h in halves]) if name in kept else halves[0][name] + halves[1][name] for name in whole}
    assert task.metrics(added, facts(5)) == pytest.approx(task.metrics(whole, facts(5)))
    assert not kept & MultiLabel(exact=False).begin_sums(facts(5), 3, CPU).keys()


def test_without_exact_ap_all_other_numbers_are_the_same():
    given = measurements()
    with_scores, without = (MultiLabel(exact=exact) for exact in (True, False))
    known = with_scores.metrics(add_up(with_scores, *given, 3), facts(5))
    rest = {name: value for name, value in known.items() if "exact" not in name}
    assert without.metrics(add_up(without, *given, 3), facts(5)) == rest
    assert set(without.group_metrics(add_up(without, *given, 3))) == {"loss", "micro_f1"}


def test_each_client_has_the_metrics_of_its_own_examples_and_none_without_any():
    task, (outputs, targets, group) = MultiLabel(), measurements()
    group = group * 2  # of clients 0 … 5, the odd ones have none
    of_clients = task.group_metrics(add_up(task, outputs, targets, group, 6, [7]))
    for client in range(0, 6, 2):
        mine = group == client
        alone = measured(task, outputs[mine], targets[mine])
        expected = {name: alone[name] for name in ("loss", "micro_f1", "macro_exact_ap")}
        own = [c for c in range(5) if targets[mine, c].any()]
        expected["own_classes_exact_ap"] = np.mean([ap_of(targets[mine, c], outputs[mine, c]) for c in own])
        assert {name: float(values[client]) for name, values in of_clients.items()} == pytest.approx(expected, abs=1e-7)
    assert all(values[1::2].isnan().all() for values in of_clients.values())


def test_a_client_whose_images_show_nothing_has_no_ap_of_its_own_classes():
    task = MultiLabel()
    of_clients = task.group_metrics(add_up(task, torch.zeros(2, 3), torch.zeros(2, 3).bool(), torch.tensor([0, 0]), 1))
    assert of_clients["own_classes_exact_ap"].isnan().all()
    assert of_clients["macro_exact_ap"].tolist() == of_clients["micro_f1"].tolist() == [0]


def test_where_nothing_was_measured_there_is_nothing_to_report():
    task = MultiLabel()
    metrics = task.metrics(task.begin_sums(facts(4), 2, CPU), facts(4))
    assert "macro_ap" in metrics
    assert all(math.isnan(value) for value in metrics.values())


def test_the_users_and_the_fine_classes_of_flair_take_little_memory():
    sums = MultiLabel().begin_sums(facts(1628), 41_131, CPU)
    assert sum(values.nbytes for values in sums.values()) < 8e6


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU is waited for")
def test_measuring_does_not_wait_for_the_device():
    task, given = MultiLabel(), [values.cuda() for values in measurements()]
    sums = task.begin_sums(facts(5), 3, given[0].device)
    task.add(sums, *given)
    torch.cuda.set_sync_debug_mode("error")
    try:
        task.add(sums, *given)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_classes_are_reported_by_name_up_to_a_hundred_or_as_wanted():
    for classes, per_class, named in ((100, None, True), (101, None, False), (101, True, True), (3, False, False)):
        metrics = measured(MultiLabel(per_class=per_class), torch.zeros(1, classes), torch.ones(1, classes).bool())
        assert ("ap/class 2" in metrics) is named, (classes, per_class)


def test_the_number_and_the_names_of_classes_are_those_of_the_column():
    labels, names = np.zeros((2, 3), np.uint8), {"fine_labels": np.array(["x", "y", "z"])}
    assert MultiLabel().facts(examples(labels, class_names=("a", "b", "c"))).class_names == ("a", "b", "c")
    assert MultiLabel().facts(examples(labels, class_names=("a", "b"))).class_names == ("0", "1", "2")
    fine = MultiLabel(labels="fine_labels").facts(examples(labels, "fine_labels", class_names=("a", "b", "c"), categories=names))
    assert (fine.classes, fine.class_names) == (3, ("x", "y", "z"))
    unnamed = MultiLabel(labels="fine_labels").facts(examples(labels, "fine_labels", class_names=("a", "b", "c")))
    assert unnamed.class_names == ("0", "1", "2")  # the names are those of other classes


def test_mean_and_deviation_are_those_of_the_data_or_a_half():
    labels = np.zeros((2, 3), np.uint8)
    known = MultiLabel().facts(examples(labels, mean=(0.1, 0.2, 0.3), standard_deviation=(0.4, 0.5, 0.6)))
    assert (known.mean, known.standard_deviation) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert MultiLabel().facts(examples(labels, channels=1)).mean == (0.5,)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64"])
def test_labels_of_any_integers_can_be_learnt_and_measured(dtype):
    task, data = MultiLabel(), examples(np.array([[0, 1], [1, 1]], dtype))
    batch = {name: torch.from_numpy(data.column(name)) for name in task.columns}
    inputs, targets = task.prepare(batch, task.facts(data), (), None)
    assert inputs.shape == (2, 3, 2, 2)
    assert targets.tolist() == [[False, True], [True, True]]


@pytest.mark.parametrize(
    ("labels", "known", "message"),
    [
        (np.zeros(3, np.uint8), {}, r"multilabel needs zeros and ones \[N, C\]; column 'labels' is uint8 \(3,\)"),
        (np.zeros((3, 2)), {}, r"column 'labels' is float64 \(3, 2\)"),
        (np.zeros((3, 0), np.uint8), {}, r"column 'labels' is uint8 \(3, 0\)"),
        (np.array([[0, 2]]), {}, "column 'labels' must hold zeros and ones; found 0…2"),
        (np.array([[-1, 1]]), {}, "column 'labels' must hold zeros and ones; found -1…1"),
        (np.zeros((3, 2), np.uint8), {"mean": (0.5,)}, "1 means for images with 3 channels"),
        (np.zeros((3, 2), np.uint8), {"standard_deviation": (1.0,)}, "1 standard deviations for images with 3 channels"),
    ],
)
def test_data_that_do_not_fit_are_refused(labels, known, message):
    with pytest.raises(ValueError, match=message):
        MultiLabel().facts(examples(labels, **known))


def test_a_value_that_is_no_label_is_found_in_any_block(monkeypatch):
    monkeypatch.setattr("fedlens.tasks.multilabel.BLOCK", 4)
    labels = np.zeros((9, 2), np.uint8)
    MultiLabel().facts(examples(labels))
    labels[8, 1] = 3
    with pytest.raises(ValueError, match="found 0…3"):
        MultiLabel().facts(examples(labels))


def test_a_column_that_is_missing_is_named():
    with pytest.raises(KeyError, match="mine has no column 'fine_labels'; it has: image, labels"):
        MultiLabel(labels="fine_labels").facts(examples(np.zeros((2, 3), np.uint8)))


def test_evaluation_sets_with_other_classes_or_channels_are_refused():
    task, known = MultiLabel(), MultiLabel().facts(examples(np.zeros((2, 3), np.uint8)))
    with pytest.raises(ValueError, match="column 'labels' has 4 classes; the training set's has 3"):
        task.check(examples(np.zeros((2, 4), np.uint8)), known)
    with pytest.raises(ValueError, match="images with 1 channels; the training set's have 3"):
        task.check(examples(np.zeros((2, 3), np.uint8), channels=1), known)


@pytest.mark.parametrize("shape", [(4, 2), (4, 3, 1), (3, 3), (4,)])
def test_outputs_of_another_shape_than_images_by_classes_are_refused(shape):
    task = MultiLabel()
    with pytest.raises(ValueError, match=r"outputs have shape \[.*\]; expected \[images, classes\], \[4, 3\]"):
        task.add(task.begin_sums(facts(3), 1, CPU), torch.zeros(shape), torch.zeros(4, 3).bool(), torch.zeros(4, dtype=torch.int64))


def test_the_best_round_is_that_of_the_lowest_loss():
    assert MultiLabel().best_metric == ("loss", False)


@pytest.fixture(scope="module")
def shapes() -> Population:
    data = Shapes(users=10, images=120, size=16).load().train
    rows, ends = np.random.default_rng(0).permutation(90), np.array([0, 13, 17, 17, 18, 48, 55])
    test = Assignment(np.array([0, 10, 35]), rows[-35:])
    return Population(Federation(data, Assignment(ends, rows[:55])), test=Federation(data, test))


@pytest.mark.parametrize("limits", [Limits(8, 2, 0), Limits(10_000, 10_000, 10_000)], ids=["narrow", "wide"])
@pytest.mark.parametrize("labels", ["labels", "fine_labels"])
def test_lanes_compute_what_one_client_after_another_does(shapes, labels, limits):
    transforms = ({"name": "random_crop", "size": 14}, {"name": "horizontal_flip"}, {"name": "vertical_flip"})
    task = MultiLabel(labels=labels, train_transforms=transforms, evaluation_transforms=({"name": "resize", "size": 14},))
    known = task.facts(shapes.data)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layers = nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(288, known.classes)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    reference = Sequential(nn.Sequential(*layers), task, known, shapes, 7, device)
    clients, state, rule = shapes.train.clients, reference.begin(), SGD()
    plan = Epochs(batch_size=5, epochs=2).plan(clients.offsets, clients.examples, np.arange(6), 7, 3)
    engines = reference, Lanes(reference, limits)
    updates = [{}, {}]
    for engine, found in zip(engines, updates, strict=True):
        for chunk in engine.run(engine.prepare(plan, rule), state, rule, 0.5):
            found |= {int(client): (chunk.vectors[row].clone(), chunk.loss[row]) for row, client in enumerate(chunk.clients)}
    assert updates[0].keys() == updates[1].keys() == set(range(6))
    for client, (vector, loss) in updates[0].items():
        assert (updates[1][client][0] - vector).norm() <= 1e-4 * vector.norm()
        torch.testing.assert_close(updates[1][client][1], loss)
    assert updates[0][4][0].norm() > 0.1
    sums = [engine.evaluate(state, shapes.test, 7) for engine in engines]
    assert task.metrics(sums[1], known) == pytest.approx(task.metrics(sums[0], known), abs=1e-3)


@pytest.mark.parametrize(("labels", "learning_rate", "times"), [("labels", 0.1, 2.5), ("fine_labels", 0.5, 8)])
def test_it_learns_what_pictures_of_shapes_show(quiet, labels, learning_rate, times):
    source = {"users": 100, "images": 6000, "size": 28}
    recipe = Recipe(
        setting="centralised",
        rounds=3,
        cohort_size=1,
        data={"source": {"name": "shapes", **source}, "partition": "natural"},
        model={"name": "cnn_mcmahan"},
        task={"name": "multilabel", "labels": labels},
        local_work={"batch_size": 16},
        local_rule={"learning_rate": learning_rate, "momentum": 0.9, "clip_gradient_norm": 10},
        evaluation={"every": 3},
    )
    final = train(recipe, terminal=quiet).summary["final"]
    chance = Shapes(**source, pictures=False).load().test.column(labels).mean()  # AP of many scores drawn at random
    assert final["test/macro_ap"] > times * chance
    assert final["test/macro_ap"] == pytest.approx(final["test/macro_exact_ap"], abs=0.02)
    assert 2 * chance < final["test/clients/own_classes_exact_ap/median"] < 1
