"""The stage times of one iteration on a platform under an assignment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from hyrt_perfmodel.assignment import Assignment, Threads
from hyrt_perfmodel.cycles.design import FpgaDesign
from hyrt_perfmodel.cycles.task_shape import TaskShape
from hyrt_perfmodel.cycles.trainer_cycles import task_seconds
from hyrt_perfmodel.platforms.host_tables import edges_per_second, load_seconds
from hyrt_perfmodel.platforms.platform import Host, Platform, PlatformTrainer, TrainerRates
from hyrt_perfmodel.prediction import extra_terms, stages
from hyrt_perfmodel.prediction.extra_terms import Terms
from hyrt_perfmodel.workloads.workload import LoadForm, TrainingWorkload, Workload

_GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """What each stage of one iteration takes.

    Parameters
    ----------
    sample_s, load_s
        On the host's cores.
    transfer_s
        Of the slowest link.
    propagate_s
        Of the slowest trainer, with synchronization.
    synchronize_s
        Its part of `propagate_s`.
    trainer_transfer_s, trainer_propagate_s
        One a trainer, without synchronization.
    core_s
        Seconds of the host's cores that one iteration uses; None where they are not counted.
    host_trainers
        The kinds of trainers that compute on the host, sorted and joined by `+`.
    """

    sample_s: float
    load_s: float
    transfer_s: float
    propagate_s: float
    synchronize_s: float
    trainer_transfer_s: tuple[float, ...] = ()
    trainer_propagate_s: tuple[float, ...] = ()
    core_s: float | None = None
    host_trainers: str = ""

    @property
    def stages_s(self) -> Mapping[str, float]:
        """The four stages by name."""
        return {
            "sample": self.sample_s,
            "load": self.load_s,
            "transfer": self.transfer_s,
            "propagate": self.propagate_s,
        }

    @property
    def bottleneck(self) -> str:
        """The stage that takes longest; of equal ones the first."""
        stages = self.stages_s
        return max(stages, key=lambda stage: stages[stage])


def stage_times(
    platform: Platform, training: TrainingWorkload, assignment: Assignment, terms: Terms | None = None
) -> StageTimes:
    """Predict every stage of one iteration.

    Parameters
    ----------
    platform, training
        The machine and the work.
    assignment
        Its split has an entry for each of the platform's trainers, the host's first.
    terms
        Beyond the paper's; all of them by default.

    Raises
    ------
    ValueError
        If the split does not have one entry a trainer.
    """
    terms = Terms() if terms is None else terms
    trainers = platform.trainers(training.model)
    if len(assignment.split) != len(trainers):
        raise ValueError(f"a split of {len(assignment.split)} parts for {len(trainers)} trainers")
    host, threads = platform.host, assignment.threads
    workloads = [training.at(units) if units else None for units in assignment.split]
    busy = [(trainer, work) for trainer, work in zip(trainers, workloads, strict=True) if work is not None]
    loads_s = sum(trainer_load_s(trainer, work, training, terms, host, threads) for trainer, work in busy)
    transfers = tuple(
        0.0 if work is None else trainer_transfer_s(trainer, work, training, terms)
        for trainer, work in zip(trainers, workloads, strict=True)
    )
    propagates = tuple(
        0.0 if work is None else trainer_propagate_s(trainer, work, training, terms, host, threads)
        for trainer, work in zip(trainers, workloads, strict=True)
    )
    # All replicas take the new weights, also those that had no targets.
    together = host_trainers([trainer for trainer, _ in busy])
    synchronize_s = step_synchronize_s(trainers, training, host, terms, together)
    sample_s = _sample_s(host, threads, training, busy, terms)
    return StageTimes(
        sample_s=sample_s,
        load_s=loads_s,
        transfer_s=max(transfers),
        propagate_s=stages.propagate_s(propagates, synchronize_s),
        synchronize_s=synchronize_s,
        trainer_transfer_s=transfers,
        trainer_propagate_s=propagates,
        core_s=_core_s(host, busy, training, terms, synchronize_s),
        host_trainers=together,
    )


def iteration_s(times: StageTimes, host: Host, terms: Terms | None = None) -> float:
    """T_execution; where the stages share the host's cores, at least their work over what the cores give."""
    terms = Terms() if terms is None else terms
    stages_s = stages_together_s(times, terms)
    if terms.shared_cores and host.cores and times.core_s is not None:
        efficiency = host.sharing(times.host_trainers).efficiency
        return max(stages_s, times.core_s / (host.cores * efficiency))
    return stages_s


def stages_together_s(times: StageTimes, terms: Terms) -> float:
    """The slowest stage of a pipeline; their sum where they follow each other."""
    if terms.overlap == "all":
        return stages.execution_s(times.sample_s, times.load_s, times.transfer_s, times.propagate_s)
    host_s = times.sample_s + times.load_s
    if terms.overlap == "trainers":
        return host_s + times.transfer_s + times.propagate_s
    return host_s + sum(times.trainer_transfer_s) + sum(times.trainer_propagate_s) + times.synchronize_s


def host_trainers(trainers: Sequence[PlatformTrainer]) -> str:
    """Kinds of the trainers that compute on the host's cores: the key of `Host.sharing`."""
    kinds = {trainer.name.partition(":")[0] for trainer in trainers if trainer.is_host or trainer.host_cores}
    return "+".join(sorted(kinds))


def load_form(trainer: PlatformTrainer, training: TrainingWorkload, terms: Terms) -> LoadForm:
    """In which form a trainer gets its input."""
    return training.best_form if terms.load_forms and training.best_form in trainer.forms else "rows"


def trainer_load_s(
    trainer: PlatformTrainer,
    workload: Workload,
    training: TrainingWorkload,
    terms: Terms,
    host: Host,
    threads: Threads,
) -> float:
    """T_load of one trainer: from the measured table where there is one, else from the bandwidth."""
    form = load_form(trainer, training, terms)
    if form == "in_place":
        return 0.0
    if host.loading:
        # An aggregate reads a row for every edge, and each destination's own.
        rows = workload.vertices[0] if form == "rows" else workload.edges[0] + workload.vertices[1]
        return load_seconds(
            host.loading,
            form,
            rows,
            workload.features[0] * workload.bytes_per_value,
            model=training.model,
            matrix_bytes=training.feature_bytes,
            threads=threads.load,
        )
    if form == "aggregated":
        read = workload.edges[0] * workload.features[0] * workload.bytes_per_value
        return read / load_bytes_per_s(host, threads)
    return stages.load_s(workload, load_bytes_per_s(host, threads))


def load_bytes_per_s(host: Host, threads: Threads) -> float:
    """What the loading threads reach together: no more than the memory gives."""
    whole = host.memory_gb_s * _GB
    if host.thread_load_gb_s is not None:
        return min(whole, threads.load * host.thread_load_gb_s * _GB)
    return whole


def trainer_transfer_s(
    trainer: PlatformTrainer, workload: Workload, training: TrainingWorkload, terms: Terms
) -> float:
    """T_transfer of one trainer; nothing where it reads host memory in place."""
    if math.isinf(trainer.link_gb_s):
        return 0.0
    link = trainer.link_gb_s * _GB
    if load_form(trainer, training, terms) == "aggregated":
        seconds = workload.vertices[1] * workload.f_in(1) * workload.bytes_per_value / link
    else:
        seconds = stages.transfer_s(workload, link)
    if terms.topology:
        seconds += extra_terms.topology_s(workload, link)
    return seconds + (trainer.link_latency_s if terms.launch else 0.0)


def trainer_propagate_s(
    trainer: PlatformTrainer,
    workload: Workload,
    training: TrainingWorkload,
    terms: Terms,
    host: Host,
    threads: Threads,
) -> float:
    """T_trainer of one trainer; the host's goes with its threads."""
    if load_form(trainer, training, terms) == "aggregated":
        # The load stage has read the first layer's edges already.
        workload = replace(workload, edges=(0.0, *workload.edges[1:]))
    if trainer.design is not None and terms.cycles and is_plain(workload):
        return _tasks_s(trainer.design, trainer.task_targets, workload, training)
    if not trainer.is_host:
        return _computing_s(trainer, trainer.rates, 1.0, workload, terms)
    if trainer.rates_alone is None or not host.cores or host.cores == 1:
        return _computing_s(trainer, trainer.rates, host_part(host, threads.train), workload, terms)
    alone = _computing_s(trainer, trainer.rates_alone, 1.0, workload, terms)
    together = min(alone, _computing_s(trainer, trainer.rates, 1.0, workload, terms))
    serial_s = max(0.0, (together - alone / host.cores) / (1 - 1 / host.cores))
    return serial_s + (alone - serial_s) / min(threads.train, host.cores)


def is_plain(workload: Workload) -> bool:
    """Whether a layer is one aggregation and one product, which is all that the FPGA's kernels know."""
    return workload.widths_in is None and workload.rows_per_edge == 1


def _tasks_s(
    design: FpgaDesign, task_targets: int | None, workload: Workload, training: TrainingWorkload
) -> float:
    """Of equal tasks, one after the other."""
    targets = workload.vertices[-1]
    tasks = 1 if task_targets is None else max(1, math.ceil(targets / task_targets))
    each = workload if tasks == 1 else training.at(targets / tasks)
    return tasks * _task_s(each, design)


@lru_cache(maxsize=4096)
def _task_s(workload: Workload, design: FpgaDesign) -> float:
    """Kept, since the best assignment is searched among thousands with the same parts."""
    return task_seconds(TaskShape.of(workload), design)


def _computing_s(
    trainer: PlatformTrainer, rates: TrainerRates, part: float, workload: Workload, terms: Terms
) -> float:
    """With rates of which only a part is there."""
    macs_per_s = rates.macs_per_s * part
    seconds = stages.trainer_s(
        workload,
        rates.memory_bytes_per_s * part,
        macs_per_s,
        pipelined=trainer.pipelined,
        reads_each_source_once=trainer.reads_each_source_once,
    )
    if terms.weight_gradients:
        seconds += extra_terms.weight_gradients_s(workload, macs_per_s)
    if terms.values:
        seconds += extra_terms.num_values(workload) / (rates.values_per_s * part)
    if terms.launch:
        seconds += rates.launch_s
    # Forward through all layers, backward through all.
    passes = 2 * workload.layers
    return seconds + passes * (
        (trainer.flush_s if terms.flush else 0.0) + (trainer.fill_s if terms.fill else 0.0)
    )


def host_part(host: Host, threads: int) -> float:
    """Speed of the CPU trainer with some threads, as a part of that with all cores (Amdahl's law)."""
    if not host.cores:
        return 1.0

    def relative_s(count: int) -> float:
        return host.serial_part + (1 - host.serial_part) / count

    return relative_s(host.cores) / relative_s(min(threads, host.cores))


def step_synchronize_s(
    trainers: Sequence[PlatformTrainer], training: TrainingWorkload, host: Host, terms: Terms, together: str
) -> float:
    """Over the slowest link; the host's own replica is there already. `together` names the trainers on the host's cores."""
    link = min(trainer.link_gb_s for trainer in trainers) * _GB
    work = training.at(1.0)
    seconds = 0.0 if math.isinf(link) else stages.synchronize_s(work, link)
    if terms.launch:
        seconds += host.sharing(together).step_s + stages.synchronize_s(work, host.weights_gb_s * _GB)
    return seconds


def _sample_s(
    host: Host,
    threads: Threads,
    training: TrainingWorkload,
    busy: Sequence[tuple[PlatformTrainer, Workload]],
    terms: Terms,
) -> float:
    if training.sample_s is not None:
        return training.sample_s
    if host.sampling:
        return sum(
            workload.num_edges
            / edges_per_second(
                host.sampling,
                renumbers=load_form(trainer, training, terms) == "rows",
                graph_bytes=training.graph_bytes,
                edges=workload.num_edges,
                threads=threads.sample,
            )
            for trainer, workload in busy
        )
    if host.thread_edges_per_s is None:
        return 0.0
    edges = sum(workload.num_edges for _, workload in busy)
    return edges / (host.thread_edges_per_s * threads.sample)


_ALONE = Threads(sample=1, load=1, train=1)


def _core_s(
    host: Host,
    busy: Sequence[tuple[PlatformTrainer, Workload]],
    training: TrainingWorkload,
    terms: Terms,
    synchronize_s: float,
) -> float | None:
    """Seconds of the host's cores that one iteration uses: what it would take with one thread a stage."""
    if not host.cores:
        return None
    seconds = _sample_s(host, _ALONE, training, busy, terms) + synchronize_s
    for trainer, work in busy:
        seconds += trainer_load_s(trainer, work, training, terms, host, _ALONE)
        cores = 1 if trainer.is_host else trainer.host_cores
        seconds += cores * trainer_propagate_s(trainer, work, training, terms, host, _ALONE)
    return seconds
