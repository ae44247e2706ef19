"""The live picture holds what the newest steps say."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from unit.report.run_events import steps

from hyrt.report.dashboard import dashboard


def shown(width: int, **changes: object) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=False, color_system=None)
    console.print(dashboard(steps(60, **changes), epochs=5, predicted_s=0.024, width=width))
    return out.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_stages_trainers_and_what_they_wait_for(width: int) -> None:
    text = shown(
        width,
        split={"cpu:0": 256, "opencl:0": 768},
        busy_s={"cpu:0": 0.0206, "opencl:0": 0.0412},
        blocked_s={"load.input": 0.030, "sample.output": 0.004, "propagate.input": 0.0001},
        threads={"sample": 1, "load": 3, "propagate": 2},
    )
    assert all(len(line) <= width for line in text.splitlines())
    for word in ("sample x1", "load x3", "propagate x2", "synchronize", "41 ms ◀", "predicted 24"):
        assert word in text
    assert ("waits 30 in" in text) == ("waits 4.0 out" in text) == (width > 40)
    assert text.count("waits") == (2 if width > 40 else 0), "what is not worth a word has none"
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.startswith(("cpu", "opencl"))}
    assert rows["cpu:0"][1] == "256"
    assert rows["opencl:0"][1] == "768"
    assert "50%" in rows["cpu:0"]
    assert "100%" in rows["opencl:0"]
    # A quarter and three quarters of the targets.
    assert 3 * rows["cpu:0"][2].count("━") == pytest.approx(
        rows["opencl:0"][2].count("━"), abs=3
    )  # Bars are rounded down.


def test_nothing_done_yet() -> None:
    zero = dict.fromkeys(("sample", "load", "transfer", "propagate", "synchronize"), 0.0)
    assert "0 ms" in shown(80, stage_s=zero, step_s=0.0, split={"cpu:0": 0}, busy_s={})
