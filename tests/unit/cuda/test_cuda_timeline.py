"""The device's clock for traces, over marks whose distances come in float32 as torch tells them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hyrt_devices.cuda.driver import Timeline


@dataclass(eq=False)
class Mark:
    ns: int


class FloatDriver:
    """Marks at a time that is set; distances in milliseconds of float32, and none backwards."""

    def __init__(self) -> None:
        self.now = 10**12
        self.longest_s = 0.0

    def mark(self, stream: Any) -> Mark:
        return Mark(self.now)

    def wait(self, mark: Mark) -> None:
        pass

    def seconds(self, start: Mark, end: Mark) -> float:
        assert end.ns >= start.ns, "xpu has no negative times"
        self.longest_s = max(self.longest_s, (end.ns - start.ns) / 1e9)
        return float(np.float32((end.ns - start.ns) / 1e6)) / 1000


@pytest.mark.parametrize("step_ms", [0.7, 30.0, 900.0])
def test_an_hour_of_steps(step_ms: float) -> None:
    driver = FloatDriver()
    timeline = Timeline(driver, "s")  # type: ignore[arg-type]
    zero = driver.now
    rng = np.random.default_rng(1)
    worst = 0.0
    while driver.now - zero < 3600e9:
        # Three copies in flight: a mini-batch was copied up to three steps before it is propagated.
        start = driver.now + int(rng.uniform(0.1, 0.4) * 1e6)
        driver.now += int(step_ms * 1e6)
        copied = max(zero, start - int(3 * step_ms * 1e6)) if step_ms < 300 else start
        ((name, begun, ended),) = timeline.spans([("copy", Mark(copied), Mark(driver.now))])
        assert name == "copy"
        worst = max(worst, abs(begun - (copied - zero)), abs(ended - (driver.now - zero)))
        timeline.follow(Mark(driver.now))
        if driver.now - zero > 60e9 and step_ms < 1:
            break
    # Two seconds in float32 milliseconds are exact to a tenth of a microsecond; moving along adds up its
    # roundings.
    assert worst < 20_000
    assert driver.longest_s < 4


def test_what_has_no_mark_is_left_out() -> None:
    driver = FloatDriver()
    timeline = Timeline(driver, "s")  # type: ignore[arg-type]
    there = Mark(driver.now + 5)
    assert timeline.spans([("a", None, there), ("b", there, None), ("c", there, there)]) == [("c", 5, 5)]
