from __future__ import annotations

import os
from pathlib import Path

import pytest

from hyrt.machine import cores


@pytest.mark.parametrize(
    ("quota", "affinity", "expected"),
    [(None, 6, 6), (0.3, 6, 1), (1.0, 6, 1), (1.5, 6, 2), (2.01, 6, 3), (8.0, 6, 6), (2.5, 1, 1)],
)
def test_a_part_of_a_cpu_counts_as_one(
    quota: float | None, affinity: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(affinity)))
    monkeypatch.setattr(cores, "cgroup_limits", lambda *_: {"cpus": quota, "memory_bytes": None})
    assert cores.available_cores() == expected


def test_the_maker_of_the_first_processor_is_read(tmp_path: Path) -> None:
    (tmp_path / "x86").write_text("processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: EPYC: 9004\n")
    (tmp_path / "arm").write_text("processor\t: 0\nFeatures\t: asimd sve\n")
    assert cores.processor_vendor(tmp_path / "x86") == "AuthenticAMD"
    assert cores.processor_vendor(tmp_path / "arm") is None
    assert cores.processor_vendor(tmp_path / "nothing") is None
