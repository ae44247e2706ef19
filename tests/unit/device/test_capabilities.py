"""Only what a device's class declares is asked of it, whatever methods it has."""

from __future__ import annotations

import pytest
from hyrt_devices.cpu import CpuDevice
from hyrt_devices.null import NullDevice

from hyrt.device import DeviceInfo, DeviceOptions
from hyrt.device.calls import opened
from hyrt.device.capabilities import (
    CAPABILITIES,
    CheckpointsSteps,
    ExplainsMissing,
    GathersRows,
    KeepsHostBudget,
    Observable,
    Resizable,
    SamplesNeighbors,
    ScoresVertices,
    SharesColumns,
    SharesLoops,
    StreamsGradients,
    TakesObjective,
    Traceable,
    device_sampler,
    missing_reason,
    usable_forms,
)
from hyrt.errors import DeviceUnavailableError
from hyrt.testing import cases

GRAPH = cases.make_graph(3, 2)
INFO = DeviceInfo(kind="null", index=0, description="x", memory_bytes=0, forms=("rows", "ids"))


class Undeclared(NullDevice):
    """Has methods of capabilities, none of which it declares."""

    def sampler(self, graph: object) -> object:
        raise AssertionError("asked to sample")

    def gathers(self, graph: object) -> bool:
        raise AssertionError("asked to gather")

    @classmethod
    def missing(cls) -> str:
        raise AssertionError("asked why it is missing")


class Gathering(NullDevice, GathersRows, ExplainsMissing):
    def gathers(self, graph: object) -> bool:
        return graph is GRAPH

    @classmethod
    def missing(cls) -> str:
        return "no driver:\n  install it"


def test_what_is_not_declared_is_not_asked() -> None:
    device = Undeclared(INFO)
    assert device_sampler(device, GRAPH) is None
    assert usable_forms(device, GRAPH) == ["rows"]
    assert missing_reason(Undeclared) == "no device was found"
    assert not any(isinstance(device, capability) for capability in CAPABILITIES)


def test_what_is_declared_is_asked() -> None:
    device = Gathering(INFO)
    assert usable_forms(device, GRAPH) == ["rows", "ids"]
    assert usable_forms(device, cases.make_graph(3, 2)) == ["rows"]
    assert missing_reason(Gathering) == "no driver: install it"


def test_the_built_in_trainers_declare_what_they_do() -> None:
    declared = {capability for capability in CAPABILITIES if issubclass(CpuDevice, capability)}
    assert declared == {
        TakesObjective, Resizable, ScoresVertices, KeepsHostBudget, CheckpointsSteps, SharesColumns,
        SharesLoops, StreamsGradients, Traceable, Observable,
    }  # fmt: skip


def test_a_capability_without_its_method_cannot_be_opened() -> None:
    class Sampling(NullDevice, SamplesNeighbors):
        pass

    with pytest.raises(DeviceUnavailableError, match="abstract"), opened(Sampling, INFO, DeviceOptions()):
        pass
