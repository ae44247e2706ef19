"""Calibrating this machine: everything the performance model needs to know of it, measured."""

from __future__ import annotations

import datetime
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psutil
from hyrt_perfmodel.assignment import Assignment, Threads
from hyrt_perfmodel.calibration.fit_overlap import MeasuredRun, Overlap, fit_overlap
from hyrt_perfmodel.platforms.calibration_file import Calibration
from hyrt_perfmodel.platforms.host_tables import LoadCost, SampleCost
from hyrt_perfmodel.platforms.platform import Accelerator, Host, Platform, TrainerRates
from hyrt_perfmodel.workloads.workload import LoadForm

from hyrt.config import build_config
from hyrt.device import DeviceInfo, DeviceOptions
from hyrt.device.calls import opened
from hyrt.device.discovery import find_device
from hyrt.device.names import split_by_shares
from hyrt.errors import UnsupportedModel, describe
from hyrt.graph.graph import Graph
from hyrt.graph.source import open_graph
from hyrt.machine.cores import available_cores
from hyrt.machine.workers import Workers
from hyrt.nn.model import Kind
from hyrt.predict.calibrate import host as host_measurements
from hyrt.predict.calibrate.host import LARGE, SMALL
from hyrt.predict.calibrate.identity import real_devices, this_machine
from hyrt.predict.calibrate.short_run import short_run
from hyrt.predict.calibrate.trainers import PROBES, Measured, fit_link, fit_trainer, measure, with_widths
from hyrt.predict.run_training import run_training

KINDS: tuple[Kind, ...] = ("graphsage", "gcn", "gin", "gat")
_FORMS: dict[str, LoadForm] = {"rows": "rows", "aggregated": "aggregated", "in_place": "in_place"}

Say = Callable[[str], None]
"""Hears what is being measured."""


@dataclass(slots=True)
class _Trainer:
    """What was measured of one device."""

    info: DeviceInfo
    rates: dict[str, TrainerRates] = field(default_factory=dict)
    link: tuple[float, float] = (0.0, float("inf"))
    spreads: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    first_probe_s: float = 0.0


def calibrate(say: Say = lambda text: None) -> Calibration:
    """Measure this machine. Takes under a minute on a machine with one or two devices.

    Raises
    ------
    HyrtError
        If not even the CPU can be measured. A device that fails is left out, with its reason in `measured`.
    """
    started = time.perf_counter()
    cores = available_cores()
    say("host: memory, sampling and loading")
    small, large = open_graph(SMALL), open_graph(LARGE)
    host, measured = _measure_host(small, large, cores)
    left_out: dict[str, str] = {}
    trainers: list[_Trainer] = []
    for info in real_devices():
        say(f"{info.name}: {info.description}")
        try:
            trainers.append(_measure_trainer(info, large, _threads(info, cores)))
        except Exception as error:  # A plug-in may raise anything; the others are measured all the same.
            if info.kind == "cpu":
                raise
            left_out[info.name] = " ".join(describe(error).split())
    cpu = next(trainer for trainer in trainers if trainer.info.kind == "cpu")
    together = _measure_trainer(cpu.info, large, cores) if cores > 1 else cpu
    host = _with_cpu(host, cpu, together)
    others = [trainer for trainer in trainers if trainer is not cpu]
    platform = Platform(
        name="this-machine",
        host=host,
        accelerators=tuple(_accelerator(trainer) for trainer in others),
        source=f"measured {datetime.date.today().isoformat()}",
    )
    runs = _runs(platform, {SMALL: small, LARGE: large}, cpu, others, say)
    overlap = fit_overlap(runs)
    platform = replace(
        platform,
        host=overlap.of(host),
        relative_error=round(max(0.05, statistics.fmean(abs(error) for error in overlap.relative_errors)), 3),
    )
    measured |= {
        "spread": {
            **measured["spread"],
            **{trainer.info.name: max(trainer.spreads) for trainer in trainers},
        },
        "fit_errors": {trainer.info.name: trainer.errors for trainer in trainers},
        "runs": _lines(runs, overlap),
        "left_out": left_out,
    }
    return Calibration(
        machine=this_machine({trainer.info.name: trainer.info.description for trainer in trainers}),
        date=datetime.date.today().isoformat(),
        seconds=round(time.perf_counter() - started, 1),
        platform=platform,
        measured=measured,
    )


def _measure_host(small: Graph, large: Graph, cores: int) -> tuple[Host, dict[str, Any]]:
    """A host whose trainer is not known yet, and its figures."""
    with Workers(1, "hyrt.calibrate") as one, Workers(cores, "hyrt.calibrate") as all_cores:
        alone = host_measurements.sequential_gb_s(one)
        together = host_measurements.sequential_gb_s(all_cores)
    sampling: list[tuple[SampleCost, float]] = []
    loading: list[tuple[LoadCost, float]] = []
    for graph in (small, large):
        graph_bytes = float(graph.topology.indptr.nbytes + graph.topology.indices.nbytes)
        sampling += host_measurements.sampling(graph, graph_bytes, cores)
        loading += host_measurements.loading(graph, cores)
    widest = [cost for cost, _ in loading if cost.threads == cores and cost.form == "rows"]
    random_gb_s = min(cost.gb_s for cost in widest)
    host = Host(
        memory_gb_s=random_gb_s,
        macs_per_s=1.0,
        cores=cores,
        memory_gib=psutil.virtual_memory().total / 2**30,
        loading=tuple(cost for cost, _ in loading),
        sampling=tuple(cost for cost, _ in sampling),
    )
    figures = {
        "memory_gb_s": {
            "sequential, 1 thread": 1 / alone.seconds,
            f"sequential, {cores} threads": 1 / together.seconds,
            f"random rows, {cores} threads": random_gb_s,
        },
        "spread": {
            "memory": max(alone.spread, together.spread),
            "sampling": statistics.median(spread for _, spread in sampling),
            "loading": statistics.median(spread for _, spread in loading),
        },
    }
    return host, figures


def _measure_trainer(info: DeviceInfo, graph: Graph, threads: int) -> _Trainer:
    """Rates of a device for every kind of model that it runs."""
    backend, there = find_device(info.name)
    found = _Trainer(info)
    everything: list[Measured] = []
    for kind in KINDS:
        try:
            with opened(backend, there, DeviceOptions(threads=threads)) as device:
                measured = [measure(device, kind, probe, graph) for probe in PROBES]
        except UnsupportedModel:
            continue
        fit = fit_trainer(measured)
        found.rates[kind] = fit.rates
        found.errors += fit.relative_errors
        found.spreads.append(statistics.median(entry.propagate.spread for entry in measured))
        everything += measured
        found.first_probe_s = found.first_probe_s or measured[0].propagate.seconds
    if not found.rates:
        raise UnsupportedModel(f"{info.name} runs none of {', '.join(KINDS)}")
    if not info.zero_copy:
        found.link = fit_link(everything)
    return found


def _threads(info: DeviceInfo, cores: int) -> int:
    """A CPU trainer is measured with one thread; beside it another device on the host has its part of the cores."""
    return 1 if info.kind == "cpu" else max(1, cores // 2)


def _with_cpu(host: Host, alone: _Trainer, together: _Trainer) -> Host:
    """The host with its trainer's rates with one thread and with all."""
    general = next(iter(together.rates.values()))
    return replace(
        host,
        macs_per_s=general.macs_per_s,
        launch_s=general.launch_s,
        values_per_s=general.values_per_s,
        models=together.rates,
        models_alone=alone.rates,
        forms=_forms(alone.info),
    )


def _accelerator(trainer: _Trainer) -> Accelerator:
    general = next(iter(trainer.rates.values()))
    info = trainer.info
    latency_s, link_gb_s = trainer.link
    return Accelerator(
        kind=info.kind,
        memory_gb_s=general.memory_gb_s,
        macs_per_s=general.macs_per_s,
        launch_s=general.launch_s,
        values_per_s=general.values_per_s,
        link_gb_s=link_gb_s,
        link_latency_s=latency_s,
        memory_gib=None if info.zero_copy else info.memory_bytes / 2**30,
        host_cores=min(1, info.host_cores),
        models=trainer.rates,
        forms=_forms(info),
    )


def _forms(info: DeviceInfo) -> tuple[LoadForm, ...]:
    return tuple(_FORMS[form] for form in info.forms if form in _FORMS)


@dataclass(frozen=True, slots=True)
class _Run:
    """A short run: its widths are a probe's, so that nothing is compiled anew. `steps` count."""

    kind: Kind
    probe: int
    batch: int
    graph: str
    steps: int


# Long steps and short ones, on a graph beyond the caches and on one within them.
_RUNS = (
    _Run("graphsage", 0, 1024, LARGE, 24),
    _Run("graphsage", 0, 256, LARGE, 40),
    _Run("gcn", 4, 1024, LARGE, 32),
    _Run("gin", 5, 512, SMALL, 120),
    _Run("graphsage", 5, 1024, SMALL, 120),
    _Run("gcn", 5, 128, SMALL, 200),
)
_WARM = 9


def _runs(
    platform: Platform, graphs: Mapping[str, Graph], cpu: _Trainer, others: Sequence[_Trainer], say: Say
) -> list[MeasuredRun]:
    """Train the CPU alone, every accelerator alone, and both together, for a second each."""
    sets = [[cpu], *([trainer] for trainer in others), *([cpu, trainer] for trainer in others)]
    runs = []
    for trainers in sets:
        say(f"short runs on {' and '.join(trainer.info.name for trainer in trainers)}")
        kinds = [trainer.info.kind for trainer in trainers]
        part = replace(
            platform,
            host=replace(platform.host, trains="cpu" in kinds),
            accelerators=tuple(a for a in platform.accelerators if a.kind in kinds),
        )
        runs += [
            _run(part, graphs[what.graph], trainers, what) for what in _RUNS if _can(trainers, what.kind)
        ]
    return runs


def _can(trainers: Sequence[_Trainer], kind: Kind) -> bool:
    return all(kind in trainer.rates for trainer in trainers)


def _run(platform: Platform, graph: Graph, trainers: Sequence[_Trainer], what: _Run) -> MeasuredRun:
    probe, batch = PROBES[what.probe], what.batch
    graph = with_widths(graph, probe)
    config = build_config(
        {
            "model": {"kind": what.kind, "hidden": probe.hidden, "layers": len(probe.fanouts)},
            "sampler": {"fanout": list(probe.fanouts)},
            "data": {"batch_size": batch},
            "devices": [trainer.info.name for trainer in trainers],
            "split": split_by_shares(batch, [1 / trainer.first_probe_s for trainer in trainers]),
        }
    )
    training = run_training(config, graph)
    assert training is not None
    run = short_run(config, graph, warm=_WARM, steps=what.steps)
    assignment = Assignment(split=tuple(run.split.values()), threads=Threads.of_stages(run.threads))
    return MeasuredRun(platform, training, assignment, run.iteration_s)


def _lines(runs: Sequence[MeasuredRun], overlap: Overlap) -> list[dict[str, Any]]:
    return [
        {
            "split": list(run.assignment.split),
            "batch_size": run.training.batch_size,
            "measured_s": run.iteration_s,
            "error": error,
        }
        for run, error in zip(runs, overlap.relative_errors, strict=True)
    ]
