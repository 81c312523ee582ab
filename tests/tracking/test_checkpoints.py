import errno
import os
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedlens.state import Best, State
from fedlens.tracking import checkpoints
from fedlens.tracking.checkpoints import BadCheckpoint, load_newest, load_state, save_state, save_weights

CPU = torch.device("cpu")
STATE = State(
    round=7,
    x=torch.linspace(-1, 1, 50),
    statistics=torch.tensor([0.5, 2.0]),
    counters=torch.tensor([2**40]),
    memory={"m": torch.ones(50), "steps": torch.tensor(7.0, dtype=torch.float64)},
    kept={3: {"momentum": torch.arange(50.0)}, 41: {"momentum": torch.zeros(50)}},
    best=Best(5, "test/accuracy", 0.875),
)


def tensors_of(state):
    kept = {(client, name): value for client, values in state.kept.items() for name, value in values.items()}
    return {"x": state.x, "statistics": state.statistics, "counters": state.counters, **state.memory, **kept}


def same(one, other):
    """Whether two states agree in every bit."""
    left, right = tensors_of(one), tensors_of(other)
    return (one.round, one.best, set(left)) == (other.round, other.best, set(right)) and all(
        torch.equal(left[name], right[name]) and left[name].dtype == right[name].dtype for name in left
    )


def warnings_of(folder):
    warnings = []
    return load_newest(folder, CPU, warnings.append), warnings


def test_a_state_comes_back_with_every_bit(tmp_path):
    save_state(tmp_path, STATE)
    assert same(load_state(tmp_path / "last.safetensors", CPU), STATE)


def test_the_same_state_makes_the_same_file(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        save_state(tmp_path / name, STATE)
    assert (tmp_path / "one/last.safetensors").read_bytes() == (tmp_path / "other/last.safetensors").read_bytes()


def test_the_one_before_becomes_the_previous(tmp_path):
    save_state(tmp_path, STATE)
    save_state(tmp_path, replace(STATE, round=8))
    assert load_state(tmp_path / "previous.safetensors", CPU).round == 7
    assert warnings_of(tmp_path)[0].round == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.safetensors", "previous.safetensors"]


def test_a_truncated_checkpoint_is_detected_wherever_it_ends_and_the_previous_used(tmp_path):
    save_state(tmp_path, STATE)
    save_state(tmp_path, replace(STATE, round=8))
    whole = (tmp_path / "last.safetensors").read_bytes()
    for length in [*range(0, len(whole), 37), len(whole) - 1]:
        (tmp_path / "last.safetensors").write_bytes(whole[:length])
        state, warnings = warnings_of(tmp_path)
        assert state.round == 7
        assert "last.safetensors" in warnings[0]


def test_a_flipped_bit_is_detected_wherever_it_is(tmp_path):
    save_state(tmp_path, STATE)
    whole = (tmp_path / "last.safetensors").read_bytes()
    generator = np.random.default_rng(0)
    for position in [*range(40), *generator.integers(0, len(whole), 300)]:
        flipped = bytearray(whole)
        flipped[position] ^= 1 << int(generator.integers(8))
        (tmp_path / "last.safetensors").write_bytes(flipped)
        with suppress(BadCheckpoint):  # refused, or it was a space in the header, which means nothing
            assert same(load_state(tmp_path / "last.safetensors", CPU), STATE)


def test_a_flipped_bit_in_a_tensor_is_never_accepted(tmp_path):
    save_state(tmp_path, STATE)
    whole = (tmp_path / "last.safetensors").read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for position in range(header, len(whole), 13):
        (tmp_path / "last.safetensors").write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
        with pytest.raises(BadCheckpoint, match="damaged"):
            load_state(tmp_path / "last.safetensors", CPU)


def test_a_damaged_checkpoint_never_takes_the_place_of_the_good_one_before_it(tmp_path):
    for round in (7, 8):
        save_state(tmp_path, replace(STATE, round=round))
    (tmp_path / "last.safetensors").write_bytes(b"damaged")
    assert load_newest(tmp_path, CPU, str).round == 7
    save_state(tmp_path, replace(STATE, round=9))
    assert load_state(tmp_path / "previous.safetensors", CPU).round == 7
    assert load_state(tmp_path / "last.safetensors", CPU).round == 9
    assert (tmp_path / "damaged.safetensors").read_bytes() == b"damaged"


def test_if_both_are_damaged_nothing_is_guessed(tmp_path):
    save_state(tmp_path, STATE)
    save_state(tmp_path, STATE)
    for name in ("last", "previous"):
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadCheckpoint, match=r"no checkpoint .* is whole"):
        warnings_of(tmp_path)


def test_a_folder_without_checkpoints_has_no_state(tmp_path):
    assert warnings_of(tmp_path) == (None, [])


@pytest.mark.parametrize("function", ["save_file", "_flush", "replace"])
def test_a_full_or_broken_disk_leaves_a_whole_checkpoint(tmp_path, monkeypatch, function):
    save_state(tmp_path, STATE)

    def fail(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os if function == "replace" else checkpoints, function, fail)
    with pytest.raises(OSError, match="No space left"):
        save_state(tmp_path, replace(STATE, round=8))
    monkeypatch.undo()
    assert same(warnings_of(tmp_path)[0], STATE)
    assert not list(tmp_path.glob(".*"))


def test_nothing_is_renamed_before_it_is_on_the_disk_and_the_folder_is_flushed_last(tmp_path, monkeypatch):
    save_state(tmp_path, STATE)
    calls, flush, rename = [], os.fsync, os.replace
    monkeypatch.setattr(
        os,
        "fsync",
        lambda descriptor: (calls.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))), flush(descriptor)),
    )
    monkeypatch.setattr(
        os, "replace", lambda old, new: (calls.append((os.path.basename(old), os.path.basename(new))), rename(old, new))
    )
    save_state(tmp_path, STATE)
    assert calls == [
        ".last.safetensors.partial",
        ("last.safetensors", "previous.safetensors"),
        (".last.safetensors.partial", "last.safetensors"),
        tmp_path.name,
    ]


def test_weights_are_read_without_fedlens(tmp_path):
    weights = {"layer.weight": torch.randn(3, 4).T, "layer.bias": torch.zeros(()), "count": torch.tensor(3)}
    weights |= {"half": torch.randn(3).bfloat16(), "images": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)}
    weights["tied"] = weights["half"]
    save_weights(tmp_path / "best.safetensors", weights | {"_extra_state": {"version": 1}}, {"round": 3})
    found = load_file(tmp_path / "best.safetensors")
    assert set(found) == set(weights)
    assert all(torch.equal(found[name], weights[name]) and found[name].dtype == weights[name].dtype for name in weights)
