"""Calibrating this machine: everything the performance model needs to know of it, measured."""

from __future__ import annotations

import datetime
import math
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psutil
from hyrt_perfmodel.assignment import Assignment, Threads
from hyrt_perfmodel.calibration.fit_overlap import MeasuredRun, Overlap, fit_overlap
from hyrt_perfmodel.calibration.fit_rates import shared_rates, with_sparse_launch
from hyrt_perfmodel.platforms.calibration_file import (
    Calibration,
    read_calibration,
    why_other_device,
    why_other_machine,
)
from hyrt_perfmodel.platforms.host_tables import LoadCost, SampleCost, WalkCost
from hyrt_perfmodel.platforms.platform import Accelerator, Host, Platform, TrainerRates
from hyrt_perfmodel.prediction.extra_terms import weight_gradients_s
from hyrt_perfmodel.prediction.stages import trainer_s
from hyrt_perfmodel.workloads.workload import LoadForm, Workload

from hyrt.config import Config, build_config
from hyrt.device import Device, DeviceInfo, DeviceOptions
from hyrt.device.calls import opened
from hyrt.device.discovery import find_device
from hyrt.device.names import split_by_shares
from hyrt.errors import ConfigError, DeviceUnavailable, UnsupportedModel, describe
from hyrt.graph.graph import Graph
from hyrt.graph.source import open_graph
from hyrt.machine.cores import shared_cores
from hyrt.machine.workers import Workers
from hyrt.nn.models.model_kind import find_model
from hyrt.nn.operators import product
from hyrt.predict.calibrate import host as host_measurements
from hyrt.predict.calibrate.chunks import chunk_rates
from hyrt.predict.calibrate.disk import file_gb_s
from hyrt.predict.calibrate.host import HUGE, HUGE_BYTES, LARGE, LEAST, SMALL
from hyrt.predict.calibrate.short_run import short_run
from hyrt.predict.calibrate.store import (
    accelerators_by_name,
    read_measured,
    real_devices,
    shares_cores,
    this_machine,
)
from hyrt.predict.calibrate.trainers import (
    CHUNK_ROWS,
    DENSE,
    PROBES,
    SHARED_PROBES,
    SPARSE_PROBE,
    TYPED,
    TYPED_PROBES,
    TYPED_SHARED_PROBES,
    Measured,
    Probe,
    Widths,
    fit_link,
    fit_trainer,
    measure,
)
from hyrt.predict.calibrate.whole_graph import loop_cost, whole_graph_rates
from hyrt.predict.workload import sampled_workload, why_not_measured

KINDS: tuple[str, ...] = ("graphsage", "gcn", "gin", "gat")
_FORMS: tuple[LoadForm, ...] = ("rows", "aggregated", "in_place", "sparse")

Say = Callable[[str], None]
"""Called with what is being measured."""


@dataclass(slots=True)
class _Trainer:
    """What was measured of one device."""

    info: DeviceInfo
    rates: dict[str, TrainerRates] = field(default_factory=dict)
    alone: dict[str, TrainerRates] = field(default_factory=dict)
    """`rates` and `alone`: by kind of model; of the CPU with all threads and with one, where it has more."""
    link: tuple[float, float] = (0.0, float("inf"))
    spreads: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    first_probe_s: float = 0.0
    reached: dict[str, float] = field(default_factory=dict)


def calibrate(say: Say = lambda text: None, *, everything: bool = False) -> Calibration:
    """Measure this machine: on two cores in about a minute, and longer with every device beside them.

    Parameters
    ----------
    say
        Called with what is being measured.
    everything
        Whether devices that share the CPU's cores are measured too. Most of their time is compiling kernels.

    Raises
    ------
    HyrtError
        If not even the CPU can be measured. A device that fails is left out, with its reason in `measured`.
    """
    started, date = time.perf_counter(), datetime.date.today().isoformat()
    cores = shared_cores()
    say("host: memory, sampling and loading")
    small, large = open_graph(SMALL), open_graph(LARGE)
    host, measured = _measure_host(small, large, cores)
    widened = Widths({SMALL: small, LARGE: large, DENSE: open_graph(DENSE)})
    found = real_devices()
    wanted = [info for info in found if everything or not shares_cores(info)]
    trainers, left_out = _measure_trainers(
        wanted, widened, say, lambda info: cores if info.kind == "cpu" else max(1, cores // 2)
    )
    left_out |= {
        info.name: "computes on the CPU's cores; `hyrt calibrate --all` measures it, which takes minutes"
        for info in found
        if info not in wanted
    }
    cpu = next(trainer for trainer in trainers if trainer.info.kind == "cpu")
    host = _with_cpu(host, cpu)
    say("whole graphs")
    host = replace(
        host, whole_graph=whole_graph_rates(cores), chunks=chunk_rates(cores), file_gb_s=file_gb_s()
    )
    others = [trainer for trainer in trainers if trainer is not cpu]
    platform = Platform(
        name="this-machine",
        host=host,
        accelerators=tuple(_accelerator(trainer) for trainer in others),
        source=f"measured {date}",
    )
    runs = _runs(platform, widened, cpu, others, say)
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
        "devices": _reached(trainers, date),
    }
    return Calibration(
        machine=this_machine({trainer.info.name: trainer.info.description for trainer in trainers}),
        date=date,
        seconds=round(time.perf_counter() - started, 1),
        platform=platform,
        measured=measured,
    )


def measure_devices(
    infos: Sequence[DeviceInfo],
    say: Say = lambda text: None,
    kinds: Sequence[str] = KINDS,
    known: Calibration | None = None,
) -> tuple[Calibration, dict[str, str]]:
    """Measure devices alone, beside what is known of this machine as long as that still holds.

    Parameters
    ----------
    infos
        The devices, real ones.
    say
        Called with what is being measured.
    kinds
        The kinds of models; each device is measured with the first of them that it runs.
    known
        What is known; by default, what was stored.

    Returns
    -------
    Everything that is now known of the machine; and by name why a device could not be measured.

    Raises
    ------
    HyrtError
        If the CPU cannot be measured.
    """
    cores = shared_cores()
    known = known or read_measured()
    if known is not None and why_other_machine(known, this_machine({})):
        known = None
    trainers, left_out = _measure_trainers(
        infos,
        Widths({name: open_graph(name) for name in _graphs(kinds)}),
        say,
        lambda info: cores if info.kind == "cpu" else max(1, cores // 2),
        kinds,
        most=1,
    )
    date = datetime.date.today().isoformat()
    devices = {} if known is None else dict(known.machine.devices)
    accelerators = {} if known is None else accelerators_by_name(known)
    # Until the CPU is measured nothing is known of the host, and it trains nothing.
    host = Host(memory_gb_s=1.0, macs_per_s=1.0, trains=False) if known is None else known.platform.host
    for trainer in trainers:
        name = trainer.info.name
        if trainer.info.kind == "cpu":
            host = _with_cpu(replace(host, trains=True), trainer)
            host = replace(host, cores=cores)
        else:
            found = _accelerator(trainer)
            before = accelerators.get(name)
            if known is not None and before is not None and not _has_changed(known, trainer.info):
                found = replace(found, models={**before.models, **found.models})
            accelerators[name] = found
    measured = {} if known is None else dict(known.measured)
    measured["devices"] = {**measured.get("devices", {}), **_reached(trainers, date)}
    machine = this_machine(
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
        return replace(known, machine=machine, platform=platform, measured=measured), left_out
    return Calibration(
        machine=machine, date=date, seconds=0.0, platform=platform, measured=measured
    ), left_out


def measure_kinds(kinds: Sequence[str], say: Say = lambda text: None) -> Calibration:
    """Measure the CPU with further kinds of models, whose costs are like those of no other.

    Parameters
    ----------
    kinds
        The kinds, by the names that `model.kind` gives.
    say
        Called with what is being measured.

    Returns
    -------
    The stored calibration of this machine with their rates.

    Raises
    ------
    ConfigError
        If there is no such kind, or it has the costs of another.
    HyrtError
        If this machine has not been calibrated, or a kind cannot be measured.
    """
    for kind in kinds:
        if like := find_model(kind).costs_like:
            raise ConfigError(
                f"--model {kind}: it has the costs of {like}, which every calibration measures: omit it"
            )
        if why := why_not_measured(kind):
            raise ConfigError(f"--model {kind}: {why}")
    found = read_calibration()
    if stale := why_other_machine(found, this_machine({})):
        raise DeviceUnavailable(f"the calibration was {stale}: run `hyrt calibrate` first")
    for kind in kinds:
        say(f"cpu:0 with model.kind={kind}")
        found, left_out = measure_devices([find_device("cpu:0")[1]], kinds=[kind], known=found)
        if left_out:
            raise UnsupportedModel(f"model.kind={kind}: {' '.join(left_out.values())}")
        host = found.platform.host
        if host.whole_graph is None or find_model(kind).typed:
            continue
        if (loops := loop_cost(kind, host.whole_graph)) is not None:
            whole = replace(host.whole_graph, loops={**host.whole_graph.loops, kind: loops})
            found = replace(found, platform=replace(found.platform, host=replace(host, whole_graph=whole)))
    return found


def _graphs(kinds: Sequence[str]) -> Sequence[str]:
    """The graphs that some kinds of models are measured with."""
    typed = {find_model(kind).typed for kind in kinds}
    return [*([SMALL, LARGE, DENSE] if False in typed else []), *([TYPED] if True in typed else [])]


def _has_changed(known: Calibration, info: DeviceInfo) -> bool:
    return bool(why_other_device(known, this_machine({info.name: info.description}), info.name))


def _measure_host(small: Graph, large: Graph, cores: int) -> tuple[Host, dict[str, Any]]:
    """A host whose trainer is not known yet, and its figures."""
    with Workers(1, "hyrt.calibrate") as one, Workers(cores, "hyrt.calibrate") as all_cores:
        alone = host_measurements.sequential_gb_s(one)
        together = host_measurements.sequential_gb_s(all_cores)
    sampling: list[tuple[SampleCost, float]] = []
    loading: list[tuple[LoadCost, float]] = []
    walking: list[WalkCost] = []

    def add(graph: Graph, forms: Collection[LoadForm]) -> None:
        graph_bytes = float(graph.topology.indptr.nbytes + graph.topology.indices.nbytes)
        walking.extend(host_measurements.walking(graph, graph_bytes, cores))
        if forms:
            sampling.extend(host_measurements.sampling(graph, graph_bytes, cores))
            loading.extend(host_measurements.loading(graph, cores, forms))

    add(open_graph(LEAST), ())
    for graph in (small, large):
        add(graph, ("rows", "sparse", "aggregated"))
    widest = [cost for cost, _ in loading if cost.threads == cores and cost.form == "rows"]
    random_gb_s = min(cost.gb_s for cost in widest)
    if psutil.virtual_memory().available > HUGE_BYTES:
        # Graphs with sparse rows are smaller.
        add(open_graph(HUGE), ("rows", "aggregated"))
    host = Host(
        memory_gb_s=random_gb_s,
        macs_per_s=1.0,
        cores=cores,
        memory_gib=psutil.virtual_memory().total / 2**30,
        loading=tuple(cost for cost, _ in loading),
        sampling=tuple(cost for cost, _ in sampling),
        walking=tuple(walking),
        sparse=tuple(host_measurements.sparse_products(cores)),
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


def _measure_trainers(
    infos: Sequence[DeviceInfo],
    graph: Widths,
    say: Say,
    threads: Callable[[DeviceInfo], int],
    kinds: Sequence[str] = KINDS,
    most: int = len(KINDS),
) -> tuple[list[_Trainer], dict[str, str]]:
    """Every device that can be measured; and by name why others cannot. Without the CPU nothing is."""
    trainers: list[_Trainer] = []
    left_out: dict[str, str] = {}
    for info in infos:
        say(f"{info.name}: {info.description}")
        try:
            trainers.append(_measure_trainer(info, graph, threads(info), kinds, most))
        except Exception as error:  # A plug-in may raise anything; the others are measured all the same.
            if info.kind == "cpu":
                raise
            left_out[info.name] = " ".join(describe(error).split())
    return trainers, left_out


def _measure_trainer(
    info: DeviceInfo, graph: Widths, threads: int, kinds: Sequence[str] = KINDS, most: int = len(KINDS)
) -> _Trainer:
    """Rates of a device for the kinds of models that it runs, for so many of them at most."""
    backend, there = find_device(info.name)
    found = _Trainer(info)
    everything: list[Measured] = []
    for kind in kinds:
        if len(found.rates) == most:
            break
        # Of the CPU, one thread first: what waking others costs is in no figure then.
        of_one = 1 if info.kind == "cpu" else threads
        typed = find_model(kind).typed
        probes = (TYPED_PROBES,) if typed else ()
        several: Sequence[Probe] = TYPED_SHARED_PROBES if typed else SHARED_PROBES
        measured = measure_kind(backend, there, of_one, kind, graph, *probes)
        if not measured:
            continue
        fit = fit_trainer(measured)
        # Of many edges: with few, it is the call that takes the time.
        widest = max(measured, key=lambda each: sum(each.workload.edges))
        rates = replace(fit.rates, sorted_edges_per_s=widest.sorted_edges_per_s)
        if "sparse" in info.forms and not typed:
            for sparse in measure_kind(backend, there, of_one, kind, graph, (SPARSE_PROBE,)):
                rates = with_sparse_launch(rates, sparse.workload, sparse.propagate.seconds)
        found.rates[kind] = rates
        shared: list[Measured] = []
        if threads > of_one:
            shared = measure_kind(backend, there, threads, kind, graph, several)
            found.alone[kind] = rates
            found.rates[kind] = shared_rates(
                rates,
                [each.workload for each in shared],
                [each.propagate.seconds for each in shared],
                threads=threads,
                chunk_rows=CHUNK_ROWS.get(kind, product.GRAIN),
            )
        found.errors += fit.relative_errors
        found.spreads.append(statistics.median(entry.propagate.spread for entry in measured))
        everything += measured + shared
        found.first_probe_s = found.first_probe_s or (shared or measured)[0].propagate.seconds
    if not found.rates:
        raise UnsupportedModel(f"{info.name} runs none of {', '.join(kinds)}")
    if not info.zero_copy:
        found.link = fit_link(everything)
    found.reached = {
        "macs_per_s": max(_macs(each.workload) / each.propagate.seconds for each in everything),
        "memory_bytes_per_s": max(
            trainer_s(each.workload, 1.0, math.inf) / each.propagate.seconds for each in everything
        ),
    }
    return found


# A probe whose repetitions differ by more is measured once more, after all others: what disturbed it is over
# by then.
_DISTURBED = 0.04


def measure_kind(
    backend: type[Device],
    info: DeviceInfo,
    threads: int,
    kind: str,
    graph: Widths,
    probes: Sequence[Probe] = PROBES,
) -> list[Measured]:
    """All probes of a kind of model, as runs have it by default or else plain; none where neither runs."""
    for plain in (False, True):
        try:
            with opened(backend, info, DeviceOptions(threads=threads)) as device:
                found = [measure(device, kind, probe, graph.of(probe), plain=plain) for probe in probes]
                for place, probe in enumerate(probes):
                    if found[place].propagate.spread > _DISTURBED:
                        again = measure(device, kind, probe, graph.of(probe), plain=plain)
                        found[place] = min(found[place], again, key=lambda each: each.propagate.seconds)
                return found
        except UnsupportedModel:
            continue
    return []


def _macs(workload: Workload) -> float:
    """Multiply-accumulates of forward and backward."""
    return trainer_s(workload, math.inf, 1.0) + weight_gradients_s(workload, 1.0)


def _with_cpu(host: Host, cpu: _Trainer) -> Host:
    """The host with its trainer's rates with all threads."""
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


def _reached(trainers: Sequence[_Trainer], date: str) -> dict[str, dict[str, Any]]:
    """When every device was measured, and the rates that it reached at least, fitted or not."""
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
    """A short run with a probe's shape. `steps` count."""

    kind: str
    probe: Probe
    """Its widths are those of a probe of trainers, so that nothing is compiled anew, but for sparse rows."""
    steps: int
    walks: int = 0
    """Random walks of a subgraph, of which `probe.targets` are a step; 0 draws neighbours."""


def _narrow(targets: int, *, fanouts: tuple[int, ...] = (10, 10), graph: str = SMALL) -> Probe:
    return Probe(features=100, hidden=64, classes=47, targets=targets, fanouts=fanouts, graph=graph)


# Long steps and short ones, on a graph beyond the caches and on one within them.
_RUNS = (
    _Run("graphsage", Probe(features=128, hidden=256, classes=48, targets=1024, fanouts=(25, 10)), 14),
    _Run("gcn", _narrow(1024, fanouts=(25, 10), graph=LARGE), 24),
    _Run("gin", _narrow(512), 50),
    _Run("gat", _narrow(256), 30),
    _Run("graphsage", _narrow(1024), 50),
    _Run("graphsage", _narrow(64), 80),
    _Run("gcn", _narrow(128), 80),
    _Run("graphsage", _narrow(1), 40, walks=1000),
    # Many weights and few values: what the weights cost shows.
    _Run(
        "gcn",
        Probe(
            features=4096, hidden=128, classes=47, targets=512, fanouts=(10, 10), row_entries=24, graph=SMALL
        ),
        30,
    ),
)
_WARM = 9


def _runs(
    platform: Platform, graphs: Widths, cpu: _Trainer, others: Sequence[_Trainer], say: Say
) -> list[MeasuredRun]:
    """Train the CPU alone, every accelerator alone, and both together, for a second each."""
    sets = [[cpu], *([trainer] for trainer in others), *([cpu, trainer] for trainer in others)]
    # What a step asks for is the same on all of them.
    works = {what: sampled_workload(_config(what), graphs.of(what.probe)) for what in _RUNS}
    runs = []
    for trainers in sets:
        say(f"short runs on {' and '.join(trainer.info.name for trainer in trainers)}")
        kinds = [trainer.info.kind for trainer in trainers]
        part = replace(
            platform,
            host=replace(platform.host, trains="cpu" in kinds),
            accelerators=tuple(a for a in platform.accelerators if a.kind in kinds),
        )
        for what, work in works.items():
            if all(_can(trainer, what) for trainer in trainers):
                try:
                    run = short_run(
                        _config(what, trainers), graphs.of(what.probe), warm=_WARM, steps=what.steps
                    )
                except UnsupportedModel:
                    continue  # A device that has run the kind only plain, which no run is by default.
                assignment = Assignment(split=tuple(run.split.values()), threads=Threads(**run.threads))
                synchronize_s = run.stage_s["synchronize"]
                runs.append(MeasuredRun(part, work, assignment, run.iteration_s, synchronize_s, run.gap_s))
    return runs


def _can(trainer: _Trainer, what: _Run) -> bool:
    """Dense rows of so many columns would say nothing of what a run is like."""
    return what.kind in trainer.rates and (not what.probe.row_entries or "sparse" in trainer.info.forms)


def _config(what: _Run, trainers: Sequence[_Trainer] = ()) -> Config:
    """The settings of a short run; by default on the devices that runs have by default."""
    probe = what.probe
    settings: dict[str, Any] = {
        "model": {"kind": what.kind, "hidden": probe.hidden, "layers": len(probe.fanouts)},
        "sampler": {"fanout": list(probe.fanouts)},
        "data": {"batch_size": probe.targets},
    }
    if what.walks:
        settings["sampler"] = {"kind": "saint", "roots": what.walks, "units": probe.targets}
    if trainers:
        shares = [1 / trainer.first_probe_s for trainer in trainers]
        settings["devices"] = [trainer.info.name for trainer in trainers]
        settings["split"] = split_by_shares(probe.targets, shares)
    return build_config(settings)


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
