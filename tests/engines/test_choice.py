"""Which engine trains: what was asked for, or what applies; and a run by lanes from end to end."""

from typing import ClassVar

import pytest
import torch
from rich.console import Console
from torch import nn

from fedlens import Recipe, RecipeError, load_recipe, train
from fedlens.algorithms.local_rules import SGD
from fedlens.engines import Lanes, Sequential, choose
from fedlens.experiment import Experiment
from fedlens.tasks import Classification
from fedlens.tracking.run_folder import RunFolder


class OneByOne(SGD):
    """Cannot be computed for many clients at once."""

    in_lanes: ClassVar[bool] = False


def reference(population, model):
    task = Classification()
    return Sequential(model, task, task.facts(population.data), population, 0, torch.device("cpu"))


def test_without_a_gpu_clients_are_trained_one_by_one_unless_asked_otherwise(population, linear):
    engine = reference(population, linear)
    assert choose("auto", engine, SGD(), alone=False) == (engine, "no GPU")
    assert choose("sequential", engine, SGD(), alone=False) == (engine, "as asked")
    assert isinstance(choose("lanes", engine, SGD(), alone=False)[0], Lanes)


def test_on_a_gpu_lanes_are_taken_where_they_apply(population, linear, monkeypatch):
    engine = reference(population, linear)
    monkeypatch.setattr(engine, "device", torch.device("cuda"))
    monkeypatch.setattr("fedlens.engines.choice.Lanes", lambda reference: "lanes")
    assert choose("auto", engine, SGD(), alone=False) == ("lanes", "many clients at once")
    assert choose("auto", engine, SGD(), alone=True) == (engine, "one client at a time")
    assert choose("auto", engine, OneByOne(), alone=False)[0] is engine


@pytest.mark.parametrize(
    ("rule", "layer", "message"),
    [
        (OneByOne(), nn.Identity(), "trains one client at a time"),
        (SGD(), nn.BatchNorm1d(10, track_running_stats=False), "BatchNorm without running statistics"),
    ],
)
def test_lanes_that_do_not_apply_are_refused_with_the_reason(population, linear, quiet, rule, layer, message):
    work = {"name": "steps", "batch_size": 5}
    recipe = Recipe(rounds=1, cohort_size=2, engine="lanes", local_rule=rule, local_work=work)
    with pytest.raises(RecipeError, match=f"engine: lanes cannot be used: .*{message}.*use engine=sequential"):
        train(recipe, model=nn.Sequential(*linear, layer), population=population, terminal=quiet)


def test_the_run_says_which_engine_it_took_and_why(population, linear, tmp_path):
    with open(tmp_path / "shown", "w") as file:
        settings = {"rounds": 1, "cohort_size": 2, "engine": "lanes", "device": "cpu"}
        result = train(Recipe(**settings), model=linear, population=population, terminal=Console(file=file))
    assert "lanes engine (as asked)" in (tmp_path / "shown").read_text().replace("\n", " ")
    assert result.summary["engine"] == "lanes"
    assert 0 < result.history[0]["fill"] <= 1


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_recipe_trained_by_lanes_learns_what_the_reference_learns(quiet, precision):
    changes = [
        "rounds=3",
        "cohort_size=5",
        "data.partition.clients=400",
        f"precision={precision}",
        "task.train_transforms=[horizontal_flip]",
    ]
    runs = [train(load_recipe("quickstart", [*changes, f"engine={name}"]), terminal=quiet) for name in ("sequential", "lanes")]
    change = [run.state.x.cpu() for run in runs]
    error = (change[0] - change[1]).norm() / change[0].norm()
    assert error < (1e-4 if precision == "float32" else 1e-2)
    losses = [[row["train/loss"] for row in run.history] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3 if precision == "float32" else 2e-2)


def test_lanes_end_with_the_same_bits_whether_stopped_or_not(quiet, tmp_path, monkeypatch):
    changes = ["rounds=3", "cohort_size=5", "data.partition.clients=400", "engine=lanes", "checkpoint_seconds=0"]
    recipe = load_recipe("quickstart", [*changes, "local_rule.momentum=0.5", "local_rule.keep_momentum=true"])
    whole = train(recipe, out=tmp_path / "whole", terminal=quiet)
    append = RunFolder.append

    def interrupted(folder, row):
        if row["round"] == 2:
            raise KeyboardInterrupt
        append(folder, row)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, out=tmp_path / "cut", terminal=quiet)
    resumed = train(recipe, out=tmp_path / "cut", resume=True, terminal=quiet)
    assert torch.equal(resumed.state.x, whole.state.x)
    assert (tmp_path / "cut/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


class Counting(nn.Module):
    """Asks for a number of its input, which nothing vectorised can give."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(10))

    def forward(self, x):
        return x * self.scale * float(x.detach().sum() * 0 + self.scale.detach()[0] * 0 + 1)


def test_a_model_that_cannot_be_vectorised_is_trained_one_by_one(population, linear, quiet, monkeypatch):
    model = nn.Sequential(*linear, Counting())
    with pytest.raises(RecipeError, match="a trial evaluation failed"):
        train(Recipe(rounds=1, cohort_size=2, engine="lanes"), model=model, population=population, terminal=quiet)
    monkeypatch.setattr("fedlens.experiment.choose", lambda wanted, reference, *rest, **also: (Lanes(reference), "many"))
    experiment = Experiment.of(Recipe(rounds=1, cohort_size=2), model, population)
    assert experiment.engine.name == "sequential"
    assert experiment.why.startswith("no lanes: a trial evaluation failed")


class Mixed(nn.Module):
    """What lanes cannot know: images that look at each other, tokens before images, a parent that reads a child's weight."""

    def __init__(self, how):
        super().__init__()
        self.how, self.first, self.norm, self.last = how, nn.Linear(49, 16), nn.LayerNorm(16), nn.Linear(16, 10)

    def forward(self, x):
        x = self.first(x)
        if self.how == "images that look at each other":
            x = x - x.mean(0)
        elif self.how == "a child's weight":
            return self.last(x * self.norm.weight)
        elif self.how == "tokens first":
            return self.last(self.norm(x)[None].expand(4, -1, -1)).mean(0)
        return self.last(self.norm(x))


@pytest.mark.parametrize("how", ["images that look at each other", "a child's weight", "tokens first"])
def test_lanes_that_would_compute_something_else_are_refused(population, linear, quiet, how):
    model = nn.Sequential(linear[0], linear[1], Mixed(how))
    settings = {"rounds": 1, "cohort_size": 2, "local_work": {"name": "steps", "batch_size": 4, "steps": 2}}
    train(Recipe(**settings, engine="sequential"), model=model, population=population, terminal=quiet)
    with pytest.raises(RecipeError, match=r"something else than the clients one by one|a trial of 3 clients failed"):
        train(Recipe(**settings, engine="lanes"), model=model, population=population, terminal=quiet)


def test_lanes_that_compute_the_same_are_taken(population, linear, quiet):
    model = nn.Sequential(linear[0], linear[1], Mixed(""))
    assert train(Recipe(rounds=1, cohort_size=2, engine="lanes"), model=model, population=population, terminal=quiet).history


class OwnScale(nn.Module):
    """A parameter of its own, and a BatchNorm below it."""

    def __init__(self):
        super().__init__()
        self.scale, self.norm = nn.Parameter(torch.ones(10)), nn.BatchNorm1d(10)

    def forward(self, x):
        return self.norm(x) * self.scale


def test_running_statistics_that_would_be_lost_are_refused(population, linear, quiet):
    settings = {"rounds": 1, "cohort_size": 2, "local_work": {"name": "steps", "batch_size": 4, "steps": 2}}
    with pytest.raises(RecipeError, match="OwnScale holds running statistics"):
        train(Recipe(**settings, engine="lanes"), model=nn.Sequential(*linear, OwnScale()), population=population, terminal=quiet)


@pytest.mark.parametrize("size", [2, 4])
def test_batch_norm_is_compared_in_batches_that_it_can_take(population, linear, quiet, size):
    """Not in smaller ones than the run has: BatchNorm takes no batch of one."""
    settings = {"rounds": 1, "cohort_size": 2, "engine": "lanes", "local_work": {"name": "steps", "batch_size": size, "steps": 2}}
    model = nn.Sequential(*linear, nn.BatchNorm1d(10))
    assert train(Recipe(**settings), model=model, population=population, terminal=quiet).summary["engine"] == "lanes"
