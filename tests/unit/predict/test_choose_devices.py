"""What `--devices auto` takes, from made-up machines."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest
import torch
from hyrt_devices.null import NullDevice
from hyrt_perfmodel.platform import Accelerator, Host, Platform, TrainerRates
from hyrt_perfmodel.platform_file import Calibration
from hyrt_perfmodel.prediction.stages import load_s, trainer_s
from hyrt_perfmodel.workload import TrainingWorkload, Workload, proportional_workload
from unit.predict.little_probes import measure_little

from hyrt.config import build_config
from hyrt.device import DeviceInfo, DeviceOptions, Rates
from hyrt.device import discovery as registry
from hyrt.device.discovery import ProbeResult, find_device
from hyrt.errors import DeviceUnavailableError
from hyrt.graph import open_graph
from hyrt.predict.calibrate.store import describe_machine, device_speed, read_measured
from hyrt.predict.choose_devices import _step_s, choose_devices, known_work, resolve_auto, whole_step_s
from hyrt.sampling.settings.neighbor_settings import NeighborSettings
from hyrt.training.build_run import build_run
from hyrt.training.setup import PreparedRun, build_model, build_sampler

WORKLOAD = Workload(
    vertices=(100_000, 20_000, 1024), edges=(200_000, 25_000), features=(100, 256, 47), concat=True
)
WORK = TrainingWorkload(
    at=proportional_workload(WORKLOAD, 1024), targets_per_epoch=100_000, batch_size=1024, model="graphsage"
)


def rates(gmacs: float, memory: float = 100.0, link: float = float("inf")) -> Rates:
    return Rates(
        macs_per_s=gmacs * 1e9, memory_bytes_per_s=memory * 1e9, link_bytes_per_s=link * 1e9, source="assumed"
    )


def device(kind: str, index: int = 0, **more) -> DeviceInfo:
    return DeviceInfo(kind=kind, index=index, description=f"{kind} {index}", memory_bytes=2**30, **more)


CPU = device("cpu", rates=rates(100), host_cores=2, whole_graphs=True)
SURVEYS = [
    ProbeResult("cpu", "hyrt 1", (CPU,)),
    ProbeResult("acme", "acme 1", (device("acme", rates=rates(100, 100, 100)),)),
]


def chosen(*infos: DeviceInfo, measured=None, why_not=lambda info: ""):
    surveys = [ProbeResult(info.kind, "hyrt 1", (info,)) for info in infos]
    return choose_devices(surveys, lambda info: _step_s(info, measured, "graphsage", WORK), why_not)


def test_only_the_cpu_where_nothing_else_is() -> None:
    choice = chosen(CPU, device("cpu", 1, host_cores=2), device("null", simulated=True))
    assert choice.devices == ("cpu:0",)
    assert not choice.unused


def test_of_the_whole_graph_only_the_fastest_trains() -> None:
    cards = [
        device("acme", i, rates=rates(gmacs, gmacs, gmacs), whole_graphs=True)
        for i, gmacs in enumerate((200, 900))
    ]
    batches = device("fpga", rates=rates(5000, 5000, 5000))
    infos = (CPU, *cards, batches, device("npu", whole_graphs=True))
    surveys = [ProbeResult("any", "hyrt 1", infos)]
    work = replace(WORK, batch_size=1, targets_per_epoch=1, at=lambda units: WORKLOAD, resident=True)
    step_s = lambda info: _step_s(info, None, "graphsage", work)  # noqa: E731
    choice = choose_devices(surveys, step_s, lambda info: "", only_fastest=True)
    assert choice.devices == ("acme:1",)
    assert dict(choice.unused) == {
        "cpu:0": "slower than acme:1",
        "acme:0": "slower than acme:1",
        "fpga:0": "trains mini-batches only",
        "npu:0": "its rates are unknown: run `hyrt devices --measure`",
    }
    assert choose_devices(surveys, lambda info: None, lambda info: "", only_fastest=True).devices == (
        "cpu:0",
    )


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
    machine = describe_machine({gpu.name: gpu.description})
    measured = Calibration(
        machine=replace(machine, node=host or machine.node),
        date="2026-01-01",
        seconds=1.0,
        platform=Platform(
            name="this-machine",
            host=Host(memory_gb_s=1.0, macs_per_s=1.0, trains=False),
            accelerators=(
                Accelerator(
                    kind="cuda",
                    memory_gb_s=1.0,
                    macs_per_s=1.0,
                    link_gb_s=1000.0,
                    models={"graphsage": TrainerRates(memory_gb_s=400.0, macs_per_s=400e9)},
                ),
            ),
        ),
        measured={},
    )
    choice = chosen(CPU, gpu, measured=measured)
    assert choice.devices == (("cpu:0=0.25", "cuda:0=1") if used else ("cpu:0=1", "cuda:0=1"))


def test_a_whole_step_is_the_equations_sum_or_its_transfer() -> None:
    """By the paper's terms and the second product of backward (extra_terms), written out."""
    trainer = device_speed(device("cuda", rates=rates(100, 50, 1000)), None).trainer
    assert trainer is not None
    computing = trainer_s(WORKLOAD, 50e9, 100e9)
    # Backward multiplies once more for the gradient of each layer's input, but for the first's.
    computing += WORKLOAD.vertices[2] * WORKLOAD.f_in(2) * WORKLOAD.features[2] / 100e9
    assert whole_step_s(trainer, WORK) == pytest.approx(computing)
    slow = device_speed(device("cuda", rates=rates(100, 50, 0.1)), None).trainer
    assert slow is not None
    topology = 4 * sum(WORKLOAD.edges) + 8 * sum(WORKLOAD.vertices[1:])
    assert whole_step_s(slow, WORK) == pytest.approx(load_s(WORKLOAD, 1e8) + topology / 1e8)


@pytest.mark.parametrize("settings", [{"model": {"kind": "gat"}}, {"sampler": {"kind": "saint"}}])
def test_every_model_and_sampler_has_a_step_to_compare_by(settings: dict) -> None:
    graph = open_graph("synthetic:tiny")
    config = build_config({**settings, "data": {"batch_size": 64}})
    work = known_work(config, PreparedRun(config, graph))
    assert work is not None
    step = work.at(float(work.batch_size))
    # No step has more vertices than there are walks' ends or neighbours, and each has some.
    assert 0 < step.vertices[-1] <= step.vertices[0] <= 4 * graph.num_vertices
    assert all(edges > 0 for edges in step.edges)


class Unpredictable(NeighborSettings):
    unpredictable = "its steps are drawn from a stream"


class CostlyToBuild(NeighborSettings):
    """Nothing is known of its sizes before it is built."""

    preparation = "sorting the edges ..."

    def expected_sizes(self, *_: object, **__: object) -> None:
        return None


@pytest.mark.parametrize(("kind", "is_known"), [(Unpredictable, False), (CostlyToBuild, True)])
def test_a_sampler_that_says_no_sizes_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[NeighborSettings], is_known: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("hyrt.predict.choose_devices.survey_devices", lambda: SURVEYS)
    monkeypatch.setattr("hyrt.predict.choose_devices._with_cpu", lambda *_: None)
    monkeypatch.setattr("hyrt.predict.choose_devices._unsupported_reason", lambda *_: "")
    plain = build_config({"devices": "auto", "data": {"batch_size": 64}})
    config, graph = plain.model_copy(update={"sampler": kind()}), open_graph("synthetic:tiny")
    resolved, choice = resolve_auto(config, PreparedRun(config, graph))
    assert choice is not None
    if is_known:
        assert resolved.devices == resolve_auto(plain, PreparedRun(plain, graph))[0].devices
        assert not choice.unused
    else:
        assert resolved.devices == ["cpu:0"]
        ((name, reason),) = choice.unused
        assert (name, reason) == (
            "acme:0",
            "its speed in this run is unknown: sampler.kind=neighbor cannot be predicted: "
            "its steps are drawn from a stream",
        )


def test_without_any_device_the_reasons_are_said() -> None:
    broken = ProbeResult("cpu", "hyrt 1", problem="broken: ImportError: no torch")
    shared = ProbeResult("opencl", "hyrt 1", (device("opencl", rates=rates(1), host_cores=2),))
    with pytest.raises(
        DeviceUnavailableError, match=r"opencl:0: shares the CPU; cpu: broken: ImportError: no torch"
    ):
        choose_devices([broken, shared], lambda info: None, lambda info: "")


def test_what_auto_has_built_is_what_the_run_trains(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("hyrt.predict.choose_devices.survey_devices", lambda: SURVEYS)
    monkeypatch.setattr("hyrt.predict.choose_devices._with_cpu", lambda *_: None)
    tried: list[torch.nn.Module] = []
    monkeypatch.setattr(
        "hyrt.predict.choose_devices._unsupported_reason",
        lambda info, model, objective: tried.append(model) or "no",
    )
    built: list[str] = []
    for what in (build_model, build_sampler):
        monkeypatch.setattr(
            f"hyrt.training.setup.{what.__name__}",
            lambda *args, what=what: built.append(what.__name__) or what(*args),
        )
    config, graph = (
        build_config({"devices": "auto", "data": {"batch_size": 64}}),
        open_graph("synthetic:tiny"),
    )
    prepared = PreparedRun(config, graph)
    resolved, choice = resolve_auto(config, prepared)
    assert choice is not None
    assert choice.unused == (("acme:0", "no"),)
    parts = build_run(resolved, graph, prepared=prepared)
    assert sorted(built) == ["build_model", "build_sampler"]
    assert [parts.learner.model] == tried
    assert parts.sampler is prepared.sampler


class WithMemory(NullDevice):
    """Has memory and rates of its own."""

    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        return [device("acme", rates=rates(100, 100, 100))]


class Refusing(WithMemory):
    @classmethod
    def open(cls, info: DeviceInfo, options: DeviceOptions) -> NullDevice:
        raise RuntimeError("firmware\ntoo old")


@pytest.mark.parametrize("backend", ["WithMemory", "Refusing"])
def test_a_cpu_that_was_never_measured_is_before_it_is_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backend: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    entries = [
        EntryPoint("cpu", "hyrt_devices.cpu:CpuDevice", registry.BACKENDS.group),
        EntryPoint("acme", f"unit.predict.test_choose_devices:{backend}", registry.BACKENDS.group),
    ]
    monkeypatch.setattr(
        "hyrt.runtime.entry_points.entry_points",
        lambda group: entries if group == registry.BACKENDS.group else entry_points(group=group),
    )
    if backend == "Refusing":
        # It is left out whatever the rates are.
        measure_little(monkeypatch)
    graph = open_graph("synthetic:tiny")
    config = build_config({"devices": "auto", "data": {"batch_size": 64}})
    resolved, choice = resolve_auto(config, PreparedRun(config, graph))
    assert choice is not None
    kept = read_measured()
    assert kept is not None
    if backend == "Refusing":
        assert resolved.devices == ["cpu:0"]
        (unused,) = choice.unused
        assert unused[0] == "acme:0"
        assert unused[1].startswith("open failed (RuntimeError: firmware too old): update its backend or ")
    else:
        # Shares are inverse step times, in the same unit for both.
        work = known_work(resolved, PreparedRun(resolved, graph))
        infos = [find_device("cpu")[1], *WithMemory.probe()]
        seconds = [_step_s(info, kept, "graphsage", work) or 0.0 for info in infos]
        shares = {r.name: r.share for r in resolved.device_requests}
        assert shares["cpu:0"] / shares["acme:0"] == pytest.approx(seconds[1] / seconds[0], rel=0.01)


def test_other_settings_are_left_alone_and_auto_becomes_names() -> None:
    graph = open_graph("synthetic:tiny")
    named = build_config({"devices": "cpu"})
    assert resolve_auto(named, PreparedRun(named, graph)) == (named, None)
    config = build_config({"devices": "auto", "data": {"batch_size": 64}})
    resolved, choice = resolve_auto(config, PreparedRun(config, graph))
    assert choice is not None
    assert resolved.devices == list(choice.devices)
    assert resolved.devices[0].startswith("cpu:0")
