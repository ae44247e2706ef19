"""The fuzz of the public API: a few of its calls, and that it notices each bad ending."""

from __future__ import annotations

import ctypes
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fuzz_api import Ending, classify, run_in_child
from fuzz_calls import Call, all_calls
from fuzz_values import Drawn, Kind, guarded

import hyrt
from hyrt.errors import ArgumentError

ROOT = Path(__file__).parents[2]


class Always(Kind):
    """One value."""

    def __init__(self, value: object, *, is_wrong: bool = False) -> None:
        super().__init__(lambda: value)
        self._is_wrong = is_wrong

    def draw_right(self, draw: random.Random) -> Drawn:
        return Drawn(self.right(), "always", self._is_wrong)

    draw_wrong = draw_right


def ending_of(make: Callable[..., object], *, is_wrong: bool = False, timeout_s: float = 30.0) -> Ending:
    call = Call("planted", make, {"value": Always(3, is_wrong=is_wrong)})
    return run_in_child(call, random.Random(0), 0, timeout_s)


def _read_on(value: object) -> int:
    array = guarded(np.arange(1000, dtype=np.int32))
    return ctypes.c_int.from_address(array.ctypes.data + array.nbytes).value


def _refuse(value: object) -> None:
    raise ArgumentError("value is 3: give 4")


@pytest.mark.parametrize(
    ("make", "outcome"),
    [
        (lambda value: value, "ok"),
        (_refuse, "refused"),
        (lambda value: [][value], "raw"),
        (lambda value: np.zeros(3)[value], "raw"),
        (lambda value: hyrt.errors.ArgumentError("x").args[value], "raw"),
        # No handler that a library has installed before can take it.
        (lambda value: os.kill(os.getpid(), signal.SIGKILL), "crash"),
        (_read_on, "crash"),
        (lambda value: os._exit(3), "crash"),
        (lambda value: time.sleep(60), "hang"),
    ],
)
def test_each_ending_is_noticed(make: Callable[..., object], outcome: str) -> None:
    ending = ending_of(make, timeout_s=1.0 if outcome == "hang" else 30.0)
    assert (ending.outcome, ending.arguments) == (outcome, "value=always")


def test_a_wrong_value_that_is_taken_is_noticed() -> None:
    assert ending_of(lambda value: value, is_wrong=True).outcome == "accepted"


@pytest.mark.parametrize(
    ("message", "outcome"),
    [
        ("x has shape (3,): give [vertices, d]", "refused"),
        ("x has shape (3,)", "unclear"),
        ("x is bad: give\nanother", "refused"),
        ("step 3: sampling failed: IndexError: 7: give another", "raw"),
    ],
)
def test_messages_are_judged(message: str, outcome: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        raise ArgumentError(message)
    assert classify(caught.value)[0] == outcome


@pytest.mark.parametrize("area", ["Block.", "samplers.neighbor.sample"])
def test_a_few_calls(area: str) -> None:
    words = [ROOT / "tools/faults/fuzz_api.py", "--count", "25", "--seed", "5", "--only", area]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert re.search(r"^\| all \| \d+ \| [1-9]\d* \| 0 \| 0 \| 0 \| 0 \| 0 \|$", done.stdout, re.M)


# What is only read, or what users write themselves: how hyrt calls it is fuzzed.
_NOT_CALLED = {
    *("hyrt.TrainResult", "hyrt.TrainedRun", "hyrt.sampling.block.Transposed", "hyrt.errors"),
    *("hyrt.objective.Objective", "hyrt.sampling.sampler_settings.SamplerSettings"),
    *("hyrt.device.protocol", "hyrt.device.capabilities", "hyrt.nn.operators.aggregate.Scales"),
}


def test_all_that_the_reference_has_is_called() -> None:
    names = " ".join(call.name for call in all_calls())
    page = (ROOT / "docs/reference/python.md").read_text()
    documented = set(re.findall(r"^::: (\S+)", page, re.M)) - _NOT_CALLED - {"hyrt.ops"}
    documented |= {f"ops.{name}" for name in hyrt.ops.__all__ if name != "Topology"}
    assert len(documented) > 15
    words = {"hyrt.nn.description": "describe", "hyrt.sampling.sampler.Sampler": "sampler"}
    words["hyrt.sampling.minibatch.MiniBatch"] = "CpuDevice.propagate"
    missing = {name for name in documented if words.get(name, name.rpartition(".")[2]) not in names}
    assert not missing
