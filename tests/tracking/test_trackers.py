import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedlens import Recipe, train
from fedlens.tracking.trackers import TRACKERS


class Recorder:
    """Stands for a library: remembers every call, and answers each with itself."""

    def __init__(self, calls, name=""):
        self.calls, self.name = calls, name

    def __getattr__(self, name):
        return Recorder(self.calls, f"{self.name}.{name}")

    def __call__(self, *arguments, **options):
        self.calls.append((self.name, arguments, options))
        return None if self.name.endswith("get_experiment_by_name") else self


def run(population, linear, quiet, out, *trackers):
    recipe = Recipe(name="tracked", rounds=3, cohort_size=2, evaluation={"every": 2}, trackers=trackers)
    return train(recipe, model=linear, population=population, out=out, terminal=quiet)


def test_tensorboard_holds_the_numbers_of_the_history(population, linear, quiet, tmp_path):
    result = run(population, linear, quiet, tmp_path / "run", "tensorboard")
    events = EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    found = [(event.step, pytest.approx(event.value)) for event in events.Scalars("test/accuracy")]
    assert found == [(row["round"], row["test/accuracy"]) for row in result.history if "test/accuracy" in row]
    assert len(events.Scalars("train/loss")) == 3


def test_weights_and_biases_hears_of_every_round(population, linear, quiet, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setitem(sys.modules, "wandb", Recorder(calls))
    result = run(population, linear, quiet, tmp_path / "run", {"name": "wandb", "project": "mine", "mode": "offline"})
    assert calls[0][0] == ".init"
    assert calls[0][2] | {"config": None} == {
        "project": "mine", "name": "tracked", "mode": "offline", "dir": str(tmp_path / "run"), "config": None
    }  # fmt: skip
    logged = [(options["step"], arguments[0]["train/loss"]) for name, arguments, options in calls if name.endswith(".log")]
    assert logged == [(row["round"], row["train/loss"]) for row in result.history]
    assert calls[-1][0].endswith(".finish")


def test_mlflow_hears_of_every_round(population, linear, quiet, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setitem(sys.modules, "mlflow", Recorder(calls))
    result = run(population, linear, quiet, tmp_path / "run", "mlflow")
    logged = [
        (options["step"], arguments[2])
        for name, arguments, options in calls
        if "log_metric" in name and arguments[1] == "train/loss"
    ]
    assert logged == [(row["round"], row["train/loss"]) for row in result.history]
    assert calls[-1][0].endswith("set_terminated")


@pytest.mark.parametrize("name", [entry.name for entry in TRACKERS])
def test_trackers_are_imported_only_when_asked_for_and_say_what_to_install(population, linear, quiet, tmp_path, monkeypatch, name):
    module = {"tensorboard": "torch.utils.tensorboard"}.get(name, name)
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    run(population, linear, quiet, tmp_path / "without")
    with pytest.raises(ImportError, match=r"pip install 'fedlens\[tracking\]'"):
        run(population, linear, quiet, tmp_path / "with", name)
    assert not (tmp_path / "with").exists()


def test_importing_fedlens_imports_no_tracker():
    script = "import sys, fedlens; print(sorted({'wandb', 'mlflow', 'tensorboard'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_trackers_need_a_folder(population, linear, quiet):
    with pytest.raises(ValueError, match="needs the run's folder"):
        run(population, linear, quiet, None, "tensorboard")
