"""A sample of each class of `python tools/faults/injected.py`, which does all of them."""

from __future__ import annotations

import pytest
from fault_case import TRAINERS, FaultCase, FaultSuite, Trainers, fault_cases

from hyrt.device.discovery import find_device
from hyrt.errors import DeviceUnavailableError

CPU, NULL, OPENCL, CPU_OF_PAIR, OPENCL_OF_PAIR, NULL_OF_PAIR = TRAINERS
STALL = ("runtime.stall_timeout_s=1.5",)
SERIAL = ("runtime.pipelined=false",)
CONTINUE = ("runtime.on_device_loss=continue",)
SAMPLE = [
    FaultCase(CPU, "sample:cpu:0:first:raise"),
    FaultCase(NULL, "sample:null:0:last:leave"),
    FaultCase(NULL_OF_PAIR, "sample:null:1:middle:hang", STALL),
    FaultCase(CPU, "load:cpu:0:middle:base"),
    FaultCase(NULL, "load:null:0:first:exit"),
    FaultCase(CPU, "load:cpu:0:last:raise", SERIAL),
    FaultCase(OPENCL, "transfer:opencl:0:middle:leave"),
    FaultCase(NULL_OF_PAIR, "transfer:null:1:last:hang", STALL),
    FaultCase(CPU, "transfer:cpu:0:last:exit", SERIAL),
    FaultCase(OPENCL_OF_PAIR, "propagate:opencl:0:middle:raise"),
    FaultCase(CPU_OF_PAIR, "propagate:cpu:0:first:hang", STALL),
    FaultCase(NULL, "propagate:null:0:last:base", SERIAL),
    FaultCase(CPU, "update:cpu:0:last:raise"),
    FaultCase(NULL_OF_PAIR, "update:null:1:first:leave"),
    FaultCase(CPU, "update:cpu:0:last:hang", STALL),
    FaultCase(CPU, "synchronize:host:middle:hang", STALL),
    FaultCase(CPU, "synchronize:host:last:exit"),
    FaultCase(NULL, "synchronize:host:first:base", SERIAL),
    FaultCase(OPENCL, "transfer:opencl:0:first:fault"),
    FaultCase(OPENCL_OF_PAIR, "propagate:opencl:0:middle:fault", CONTINUE, survives=True, is_exact=False),
    FaultCase(NULL_OF_PAIR, "update:null:1:middle:fault", CONTINUE, survives=True, is_exact=False),
    FaultCase(CPU, "transfer:cpu:0:middle:oom", survives=True, is_exact=False),
    FaultCase(OPENCL_OF_PAIR, "propagate:opencl:0:first:oom", survives=True, is_exact=False),
    FaultCase(CPU, "propagate:cpu:0:middle+:oom"),
    FaultCase(OPENCL, "propagate:opencl:0:middle:nan-loss"),
    FaultCase(CPU_OF_PAIR, "propagate:cpu:0:last:nan-gradient"),
    FaultCase(CPU_OF_PAIR, "propagate:cpu:0:12+:slow", survives=True),
    FaultCase(CPU, "checkpoint:open:first:eio"),
    FaultCase(CPU, "checkpoint:write:middle:enospc"),
    FaultCase(CPU, "checkpoint:fsync:middle+:eio"),
    FaultCase(CPU, "checkpoint:replace:last:enospc"),
    FaultCase(CPU, "checkpoint:sync:first+:eio"),
]


def have(trainers: Trainers) -> None:
    for name in trainers.devices.split(","):
        try:
            find_device(name)
        except DeviceUnavailableError as error:
            pytest.skip(str(error))


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_a_fault(case: FaultCase, suite: FaultSuite) -> None:
    have(case.trainers)
    assert suite.check(case).problems == []


def test_a_run_without_the_fault_is_a_failure_of_the_case(suite: FaultSuite) -> None:
    """The checks can fail: here the fault is at a step that never comes."""
    problems = suite.check(FaultCase(NULL, "propagate:null:0:999:raise")).problems
    assert any("no fault was injected" in problem for problem in problems)
    assert any("exit code 0" in problem for problem in problems)


def test_the_sample_has_every_class() -> None:
    def classes(of: list[FaultCase]) -> set[tuple[str, str]]:
        return {(case.fault.split(":")[0], case.fault.split(":")[-1]) for case in of}

    missing = {kind for _, kind in classes(list(fault_cases()))} - {kind for _, kind in classes(SAMPLE)}
    assert not missing
    assert {stage for stage, _ in classes(list(fault_cases()))} == {stage for stage, _ in classes(SAMPLE)}
