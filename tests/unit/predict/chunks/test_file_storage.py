"""What matrices cost that exceed the budget of host memory: by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hyrt_perfmodel.degrees import DegreeDistribution
from hyrt_perfmodel.platform import Host
from hyrt_perfmodel.workload import FullGraphStep

from hyrt.config import Config, build_config
from hyrt.predict.chunk_prediction import file_bytes, file_s, file_sentence
from hyrt.predict.dataset_sizes import DatasetSizes
from hyrt.predict.workload import expected_workload

MIB = 2**20
DATASET = DatasetSizes.in_memory(
    DegreeDistribution.assumed(1000, 9000), features=16, classes=4, targets=100, value_bytes=4
)


def settings(**fullgraph: Any) -> Config:
    return build_config({"model": {"kind": "gcn"}, "sampler": {"kind": "full"}, "fullgraph": fullgraph})


LIMITED = settings(host_memory="10MiB")
# The data take 5 MiB, a file of 40 MiB of matrices 30 MiB.
WORK = replace(
    expected_workload(LIMITED, DATASET),
    feature_bytes=3.0 * MIB,
    graph_bytes=1.5 * MIB,
    transpose_bytes=0.5 * MIB,
    full_graph_step=lambda memory_bytes, threads: FullGraphStep(
        arrays={}, reads=(), calls=0, macs=0, values=0, matrices={"one": 25.0 * MIB, "other": 15.0 * MIB}
    ),
)


def host(memory_mib: float | None, file_gb_s: float | None = 2.0) -> Host:
    memory_gib = None if memory_mib is None else memory_mib / 1024
    return Host(memory_gb_s=9.0, macs_per_s=1e9, memory_gib=memory_gib, file_gb_s=file_gb_s)


def test_the_file_has_what_is_beyond_the_budget() -> None:
    assert file_bytes(LIMITED, 40 * MIB) == 30 * MIB
    assert file_bytes(LIMITED, 9 * MIB) == 0
    assert file_bytes(settings(), 40 * MIB) == 0


@pytest.mark.parametrize(
    ("memory_mib", "missed"),
    [
        # Beside data and budget, memory keeps no page, a third of them, or all.
        (15, 1.0),
        (12, 1.0),
        (25, 2 / 3),
        (45, 0.0),
        (1000, 0.0),
    ],
)
def test_the_disk_reads_and_writes_what_memory_does_not_keep(memory_mib: float, missed: float) -> None:
    """Written once, read once, and written over by gradients, at 2 GB/s."""
    assert file_s(LIMITED, host(memory_mib), WORK, 40 * MIB) == pytest.approx(3 * 30 * MIB * missed / 2e9)


def test_what_is_not_known_or_not_limited_takes_no_time() -> None:
    assert file_s(LIMITED, host(15, None), WORK, 40 * MIB) == 0
    assert file_s(LIMITED, host(None), WORK, 40 * MIB) == 0
    assert file_s(settings(), host(15), WORK, 40 * MIB) == 0
    assert file_s(LIMITED, host(15), WORK, 10 * MIB) == 0


def test_the_file_of_a_run_without_chunks_is_said() -> None:
    said = (
        "30 MiB of the 40 MiB of matrices are in a file, because they exceed fullgraph.host_memory=10 MiB; "
    )
    assert file_sentence(LIMITED, host(100), WORK) == f"{said}its pages stay in memory"
    slow = host(15, 3 * 30 * MIB / 1e9)
    assert file_sentence(LIMITED, slow, WORK) == f"{said}the disk adds 1 s per epoch"
    assert file_sentence(settings(), host(15), WORK) == ""
    assert file_sentence(settings(host_memory="50MiB"), host(15), WORK) == ""
    assert file_sentence(LIMITED, host(15), replace(WORK, full_graph_step=None)) == ""
