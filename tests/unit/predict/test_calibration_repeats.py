"""How often calibration measures what: again where repetitions differ, and not where they agree."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hyrt_devices.null import NullDevice
from hyrt_perfmodel.platform import Accelerator, Host, Platform, TrainerRates

from hyrt.config import Config
from hyrt.device import DeviceInfo, StepResult
from hyrt.errors import UnsupportedModelError
from hyrt.graph import open_graph
from hyrt.graph.graph import Graph
from hyrt.predict.calibrate import host, machine
from hyrt.predict.calibrate.host import LARGE, SMALL, time_call
from hyrt.predict.calibrate.machine import measure_kind
from hyrt.predict.calibrate.trainers import PROBES, ProbeGraphs, ShortRun
from hyrt.sampling.minibatch import MiniBatch


@pytest.mark.parametrize(
    ("spent", "counted", "seconds"),
    [
        # The first one is left out. Three that agree are enough, and of others the lower quartile counts.
        ([9.0, 1.0, 1.01, 1.02, 7.0], 3, 1.0),
        ([9.0, 5.0, 1.5, 1.0, 1.01, 1.02, 7.0], 5, 1.01),
        ([9.0, 3.0, 2.0, 5.0, 1.0, 4.0, 7.0, 7.0], 5, 2.0),
    ],
)
def test_repetitions_end_where_they_agree(
    monkeypatch: pytest.MonkeyPatch, spent: list[float], counted: int, seconds: float
) -> None:
    now, left = [0.0], iter(spent)

    def work() -> None:
        now[0] += next(left)

    monkeypatch.setattr(host, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    before: list[float] = []
    found = time_call(work, 5, lambda: before.append(now[0]))
    assert found.seconds == pytest.approx(seconds)
    assert len(before) == counted


def test_a_probe_that_was_disturbed_is_measured_again_after_the_others() -> None:
    trained: list[int] = []

    class Disturbed(NullDevice):
        """Takes a second, but 3 and 5 in turn in its first steps with 128 targets."""

        def propagate(self, staged: MiniBatch) -> StepResult:
            result, targets = super().propagate(staged), len(staged.targets)
            trained.append(targets)
            count = trained.count(128)
            slow = 3.0 + 2.0 * (count % 2)
            result.seconds = {"propagate": slow if targets == 128 and count <= 6 else 1.0}
            return result

    info = DeviceInfo(kind="null", index=0, description="", memory_bytes=0)
    small = open_graph("synthetic:tiny")
    graphs = ProbeGraphs({SMALL: small, LARGE: small})
    probes = [PROBES[1], PROBES[3], PROBES[4]]
    found = measure_kind(Disturbed, info, 1, "graphsage", graphs, probes)
    assert [each.propagate.seconds for each in found] == [1.0] * 3
    assert runs_of(trained) == [128, 1024, 128, 128]


def runs_of(values: list[int]) -> list[int]:
    """The values as measured in a row: six steps each, as four are warm and two of a second are enough."""
    assert len(values) % 6 == 0

    def each() -> Iterator[int]:
        for at in range(0, len(values), 6):
            (value,) = set(values[at : at + 6])
            yield value

    return list(each())


def test_a_device_that_runs_a_kind_only_plain_has_no_short_runs_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def trainer(kind: str) -> machine._Trainer:
        info = DeviceInfo(kind=kind, index=0, description="", memory_bytes=0)
        rates = dict.fromkeys(("gcn", "gin"), TrainerRates(memory_gb_s=1.0, macs_per_s=1e9))
        return machine._Trainer(info, rates=rates, first_probe_s=1.0)

    trained: list[tuple[str, ...]] = []

    def run(config: Config, graph: Graph, *, warm: int, steps: int) -> ShortRun:
        names = [request.name for request in config.device_requests]
        if config.model.kind == "gin" and "opencl:0" in names:
            raise UnsupportedModelError("opencl:0 cannot run layer 'layers.0.norm'")
        trained.append((config.model.kind, *names))
        return ShortRun(
            1.0, 0.2, {"synchronize": 0.1}, dict.fromkeys(names, 1), {"sample": 1, "load": 1, "train": 1}
        )

    monkeypatch.setattr(machine, "short_run", run)
    monkeypatch.setattr(machine, "sampled_workload", lambda config, graph: config)
    small = open_graph("synthetic:tiny")
    platform = Platform(
        name="made up",
        host=Host(memory_gb_s=1.0, macs_per_s=1e9),
        accelerators=(Accelerator(kind="opencl", memory_gb_s=1.0, macs_per_s=1e9, link_gb_s=1.0),),
    )
    graphs = ProbeGraphs({SMALL: small, LARGE: small})
    found = machine._runs(platform, graphs, trainer("cpu"), [trainer("opencl")], lambda text: None)
    assert len(found) == len(trained)
    assert {each[1:] for each in trained if each[0] == "gin"} == {("cpu:0",)}
    assert {each[1:] for each in trained if each[0] == "gcn"} == {
        ("cpu:0",),
        ("opencl:0",),
        ("cpu:0", "opencl:0"),
    }
