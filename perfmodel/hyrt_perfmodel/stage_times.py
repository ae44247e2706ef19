"""The stage times of one iteration on a platform under an assignment."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hyrt_perfmodel import extra_terms, stages
from hyrt_perfmodel.assignment import Assignment, StageTimes, Threads
from hyrt_perfmodel.extra_terms import Terms
from hyrt_perfmodel.platform import Host, Platform, Trainer
from hyrt_perfmodel.workload import Training, Workload

_GB = 1e9


def stage_times(
    platform: Platform, training: Training, assignment: Assignment, terms: Terms | None = None
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
    loads_s = sum(stages.load_s(work, load_bytes_per_s(host, threads)) for _, work in busy)
    transfers = tuple(
        0.0 if work is None else trainer_transfer_s(trainer, work, terms)
        for trainer, work in zip(trainers, workloads, strict=True)
    )
    propagates = tuple(
        0.0 if work is None else trainer_propagate_s(trainer, work, terms, host, threads)
        for trainer, work in zip(trainers, workloads, strict=True)
    )
    synchronize_s = _synchronize_s(trainers, training, host, terms)
    sample_s = _sample_s(host, threads, training, [work for _, work in busy])
    return StageTimes(
        sample_s=sample_s,
        load_s=loads_s,
        transfer_s=max(transfers),
        propagate_s=stages.propagate_s(propagates, synchronize_s),
        synchronize_s=synchronize_s,
        trainer_transfer_s=transfers,
        trainer_propagate_s=propagates,
        core_s=_core_s(host, threads, trainers, sample_s, loads_s, propagates, synchronize_s),
    )


def iteration_s(times: StageTimes, host: Host, terms: Terms | None = None) -> float:
    """T_execution; where the stages share the host's cores, at least their work over the cores."""
    terms = Terms() if terms is None else terms
    slowest = stages.execution_s(times.sample_s, times.load_s, times.transfer_s, times.propagate_s)
    if terms.shared_cores and host.cores and times.core_s is not None:
        return max(slowest, times.core_s / host.cores)
    return slowest


def load_bytes_per_s(host: Host, threads: Threads) -> float:
    """What the loading threads reach together: no more than the memory gives."""
    whole = host.memory_gb_s * _GB
    if host.thread_load_gb_s is not None:
        return min(whole, threads.load * host.thread_load_gb_s * _GB)
    return whole


def trainer_transfer_s(trainer: Trainer, workload: Workload, terms: Terms) -> float:
    """T_transfer of one trainer; nothing where it reads host memory in place."""
    if math.isinf(trainer.link_gb_s):
        return 0.0
    link = trainer.link_gb_s * _GB
    seconds = stages.transfer_s(workload, link)
    if terms.topology:
        seconds += extra_terms.topology_s(workload, link)
    return seconds + (trainer.link_latency_s if terms.launch else 0.0)


def trainer_propagate_s(
    trainer: Trainer, workload: Workload, terms: Terms, host: Host, threads: Threads
) -> float:
    """T_trainer of one trainer; the host's goes with its part of the cores."""
    rates = trainer.rates
    part = min(1.0, threads.train / host.cores) if trainer.is_host and host.cores else 1.0
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


def _synchronize_s(trainers: Sequence[Trainer], training: Training, host: Host, terms: Terms) -> float:
    """Over the slowest link; the host's own replica is there already."""
    link = min(trainer.link_gb_s for trainer in trainers) * _GB
    work = training.at(1.0)
    seconds = 0.0 if math.isinf(link) else stages.synchronize_s(work, link)
    return seconds + (host.step_s if terms.launch else 0.0)


def _sample_s(host: Host, threads: Threads, training: Training, workloads: Sequence[Workload]) -> float:
    if training.sample_s is not None:
        return training.sample_s
    if host.thread_edges_per_s is None:
        return 0.0
    edges = sum(workload.num_edges for workload in workloads)
    return edges / (host.thread_edges_per_s * threads.sample)


def _core_s(
    host: Host,
    threads: Threads,
    trainers: Sequence[Trainer],
    sample_s: float,
    load_s: float,
    propagates: Sequence[float],
    synchronize_s: float,
) -> float | None:
    """Seconds of the host's cores that one iteration uses."""
    if not host.cores:
        return None
    seconds = sample_s * threads.sample + load_s * threads.load + synchronize_s
    for trainer, busy_s in zip(trainers, propagates, strict=True):
        seconds += busy_s * (min(threads.train, host.cores) if trainer.is_host else trainer.host_cores)
    return seconds
