"""Calibration of this machine: all measurements that the performance model needs."""

from __future__ import annotations

import datetime
import math
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psutil
from hyrt_perfmodel.calibration_fit import (
    MeasuredRun,
    StageOverlapFit,
    fit_stage_overlap,
    fit_threaded_rates,
    with_sparse_launch,
)
from hyrt_perfmodel.measured_costs import LoadCost, SampleCost, WalkCost
from hyrt_perfmodel.platform import Accelerator, Host, Platform, TrainerRates
from hyrt_perfmodel.platform_file import Calibration, device_mismatch, machine_mismatches, read_calibration
from hyrt_perfmodel.policy import Assignment, Threads
from hyrt_perfmodel.prediction.stages import trainer_s, weight_gradients_s
from hyrt_perfmodel.workload import LoadForm, Workload

from hyrt.config import Config, build_config
from hyrt.device import Device, DeviceInfo, DeviceOptions
from hyrt.device.calls import opened
from hyrt.device.discovery import find_device, split_by_shares
from hyrt.errors import ConfigError, DeviceUnavailableError, UnsupportedModelError, describe_error
from hyrt.graph.graph import Graph
from hyrt.graph.source import open_graph
from hyrt.nn.models.model_kind import find_model
from hyrt.nn.operators import linear
from hyrt.predict.calibrate import host as host_measurements
from hyrt.predict.calibrate.full_graph import measure_chunk_rates, measure_full_graph_rates, measure_loop_cost
from hyrt.predict.calibrate.host import HUGE, HUGE_BYTES, LARGE, SMALL, TINY, measure_file_gb_s
from hyrt.predict.calibrate.store import (
    accelerators_by_name,
    describe_machine,
    read_measured,
    real_devices,
    shares_cores,
)
from hyrt.predict.calibrate.trainers import (
    CHUNK_ROWS,
    DENSE,
    HETERO,
    HETERO_PROBES,
    HETERO_SHARED_PROBES,
    PROBES,
    SHARED_PROBES,
    SPARSE_PROBE,
    Probe,
    ProbeGraphs,
    ProbeMeasurement,
    fit_link,
    fit_trainer,
    measure_probe,
    short_run,
)
from hyrt.predict.workload import calibration_gap, sampled_workload
from hyrt.runtime.hardware import shared_cores
from hyrt.runtime.workers import Workers

KINDS: tuple[str, ...] = ("graphsage", "gcn", "gin", "gat")
_FORMS: tuple[LoadForm, ...] = ("rows", "aggregated", "in_place", "sparse")

ProgressCallback = Callable[[str], None]


@dataclass(slots=True)
class _Trainer:
    """Measurements of one device."""

    info: DeviceInfo
    rates: dict[str, TrainerRates] = field(default_factory=dict)
    alone: dict[str, TrainerRates] = field(default_factory=dict)
    """Rates by model kind of a multi-threaded CPU with one thread. `rates` are those with all threads."""
    link: tuple[float, float] = (0.0, float("inf"))
    spreads: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    first_probe_s: float = 0.0
    reached: dict[str, float] = field(default_factory=dict)


def calibrate(notify: ProgressCallback = lambda text: None, *, everything: bool = False) -> Calibration:
    """Measure this machine, which takes a minute or more on two cores.

    With `everything`, devices that share the CPU's cores are measured too, which mainly takes time to compile
    kernels. Raises HyrtError if the CPU fails; failures of other devices are recorded in `measured`.
    """
    started, date = time.perf_counter(), datetime.date.today().isoformat()
    cores = shared_cores()
    notify("host: memory, sampling and loading")
    small, large = open_graph(SMALL), open_graph(LARGE)
    host, measured = _measure_host(small, large, cores)
    graphs = ProbeGraphs({SMALL: small, LARGE: large, DENSE: open_graph(DENSE)})
    found = real_devices()
    selected = [info for info in found if everything or not shares_cores(info)]
    trainers, skipped = _measure_trainers(
        selected, graphs, notify, lambda info: cores if info.kind == "cpu" else max(1, cores // 2)
    )
    skipped |= {
        info.name: "computes on the CPU's cores; `hyrt calibrate --all` measures it, which takes minutes"
        for info in found
        if info not in selected
    }
    cpu = next(trainer for trainer in trainers if trainer.info.kind == "cpu")
    host = _with_cpu(host, cpu)
    notify("whole graphs")
    host = replace(
        host,
        whole_graph=measure_full_graph_rates(cores),
        chunks=measure_chunk_rates(cores),
        file_gb_s=measure_file_gb_s(),
    )
    others = [trainer for trainer in trainers if trainer is not cpu]
    platform = Platform(
        name="this-machine",
        host=host,
        accelerators=tuple(_accelerator(trainer) for trainer in others),
        source=f"measured {date}",
    )
    runs = _runs(platform, graphs, cpu, others, notify)
    fit = fit_stage_overlap(runs)
    platform = replace(
        platform,
        host=fit.apply_to(host),
        relative_error=round(max(0.05, statistics.fmean(abs(error) for error in fit.relative_errors)), 3),
    )
    measured |= {
        "spread": {
            **measured["spread"],
            **{trainer.info.name: max(trainer.spreads) for trainer in trainers},
        },
        "fit_errors": {trainer.info.name: trainer.errors for trainer in trainers},
        "runs": _summarize_runs(runs, fit),
        "left_out": skipped,
        "devices": _reached_rates(trainers, date),
    }
    return Calibration(
        machine=describe_machine({trainer.info.name: trainer.info.description for trainer in trainers}),
        date=date,
        seconds=round(time.perf_counter() - started, 1),
        platform=platform,
        measured=measured,
    )


def measure_devices(
    infos: Sequence[DeviceInfo],
    notify: ProgressCallback = lambda text: None,
    kinds: Sequence[str] = KINDS,
    known: Calibration | None = None,
) -> tuple[Calibration, dict[str, str]]:
    """Measure devices one at a time, and merge the results into this machine's calibration if valid.

    Each device is measured with the first of `kinds` that it supports. `known` replaces the stored
    calibration. Returns the merged calibration, and the reason of each failed device by name. Raises
    HyrtError if the CPU fails.
    """
    cores = shared_cores()
    known = known or read_measured()
    if known is not None and machine_mismatches(known, describe_machine({})):
        known = None
    trainers, skipped = _measure_trainers(
        infos,
        ProbeGraphs({name: open_graph(name) for name in _graphs(kinds)}),
        notify,
        lambda info: cores if info.kind == "cpu" else max(1, cores // 2),
        kinds,
        max_kinds=1,
    )
    date = datetime.date.today().isoformat()
    devices = {} if known is None else dict(known.machine.devices)
    accelerators = {} if known is None else accelerators_by_name(known)
    # Without a CPU measurement, the host's rates are unknown and it does not train.
    host = Host(memory_gb_s=1.0, macs_per_s=1.0, trains=False) if known is None else known.platform.host
    for trainer in trainers:
        name = trainer.info.name
        if trainer.info.kind == "cpu":
            host = _with_cpu(replace(host, trains=True), trainer)
            host = replace(host, cores=cores)
        else:
            accelerator = _accelerator(trainer)
            previous = accelerators.get(name)
            if known is not None and previous is not None and not _has_changed(known, trainer.info):
                accelerator = replace(accelerator, models={**previous.models, **accelerator.models})
            accelerators[name] = accelerator
    measured = {} if known is None else dict(known.measured)
    measured["devices"] = {**measured.get("devices", {}), **_reached_rates(trainers, date)}
    machine = describe_machine(
        {**devices, **{trainer.info.name: trainer.info.description for trainer in trainers}}
    )
    platform = Platform(
        name="this-machine",
        host=host,
        accelerators=tuple(accelerators[name] for name in machine.devices if name in accelerators),
        source=f"measured {date}" if known is None else known.platform.source,
        relative_error=None if known is None else known.platform.relative_error,
    )
    if known is not None:
        return replace(known, machine=machine, platform=platform, measured=measured), skipped
    return Calibration(machine=machine, date=date, seconds=0.0, platform=platform, measured=measured), skipped


def measure_kinds(kinds: Sequence[str], notify: ProgressCallback = lambda text: None) -> Calibration:
    """Measure the CPU with more model kinds, and add their rates to the stored calibration.

    Raises ConfigError if a kind does not exist or uses the costs of another kind, and HyrtError if this
    machine is not calibrated or a measurement fails.
    """
    for kind in kinds:
        if similar := find_model(kind).costs_like:
            raise ConfigError(
                f"{kind} has the costs of {similar}, which every calibration measures: remove --model {kind}"
            )
        if reason := calibration_gap(kind):
            raise ConfigError(f"--model {kind} cannot be measured, because {reason}")
    calibration = read_calibration()
    if stale := machine_mismatches(calibration, describe_machine({})):
        raise DeviceUnavailableError(f"the calibration was {stale[0]}: run `hyrt calibrate` first")
    for kind in kinds:
        notify(f"cpu:0 with model.kind={kind}")
        calibration, skipped = measure_devices([find_device("cpu:0")[1]], kinds=[kind], known=calibration)
        if skipped:
            raise UnsupportedModelError(f"model.kind={kind} cannot be measured: {' '.join(skipped.values())}")
        host = calibration.platform.host
        if host.whole_graph is None or find_model(kind).hetero:
            continue
        if (loops := measure_loop_cost(kind, host.whole_graph)) is not None:
            full_graph = replace(host.whole_graph, loops={**host.whole_graph.loops, kind: loops})
            calibration = replace(
                calibration,
                platform=replace(calibration.platform, host=replace(host, whole_graph=full_graph)),
            )
    return calibration


def _graphs(kinds: Sequence[str]) -> Sequence[str]:
    """Return the names of the graphs on which the model kinds are measured."""
    is_hetero = {find_model(kind).hetero for kind in kinds}
    return [*([SMALL, LARGE, DENSE] if False in is_hetero else []), *([HETERO] if True in is_hetero else [])]


def _has_changed(known: Calibration, info: DeviceInfo) -> bool:
    return bool(device_mismatch(known, describe_machine({info.name: info.description}), info.name))


def _measure_host(small: Graph, large: Graph, cores: int) -> tuple[Host, dict[str, Any]]:
    """Measure the host; return it without its trainer's rates, and figures for the calibration file."""
    with Workers(1, "hyrt.calibrate") as one, Workers(cores, "hyrt.calibrate") as all_cores:
        one_thread = host_measurements.measure_copy(one)
        all_threads = host_measurements.measure_copy(all_cores)
    sampling: list[tuple[SampleCost, float]] = []
    loading: list[tuple[LoadCost, float]] = []
    walking: list[WalkCost] = []

    def add(graph: Graph, forms: Collection[LoadForm]) -> None:
        graph_bytes = float(graph.topology.indptr.nbytes + graph.topology.indices.nbytes)
        walking.extend(host_measurements.measure_walks(graph, graph_bytes, cores))
        if forms:
            sampling.extend(host_measurements.measure_sampling(graph, graph_bytes, cores))
            loading.extend(host_measurements.measure_loading(graph, cores, forms))

    add(open_graph(TINY), ())
    for graph in (small, large):
        add(graph, ("rows", "sparse", "aggregated"))
    widest = [cost for cost, _ in loading if cost.threads == cores and cost.form == "rows"]
    random_gb_s = min(cost.gb_s for cost in widest)
    if psutil.virtual_memory().available > HUGE_BYTES:
        # Skip sparse rows, because graphs with sparse rows are smaller.
        add(open_graph(HUGE), ("rows", "aggregated"))
    host = Host(
        memory_gb_s=random_gb_s,
        macs_per_s=1.0,
        cores=cores,
        memory_gib=psutil.virtual_memory().total / 2**30,
        loading=tuple(cost for cost, _ in loading),
        sampling=tuple(cost for cost, _ in sampling),
        walking=tuple(walking),
        sparse=tuple(host_measurements.measure_sparse_products(cores)),
    )
    figures = {
        "memory_gb_s": {
            "sequential, 1 thread": 1 / one_thread.seconds,
            f"sequential, {cores} threads": 1 / all_threads.seconds,
            f"random rows, {cores} threads": random_gb_s,
        },
        "spread": {
            "memory": max(one_thread.spread, all_threads.spread),
            "sampling": statistics.median(spread for _, spread in sampling),
            "loading": statistics.median(spread for _, spread in loading),
        },
    }
    return host, figures


def _measure_trainers(
    infos: Sequence[DeviceInfo],
    graph: ProbeGraphs,
    say: ProgressCallback,
    threads: Callable[[DeviceInfo], int],
    kinds: Sequence[str] = KINDS,
    max_kinds: int = len(KINDS),
) -> tuple[list[_Trainer], dict[str, str]]:
    """Measure every device; return the results and the reasons of failures. Raise if the CPU fails."""
    trainers: list[_Trainer] = []
    skipped: dict[str, str] = {}
    for info in infos:
        say(f"{info.name}: {info.description}")
        try:
            trainers.append(_measure_trainer(info, graph, threads(info), kinds, max_kinds))
        except Exception as error:  # A plug-in may raise any exception. Measure the other devices anyway.
            if info.kind == "cpu":
                raise
            skipped[info.name] = " ".join(describe_error(error).split())
    return trainers, skipped


def _measure_trainer(
    info: DeviceInfo,
    graph: ProbeGraphs,
    threads: int,
    kinds: Sequence[str] = KINDS,
    max_kinds: int = len(KINDS),
) -> _Trainer:
    """Measure a device with up to `max_kinds` of the model kinds that it supports."""
    backend, device_info = find_device(info.name)
    trainer = _Trainer(info)
    all_measured: list[ProbeMeasurement] = []
    for kind in kinds:
        if len(trainer.rates) == max_kinds:
            break
        # Measure the CPU with one thread first: these rates do not include the cost of waking threads.
        first_threads = 1 if info.kind == "cpu" else threads
        is_hetero = find_model(kind).hetero
        probes = (HETERO_PROBES,) if is_hetero else ()
        shared_probes: Sequence[Probe] = HETERO_SHARED_PROBES if is_hetero else SHARED_PROBES
        measured = measure_kind(backend, device_info, first_threads, kind, graph, *probes)
        if not measured:
            continue
        fit = fit_trainer(measured)
        # Use the probe with the highest number of edges: for few edges, the call itself dominates.
        widest = max(measured, key=lambda entry: sum(entry.workload.edges))
        rates = replace(fit.rates, sorted_edges_per_s=widest.sorted_edges_per_s)
        if "sparse" in info.forms and not is_hetero:
            for sparse in measure_kind(backend, device_info, first_threads, kind, graph, (SPARSE_PROBE,)):
                rates = with_sparse_launch(rates, sparse.workload, sparse.propagate.seconds)
        trainer.rates[kind] = rates
        shared: list[ProbeMeasurement] = []
        if threads > first_threads:
            shared = measure_kind(backend, device_info, threads, kind, graph, shared_probes)
            trainer.alone[kind] = rates
            trainer.rates[kind] = fit_threaded_rates(
                rates,
                [entry.workload for entry in shared],
                [entry.propagate.seconds for entry in shared],
                threads=threads,
                chunk_rows=CHUNK_ROWS.get(kind, linear.GRAIN),
            )
        trainer.errors += fit.relative_errors
        trainer.spreads.append(statistics.median(entry.propagate.spread for entry in measured))
        all_measured += measured + shared
        trainer.first_probe_s = trainer.first_probe_s or (shared or measured)[0].propagate.seconds
    if not trainer.rates:
        raise UnsupportedModelError(f"{info.name} supports none of the models {', '.join(kinds)}")
    if not info.zero_copy:
        trainer.link = fit_link(all_measured)
    trainer.reached = {
        "macs_per_s": max(_macs(entry.workload) / entry.propagate.seconds for entry in all_measured),
        "memory_bytes_per_s": max(
            trainer_s(entry.workload, 1.0, math.inf) / entry.propagate.seconds for entry in all_measured
        ),
    }
    return trainer


# A probe with a larger spread is measured again after all others, when the disturbance is probably over.
_MAX_SPREAD = 0.04


def measure_kind(
    backend: type[Device],
    info: DeviceInfo,
    threads: int,
    kind: str,
    graph: ProbeGraphs,
    probes: Sequence[Probe] = PROBES,
) -> list[ProbeMeasurement]:
    """Run all probes of a model kind, without dropout and norm if necessary; return [] if unsupported."""
    for plain in (False, True):
        try:
            with opened(backend, info, DeviceOptions(threads=threads)) as device:
                results = [
                    measure_probe(device, kind, probe, graph.graph(probe), plain=plain) for probe in probes
                ]
                for index, probe in enumerate(probes):
                    if results[index].propagate.spread > _MAX_SPREAD:
                        repeated = measure_probe(device, kind, probe, graph.graph(probe), plain=plain)
                        results[index] = min(
                            results[index], repeated, key=lambda result: result.propagate.seconds
                        )
                return results
        except UnsupportedModelError:
            continue
    return []


def _macs(workload: Workload) -> float:
    """Return the number of multiply-accumulates in the forward and backward pass."""
    return trainer_s(workload, math.inf, 1.0) + weight_gradients_s(workload, 1.0)


def _with_cpu(host: Host, cpu: _Trainer) -> Host:
    """Return the host with the rates of the CPU trainer with all threads."""
    general = next((rates for kind, rates in cpu.rates.items() if kind in KINDS), None)
    if general is not None:
        host = replace(
            host,
            macs_per_s=general.macs_per_s,
            launch_s=general.launch_s,
            values_per_s=general.values_per_s,
        )
    return replace(
        host,
        models={**host.models, **cpu.rates},
        models_alone={**host.models_alone, **cpu.alone},
        forms=_forms(cpu.info),
    )


def _reached_rates(trainers: Sequence[_Trainer], date: str) -> dict[str, dict[str, Any]]:
    """Return the measurement date and the highest measured rates of each device, whether fitted or not."""
    return {trainer.info.name: {"date": date, **trainer.reached} for trainer in trainers}


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
    return tuple(form for form in _FORMS if form in info.forms)


@dataclass(frozen=True, slots=True)
class _Run:
    """Short run with `steps` measured steps and the widths of a probe."""

    kind: str
    probe: Probe
    """Probe with the same widths as a trainer probe, so that kernels are compiled only for sparse rows."""
    steps: int
    walks: int = 0
    """Random walks per subgraph, in steps of `probe.targets` subgraphs; 0 for neighbour sampling."""


def _small_probe(targets: int, *, fanouts: tuple[int, ...] = (10, 10), graph: str = SMALL) -> Probe:
    return Probe(features=100, hidden=64, classes=47, targets=targets, fanouts=fanouts, graph=graph)


# Runs with long and short steps, on a graph that exceeds the caches and on one that does not.
_RUNS = (
    _Run("graphsage", Probe(features=128, hidden=256, classes=48, targets=1024, fanouts=(25, 10)), 14),
    _Run("gcn", _small_probe(1024, fanouts=(25, 10), graph=LARGE), 24),
    _Run("gin", _small_probe(512), 50),
    _Run("gat", _small_probe(256), 30),
    _Run("graphsage", _small_probe(1024), 50),
    _Run("graphsage", _small_probe(64), 80),
    _Run("gcn", _small_probe(128), 80),
    _Run("graphsage", _small_probe(1), 40, walks=1000),
    # This run has many weights and few values, and thus shows the cost of weights.
    _Run(
        "gcn",
        Probe(
            features=4096, hidden=128, classes=47, targets=512, fanouts=(10, 10), row_entries=24, graph=SMALL
        ),
        30,
    ),
)
_WARMUP_STEPS = 9


def _runs(
    platform: Platform, graphs: ProbeGraphs, cpu: _Trainer, others: Sequence[_Trainer], say: ProgressCallback
) -> list[MeasuredRun]:
    """Train for about a second each on the CPU, on every accelerator, and on both together."""
    sets = [[cpu], *([trainer] for trainer in others), *([cpu, trainer] for trainer in others)]
    # The work per step does not depend on the devices.
    works = {spec: sampled_workload(_config(spec), graphs.graph(spec.probe)) for spec in _RUNS}
    runs = []
    for trainers in sets:
        say(f"short runs on {' and '.join(trainer.info.name for trainer in trainers)}")
        kinds = [trainer.info.kind for trainer in trainers]
        subset = replace(
            platform,
            host=replace(platform.host, trains="cpu" in kinds),
            accelerators=tuple(a for a in platform.accelerators if a.kind in kinds),
        )
        for spec, work in works.items():
            if all(_can_run(trainer, spec) for trainer in trainers):
                try:
                    run = short_run(
                        _config(spec, trainers),
                        graphs.graph(spec.probe),
                        warm=_WARMUP_STEPS,
                        steps=spec.steps,
                    )
                except UnsupportedModelError:
                    continue  # The device supports the kind only without dropout and norm.
                assignment = Assignment(split=tuple(run.split.values()), threads=Threads(**run.threads))
                synchronize_s = run.stage_s["synchronize"]
                runs.append(MeasuredRun(subset, work, assignment, run.iteration_s, synchronize_s, run.gap_s))
    return runs


def _can_run(trainer: _Trainer, run: _Run) -> bool:
    """Return whether a trainer supports a run, without converting sparse rows to dense rows."""
    return run.kind in trainer.rates and (not run.probe.row_entries or "sparse" in trainer.info.forms)


def _config(run: _Run, trainers: Sequence[_Trainer] = ()) -> Config:
    """Return the configuration of a short run."""
    probe = run.probe
    settings: dict[str, Any] = {
        "model": {"kind": run.kind, "hidden": probe.hidden, "layers": len(probe.fanouts)},
        "sampler": {"fanout": list(probe.fanouts)},
        "data": {"batch_size": probe.targets},
    }
    if run.walks:
        settings["sampler"] = {"kind": "saint", "roots": run.walks, "units": probe.targets}
    if trainers:
        shares = [1 / trainer.first_probe_s for trainer in trainers]
        settings["devices"] = [trainer.info.name for trainer in trainers]
        settings["split"] = split_by_shares(probe.targets, shares)
    return build_config(settings)


def _summarize_runs(runs: Sequence[MeasuredRun], overlap: StageOverlapFit) -> list[dict[str, Any]]:
    return [
        {
            "split": list(run.assignment.split),
            "batch_size": run.training.batch_size,
            "measured_s": run.iteration_s,
            "error": error,
        }
        for run, error in zip(runs, overlap.relative_errors, strict=True)
    ]
