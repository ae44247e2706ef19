"""Speeds are measured through the protocol alone, kept in one store, and used for their own device only."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hyrt_devices.null import NullDevice
from hyrt_devices.opencl import OpenclDevice
from hyrt_perfmodel.measured_costs import FullGraphRates, SampleCost
from hyrt_perfmodel.platform import TrainerRates
from hyrt_perfmodel.platform_file import Calibration, CalibrationError, calibration_file, read_calibration
from unit.predict.little_probes import measure_little

from hyrt.config.command_line import new_config
from hyrt.device import DeviceInfo, Rates, StepResult
from hyrt.device.discovery import find_device
from hyrt.doctor import software_probes as software
from hyrt.errors import ConfigError, DataWriteError
from hyrt.graph import open_graph
from hyrt.predict.calibrate import full_graph
from hyrt.predict.calibrate.machine import measure_devices, measure_kinds
from hyrt.predict.calibrate.store import device_speed, read_measured, save_calibration, usable_calibration
from hyrt.predict.calibrate.trainers import PROBES, fit_link, measure_probe
from hyrt.predict.predict_run import predict_run
from hyrt.sampling.minibatch import MiniBatch


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[DeviceInfo, Calibration]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("empty")))
        _, info = find_device("cpu")
        found, left_out = measure_devices([info], kinds=["graphsage"])
    assert left_out == {}
    return info, found


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hyrt"


def test_measured_rates_are_those_of_a_processor(measured) -> None:
    info, found = measured
    speed = device_speed(info, found)
    assert speed.rates is not None
    # Any core since 2010 multiplies faster than this, and none has reached that.
    assert 1e9 < speed.rates.macs_per_s < 1e13
    assert 1e8 < speed.rates.memory_bytes_per_s < 1e13
    assert speed.rates.link_bytes_per_s == math.inf
    assert info.zero_copy


def test_a_rate_that_one_kind_hardly_tells_is_not_shown_as_the_devices(measured) -> None:
    info, found = measured
    one = TrainerRates(memory_gb_s=10.0, macs_per_s=1e11)
    models = {
        "graphsage": one,
        "gcn": replace(one, macs_per_s=1.2e11),
        "gin": replace(one, macs_per_s=math.inf),
        "gat": replace(one, macs_per_s=7e14),
    }
    host = replace(found.platform.host, models=models)
    slow = {"devices": {info.name: {"macs_per_s": 1e9, "memory_bytes_per_s": 1e9}}}
    speed = device_speed(info, replace(found, platform=replace(found.platform, host=host), measured=slow))
    assert speed.rates is not None
    assert (speed.rates.macs_per_s, speed.rates.memory_bytes_per_s) == (1.2e11, 1e10)
    # What the device has done, it can do.
    quick = {"devices": {info.name: {"macs_per_s": 5e11, "memory_bytes_per_s": 1e9}}}
    speed = device_speed(info, replace(found, platform=replace(found.platform, host=host), measured=quick))
    assert speed.rates is not None
    assert speed.rates.macs_per_s == 5e11


def test_a_device_that_compiles_kernels_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if not OpenclDevice.probe():
        pytest.skip(OpenclDevice.missing() or "no OpenCL device")
    infos = [find_device(name)[1] for name in ("cpu", "opencl")]
    measure_little(monkeypatch)
    found, left_out = measure_devices(infos, kinds=["graphsage"])
    assert left_out == {}
    (accelerator,) = found.platform.accelerators
    assert (accelerator.kind, list(accelerator.models)) == ("opencl", ["graphsage"])
    speed = device_speed(infos[1], found)
    assert speed.rates is not None
    assert 1e6 < speed.rates.macs_per_s < 1e13


def test_a_machine_whose_devices_were_measured_is_not_calibrated(measured, cache: Path) -> None:
    _, found = measured
    save_calibration(found)
    said: list[dict[str, object]] = []
    software.probe_calibration("rates", lambda **each: said.append(each))
    assert said == [{"calibrated": False, "why": "", "devices": ["cpu:0"]}]
    # Nor is there a calibration to make anew after an update.
    save_calibration(replace(found, machine=replace(found.machine, node="elsewhere")))
    assert usable_calibration() == (None, "")


def test_kept_rates_are_used_and_say_when(measured, cache: Path) -> None:
    info, found = measured
    save_calibration(found)
    speed = device_speed(info, read_measured())
    assert speed.not_used == ""
    assert speed.rates is not None
    assert speed.rates.source == f"measured {found.date}"
    other = DeviceInfo(kind="cpu", index=0, description="64 cores", memory_bytes=1)
    stale = device_speed(other, read_measured())
    assert stale.rates is None
    assert stale.not_used == f"measurement made when cpu:0 was another device ({info.description})"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"node": "elsewhere"}, "measurement made on another machine (elsewhere)"),
        ({"cores": 1000}, "measurement made with 1000 cores"),
        ({"versions": {"hyrt": "0.0.1"}}, "measurement made with hyrt 0.0.1"),
    ],
)
def test_what_was_measured_elsewhere_is_not_used(measured, change: dict, reason: str) -> None:
    info, found = measured
    moved = replace(found, machine=replace(found.machine, **change))
    speed = device_speed(info, moved)
    assert speed.trainer is None
    assert speed.not_used.startswith(reason)


def test_devices_alone_are_no_calibration(measured, cache: Path) -> None:
    save_calibration(measured[1])
    # A run starts without a prediction, and without a word: nobody has calibrated.
    assert usable_calibration() == (None, "")
    with pytest.raises(CalibrationError, match="only the devices of this machine"):
        read_calibration()


def test_what_is_measured_joins_what_is_known(measured, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info, found = measured
    sampling = (SampleCost(renumbers=True, graph_bytes=1e6, edges=6400, threads=1, edges_per_s=2e7),)
    gat = TrainerRates(memory_gb_s=3.0, macs_per_s=1e9)
    slow = TrainerRates(memory_gb_s=1e-3, macs_per_s=1e3)
    host = replace(
        found.platform.host,
        sampling=sampling,
        models={"graphsage": slow, "gat": gat},
        models_alone={"gat": gat},
    )
    whole = replace(found, platform=replace(found.platform, host=host, relative_error=0.1))
    save_calibration(whole)
    measure_little(monkeypatch)
    again, _ = measure_devices([info], kinds=["graphsage"])
    save_calibration(again)
    now = read_calibration()
    assert now.platform.host.sampling == sampling
    assert now.platform.relative_error == 0.1
    assert now.platform.host.models["gat"] == gat
    assert now.platform.host.models_alone["gat"] == gat
    # A machine is not a million times slower than it was.
    assert now.platform.host.models["graphsage"].macs_per_s > 1e3 * slow.macs_per_s
    assert usable_calibration()[0] == now


def test_a_kind_with_costs_of_its_own_joins_what_is_known(
    measured, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = measured[1]
    sampling = (SampleCost(renumbers=True, graph_bytes=1e6, edges=6400, threads=1, edges_per_s=2e7),)
    whole = FullGraphRates(threads=1, reads=(), mask_s=0, call_s=0, macs_per_s=1e12, values_per_s=1e12)
    host = replace(found.platform.host, sampling=sampling, whole_graph=whole)
    save_calibration(replace(found, platform=replace(found.platform, host=host)))
    before = read_calibration().platform.host
    graph = open_graph("synthetic:tiny")
    of_kind = new_config(None, ["model.kind=commnet", "data.source=synthetic:tiny"])
    said: list[str] = []
    assert predict_run(of_kind, graph, notify=said.append) is None
    assert said == [
        "no prediction: cpu:0 was not calibrated with model.kind=commnet: run `hyrt calibrate --model "
        "commnet`, or choose another device with --devices"
    ]
    measure_little(monkeypatch)
    monkeypatch.setattr(full_graph, "_LOOP_PROBES", ((256, 4, 8),))
    again = measure_kinds(["commnet"])
    save_calibration(again)
    now = read_calibration().platform.host
    # What was measured before stays, and the host's general rates are still those of GraphSAGE.
    assert now.models["graphsage"] == before.models["graphsage"]
    assert (now.macs_per_s, now.sampling) == (before.macs_per_s, sampling)
    assert now.models_alone.keys() <= now.models.keys() == {"graphsage", "commnet"}
    # A mean of neighbours needs no loop of its own.
    assert now.whole_graph is not None
    assert now.whole_graph.loops == {}
    expected = predict_run(of_kind, graph)
    assert expected is not None
    # No step takes less than this.
    assert expected.iteration_s > 1e-5


def test_loops_over_edges_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_graph, "_LOOP_PROBES", ((256, 4, 8), (2048, 64, 8)))
    rates = FullGraphRates(threads=1, reads=(), mask_s=0, call_s=0, macs_per_s=1e12, values_per_s=1e12)
    found = full_graph.measure_loop_cost("ggcn", rates)
    assert found is not None
    # An edge of 8 gates takes more than a cycle or two, and less than a hundred thousand.
    assert 1e-9 < found.edge_s + 8 * found.value_s < 1e-4


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("gcn", "gcn has the costs of gcn, which every calibration measures: remove --model gcn"),
        ("gnn-film", "gnn-film has the costs of gcn"),
        (
            "gine",
            "--model gine cannot be measured, because its costs would be measured on generated graphs, whose "
            "edges have no features",
        ),
        ("gnc", "unknown model.kind 'gnc'"),
    ],
)
def test_kinds_that_are_not_measured_by_themselves(kind: str, says: str, cache: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        measure_kinds([kind])


@pytest.mark.parametrize("text", ["", "[]", "{", "machine: 3", "machine: {node: x}"])
def test_a_damaged_file_counts_as_none(cache: Path, text: str) -> None:
    cache.mkdir()
    calibration_file().write_text(text)
    assert read_measured() is None


@pytest.mark.parametrize("wrong", ["0", "-1.0", ".nan", "fast", "null"])
def test_rates_that_are_none_are_left_out(cache: Path, measured, wrong: str) -> None:
    save_calibration(measured[1])
    lines = calibration_file().read_text().splitlines()
    changed = [
        f"{line.partition(':')[0]}: {wrong}" if line.strip().startswith("macs_per_s:") else line
        for line in lines
    ]
    assert changed != lines
    calibration_file().write_text("\n".join(changed))
    assert read_measured() is None


class Clocked(NullDevice):
    """Copies in the background and has a clock of its own: propagate's call also waits for the copy."""

    def propagate(self, staged: MiniBatch) -> StepResult:
        result = super().propagate(staged)
        moved = staged.inputs.numel() * staged.inputs.element_size()
        result.seconds = {"transfer": 1e-3 + moved / 1e10, "propagate": 0.02}
        return result


def test_the_devices_own_clock_counts() -> None:
    info = DeviceInfo(kind="null", index=0, description="", memory_bytes=0)
    graph = open_graph("synthetic:tiny")
    device = Clocked.open(info, None)
    found = [measure_probe(device, "graphsage", probe, graph) for probe in PROBES]
    assert [each.propagate.seconds for each in found] == [0.02] * len(PROBES)
    # The smaller last step of an epoch is left out.
    assert [each.workload.vertices[-1] for each in found] == [probe.targets for probe in PROBES]
    latency_s, gb_s = fit_link(found)
    # Whole steps are of about one size: of their times the lower quartile counts.
    assert gb_s == pytest.approx(10, rel=0.03)
    assert latency_s == pytest.approx(1e-3, rel=0.03)
    assert np.all([each.propagate.spread == 0 for each in found])


def test_a_cache_that_cannot_be_written_is_said(
    measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataWriteError, match="XDG_CACHE_HOME"):
        save_calibration(measured[1])


def test_assumed_rates_stand_until_measured() -> None:
    assumed = Rates(macs_per_s=1, memory_bytes_per_s=1, link_bytes_per_s=1, source="assumed: data sheet")
    info = DeviceInfo(kind="npu", index=0, description="", memory_bytes=1, rates=assumed)
    speed = device_speed(info, None)
    assert (speed.rates, speed.not_used) == (assumed, "")
    assert speed.trainer is not None
    assert speed.trainer.rates == TrainerRates(memory_gb_s=1e-9, macs_per_s=1)
