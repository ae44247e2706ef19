"""What a series says of runs whose metrics are not all there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hyrt.config import build_config
from hyrt.errors import ConfigError
from hyrt.report.run_record import RunSeries


def done(series: RunSeries, place: int, status: str = "finished", **val: float | None) -> None:
    path, _ = series.runs[place]
    path.mkdir()
    told: dict[str, Any] = {"status": status, "best_epoch": 1, "metrics": {"val": val}}
    (path / "summary.json").write_text(json.dumps(told), encoding="utf-8")


@pytest.fixture
def series(tmp_path: Path) -> RunSeries:
    return RunSeries.create(tmp_path, "s", build_config({"seed": 5}), 4, [0])


def test_seeds_may_reach_the_largest_number(tmp_path: Path) -> None:
    config = build_config({"seed": 2**63 - 3})
    assert RunSeries.create(tmp_path, "s", config, 3, [0]).seeds == (2**63 - 3, 2**63 - 2, 2**63 - 1)
    with pytest.raises(
        ConfigError, match=rf"--seeds 4 with seed={2**63 - 3} would exceed the largest seed, {2**63 - 1}"
    ):
        RunSeries.create(tmp_path, "t", config, 4, [0])


def test_each_metric_is_over_the_runs_that_have_it(series: RunSeries) -> None:
    done(series, 0, accuracy=0.5, loss=None)
    done(series, 1, accuracy=0.75, loss=2.0, extra=3.0)
    done(series, 2, status="early-stopped", accuracy=0.25, loss=1.0)
    done(series, 3, status="failed", accuracy=9.0)
    told = series.summarize()
    assert told["status"] == "unfinished"
    assert [run["seed"] for run in told["runs"]] == [5, 6, 7]
    values = {"accuracy": [0.5, 0.75, 0.25], "loss": [2.0, 1.0], "extra": [3.0]}
    assert told["metrics"]["val"] == {
        name: {
            "mean": pytest.approx(np.mean(seen)),
            "deviation": pytest.approx(np.std(seen, ddof=1)) if len(seen) > 1 else None,
            "lowest": min(seen),
            "highest": max(seen),
            "runs": len(seen),
        }
        for name, seen in values.items()
    }
    assert (
        json.loads((series.path / "summary.json").read_text(encoding="utf-8"))["metrics"] == told["metrics"]
    )
