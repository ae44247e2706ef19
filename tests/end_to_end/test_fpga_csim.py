"""The simulated FPGA trainer beside the CPU in whole runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from end_to_end.terminal import hyrt as command
from end_to_end.terminal import only_run, records, summary
from hyrt_devices.fpga.csim_device import FpgaCsimDevice

import hyrt

ROOT = Path(__file__).resolve().parents[2]
CORA = ROOT.parent / "shared" / "data" / "cora.npz"
STEPS = 10

pytestmark = [
    pytest.mark.skipif(
        bool(FpgaCsimDevice.missing()), reason=FpgaCsimDevice.missing() or "the compiler is there"
    ),
    pytest.mark.skipif(not CORA.exists(), reason=f"{CORA.name} does not lie beside the checkout"),
]


def weights(devices: list[str], graph: Any, model: dict[str, Any]) -> list[torch.Tensor]:
    """After STEPS steps; evaluated only at the end, the best weights are the last ones."""
    result = hyrt.train(
        graph,
        {"kind": "gcn", **model},
        devices=devices,
        data={"batch_size": 140},
        train={"epochs": STEPS},
        evaluate={"every": STEPS},
        seed=1,
    )
    assert result.summary["steps"] == STEPS
    return [parameter.detach() for parameter in result.model.parameters()]


@pytest.mark.parametrize(
    "model",
    [{}, {"kind": "graphsage", "hidden": 32, "dropout": 0.5, "input_dropout": 0.3}],
    ids=["gcn", "graphsage with dropout"],
)
def test_weights_are_the_cpus_after_ten_steps(model: dict[str, Any]) -> None:
    graph = hyrt.load(CORA)
    alone = weights(["cpu"], graph, model)
    for mine, other in zip(weights(["cpu", "fpga-csim"], graph, model), alone, strict=True):
        assert float((mine - other).abs().max()) < 1e-4
    # They have moved: an optimiser that did nothing would pass.
    start = weights(["null"], graph, model)
    assert all(float((mine - other).abs().max()) > 0.01 for mine, other in zip(alone, start, strict=True))


def test_reports_say_that_it_is_simulated(tmp_path: Path) -> None:
    words = ["--devices", "cpu,fpga-csim", "--data", CORA, "--model", "gcn", "train.epochs=1"]
    shown = command("run", *words, cwd=tmp_path).stdout
    assert "fpga-csim:0 70 targets (simulated)" in shown
    assert "on simulated devices" in shown
    run = only_run(tmp_path)
    assert summary(run)["simulated"] is True
    assert "simulated" in (run / "report.html").read_text()
    assert [record["event"] for record in records(run)].count("steps") == 1


def test_the_tool_compares_accuracies() -> None:
    tool = [sys.executable, ROOT / "tools" / "bench" / "fpga_accuracy.py", "--data", CORA]
    done = subprocess.run(
        [*tool, "--seeds", "1", "--epochs", "3", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["met"]
    assert found["seeds"] == 1
    assert 30 < found["cpu"][0] == pytest.approx(found["both"][0], abs=0.5)
