"""The description of the environment, and control-group limits from folders like the kernel's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from hyrt.report.run_process import changed_versions, describe_environment
from hyrt.runtime.hardware import cgroup_limits


def test_it_is_true_and_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = json.loads(json.dumps(describe_environment()))
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"]["numpy"] == np.__version__
    assert found["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["memory_bytes"] == psutil.virtual_memory().total
    assert set(found["cpu"]["affinity"]) == os.sched_getaffinity(0)
    assert found["cpu"]["logical_cores"] == os.cpu_count()
    assert found["command"] == sys.argv
    assert found["variables"]["OMP_NUM_THREADS"] == "3"
    assert abs((datetime.now(UTC) - datetime.fromisoformat(found["date"])).total_seconds()) < 60


def test_what_a_run_was_started_with_in_another_version(tmp_path: Path) -> None:
    file, here = tmp_path / "env.json", describe_environment()
    assert changed_versions(tmp_path) == ""
    file.write_text(json.dumps(here))
    assert changed_versions(tmp_path) == ""
    versions = {**here["versions"], "hyrt": "0.0.7", "torch": "1.0", "python": "3.1", "numba": None}
    file.write_text(json.dumps({**here, "versions": versions}))
    now = here["versions"]
    assert changed_versions(tmp_path) == f"hyrt 0.0.7 (now {now['hyrt']}) and torch 1.0 (now {now['torch']})"
    for damaged in ("", "{", "[]", "{}", '{"versions": 3}', '{"versions": null}'):
        file.write_text(damaged)
        assert changed_versions(tmp_path) == ""


def test_cores_are_told_from_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 8 if logical else 4)
    cpu = describe_environment()["cpu"]
    assert (cpu["physical_cores"], cpu["logical_cores"]) == (4, 8)


def test_it_imports_nothing_large() -> None:
    code = (
        "import sys; from hyrt.report.run_process import describe_environment as d; d();"
        "print([m for m in ('torch', 'numpy', 'numba', 'pydantic') if m in sys.modules])"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_no_control_groups(tmp_path: Path) -> None:
    assert cgroup_limits(tmp_path / "none", tmp_path / "root") == {"cpus": None, "memory_bytes": None}


def test_version_2_takes_the_tightest_of_all_levels(tmp_path: Path) -> None:
    write(tmp_path / "self", "0::/jobs/mine")
    root = tmp_path / "root"
    write(root / "jobs/cpu.max", "150000 100000")
    write(root / "jobs/memory.max", "max")
    write(root / "jobs/mine/cpu.max", "max 100000")
    write(root / "jobs/mine/memory.max", "4294967296")
    assert cgroup_limits(tmp_path / "self", root) == {"cpus": 1.5, "memory_bytes": 4294967296}


def test_version_2_in_a_container_whose_own_group_is_the_root(tmp_path: Path) -> None:
    write(tmp_path / "self", "0::/../../other")
    write(tmp_path / "root/cpu.max", "200000 100000")
    write(tmp_path / "root/memory.max", "1000000")
    assert cgroup_limits(tmp_path / "self", tmp_path / "root") == {"cpus": 2.0, "memory_bytes": 1000000}


def test_version_1(tmp_path: Path) -> None:
    write(tmp_path / "self", "4:memory:/a\n3:cpu,cpuacct:/a\n1:name=systemd:/x:y")
    root = tmp_path / "root"
    write(root / "cpu/cpu.cfs_quota_us", "-1")
    write(root / "cpu/cpu.cfs_period_us", "100000")
    write(root / "cpu/a/cpu.cfs_quota_us", "50000")
    write(root / "cpu/a/cpu.cfs_period_us", "100000")
    write(root / "memory/memory.limit_in_bytes", "9223372036854771712")
    write(root / "memory/a/memory.limit_in_bytes", "123456")
    assert cgroup_limits(tmp_path / "self", root) == {"cpus": 0.5, "memory_bytes": 123456}
