"""Stage times of one iteration on a platform with a given assignment."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from hyrt_perfmodel.fpga_cycles import TaskShape, task_seconds
from hyrt_perfmodel.fpga_design import FpgaDesign
from hyrt_perfmodel.measured_costs import edges_per_second, load_seconds, sparse_seconds, walk_seconds
from hyrt_perfmodel.platform import Host, Platform, PlatformTrainer, TrainerRates
from hyrt_perfmodel.policy import Assignment, Threads
from hyrt_perfmodel.prediction import stages
from hyrt_perfmodel.prediction.stages import (
    ExtraTerms,
    num_edge_rows,
    num_results,
    num_values,
    sparse_macs,
    sparse_weights,
    split_layers,
    threaded_layers_s,
    topology_s,
    weight_gradients_s,
    without_sparse_product,
)
from hyrt_perfmodel.workload import LoadForm, TrainingWorkload, Workload

_GB = 1e9
_GIB = 2**30
_ALONE = Threads(sample=1, load=1, train=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Seconds of each stage of one iteration."""

    sample_s: float
    load_s: float
    """Time of loading on the host cores; `sample_s` is that of sampling."""
    transfer_s: float
    propagate_s: float
    """Time of propagation on the slowest trainer, including synchronization."""
    synchronize_s: float
    """Time of synchronization, which is part of `propagate_s`."""
    trainer_load_s: tuple[float, ...] = ()
    trainer_transfer_s: tuple[float, ...] = ()
    trainer_propagate_s: tuple[float, ...] = ()
    """Propagation time of each trainer without synchronization; likewise loading and transfer times."""
    wait_s: float = 0.0
    """Waiting time of a step outside its stages, until threads have woken up."""
    lock_s: float = 0.0
    """Waiting time of the trainers for the interpreter lock if stages overlap."""
    busy_s: float = 0.0
    """Propagation time of the slowest trainer on the host cores, plus synchronization."""
    core_s: float | None = None
    """Core-seconds of the host per iteration, or None if not counted."""
    host_trainers: str = ""
    """Kinds of the trainers that compute on host cores, sorted and joined by `+`."""

    @property
    def stages_s(self) -> Mapping[str, float]:
        """Seconds of the four stages by name."""
        return {
            "sample": self.sample_s,
            "load": self.load_s,
            "transfer": self.transfer_s,
            "propagate": self.propagate_s,
        }

    @property
    def bottleneck(self) -> str:
        """Name of the slowest stage, or of the first among equally slow ones."""
        stages = self.stages_s
        return max(stages, key=lambda stage: stages[stage])


def stage_times(
    platform: Platform, training: TrainingWorkload, assignment: Assignment, terms: ExtraTerms | None = None
) -> StageTimes:
    """Predict the time of every stage of one iteration.

    Raises ValueError unless the split has one entry per trainer of the platform, the host's first.
    """
    return StepModel(platform, training, ExtraTerms() if terms is None else terms).times(assignment)


def iteration_s(times: StageTimes, host: Host, terms: ExtraTerms | None = None) -> float:
    """Return T_execution (equation 6 of HyScale-GNN), extended by contention for the host cores.

    Work that does not fit on the host cores besides the trainers takes core time from the trainers and
    lengthens the step: see `contended_step_s`.
    """
    terms = ExtraTerms() if terms is None else terms
    overlapped_s = pipeline_s(times, terms)
    if terms.shared_cores and times.core_s is not None:
        lock_s = times.lock_s if terms.overlap == "all" else 0.0
        efficiency = host.core_contention(times.host_trainers).efficiency
        return contended_step_s(times, overlapped_s, core_excess_s(times, host), efficiency, lock_s)
    return overlapped_s


def contended_step_s(
    times: StageTimes, stages_s: float, excess_s: float, efficiency: float, lock_s: float
) -> float:
    """Return the time of a step whose stages share the host cores with its trainers.

    This is the trainers' time plus the excess work, plus the losses when cores and the interpreter lock
    change owners. Trainers that wait for a slower stage anyway lose nothing until this waiting time is used
    up. `stages_s` is the time of the step without sharing, and `excess_s` the result of `core_excess_s`.
    `efficiency` and `lock_s` are fields of `CoreContention`.
    """
    lost_s = excess_s * (1 / efficiency - 1) + times.wait_s + lock_s
    if times.busy_s:
        lost_s = max(0.0, lost_s - max(0.0, stages_s - times.busy_s - times.wait_s))
    return max(stages_s, times.busy_s + excess_s + lost_s)


def core_excess_s(times: StageTimes, host: Host) -> float:
    """Return by how much the step's work, divided by all cores, exceeds the time of the host trainers."""
    if not host.cores or times.core_s is None:
        return 0.0
    return max(0.0, times.core_s / host.cores - times.busy_s)


def pipeline_s(times: StageTimes, terms: ExtraTerms) -> float:
    """Return the time of the slowest stage, or the sum of the stages if these run one after the other."""
    if terms.overlap == "all":
        propagate_s = times.propagate_s + times.wait_s
        return stages.execution_s(times.sample_s, times.load_s, times.transfer_s, propagate_s)
    host_s = times.sample_s + times.load_s + times.wait_s
    if terms.overlap == "trainers":
        return host_s + times.transfer_s + times.propagate_s
    return host_s + sum(times.trainer_transfer_s) + sum(times.trainer_propagate_s) + times.synchronize_s


def host_trainers(trainers: Sequence[PlatformTrainer]) -> str:
    """Return the kinds of the trainers that compute on host cores, as a key of `Host.sharing_of`."""
    kinds = {
        trainer.name.partition(":")[0] for trainer in trainers if trainer.is_host or trainer.device.host_cores
    }
    return "+".join(sorted(kinds))


def has_single_products(workload: Workload) -> bool:
    """Return whether each layer consists of one aggregation and one product, as FPGA kernels require."""
    several = workload.widths_in is not None or workload.hidden_widths is not None
    return not several and workload.rows_per_edge == 1


class StepModel:
    """Times of the parts of a step on a platform, by trainer."""

    def __init__(self, platform: Platform, training: TrainingWorkload, terms: ExtraTerms) -> None:
        self.host, self.training, self.terms = platform.host, training, terms
        self.trainers = platform.trainers(training.model)

    def times(self, assignment: Assignment) -> StageTimes:
        """Return all stage times of one iteration, as `stage_times` does."""
        threads = assignment.threads
        if len(assignment.split) != len(self.trainers):
            raise ValueError(
                f"the split has {len(assignment.split)} parts, expected one for each of the "
                f"{len(self.trainers)} trainers"
            )
        works = [self.training.at(units) if units else None for units in assignment.split]
        busy = [(trainer, work) for trainer, work in zip(self.trainers, works, strict=True) if work]

        def per_trainer(seconds: Callable[[PlatformTrainer, Workload], float]) -> tuple[float, ...]:
            pairs = zip(self.trainers, works, strict=True)
            return tuple(0.0 if work is None else seconds(trainer, work) for trainer, work in pairs)

        loads = per_trainer(lambda trainer, work: self.load_s(trainer, work, threads))
        transfers = per_trainer(self.transfer_s)
        propagates = per_trainer(lambda trainer, work: self.propagate_s(trainer, work, threads))
        # All replicas receive the new weights, even if their trainers have no targets.
        host_kinds = host_trainers([trainer for trainer, _ in busy])
        synchronize_s = self.synchronize_s(host_kinds)
        sharing = self.host.core_contention(host_kinds)
        wait_s, lock_s = (sharing.wait_s, sharing.lock_s) if self.terms.launch else (0.0, 0.0)
        occupied = [
            (self._num_occupied_cores(trainer, threads), seconds)
            for trainer, seconds in zip(self.trainers, propagates, strict=True)
        ]
        busy_s = max(seconds for cores, seconds in occupied if cores) + synchronize_s if host_kinds else 0.0
        core_s = None
        if self.host.cores:
            core_s = sum(cores * seconds for cores, seconds in occupied) + synchronize_s
            core_s += self._sample_s(busy, _ALONE)
            core_s += sum(self.load_s(trainer, work, _ALONE) for trainer, work in busy)
        return StageTimes(
            sample_s=self._sample_s(busy, threads),
            load_s=sum(loads),
            transfer_s=max(transfers),
            propagate_s=stages.propagate_s(propagates, synchronize_s),
            synchronize_s=synchronize_s,
            trainer_load_s=loads,
            trainer_transfer_s=transfers,
            trainer_propagate_s=propagates,
            wait_s=wait_s,
            lock_s=lock_s if host_kinds else 0.0,
            busy_s=busy_s,
            core_s=core_s,
            host_trainers=host_kinds,
        )

    def load_form(self, trainer: PlatformTrainer) -> LoadForm:
        """Return the form of a trainer's input."""
        best = self.training.best_form
        if self.training.resident and best == "aggregated" and "in_place" in trainer.device.forms:
            return "in_place"
        # Sparse rows stay sparse in the paper's form too, because they are stored as such.
        allowed = self.terms.load_forms or best == "sparse"
        return best if allowed and best in trainer.device.forms else "rows"

    def miss_fraction(self, trainer: PlatformTrainer) -> float:
        """Return the fraction of a trainer's rows that must be transferred because its cache misses."""
        has_cache = (
            not trainer.is_host and trainer.device.design is None and self.load_form(trainer) == "rows"
        )
        return self.training.miss_fraction if has_cache and self.training.at(1.0).sparse is None else 1.0

    def load_s(self, trainer: PlatformTrainer, work: Workload, threads: Threads) -> float:
        """Return T_load of one trainer, from the measured table if any, otherwise from the bandwidth."""
        form, host = self.load_form(trainer), self.host
        if form == "in_place" or self.training.resident:
            return 0.0
        if not host.loading:
            bytes_per_s = host.memory_gb_s * _GB
            if host.thread_load_gb_s is not None:
                bytes_per_s = min(bytes_per_s, threads.load * host.thread_load_gb_s * _GB)
            return self.load_bytes(trainer, work) / bytes_per_s

        def table_s(form: LoadForm, rows: float, row_bytes: float) -> float:
            return load_seconds(
                host.loading,
                form,
                rows,
                row_bytes,
                model=self.training.model,
                matrix_bytes=self.training.feature_bytes,
                threads=threads.load,
            )

        dense_bytes = trainer.adapt_workload(work).dense_row_bytes
        if form == "aggregated":
            # An aggregate reads one row per edge, and the row of each destination.
            return table_s(form, work.edges[0] + work.vertices[1], dense_bytes)
        if work.sparse is None:
            return table_s("rows", self.miss_fraction(trainer) * work.vertices[0], dense_bytes)
        seconds = table_s("sparse", work.vertices[0], work.sparse.row_bytes)
        if form == "rows":
            # The gathered rows are then converted to dense rows, which writes as much as copying dense rows.
            seconds += table_s("rows", work.vertices[0], dense_bytes)
        return seconds

    def load_bytes(self, trainer: PlatformTrainer, work: Workload) -> float:
        """Return the bytes that loading reads for one trainer: |V^0| rows, or |E^1| rows if aggregated.

        Sparse rows count with their stored size if the trainer accepts sparse rows, otherwise as dense rows.
        """
        form = self.load_form(trainer)
        if form == "in_place":
            return 0.0
        rows = work.edges[0] if form == "aggregated" else self.miss_fraction(trainer) * work.vertices[0]
        return rows * trainer.adapt_workload(work).row_bytes

    def link_bytes(self, trainer: PlatformTrainer, work: Workload) -> float:
        """Return the input bytes transferred to one trainer, or 0 if it reads host memory in place."""
        if math.isinf(trainer.device.link_gb_s):
            return 0.0
        if self.load_form(trainer) == "aggregated":
            return work.vertices[1] * work.f_in(1) * work.bytes_per_value
        missed = self.miss_fraction(trainer)
        # With a feature cache, a four-byte index states the location of each row.
        index_bytes = 4.0 if missed < 1 else 0.0
        return work.vertices[0] * (missed * trainer.adapt_workload(work).row_bytes + index_bytes)

    def transfer_s(self, trainer: PlatformTrainer, work: Workload) -> float:
        """Return T_transfer of one trainer, or 0 if it reads host memory in place."""
        if math.isinf(trainer.device.link_gb_s) or self.training.resident:
            return 0.0
        link = trainer.device.link_gb_s * _GB
        seconds = self.link_bytes(trainer, work) / link
        if self.terms.topology:
            seconds += topology_s(work, link)
        return seconds + (trainer.device.link_latency_s if self.terms.launch else 0.0)

    def propagate_s(self, trainer: PlatformTrainer, work: Workload, threads: Threads) -> float:
        """Return T_trainer of one trainer, which for the host depends on its number of threads."""
        host, form = self.host, self.load_form(trainer)
        whole = self.full_graph_s(trainer, work, threads)
        if whole is not None:
            return sum(whole)
        work = trainer.adapt_workload(work)
        if form == "aggregated":
            # The load stage has already read the first layer's edges.
            work = replace(work, edges=(0.0, *work.edges[1:]))
        if work.sparse is not None:
            products_s = self._sparse_s(trainer, work, threads, sparse_macs(work), sparse_weights(work))
            return products_s + self.propagate_s(
                trainer.with_sparse_launch(), without_sparse_product(work), threads
            )
        if trainer.device.design is not None and self.terms.cycles and has_single_products(work):
            return self._tasks_s(trainer, trainer.device.design, work)
        if not trainer.is_host:
            return self._computing_s(trainer, trainer.rates, 1.0, work)
        if trainer.single_thread_rates is None or not host.cores or host.cores == 1:
            return self._computing_s(trainer, trainer.rates, _host_part(host, threads.train), work)
        alone, layers = trainer.single_thread_rates, split_layers(work)

        def layer_s(rates: TrainerRates, layer: Workload) -> float:
            launched = replace(rates, launch_s=0.0, layer_s=0.0, weights_per_s=math.inf)
            return self._computing_s(trainer, launched, 1.0, layer)

        fixed_s = self._computing_s(trainer, alone, 1.0, work) - sum(
            layer_s(alone, layer_work) for layer_work in layers
        )
        return fixed_s + threaded_layers_s(layers, alone, trainer.rates, threads.train, host.cores, layer_s)

    def gather_share(self, trainer: PlatformTrainer, work: Workload, threads: Threads) -> float:
        """Return the fraction of `propagate_s` that reads rows along edges."""
        step = self.full_graph_s(trainer, work, threads)
        if step is not None:
            return step[0] / sum(step)
        whole = self.propagate_s(trainer, work, threads)
        rest = self.propagate_s(trainer, replace(work, edges=(0.0,) * work.layers), threads)
        return 1 - rest / whole if whole else 0.0

    def full_graph_s(
        self, trainer: PlatformTrainer, work: Workload, threads: Threads, *, with_loops: bool = False
    ) -> tuple[float, float] | None:
        """Return the (gather, other) seconds of the CPU trainer's full-graph step.

        Return None if the step is undefined or was not measured. With `with_loops`, gathers use compiled
        loops over edges, as in chunks.
        """
        rates, whole = self.host.whole_graph, self.training.full_graph_step
        if not trainer.is_host or rates is None or whole is None or not self.terms.values:
            return None
        memory_gib = self.host.memory_gib
        step = whole(math.inf if memory_gib is None else memory_gib * _GIB, threads.train)
        if not rates.covers(step, self.training.model):
            return None
        count = min(threads.train, self.host.cores or threads.train)
        rest_s = rates.rows_s(step, count)
        if work.sparse is not None:
            rest_s += self._sparse_s(trainer, work, threads, step.sparse_macs, step.sparse_weights)
        model = self.training.model
        reads_s = (
            rates.loop_reads_s(step.reads, count, model)
            if with_loops
            else rates.reads_s(step.reads, count, model)
        )
        return None if reads_s is None else (reads_s, rest_s)

    def _sparse_s(
        self, trainer: PlatformTrainer, work: Workload, threads: Threads, macs: float, weights: float
    ) -> float:
        """Return the time of sparse products, measured or at the rate of dense products."""
        assert work.sparse is not None
        host = self.host
        if not (trainer.is_host and host.sparse):
            fraction = _host_part(host, threads.train) if trainer.is_host else 1.0
            return macs / (trainer.rates.macs_per_s * fraction)
        return sparse_seconds(
            host.sparse,
            macs=macs,
            weights=weights,
            product_width=work.sparse.product_width,
            weight_bytes=work.features[0] * work.sparse.product_width * work.bytes_per_value,
            threads=threads.train,
        )

    def synchronize_s(self, host_kinds: str) -> float:
        """Return the synchronization time over the slowest link. The host's replica needs no transfer.

        `host_kinds` are the kinds of the trainers on the host cores, as returned by `host_trainers`.
        """
        link = min(trainer.device.link_gb_s for trainer in self.trainers) * _GB
        # A step updates only the learned embeddings that it reads.
        work = self.training.at(self.training.batch_size)
        seconds = 0.0 if math.isinf(link) else stages.synchronize_s(work, link)
        if self.terms.launch:
            weights_s = stages.synchronize_s(work, self.host.weights_gb_s * _GB)
            seconds += self.host.core_contention(host_kinds).step_s + weights_s
        return seconds

    def _tasks_s(self, trainer: PlatformTrainer, design: FpgaDesign, work: Workload) -> float:
        """Return the time of the equal FPGA tasks of a mini-batch, which run one after the other."""
        targets, task_targets = work.vertices[-1], trainer.device.task_targets
        tasks = 1 if task_targets is None else max(1, math.ceil(targets / task_targets))
        task = work if tasks == 1 else trainer.adapt_workload(self.training.at(targets / tasks))
        return tasks * _task_s(task, design)

    def _computing_s(
        self, trainer: PlatformTrainer, rates: TrainerRates, part: float, work: Workload
    ) -> float:
        """Return the computation time at a fraction `part` of the rates."""
        terms, macs_per_s = self.terms, rates.macs_per_s * part
        seconds = stages.trainer_s(
            work,
            rates.memory_bytes_per_s * part,
            macs_per_s,
            pipelined=trainer.device.pipelined,
            reads_each_source_once=trainer.device.reads_each_source_once,
        )
        if terms.weight_gradients:
            seconds += weight_gradients_s(work, macs_per_s)
        if terms.values:
            seconds += num_values(work) / (rates.values_per_s * part)
            seconds += num_results(work) / (rates.results_per_s * part)
            seconds += sum(work.vertices[1:]) / (rates.rows_per_s * part)
            seconds += num_edge_rows(work) / (rates.edges_per_s * part)
            # A single thread sorts, whatever the number of threads of the trainer.
            seconds += sum(work.edges) / rates.sorted_edges_per_s
        if terms.launch:
            # A single thread reads and writes the weights and makes the calls.
            seconds += rates.fixed_s(work.effective_layers) + work.num_weights / rates.weights_per_s
        # Count a forward pass and a backward pass per layer.
        passes = 2 * work.layers
        return seconds + passes * (
            (trainer.device.flush_s if terms.flush else 0.0) + (trainer.device.fill_s if terms.fill else 0.0)
        )

    def _sample_s(self, busy: Sequence[tuple[PlatformTrainer, Workload]], threads: Threads) -> float:
        training = self.training
        if training.resident:
            return 0.0
        if training.sample_s is not None:
            return training.sample_s
        return sum(
            self._sample_one_s(self.load_form(trainer), work, threads.sample) for trainer, work in busy
        )

    def _sample_one_s(self, form: LoadForm, work: Workload, threads: int) -> float:
        host, graph_bytes = self.host, self.training.graph_bytes
        if work.walk_steps and host.walking:
            return walk_seconds(
                host.walking,
                steps=work.walk_steps,
                scanned_edges=work.scanned_edges,
                graph_bytes=graph_bytes,
                threads=threads,
            )
        if host.sampling:
            return work.num_edges / edges_per_second(
                host.sampling,
                renumbers=form in ("rows", "sparse"),
                graph_bytes=graph_bytes,
                edges=work.num_edges,
                threads=threads,
            )
        if host.thread_edges_per_s is None:
            return 0.0
        # Each walk step and each scanned edge is one random access, like a sampled edge.
        accesses = work.walk_steps + work.scanned_edges if work.walk_steps else work.num_edges
        return accesses / (host.thread_edges_per_s * threads)

    def _num_occupied_cores(self, trainer: PlatformTrainer, threads: Threads) -> int:
        """Return the number of host cores that a trainer occupies while it computes."""
        if not trainer.is_host:
            return trainer.device.host_cores
        return min(threads.train, self.host.cores or 1)


@lru_cache(maxsize=4096)
def _task_s(workload: Workload, design: FpgaDesign) -> float:
    """Return the seconds of an FPGA task. Cached, because the search evaluates many similar assignments."""
    return task_seconds(TaskShape.from_workload(workload), design)


def _host_part(host: Host, threads: int) -> float:
    """Return the CPU trainer's speed with `threads` threads relative to all cores (Amdahl's law)."""
    if not host.cores:
        return 1.0

    def relative_s(count: int) -> float:
        return host.serial_part + (1 - host.serial_part) / count

    return relative_s(host.cores) / relative_s(min(threads, host.cores))
