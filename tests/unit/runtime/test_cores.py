from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from hyrt.distributed import context
from hyrt.distributed.process_group import RankGroup
from hyrt.runtime import hardware


@pytest.mark.parametrize(
    ("quota", "affinity", "expected"),
    [(None, 6, 6), (0.3, 6, 1), (1.0, 6, 1), (1.5, 6, 2), (2.01, 6, 3), (8.0, 6, 6), (2.5, 1, 1)],
)
def test_a_part_of_a_cpu_counts_as_one(
    quota: float | None, affinity: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(affinity)))
    monkeypatch.setattr(hardware, "cgroup_limits", lambda *_: {"cpus": quota, "memory_bytes": None})
    assert hardware.available_cores() == expected


def test_the_maker_of_the_first_processor_is_read(tmp_path: Path) -> None:
    (tmp_path / "x86").write_text("processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: EPYC: 9004\n")
    (tmp_path / "arm").write_text("processor\t: 0\nFeatures\t: asimd sve\n")
    assert hardware.processor_vendor(tmp_path / "x86") == "AuthenticAMD"
    assert hardware.processor_vendor(tmp_path / "arm") is None
    assert hardware.processor_vendor(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("variables", "of_launcher", "cpus", "expected"),
    [
        ({}, 8, 8, 8),
        ({"RANK": "1", "LOCAL_WORLD_SIZE": "2"}, 8, 8, 4),
        ({"RANK": "1", "LOCAL_WORLD_SIZE": "3"}, 8, 8, 2),
        ({"RANK": "1", "LOCAL_WORLD_SIZE": "9"}, 8, 8, 1),
        # Another program's variable, of which this is no rank.
        ({"LOCAL_WORLD_SIZE": "2"}, 8, 8, 8),
        ({"RANK": "1", "LOCAL_WORLD_SIZE": "two"}, 8, 8, 8),
        # Bound to some of the CPUs that the launcher has.
        ({"RANK": "1", "LOCAL_WORLD_SIZE": "2"}, 8, 3, 3),
    ],
)
def test_ranks_on_one_machine_share_its_cores(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], of_launcher: int, cpus: int, expected: int
) -> None:
    for name in ("RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(hardware, "cgroup_limits", lambda *paths: {"cpus": None, "memory_bytes": None})
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda process: set(range(cpus if process == 0 else of_launcher))
    )
    assert hardware.available_cores() == expected
    assert hardware.shared_cores() == cpus


def test_ranks_of_a_launcher_that_has_ended_share_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    def affinity(process: int) -> set[int]:
        if process != 0:
            raise ProcessLookupError(3, "No such process")
        return set(range(8))

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(hardware, "cgroup_limits", lambda *paths: {"cpus": None, "memory_bytes": None})
    monkeypatch.setattr(os, "sched_getaffinity", affinity)
    assert hardware.available_cores() == 4


@pytest.mark.parametrize(
    ("machines", "before", "rank", "here"),
    [
        (["a", "a"], None, 1, 2),
        (["a", "b", "a", "a"], None, 2, 3),
        (["a", "b"], None, 0, 1),
        # Two launchers on one machine count their own ranks alone; one may count ranks of other containers.
        (["a", "a"], "1", 0, 2),
        (["a", "b"], "2", 1, 2),
    ],
)
def test_ranks_without_a_launcher_count_those_on_their_machine(
    monkeypatch: pytest.MonkeyPatch, machines: list[str], before: str | None, rank: int, here: int
) -> None:
    monkeypatch.setattr(context, "all_gather_object", lambda group, own: machines)
    monkeypatch.setattr(hardware, "cgroup_limits", lambda *paths: {"cpus": None, "memory_bytes": None})
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(12)))
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if before is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", before)
    with context.set_local_world_size(cast(RankGroup, SimpleNamespace(rank=rank))):
        assert hardware.num_local_ranks() == here
        assert hardware.available_cores() == 12 // here
    assert os.environ.get("LOCAL_WORLD_SIZE") == before


def test_processes_of_one_machine_have_one_identity() -> None:
    command = "from hyrt.distributed.context import machine_identity as m; print(m())"
    other = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == str(context.machine_identity())
