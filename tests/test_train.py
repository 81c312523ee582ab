import contextlib
import copy
import json
import random
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import nn

from fedlens import Recipe, RecipeError, load_recipe, train
from fedlens.algorithms.aggregators import WeightedMean
from fedlens.algorithms.local_rules import SGD
from fedlens.algorithms.samplers import Uniform
from fedlens.algorithms.server_rules import SERVER_RULES, ServerMomentum, ServerSGD
from fedlens.data import Assignment, Examples, Federation
from fedlens.experiment import Experiment
from fedlens.tracking.run_folder import RunFolder, RunFolderError

BASE = {"rounds": 5, "cohort_size": 3, "local_work": {"batch_size": 5}, "local_rule": {"learning_rate": 0.2}}


def vector(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.fixture
def run(population, linear, quiet):
    """Train on the small population with BASE and what is given."""

    def go(population=population, model=linear, out=None, resume=False, terminal=quiet, **settings):
        return train(Recipe(**(BASE | settings)), model=model, population=population, out=out, resume=resume, terminal=terminal)

    return go


def only(population, client):
    return replace(population, train=Federation(population.data, population.train.clients.only(client)))


def scores(result):
    return [{name: value for name, value in row.items() if not name.startswith("seconds/")} for row in result.history]


def test_one_client_is_local_sgd(run, population, linear):
    result = run(only(population, 4), cohort_size=1, rounds=1, local_work={"batch_size": 30}, local_rule={"learning_rate": 0.1})
    model, data = copy.deepcopy(linear), population.data
    ids = population.train.clients.of_client(4)
    images = (torch.from_numpy(data.column("image")[ids]).permute(0, 3, 1, 2).float() / 255 - 0.286) / 0.353
    nn.functional.cross_entropy(model(images), torch.from_numpy(data.column("label")[ids])).backward()
    expected = vector(model) - 0.1 * torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(vector(result.model), expected, rtol=1e-4, atol=1e-6)


def test_fedavg_is_the_average_of_the_clients_models_weighted_by_their_sizes(run, population):
    clients = [0, 1, 4, 5]
    alone = [vector(run(only(population, k), cohort_size=1, rounds=1, local_work={"batch_size": 30}).model) for k in clients]
    together = run(sampler="all", cohort_size=6, rounds=1, local_work={"batch_size": 30})
    sizes = population.sizes
    # client 3 holds a single picture
    alone.append(vector(run(only(population, 3), cohort_size=1, rounds=1).model))
    weights = torch.tensor(sizes[[*clients, 3]] / sizes.sum(), dtype=torch.float32)
    torch.testing.assert_close(vector(together.model), weights @ torch.stack(alone))


def test_fedavgm_without_momentum_is_fedavg(run):
    assert scores(run(server_rule=ServerMomentum(momentum=0.0))) == scores(run(server_rule=ServerSGD()))


def test_centralised_training_is_one_client_with_all_examples(run, population):
    central = run(setting="centralised", cohort_size=1)
    ids = np.sort(population.train.clients.examples)
    pooled = replace(population, train=Federation(population.data, Assignment(np.array([0, len(ids)]), ids)))
    assert torch.equal(vector(central.model), vector(run(pooled, cohort_size=1, server_rule=ServerSGD()).model))


def test_centralised_training_keeps_its_momentum_from_round_to_round(run):
    rule = {"learning_rate": 0.05, "momentum": 0.9}
    # one pass in order: two rounds of one epoch have other shuffles than one round of two, so compare full batches
    twice = run(setting="centralised", cohort_size=1, rounds=2, local_work={"batch_size": 100}, local_rule=rule)
    once = run(setting="centralised", cohort_size=1, rounds=1, local_work={"batch_size": 100, "epochs": 2}, local_rule=rule)
    torch.testing.assert_close(vector(twice.model), vector(once.model), rtol=1e-4, atol=1e-6)


def test_local_training_trains_each_client_from_the_same_model_and_averages_nothing(run, population):
    result = run(setting="local", sampler="all", cohort_size=6, rounds=2)
    assert len(result.history) == 12
    for client in (0, 4, 5):
        alone = run(setting="local", rounds=2, sampler="all", cohort_size=1, population=only(population, client))
        row, expected = result.history[2 * client + 1], alone.history[1]
        assert row["client"] == population.train.clients.client_name(client)
        if client == 0:  # keys of later clients hold their own number, and so other shuffles
            assert row["test/accuracy"] == expected["test/accuracy"]
        assert row["images"] == expected["images"]
    finals = [row["test/accuracy"] for row in result.history if "test/accuracy" in row and row["round"] % 2 == 0]
    assert result.summary["clients"]["test/accuracy"]["mean"] == pytest.approx(np.mean(finals))
    assert result.summary["clients"]["test/accuracy"]["max"] == max(finals)
    assert result.summary["best"] is None


def test_two_runs_with_one_seed_have_the_same_bits_and_another_seed_has_others(run):
    one, other = run(), run()
    assert scores(one) == scores(other)
    assert torch.equal(vector(one.model), vector(other.model))
    assert not torch.equal(vector(one.model), vector(run(seed=1).model))


def test_a_round_in_which_every_update_is_bad_leaves_the_model_and_goes_on(run, linear):
    result = run(local_rule={"learning_rate": 1e30}, sampler="all", cohort_size=6)
    assert torch.equal(vector(result.model), vector(linear))
    assert result.summary["void_rounds"] == 5
    assert set(result.history[0]["rejected"]) == {"client a", "client b", "client d", "client e", "client f"}
    assert (result.history[0]["admitted"], result.history[0]["empty"], result.history[0]["train/loss"]) == (0, 1, None)


def test_buffers_that_nobody_changes_come_back_as_they_were(run):
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    given = {
        "mean": torch.tensor([0.485, 0.456, 0.406]),
        "mask": torch.tensor([0.0, -np.inf]),
        "offsets": torch.tensor([-1, 3, -7]),
    }
    for name, value in given.items():
        model.register_buffer(name, value)
    result = run(model=model, sampler="all", cohort_size=6)
    assert result.summary["rejected"] == 0
    for name, value in given.items():
        assert torch.equal(result.model.get_buffer(name), value)


def test_the_highest_rates_that_a_recipe_takes_do_not_end_a_run(run):
    schedule = {"name": "linear", "final": 1e6}
    for server in ("sgd", "momentum"):
        run(local_rule={"learning_rate": 1e30, "schedule": schedule}, server_rule={"name": server})
        run(server_rule={"name": server, "learning_rate": 1e30, "schedule": schedule})
    for name, floor in (("adam", "epsilon"), ("adagrad", "tau"), ("yogi", "tau")):
        run(server_rule={"name": name, "learning_rate": 1e30, "schedule": schedule, floor: 1e15})


class Mixed(nn.Module):
    """A frozen backbone in bfloat16 with tied weights, and a state that is no tensor."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(784, 784).bfloat16().requires_grad_(False)
        self.same = nn.Linear(784, 784).bfloat16().requires_grad_(False)
        self.same.weight = self.backbone.weight
        self.head = nn.Linear(784, 10)

    def forward(self, x):
        return self.head(self.same(self.backbone(x.flatten(1).bfloat16())).float())

    def get_extra_state(self):
        return {"version": 1}

    def set_extra_state(self, state):
        assert state == {"version": 1}


def test_weights_of_other_types_are_written_as_they_are_and_what_is_no_tensor_is_not(run, tmp_path):
    model = Mixed()
    result, again = (run(model=model, out=tmp_path / name) for name in ("one", "other"))
    expected = {name: value for name, value in result.model.state_dict().items() if isinstance(value, torch.Tensor)}
    for name in ("model.safetensors", "checkpoints/best.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
    found = load_file(tmp_path / "one/model.safetensors")
    assert found["backbone.weight"].dtype == torch.bfloat16
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in found)
    Mixed().load_state_dict(found, strict=False)
    assert again.summary["parameters"] == result.summary["parameters"]


def test_an_empty_cohort_is_a_void_round(run, linear):
    result = run(sampler="poisson", cohort_size=1, rounds=12)
    empty = [row for row in result.history if row["cohort"] == 0]
    assert empty
    assert all(row["admitted"] == 0 and row["bytes_up"] == 0 for row in empty)


def test_what_is_sent_is_counted(run):
    result = run(sampler="all", cohort_size=6)
    numbers = 500  # 49 × 10 weights and 10 biases
    assert result.summary["bytes"] == {
        "up": 5 * 6 * 4 * (numbers + 1),
        "down": 5 * 6 * 4 * numbers,
        "up_per_round": 6 * 4 * (numbers + 1),
        "down_per_round": 6 * 4 * numbers,
    }


def test_the_summary_holds_what_a_paper_s_table_needs(run, tmp_path):
    result = run(out=tmp_path / "run")
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary == json.loads(json.dumps(result.summary))
    assert summary["seconds"]["total"] == pytest.approx(sum(summary["seconds"][part] for part in ("train", "evaluate", "other")))
    accuracies = [row["test/accuracy"] for row in result.history]
    assert summary["final"]["test/accuracy"] == accuracies[-1]
    assert summary["best"]["value"] == max(accuracies)
    assert accuracies[summary["best"]["round"] - 1] == max(accuracies)
    assert summary["parameters"] == {"parameters": 500, "trainable": 500, "sent_numbers": 500}
    assert summary["recipe"]["local_rule"]["learning_rate"] == 0.2
    assert summary["images"] == sum(row["images"] for row in result.history)


def test_the_trained_model_is_the_one_that_was_measured(run, population):
    result, data = run(), population.data
    ids = population.test.clients.examples
    images = (torch.from_numpy(data.column("image")[ids]).permute(0, 3, 1, 2).float() / 255 - 0.286) / 0.353
    accuracy = (result.model(images).argmax(1) == torch.from_numpy(data.column("label")[ids])).float().mean()
    assert accuracy.item() == pytest.approx(result.summary["final"]["test/accuracy"])


def test_the_distribution_over_clients_is_reported(run):
    row = run().history[-1]
    assert row["test/clients/accuracy/min"] <= row["test/clients/accuracy/median"] <= row["test/clients/accuracy/max"]
    weighted = 20 / 60 * row["test/clients/accuracy/min"] + 40 / 60 * row["test/clients/accuracy/max"]
    other = 40 / 60 * row["test/clients/accuracy/min"] + 20 / 60 * row["test/clients/accuracy/max"]
    assert row["test/accuracy"] == pytest.approx(weighted) or row["test/accuracy"] == pytest.approx(other)


def test_evaluation_happens_when_it_is_due_and_after_the_last_round(run):
    assert [row["round"] for row in run(evaluation={"every": 2}).history if "test/accuracy" in row] == [2, 4, 5]


class Stop(BaseException):
    """Ends a run as a power cut would: nobody catches it."""


@pytest.mark.parametrize("rule", [entry.name for entry in SERVER_RULES])
def test_a_run_that_was_cut_off_and_resumed_ends_with_the_same_bits(run, tmp_path, monkeypatch, rule):
    settings = {
        "server_rule": {"name": rule},
        "local_rule": {"momentum": 0.5, "keep_momentum": True},
        "checkpoint_seconds": 0,
    }
    model = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(1, 4, 5), nn.BatchNorm2d(4), nn.Dropout(0.3), nn.Flatten(), nn.Linear(400, 10))
    whole = run(model=model, out=tmp_path / "whole", **settings)
    monkeypatch.setattr(SGD, "update", cut_off(after=8))
    with pytest.raises(Stop):
        run(model=model, out=tmp_path / "cut", **settings)
    monkeypatch.undo()
    rows = (tmp_path / "cut/metrics.jsonl").read_text().splitlines()
    assert len(rows) == 2
    with open(tmp_path / "cut/metrics.jsonl", "a") as file:
        file.write(rows[-1].replace('"round": 2', '"round": 3') + '\n{"torn')  # written after the checkpoint
    resumed = run(model=model, out=tmp_path / "cut", resume=True, **settings)
    assert scores(resumed) == scores(whole)
    for name in ("model.safetensors", "checkpoints/best.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert resumed.state.best == whole.state.best
    assert len(resumed.state.kept) > 0


def cut_off(after):
    """The update of a local rule, until it was called so many times."""
    calls, update = [], SGD.update

    def step(self, w, context):
        calls.append(1)
        if len(calls) > after:
            raise Stop
        return update(self, w, context)

    return step


@pytest.mark.parametrize("moment", ["before", "after"])
def test_ctrl_c_while_a_round_is_recorded_leaves_a_run_that_goes_on(run, tmp_path, monkeypatch, moment):
    append = RunFolder.append

    def interrupted(self, row):
        if moment == "after" or row["round"] < 3:
            append(self, row)
        if row["round"] == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(out=tmp_path / "cut")
    monkeypatch.undo()
    assert scores(run(out=tmp_path / "cut", resume=True)) == scores(run())


def test_a_finished_run_can_be_opened_again_and_says_the_same(run, tmp_path):
    first = run(out=tmp_path / "run")
    again = run(out=tmp_path / "run", resume=True)
    assert again.summary == first.summary


def test_a_run_is_not_resumed_with_another_recipe_data_or_model(run, tmp_path, population, linear):
    run(out=tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"recipe\.local_rule\.learning_rate: 0\.2 → 0\.3"):
        run(out=tmp_path / "run", resume=True, local_rule={"learning_rate": 0.3})
    with pytest.raises(RunFolderError, match=r"data\.clients: 6 → 1"):
        run(out=tmp_path / "run", resume=True, population=only(population, 4), cohort_size=1)
    with torch.no_grad():
        linear[2].weight[0, 0] += 1
    with pytest.raises(RunFolderError, match="initial_weights"):
        run(out=tmp_path / "run", resume=True, model=linear)


def test_a_checkpoint_without_its_manifest_is_not_taken(run, tmp_path):
    run(out=tmp_path / "run")
    path = tmp_path / "run/manifest.json"
    manifest = json.loads(path.read_text())
    for missing in ("sessions", "recipe", "data", "model"):
        path.write_text(json.dumps({key: value for key, value in manifest.items() if key != missing}))
        with pytest.raises(RunFolderError, match=rf"manifest\.json is damaged \(no {missing}\)"):
            run(out=tmp_path / "run", resume=True)
    for sessions in ([], {}, [3], None):
        path.write_text(json.dumps({**manifest, "sessions": sessions}))
        with pytest.raises(RunFolderError, match=r"damaged \(no sessions\)"):
            run(out=tmp_path / "run", resume=True)
    path.unlink()
    with pytest.raises(RunFolderError, match=r"manifest\.json is missing"):
        run(out=tmp_path / "run", resume=True, local_rule={"learning_rate": 0.3})
    assert not path.exists()
    path.write_text(json.dumps(manifest))
    run(out=tmp_path / "run", resume=True)


class Proximal(SGD):
    """A rule of one's own, registered nowhere."""

    def gradient(self, g, w, context):
        return g + 5.0 * (w - context.x)


def test_a_rule_of_one_s_own_goes_on_from_python_and_is_never_taken_for_its_parent(run, tmp_path, monkeypatch):
    settings = {"local_rule": Proximal(learning_rate=0.2), "checkpoint_seconds": 0}
    whole = run(out=tmp_path / "whole", **settings)
    assert not torch.equal(vector(whole.model), vector(run().model))
    monkeypatch.setattr(SGD, "update", cut_off(after=8))
    with pytest.raises(Stop):
        run(out=tmp_path / "cut", **settings)
    monkeypatch.undo()
    with pytest.raises(RecipeError, match=r"local_rule: local rule '.*\.Proximal' is not registered"):
        load_recipe(tmp_path / "cut/recipe.yaml")
    with pytest.raises(RunFolderError, match=r"recipe\.local_rule\.name: '.*\.Proximal' → 'sgd'"):
        run(out=tmp_path / "cut", resume=True, checkpoint_seconds=0)
    assert torch.equal(vector(run(out=tmp_path / "cut", resume=True, **settings).model), vector(whole.model))


def test_a_folder_that_holds_a_run_is_not_overwritten(run, tmp_path):
    run(out=tmp_path / "run")
    before = (tmp_path / "run/metrics.jsonl").read_text()
    with pytest.raises(RunFolderError, match="already holds a run"):
        run(out=tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.tex").write_text("do not lose me")
    with pytest.raises(RunFolderError, match=r"not empty \(it holds thesis\.tex\)"):
        run(out=tmp_path / "other")
    assert (tmp_path / "run/metrics.jsonl").read_text() == before


def test_missing_parts_are_asked_for(population, linear, quiet):
    for given, message in (({"model": linear}, "data: is missing"), ({"population": population}, "model: is missing")):
        with pytest.raises(RecipeError, match=message):
            train(Recipe(**BASE), terminal=quiet, **given)


def test_data_that_do_not_fit_the_task_are_an_error_of_the_recipe(quiet):
    with pytest.raises(RecipeError, match=r"recipe quickstart: .*labels must lie in"):
        train(load_recipe("quickstart", ["task.classes=5"]), terminal=quiet)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([0, 1, -1, 1] * 50), r"labels must lie in 0…1; found -1…1"),
        (np.array(["cat", "dog"] * 100), "needs integer labels"),
        (np.zeros((200, 2), np.int64), r"needs integer labels \[N\]"),
        (np.array([0, 1] * 100, np.uint64), "that int64 can hold; column 'label' is uint64"),
    ],
)
def test_labels_that_do_not_fit_are_refused_before_a_partition_goes_by_them(tmp_path, linear, quiet, labels, message):
    Examples({"image": np.zeros((200, 28, 28, 1), np.uint8), "label": labels}).save(tmp_path / "data/train")
    data = {"source": {"name": "packed", "path": tmp_path / "data"}, "partition": {"name": "hsu_dirichlet", "clients": 4}}
    with pytest.raises(RecipeError, match=message):
        train(Recipe(**BASE, data=data), model=linear, out=tmp_path / "run", terminal=quiet)
    assert not (tmp_path / "run").exists()


def test_validation_examples_are_held_out_of_each_client_and_choose_the_best_round(quiet):
    changes = ["rounds=2", "data.validation=0.2", "data.partition.clients=20", "cohort_size=2"]
    result = train(load_recipe("quickstart", changes), terminal=quiet)
    assert result.summary["best"]["metric"] == "validation/accuracy"
    assert result.summary["data"]["train_examples"] == 8000
    assert result.summary["data"]["evaluation"] == {"validation": 2000, "test": 2000}


IMPOSSIBLE = {
    "a crop larger than the picture": (
        {"task": {"train_transforms": [{"name": "random_crop", "size": 40}]}},
        "size 40 is larger than the image",
    ),
    "a crop that the model cannot take": (
        {"task": {"train_transforms": [{"name": "random_crop", "size": 24}]}},
        "a trial step failed, on 1 images of a client",
    ),
    "an evaluation that the model cannot take": (
        {"task": {"evaluation_transforms": [{"name": "center_crop", "size": 20}]}},
        "a trial evaluation failed, on 2 images of the test set",
    ),
    "too few weights for the classes": (
        {"task": {"example_weights": {"name": "by_class", "weights": [1, 2]}}},
        "2 weights for labels up to",
    ),
    "a pattern that matches nothing": (
        {"local_rule": {"learning_rate_factors": {"head.*": 2.0}}},
        r"no trainable parameter matches 'head\.\*'",
    ),
    "batches that nobody can fill": (
        {"local_work": {"batch_size": 64, "last_batch": "drop"}},
        "no client holds enough for a batch of 64",
    ),
    "nobody to train alone": (
        {"setting": "local", "sampler": "poisson", "cohort_size": 1, "seed": 7},
        "drew no client",
    ),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_what_cannot_be_run_is_refused_before_anything_is_written(run, tmp_path, what):
    settings, message = IMPOSSIBLE[what]
    with pytest.raises(RecipeError, match=message):
        run(out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_a_batch_of_one_before_batch_norm_is_refused(run, tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.BatchNorm1d(10))
    with pytest.raises(RecipeError, match="a trial step failed, on 1 images"):  # client d holds a single picture
        run(model=model, out=tmp_path / "run")
    assert run(model=model, local_work={"name": "steps", "batch_size": 5, "steps": 1}).summary["rounds"] == 5


class Odd(nn.Module):
    """A linear model that goes wrong in the way that it is told."""

    def __init__(self, forward):
        super().__init__()
        self.linear, self.odd = nn.Linear(784, 10), forward

    def forward(self, x):
        return self.odd(self, self.linear(x.flatten(1)))


def refuse(error):
    raise error


def shared_buffers():
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.BatchNorm1d(784), nn.Linear(784, 10))
    model[2].running_mean = model[1].running_mean
    return model


OLD_WEIGHT_NORM = "ignore:.*weight_norm.*is deprecated"
ODD_MODELS = {
    "a failed assertion without a text": (
        lambda: Odd(lambda self, y: refuse(AssertionError())),
        "trial evaluation.*: AssertionError$",
    ),
    "something not implemented": (lambda: Odd(lambda self, y: refuse(NotImplementedError("later\non"))), "trial.*: later on$"),
    "something wrong in training alone": (
        lambda: Odd(lambda self, y: refuse(AttributeError("what")) if self.training else y),
        "a trial step failed, on 1 images of a client: what",
    ),
    "a tuple of outputs": (lambda: Odd(lambda self, y: (y, y)), "'tuple' object"),
    "an output too few": (
        lambda: Odd(lambda self, y: y[:, :9]),
        r"outputs have shape \[2, 9\]; expected \[images, classes\], \[2, 10\]",
    ),
    "an output too many": (lambda: Odd(lambda self, y: torch.cat([y, y], 1)), r"outputs have shape \[2, 20\]"),
    "outputs with an axis too many": (lambda: Odd(lambda self, y: y[..., None]), r"outputs have shape \[2, 10, 1\]"),
    "a lazy module": (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(10)), "call a lazy module on a batch before"),
    "the old weight_norm": (
        lambda: nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(784, 10))),
        r"torch\.nn\.utils\.parametrizations",
    ),
    "dropout as a function": (
        lambda: Odd(lambda self, y: nn.functional.dropout(y, 0.5, self.training)),
        "draws from a global generator",
    ),
    "dropout where nothing is learnt": (
        lambda: Odd(lambda self, y: y if self.training else nn.functional.dropout(y, 0.5)),
        "draws from a global generator",
    ),
    "noise of NumPy's": (lambda: Odd(lambda self, y: y + np.random.random()), "draws from a global generator"),  # noqa: NPY002
    "noise of Python's": (lambda: Odd(lambda self, y: y + random.random()), "draws from a global generator"),
    "buffers that are one tensor": (lambda: shared_buffers(), r"'1\.running_mean' and '2\.running_mean' are one tensor"),
}


@pytest.mark.filterwarnings(OLD_WEIGHT_NORM)
@pytest.mark.parametrize("what", ODD_MODELS)
def test_a_model_that_cannot_be_trained_is_refused_in_a_line(run, tmp_path, what):
    make, message = ODD_MODELS[what]
    with pytest.raises(RecipeError, match=message) as caught:
        run(model=make(), out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_the_number_of_outputs_is_held_against_the_classes_without_an_evaluation_set_too(run, population):
    with pytest.raises(RecipeError, match=r"of the training set: the model's outputs have shape \[2, 9\]"):
        run(replace(population, test=None), model=Odd(lambda self, y: y[:, :9]))


def test_the_trial_leaves_pytorch_s_generator_alone(run):
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(784, 10))
    before = torch.get_rng_state()
    run(model=model)
    assert torch.equal(torch.get_rng_state(), before)


def test_alone_only_those_who_train_are_tried(run):
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.BatchNorm1d(10))
    drawn = {seed: Uniform().sample(np.ones(6), 1, seed, 0).tolist() for seed in range(20)}
    without = next(seed for seed, clients in drawn.items() if clients == [0])  # 13 pictures: batches of 7 and 6
    single = next(seed for seed, clients in drawn.items() if clients == [3])  # the client with one picture
    settings = {"model": model, "setting": "local", "cohort_size": 1, "local_work": {"batch_size": 7}}
    assert run(**settings, seed=without).summary["rounds"] == 5
    with pytest.raises(RecipeError, match="a trial step failed, on 1 images"):
        run(**settings, seed=single)


def columns(population, **changed):
    data = population.test.data
    rows = {"image": data.column("image")[:60], "label": data.column("label")[:60]} | changed
    test = Examples({name: values for name, values in rows.items() if values is not None}, "the test set")
    return replace(population, test=Federation.pooled(test))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"label": np.full(60, 10)}, r"labels must lie in 0…9; found 0…10"),
        ({"label": None}, "no column 'label'"),
        ({"image": np.zeros((60, 20, 20, 1), np.uint8)}, "a trial evaluation failed"),
        ({"image": np.zeros((60, 28, 28, 3), np.uint8)}, "3 channels"),
        ({"image": np.zeros((0, 28, 28, 1), np.uint8), "label": np.zeros(0, np.int64)}, "the test set is empty"),
    ],
)
def test_evaluation_sets_are_held_against_the_task(run, population, changed, message):
    with pytest.raises(RecipeError, match=message):
        run(columns(population, **changed))


def test_where_nothing_is_federated_nothing_is_sent(run):
    assert run().summary["bytes"]["up"] > 0
    for setting in ("centralised", "local"):
        assert run(setting=setting).summary["bytes"] == {"up": 0, "down": 0, "up_per_round": 0, "down_per_round": 0}


def test_alone_a_client_without_examples_of_its_own_to_measure_on_has_no_accuracy(run, population):
    clients = population.train.clients
    own = replace(population, validation=Federation(population.data, clients))  # client c holds nothing
    result = run(own, setting="local", sampler="all", cohort_size=6, rounds=1)
    assert [row["validation/accuracy"] is None for row in result.history] == [size == 0 for size in clients.sizes]


def test_an_answer_of_somebody_unknown_is_named_by_its_id(population):
    assert population.train.clients.client_name(1) == "client b"
    assert population.train.clients.client_name(17) == "17"
    assert population.train.clients.client_name(-1) == "-1"


def test_the_trial_takes_batches_as_they_will_be(run, population):
    """A BatchNorm over parts of the batch, which takes no two images but every eight."""

    class Ghost(nn.BatchNorm1d):
        def forward(self, x):
            return (
                torch.cat([super(Ghost, self).forward(part) for part in x.view(-1, 4, 10)]) if self.training else super().forward(x)
            )

    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10), Ghost(10))
    assert run(model=model, local_work={"batch_size": 8, "last_batch": "drop"}).summary["rounds"] == 5


def test_a_cohort_that_weighs_nothing_leaves_the_model_as_it_is(run, population):
    class Picky(WeightedMean):
        def weights(self, sizes):
            return torch.zeros_like(sizes)

    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.BatchNorm1d(10))
    work = {"name": "steps", "batch_size": 5}
    result = run(model=model, aggregator=Picky(), local_work=work)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in result.model.state_dict().items())


@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_damaged_best_is_noticed_and_sought_anew(run, tmp_path, damage):
    run(out=tmp_path / "run", rounds=3)
    best = tmp_path / "run/checkpoints/best.safetensors"
    if damage == "gone":
        best.unlink()
    else:
        content = bytearray(best.read_bytes())
        content[-9] ^= 1
        best.write_bytes(content)
    with open(tmp_path / "shown", "w") as file:
        again = run(out=tmp_path / "run", rounds=3, resume=True, terminal=Console(file=file, width=500))
    assert "best.safetensors is damaged or gone" in (tmp_path / "shown").read_text()
    assert again.summary["best"] is None


def test_an_interrupt_that_python_swallows_ends_the_run_with_the_round(run, tmp_path, monkeypatch):
    append = RunFolder.append

    def swallowed(self, row):
        append(self, row)
        if row["round"] == 2:
            with contextlib.suppress(KeyboardInterrupt):  # as a finaliser would
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(RunFolder, "append", swallowed)
    with pytest.raises(KeyboardInterrupt):
        run(out=tmp_path / "cut")
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert len((tmp_path / "cut/metrics.jsonl").read_text().splitlines()) == 2
    assert scores(run(out=tmp_path / "cut", resume=True)) == scores(run())


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([], "100 clients, hsu_dirichlet 3.0, EMD"),
        (["data.partition.counts=multinomial"], "100 clients, hsu_dirichlet 3.0 multinomial, EMD"),
        (["data.partition={name: shards, clients: 20}"], "20 clients, shards 2, EMD"),
    ],
)
def test_the_first_line_says_in_short_how_the_data_are_divided(overrides, said):
    assert said in Experiment.of(load_recipe("quickstart", overrides)).headline()
