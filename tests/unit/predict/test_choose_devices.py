"""What `--devices auto` takes, from made-up machines."""

from __future__ import annotations

import platform
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest
from hyrt_devices.null import NullDevice
from hyrt_perfmodel.workloads.workload import Workload

from hyrt import __version__
from hyrt.config import build_config
from hyrt.device import DeviceInfo, DeviceOptions, Rates
from hyrt.device import discovery as registry
from hyrt.device.discovery import Survey
from hyrt.device.rates import MeasuredRates, rates_file, read_rates
from hyrt.errors import DeviceUnavailable
from hyrt.graph import open_graph
from hyrt.predict.choose_devices import _step_s, _workload, choose, resolve_auto

WORKLOAD = Workload(
    vertices=(100_000, 20_000, 1024), edges=(200_000, 25_000), features=(100, 256, 47), concat=True
)


def rates(gmacs: float, memory: float = 100.0, link: float = float("inf")) -> Rates:
    return Rates(
        macs_per_s=gmacs * 1e9, memory_bytes_per_s=memory * 1e9, link_bytes_per_s=link * 1e9, source="assumed"
    )


def device(kind: str, index: int = 0, **more) -> DeviceInfo:
    return DeviceInfo(kind=kind, index=index, description=f"{kind} {index}", memory_bytes=2**30, **more)


CPU = device("cpu", rates=rates(100), host_cores=2)


def chosen(*infos: DeviceInfo, measured=None, why_not=lambda info: "", workload=WORKLOAD):
    return choose([Survey(info.kind, "hyrt 1", (info,)) for info in infos], measured or {}, why_not, workload)


def test_only_the_cpu_where_nothing_else_is() -> None:
    choice = chosen(CPU, device("cpu", 1, host_cores=2), device("null", simulated=True))
    assert choice.devices == ("cpu:0",)
    assert not choice.unused


def test_a_device_on_the_same_cores_is_not_taken_and_says_so() -> None:
    choice = chosen(CPU, device("opencl", rates=rates(100), host_cores=2))
    assert choice.devices == ("cpu:0",)
    assert choice.unused == (("opencl:0", "shares the CPU"),)


def test_shares_are_the_speeds_of_whole_steps() -> None:
    twice = rates(200, 200)
    choice = chosen(
        CPU,
        device(
            "cuda",
            rates=Rates(
                macs_per_s=twice.macs_per_s,
                memory_bytes_per_s=twice.memory_bytes_per_s,
                link_bytes_per_s=1e12,
                source="",
            ),
        ),
    )
    assert choice.devices == ("cpu:0=0.5", "cuda:0=1")


def test_a_slow_link_bounds_a_fast_device() -> None:
    fast = chosen(CPU, device("cuda", rates=rates(5000, 2000, 25.0)))
    slow = chosen(CPU, device("cuda", rates=rates(5000, 2000, 1.0)))
    share = [float(choice.devices[0].partition("=")[2]) for choice in (fast, slow)]
    assert share[0] < share[1]


def test_too_slow_unknown_and_unsupported_are_left_out_with_the_reason() -> None:
    choice = chosen(
        CPU,
        device("slow", rates=rates(1, 1, 10)),
        device("unknown"),
        device("picky", rates=rates(500, 500, 100)),
        why_not=lambda info: "no GAT" if info.kind == "picky" else "",
    )
    assert choice.devices == ("cpu:0",)
    reasons = dict(choice.unused)
    assert reasons["slow:0"].startswith("too slow")
    assert "hyrt devices --measure" in reasons["unknown:0"]
    assert reasons["picky:0"] == "no GAT"


@pytest.mark.parametrize(("host", "used"), [(None, True), ("elsewhere", False)])
def test_measured_rates_count_where_they_are_of_this_device(host: str | None, used: bool) -> None:
    gpu = device("cuda", rates=rates(100, 100, 1000))
    entry = MeasuredRates(
        description=gpu.description,
        host=host or platform.node(),
        hyrt=__version__,
        date="2026-01-01",
        macs_per_s=400e9,
        memory_bytes_per_s=400e9,
        link_bytes_per_s=1e12,
        spread=0.1,
    )
    choice = chosen(CPU, gpu, measured={"cuda:0": entry})
    assert choice.devices == (("cpu:0=0.25", "cuda:0=1") if used else ("cpu:0=1", "cuda:0=1"))


def test_without_any_device_the_reasons_are_said() -> None:
    broken = Survey("cpu", "hyrt 1", problem="broken: ImportError: no torch")
    shared = Survey("opencl", "hyrt 1", (device("opencl", rates=rates(1), host_cores=2),))
    with pytest.raises(
        DeviceUnavailable, match=r"opencl:0: shares the CPU; cpu: broken: ImportError: no torch"
    ):
        choose([broken, shared], {}, lambda info: "", WORKLOAD)


class Accelerator(NullDevice):
    """Has memory and rates of its own."""

    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        return [device("acme", rates=rates(100, 100, 100))]


class Refusing(Accelerator):
    @classmethod
    def open(cls, info: DeviceInfo, options: DeviceOptions) -> NullDevice:
        raise RuntimeError("firmware\ntoo old")


@pytest.mark.parametrize("backend", ["Accelerator", "Refusing"])
def test_a_cpu_that_was_never_measured_is_before_it_is_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backend: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    entries = [
        EntryPoint("cpu", "hyrt_devices.cpu:CpuDevice", registry.BACKENDS.group),
        EntryPoint("acme", f"unit.predict.test_choose_devices:{backend}", registry.BACKENDS.group),
    ]
    monkeypatch.setattr(
        "hyrt.machine.entry_points.entry_points",
        lambda group: entries if group == registry.BACKENDS.group else entry_points(group=group),
    )
    graph = open_graph("synthetic:tiny")
    resolved, choice = resolve_auto(build_config({"devices": "auto", "data": {"batch_size": 64}}), graph)
    assert choice is not None
    kept = read_rates(rates_file())["cpu:0"]
    if backend == "Refusing":
        assert resolved.devices == ["cpu:0"]
        assert choice.unused == (("acme:0", "open failed: RuntimeError: firmware too old"),)
    else:
        # Shares are inverse step times, in the same unit for both.
        workload = _workload(resolved, graph)
        assert workload is not None
        seconds = [_step_s(r, workload) for r in (kept.rates(), rates(100, 100, 100))]
        shares = {r.name: r.share for r in resolved.device_requests}
        assert shares["cpu:0"] / shares["acme:0"] == pytest.approx(seconds[1] / seconds[0], rel=0.01)


def test_other_settings_are_left_alone_and_auto_becomes_names() -> None:
    graph = open_graph("synthetic:tiny")
    named = build_config({"devices": "cpu"})
    assert resolve_auto(named, graph) == (named, None)
    resolved, choice = resolve_auto(build_config({"devices": "auto", "data": {"batch_size": 64}}), graph)
    assert choice is not None
    assert resolved.devices == list(choice.devices)
    assert resolved.devices[0].startswith("cpu:0")
