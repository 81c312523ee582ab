import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("killed_run.py")
KILLS = 24


def train(out: Path, kills: int) -> None:
    done = subprocess.run([sys.executable, SCRIPT, out, str(kills)], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def scores(folder: Path) -> list[dict]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if not name.startswith("seconds/")} for row in rows]


def test_a_run_killed_at_random_moments_ends_with_the_same_bits_as_one_that_was_not(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(whole, 0)
    train(killed, KILLS)
    for name in ("model.safetensors", "checkpoints/last.safetensors", "checkpoints/best.safetensors"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    assert scores(killed) == scores(whole)
    sessions = json.loads((killed / "manifest.json").read_text())["sessions"]
    assert 2 < len(sessions) <= KILLS + 1
