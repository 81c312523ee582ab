"""What a run ran on, so that its numbers can be understood later: versions, hardware, git, command."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import torch

PACKAGES = ("fedlens", "torch", "torchvision", "numpy", "safetensors", "pydantic")


def session() -> dict[str, Any]:
    """The circumstances of this process."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "versions": {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}},
        "hardware": hardware(),
        "git": git_state(),
    }


def hardware() -> dict[str, Any]:
    facts: dict[str, Any] = {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        facts["gpus"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        facts["cuda"] = torch.version.cuda
    return facts


def git_state() -> dict[str, Any] | None:
    """Commit and cleanliness of the repository in which the run was started; None outside one."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit.strip(), "changed": bool(_git("status", "--porcelain", "--untracked-files=no"))}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def differences(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Every dotted key at which two descriptions differ, with both values."""
    found: list[str] = []
    for key in dict.fromkeys([*before, *after]):
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += differences(old, new, f"{prefix}{key}.")
        elif old != new:
            found.append(f"{prefix}{key}: {old!r} → {new!r}")
    return found
