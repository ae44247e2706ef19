"""`hyrt calibrate --show` against a calibration whose figures are made up here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from end_to_end.terminal import hyrt
from hyrt_perfmodel.measured_costs import SampleCost
from hyrt_perfmodel.platform import Accelerator, TrainerRates
from hyrt_perfmodel.platform_file import calibration_file, format_calibration
from unit.perfmodel.test_calibration import FOUND

HOST = replace(
    FOUND.platform.host,
    sampling=tuple(
        SampleCost(renumbers=True, graph_bytes=1e6, edges=6400, threads=threads, edges_per_s=threads * 7e6)
        for threads in (2, 1, 4)
    ),
)
RATES = TrainerRates(memory_gb_s=80.0, macs_per_s=5e11, launch_s=0.00025, values_per_s=3e9)
NPU = Accelerator(
    kind="npu", memory_gb_s=100.0, macs_per_s=1e12, link_gb_s=12.5, link_latency_s=3e-5, models={"gin": RATES}
)
KEPT = replace(
    FOUND,
    platform=replace(FOUND.platform, host=HOST, accelerators=(NPU,)),
    measured={
        "memory_gb_s": {"copy": 20.25, "gather": 7.5},
        "runs": [{"error": 0.02}, {"error": -0.06}, {"error": 0.01}],
        "spread": {"memory": 0.04, "sampling": 0.25},
        "left_out": {"opencl:0": "no driver"},
    },
)


def test_what_was_measured_is_told(tmp_path: Path) -> None:
    file = tmp_path / "hyrt" / calibration_file().name
    file.parent.mkdir()
    file.write_text(format_calibration(KEPT), encoding="utf-8")
    done = hyrt("calibrate", "--show", cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path))
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines == [
        "Acme 9, 4 cores · measured 2026-11-21 in 32 s · hyrt 1, torch 2",
        "host memory copy 20.2 GB/s · gather 7.5 GB/s",
        "sampling 7 to 28 M edges/s in 3 cases of graph, mini-batch size and threads",
        "cpu:0 gcn 200.0 GFLOP/s aggregation hidden values hidden launch 1.00 ms",
        "npu:0 gin 1000.0 GFLOP/s aggregation 80.0 GB/s values 3.0 G/s launch 0.25 ms",
        "link 12.5 GB/s, 30 us",
        "synchronization per step, waiting for threads, waiting for the interpreter lock, and CPU efficiency "
        "of sampling and loading while training: 4.00 ms, 2.00 ms, 0.00 ms and 70% with cpu+opencl",
        "checked against 3 short training runs: the predicted step times are 3.0% off on average, "
        "6.0% at worst",
        "noisy measurements: sampling 25%. If other programs were running, calibrate again",
        "opencl:0 was left out: no driver",
        f"stored in {file}",
    ]
    # It was made up elsewhere.
    assert "warning: the calibration is stale, because it was " in done.stderr
    told = json.loads(
        hyrt("calibrate", "--show", "--json", cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path)).stdout
    )
    assert (told["file"], told["measured"], told["stale"] != []) == (str(file), KEPT.measured, True)
