import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import yaml
from typer.testing import CliRunner

import fedlens
from fedlens.cli import app
from fedlens.data import FashionMNISTMini
from fedlens.recipe import load_recipe, packaged_recipes

SMALL = ["quickstart", "rounds=2", "cohort_size=2", "data.partition.clients=200", "evaluation.every=2"]
LONG = ["quickstart", "rounds=4000", "cohort_size=1", "data.partition.clients=1000", "evaluation.every=4000"]


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("command", ["run", "resume", "recipes", "show"])
def test_every_command_explains_itself_with_an_example(command):
    text = call(command, "--help").stdout
    assert "Example" in text
    assert f"fedlens {command}" in text


def test_version():
    assert call("--version").stdout == f"fedlens {fedlens.__version__}\n"


def test_recipes_lists_every_recipe_and_what_it_is():
    listed = json.loads(call("recipes", "--json").stdout)
    assert [entry["name"] for entry in listed] == packaged_recipes()
    text = " ".join(call("recipes").stdout.split())
    assert all(" ".join(entry["description"].split())[:30] in text for entry in listed)


def test_show_prints_what_can_be_run_again():
    printed = yaml.safe_load(call("show", "quickstart", "rounds=3").stdout)
    assert (
        printed
        == load_recipe("quickstart", ["rounds=3"]).to_dict()
        == json.loads(call("show", "quickstart", "rounds=3", "--json").stdout)
    )


def test_run_trains_writes_its_folder_and_prints_a_table_or_json(tmp_path):
    result = call("run", *SMALL, "--out", tmp_path / "run", "--seed", 3)
    assert result.exit_code == 0, result.output
    assert "test accuracy" in result.stdout
    assert str(tmp_path / "run") in result.stdout.replace("\n", "")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        ".lock", "recipe.yaml", "manifest.json", "metrics.jsonl", "summary.json", "model.safetensors", "checkpoints"
    }  # fmt: skip
    as_json = json.loads(call("run", *SMALL, "--out", tmp_path / "other", "--seed", 3, "--json").stdout)
    assert as_json["seed"] == 3
    assert as_json["final"] == json.loads((tmp_path / "run/summary.json").read_text())["final"]
    assert (tmp_path / "run/model.safetensors").read_bytes() == (tmp_path / "other/model.safetensors").read_bytes()


def test_a_recipe_file_that_show_printed_gives_the_same_run(tmp_path):
    (tmp_path / "again.yaml").write_text(call("show", *SMALL).stdout)
    call("run", *SMALL, "--out", tmp_path / "one")
    call("run", tmp_path / "again.yaml", "--out", tmp_path / "other")
    assert (tmp_path / "one/model.safetensors").read_bytes() == (tmp_path / "other/model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "quickstrat"], 2, "did you mean 'quickstart'"),
        (["run", "quickstart", "rounds=0"], 2, "recipe quickstart: rounds"),
        (["run", "quickstart", "task.classes=5"], 2, "labels must lie in"),
        (["run", "quickstart", "data.source={name: packed, path: /nowhere}"], 2, "data.source.path: /nowhere/train is missing"),
        (["run", "quickstart", "model.pretrained=/nowhere.pth"], 2, "no weights file '/nowhere.pth'"),
        (["run", "quickstart", "--device", "cuda:77"], 2, "cuda:77"),
        (["show", "quickstart", "rounds"], 2, "dotted.key=value"),
        (["run", "quickstart", "name=../up"], 2, "can name a folder"),
        (["run", *SMALL, "--out", "/dev/null"], 3, "cannot be used as a run's folder"),
        (["resume", "/nowhere"], 3, "holds no run"),
        (["run"], 2, "Missing argument"),
        (["fly"], 2, "No such command"),
    ],
)
def test_mistakes_are_one_line_and_a_meaningful_code(arguments, code, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert result.exit_code == code
    assert message in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.output


def test_an_argument_that_is_no_text_is_refused_before_anything_else():
    done = subprocess.run([sys.executable, "-m", "fedlens", "run", b"\xff.yaml"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "fedlens: argument '\\udcff.yaml' is not a text in UTF-8\n")


@pytest.mark.parametrize("name", ["1e3", "007", "1.10"])
def test_a_run_whose_name_looks_like_a_number_goes_on(tmp_path, name):
    call("run", *SMALL, f"name={name}", "--out", tmp_path / "run")
    result = call("resume", tmp_path / "run", "--json")
    assert (result.exit_code, json.loads(result.stdout)["name"]) == (0, name)


def test_a_broken_data_set_is_an_error_of_the_recipe(tmp_path):
    for split in ("train", "test"):
        FashionMNISTMini().load().train.save(tmp_path / split)
    (tmp_path / "test/label.npy").write_bytes(b"")
    result = call("run", *SMALL, f"data.source={{name: packed, path: {tmp_path}}}", "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"fedlens: recipe quickstart: {tmp_path}/test/label.npy is missing or damaged")
    assert not (tmp_path / "run").exists()


def test_resume_of_a_changed_recipe_shows_the_difference(tmp_path):
    call("run", *SMALL, "--out", tmp_path / "run")
    path = tmp_path / "run/recipe.yaml"
    path.write_text(path.read_text().replace("learning_rate: 0.1", "learning_rate: 0.7"))
    result = call("resume", tmp_path / "run")
    assert result.exit_code == 3
    assert "recipe.local_rule.learning_rate: 0.1 → 0.7" in result.stderr


def start(folder):
    """A long run in a process of its own, in the midst of training."""
    command = [sys.executable, "-m", "fedlens", "run", *LONG, "--out", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        if (folder / "metrics.jsonl").exists() and (folder / "metrics.jsonl").stat().st_size > 0:
            return process
        time.sleep(0.1)
    process.kill()
    raise AssertionError(process.communicate())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_cleanly_says_how_to_go_on_and_refuses_company_meanwhile(tmp_path, number):
    process = start(tmp_path / "run")
    second = call("resume", tmp_path / "run")
    assert (second.exit_code, f"in use by process {process.pid}" in second.stderr.replace("\n", " ")) == (3, True)
    process.send_signal(number)
    time.sleep(0.004)
    process.send_signal(signal.SIGINT)  # an impatient second time, which must not cost what was done
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"go on with: fedlens resume {tmp_path / 'run'}" in errors.replace("\n", " ")
    assert "Traceback" not in errors
    done = int(re.search(r"stopped after round (\d+) of 4000", errors)[1])
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) >= done > 0
    assert (tmp_path / "run/checkpoints/last.safetensors").exists()


def test_a_terminal_that_knows_few_letters_gets_what_it_can_show():
    command = [sys.executable, "-m", "fedlens", "show", "quickstart", "description=Zoë"]
    for extra, expected in (([], "Zo\\xeb"), (["--json"], "Zo\\u00eb")):
        done = subprocess.run([*command, *extra], capture_output=True, text=True, env=os.environ | {"PYTHONIOENCODING": "ascii"})
        assert (done.returncode, expected in done.stdout) == (0, True)


def test_data_are_described_before_anything_is_trained():
    result = call("data", "describe", "quickstart", "data.partition.alpha=0")
    assert result.exit_code == 0
    assert re.search(r"clients\W+100", result.stdout)
    assert re.search(r"classes of a client\W+1 … 1, median 1.0", result.stdout)
    found = json.loads(call("data", "describe", "quickstart", "data.partition.alpha=0", "data.validation=0.1", "--json").stdout)
    assert found["mean_earth_movers_distance"] == pytest.approx(1.8)  # 2 (1 − 1/C)
    assert found["sizes"]["min"] == found["sizes"]["max"] == 90
    assert found["largest_tenth_holds"] == pytest.approx(0.1)
    assert found["label_counts"] == dict.fromkeys(found["label_counts"], 900)
    assert found["evaluation"]["validation"]["clients"] == 100
    assert found["evaluation"]["test"]["examples"] == 2000
    for wrong in ("data.source=nothing", "data.partition={name: pathological, classes: 11}"):
        refused = call("data", "describe", "quickstart", wrong)
        assert (refused.exit_code, "Traceback" in refused.output) == (2, False)
