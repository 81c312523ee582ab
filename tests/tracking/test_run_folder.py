import json
import subprocess
import sys

import pytest

from fedlens.tracking.run_folder import RunFolder, RunFolderError, new_path

HOLD = """
import sys, pathlib
from fedlens.tracking.run_folder import RunFolder
folder = RunFolder.open(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path):
    RunFolder.create(tmp_path / "run", "rounds: 3\n").close()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "run")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunFolderError, match=f"in use by process {holder.pid}"):
            RunFolder.open(tmp_path / "run")
    finally:
        holder.kill()
        holder.communicate()
    RunFolder.open(tmp_path / "run").close()


def test_rows_after_the_checkpoint_and_torn_lines_are_cut_off(tmp_path):
    folder = RunFolder.create(tmp_path / "run", "")
    for number in (1, 2, 3):
        folder.append({"round": number})
    folder.close()
    with open(tmp_path / "run/metrics.jsonl", "a") as file:
        file.write('{"round": 4, "tr')
    folder = RunFolder.open(tmp_path / "run")
    assert folder.rows(until=2) == [{"round": 1}, {"round": 2}]
    folder.append({"round": 3, "again": True})
    folder.close()
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"round": 1}, {"round": 2}, {"round": 3, "again": True}]


def test_metrics_with_fewer_rounds_than_the_checkpoint_are_refused(tmp_path):
    folder = RunFolder.create(tmp_path / "run", "")
    folder.append({"round": 1})
    with pytest.raises(RunFolderError, match="1 rounds, the checkpoint 2"):
        folder.rows(until=2)


def test_a_folder_without_a_run_is_not_opened(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(RunFolderError, match="holds no run"):
            RunFolder.open(path)


def test_new_runs_get_folders_of_their_own(tmp_path):
    paths = {new_path("quickstart", tmp_path) for _ in range(50)}
    assert len(paths) > 45
    assert {path.parent.name for path in paths} == {"quickstart"}


def test_a_line_torn_inside_a_character_is_cut_off(tmp_path):
    folder = RunFolder.create(tmp_path / "run", "")
    folder.append({"round": 1, "client": "Zoë"})
    folder.append({"round": 2, "client": "Zoë"})
    folder.close()
    path = tmp_path / "run/metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex("ë".encode()) + 1])
    folder = RunFolder.open(tmp_path / "run")
    assert folder.rows(until=1) == [{"round": 1, "client": "Zoë"}]
    folder.close()


def test_a_damaged_manifest_and_a_path_that_is_no_folder_are_said_in_a_line(tmp_path):
    folder = RunFolder.create(tmp_path / "run", "")
    (tmp_path / "run/manifest.json").write_text('{"recipe": {"na')
    with pytest.raises(RunFolderError, match=r"manifest\.json is damaged"):
        folder.read("manifest.json")
    folder.close()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file/below"):
        with pytest.raises(RunFolderError, match="cannot be used as a run's folder"):
            RunFolder.create(path, "")


@pytest.mark.parametrize("content", ["[]", "null", "[1]", "3", '"text"'])
def test_json_that_holds_no_keys_is_damaged(tmp_path, content):
    folder = RunFolder.create(tmp_path / "run", "")
    (tmp_path / "run/manifest.json").write_text(content)
    with pytest.raises(RunFolderError, match=r"manifest\.json is damaged"):
        folder.read("manifest.json")
    folder.close()


@pytest.mark.parametrize("line", ["3", "null", "{}", '{"round": "two"}'])
def test_a_line_of_the_metrics_that_is_no_round_ends_them(tmp_path, line):
    folder = RunFolder.create(tmp_path / "run", "")
    folder.append({"round": 1})
    folder.close()
    with open(tmp_path / "run/metrics.jsonl", "a") as file:
        file.write(line + "\n")
    folder = RunFolder.open(tmp_path / "run")
    assert folder.rows(until=1) == [{"round": 1}]
    with pytest.raises(RunFolderError, match="1 rounds, the checkpoint 2"):
        folder.rows(until=2)
    folder.close()


@pytest.mark.parametrize("name", [".lock", "checkpoints"])
def test_a_folder_that_cannot_be_taken_is_said_in_a_line_and_left_free(tmp_path, name):
    RunFolder.create(tmp_path / "run", "").close()
    place = tmp_path / "run" / name
    place.rmdir() if place.is_dir() else place.unlink()
    place.mkdir() if name == ".lock" else place.write_text("")
    for _ in range(2):  # the second time nobody holds the lock either
        with pytest.raises(RunFolderError, match=rf"cannot be used as a run's folder: .*{name}"):
            RunFolder.open(tmp_path / "run")


def test_what_is_no_number_in_json_is_never_written(tmp_path):
    folder = RunFolder.create(tmp_path / "run", "")
    with pytest.raises(ValueError, match="JSON"):
        folder.append({"round": 1, "loss": float("nan")})
    folder.close()
