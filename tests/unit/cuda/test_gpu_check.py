"""The GPU check on a machine without the GPU, and its parts that need none."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hyrt_devices.cuda import launch

ROOT = Path(__file__).parents[3]
TOOL = ROOT / "tools" / "gpu_check.py"


def test_without_the_device_it_says_so_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, str(TOOL), "--device", "cuda:99", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "cuda:99 is not available" in done.stderr
    assert not list(tmp_path.iterdir())


def test_backends_of_a_tree_that_is_not_installed_are_declared(tmp_path: Path) -> None:
    """As on a borrowed machine: only the source folders are on the path."""
    program = f"""
import importlib.metadata, sys
real = importlib.metadata.entry_points
importlib.metadata.entry_points = lambda **wanted: []
sys.path.insert(0, {str(TOOL.parent)!r})
import gpu_check
gpu_check.declare_backends()
found = importlib.metadata.distribution("hyrt")
kinds = sorted(e.name for e in found.entry_points if e.group == "hyrt.devices")
print(sys.path[0] in str(found._path), kinds)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True ")
    for kind in ("cpu", "cuda", "mps", "null", "xpu"):
        assert f"'{kind}'" in done.stdout


def test_a_check_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    command = [sys.executable, str(TOOL), "--device", "null:0", "--only", "conformance,speed"]
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "unknown check 'speed': choose from conformance, equality, sampling" in done.stderr
    assert not list(tmp_path.iterdir())


def test_what_a_device_fails_is_told_at_once_and_in_the_report(tmp_path: Path) -> None:
    """A device that computes nothing, in place of a wrong one."""
    command = [sys.executable, str(TOOL), "--device", "null:0", "--only", "conformance,sampling"]
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "sums agree with float64: gcn, layers=1" in done.stderr
    assert "Traceback" not in done.stderr
    assert "conformance FAILED" in done.stdout
    assert "sampling not made" in done.stdout
    (page,) = tmp_path.glob("*.md")
    assert "FAILED   sums agree with float64: gcn, layers=1: expected the loss sum" in page.read_text()


def test_a_gpu_is_checked_with_every_launcher_and_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOL.parent))
    import gpu_check

    opened: list[tuple[Any, ...]] = []

    class Backend:
        def __init__(self, *given: Any) -> None:
            opened.append(given)

    info = SimpleNamespace(kind="cuda", index=0)
    monkeypatch.setattr(gpu_check, "find", lambda options: (Backend, info))
    monkeypatch.setattr(torch, "zeros", lambda size, device: None)
    kinds = {
        "pycuda": lambda device: f"pycuda on {device}",
        "cuda-bindings": lambda device: f"own on {device}",
    }
    monkeypatch.setattr(launch, "launchers", lambda: kinds)
    ways = gpu_check.openers(argparse.Namespace(device="cuda:0"))
    assert list(ways) == [
        "kernels launched by pycuda",
        "kernels launched by cuda-bindings",
        "torch's operators",
    ]
    for open_device in ways.values():
        open_device("options")
    assert [(given[0], given[1], str(given[2].device), given[3]) for given in opened] == [
        (info, "options", "cuda:0", "pycuda on cuda:0"),
        (info, "options", "cuda:0", "own on cuda:0"),
        (info, "options", "cuda:0", None),
    ]
