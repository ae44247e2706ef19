"""The numbers that describe a machine: rates, bandwidths, links, devices. All of them effective ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hyrt_perfmodel.checks import (
    Count,
    Index,
    NotNegative,
    Number,
    Positive,
    Truth,
    Unbounded,
    check_numbers,
)
from hyrt_perfmodel.cycles.design import FpgaDesign
from hyrt_perfmodel.platforms.host_chunk_rates import HostChunkRates
from hyrt_perfmodel.platforms.host_tables import LoadCost, SampleCost, SparseCost, WalkCost
from hyrt_perfmodel.platforms.whole_graph_rates import WholeGraphRates
from hyrt_perfmodel.workloads.workload import LoadForm, Workload

_GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRates:
    """How fast a trainer computes."""

    memory_gb_s: Positive
    """Bandwidth of the memory that aggregation reads, in 1e9 bytes per second."""
    macs_per_s: Positive
    """Multiply-accumulates a second of its matrix products."""
    launch_s: NotNegative = 0.0
    """What a step of two layers costs whatever its size."""
    layer_s: NotNegative | None = None
    """What each further layer costs whatever its size; None for half of `launch_s`."""
    sparse_launch_s: NotNegative | None = None
    """`launch_s` of a step whose first layer multiplies sparse rows, which calls other operators than one of
    dense rows; None where it is the same."""
    weights_per_s: Unbounded = math.inf
    """Weights a second that a step reads, and writes the gradients of, whatever the mini-batch; infinite
    where products hide them."""
    chunk_rows: Count | None = None
    """How many rows one of the host's threads computes at a time; None where any number is shared equally."""
    waking_s: NotNegative = 0.0
    """What a layer costs more where several of the host's threads share it: they are woken for each of its
    operators. A layer for which that takes longer than it spares is computed by one."""
    values_per_s: Unbounded = math.inf
    """Values a second that enter and leave the updates; infinite where products hide them."""
    results_per_s: Unbounded = math.inf
    """Values a second of the layers' results, on top of `values_per_s`: bias, activation, dropout and loss
    pass over them; infinite where products hide them."""
    rows_per_s: Unbounded = math.inf
    """Rows a second of the layers' results, however narrow they are; infinite where only their values count.
    """
    edges_per_s: Unbounded = math.inf
    """Rows a second that are read along edges, however narrow they are; infinite where only their bytes
    count."""
    sorted_edges_per_s: Unbounded = math.inf
    """Edges a second that are sorted by their sources for the backward pass, which one thread does; infinite
    where nobody measured it."""

    def __post_init__(self) -> None:
        check_numbers("rates", self)

    @property
    def memory_bytes_per_s(self) -> float:
        return self.memory_gb_s * _GB

    def launched_s(self, layers: float) -> float:
        """What a step of so many layers costs whatever its size."""
        layer_s = self.launch_s / 2 if self.layer_s is None else self.layer_s
        return max(0.0, self.launch_s + (layers - 2) * layer_s)

    def over_sparse_rows(self) -> TrainerRates:
        """The same where the first layer multiplies sparse rows."""
        return self if self.sparse_launch_s is None else replace(self, launch_s=self.sparse_launch_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """How stages and trainers get on with each other on the host's cores."""

    step_s: NotNegative
    """What synchronization costs whatever the weights: calling the optimiser."""
    efficiency: Positive
    """Part of the cores' time that sampling and loading use where they take cores from the trainers."""
    wait_s: NotNegative = 0.0
    """What a step waits besides its stages: threads are woken that others keep from a core."""
    lock_s: NotNegative = 0.0
    """What trainers wait in a step for the interpreter lock, which sampling and loading take from them where
    stages overlap."""

    def __post_init__(self) -> None:
        check_numbers("host: sharing_of", self)
        if self.efficiency > 1:
            raise ValueError(
                f"host: sharing_of: efficiency is {self.efficiency!r}: give a fraction of at most 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The CPU side: it samples, loads, and perhaps trains."""

    memory_gb_s: Positive
    """Effective bandwidth of host memory for feature rows, in 1e9 bytes a second, with all cores."""
    macs_per_s: Positive
    """Multiply-accumulates per second of all cores together."""
    trains: Truth = True
    """Whether a trainer runs on the CPU."""
    cores: Count | None = None
    """How many there are; None where nothing is known of them, and threads then change nothing."""
    memory_gib: Positive | None = None
    """Size of host memory; None where it is not known."""
    thread_load_gb_s: Positive | None = None
    """What one thread loads, in 1e9 bytes a second; None where one thread's part is in proportion."""
    thread_edges_per_s: Positive | None = None
    """Edges that one thread samples a second; None where it is not known."""
    launch_s: NotNegative = 0.0
    values_per_s: Unbounded = math.inf
    """`launch_s` and `values_per_s`: rates of the CPU trainer, as in `TrainerRates`."""
    step_s: NotNegative = 0.0
    wait_s: NotNegative = 0.0
    lock_s: NotNegative = 0.0
    """`step_s`, `wait_s` and `lock_s`: what synchronization costs whatever the weights, and what a step waits
    besides its stages, as in `Sharing`."""
    weights_gb_s: Unbounded = math.inf
    """1e9 bytes a second at which the host sums gradients, steps the optimiser and hands out weights."""
    models: Mapping[str, TrainerRates] = field(default_factory=dict)
    """Rates of the CPU trainer with all cores, by kind of model, where they were measured."""
    models_alone: Mapping[str, TrainerRates] = field(default_factory=dict)
    """The same with one thread; between, Amdahl's law joins them. Without it `serial_part` does."""
    forms: tuple[LoadForm, ...] = ("rows",)
    """The forms in which the CPU trainer takes its input."""
    serial_part: NotNegative = 0.0
    """Part of the CPU trainer's time with one thread that more threads do not shorten (Amdahl)."""
    core_efficiency: Positive = 1.0
    """Part of the cores' time that sampling and loading use where they take cores from the trainers."""
    sharing_of: Mapping[str, Sharing] = field(default_factory=dict)
    """`step_s`, `wait_s`, `lock_s` and `core_efficiency` for the kinds of trainers that compute on the host
    together, where they were measured: `cpu`, `cpu+opencl`."""
    loading: tuple[LoadCost, ...] = ()
    sampling: tuple[SampleCost, ...] = ()
    walking: tuple[WalkCost, ...] = ()
    """`loading`, `sampling` and `walking`: what the first two stages were measured to take, the last one for
    subgraphs of random walks; empty where only bandwidths are known."""
    sparse: tuple[SparseCost, ...] = ()
    """What the CPU trainer's products of sparse rows were measured to take; empty where they go at its rate
    for dense ones."""
    whole_graph: WholeGraphRates | None = None
    """What steps of the CPU trainer over whole graphs were measured to take; None where they go at its rates
    for mini-batches."""
    chunks: tuple[HostChunkRates, ...] = ()
    """What chunks of whole graphs were measured to take on the CPU, by numbers of threads; empty where they
    go at its rates for mini-batches."""
    file_gb_s: Positive | None = None
    """1e9 bytes a second that are written to a file, and read again from the disk; None where nobody measured
    it."""
    shared_memory_gb_s: Positive | None = None
    """What the memory gives to loading, transfers and the CPU trainer's aggregation together, in 1e9 bytes a
    second, in a simulation; None where they do not slow each other."""

    def __post_init__(self) -> None:
        check_numbers("host", self)
        if self.core_efficiency > 1 or self.serial_part > 1:
            raise ValueError("host: core_efficiency and serial_part are fractions: give numbers of at most 1")

    def chunk_rates(self, threads: int | None = None) -> HostChunkRates | None:
        """What was measured with so many threads, or the nearest fewer; with all of them by default."""
        if not self.chunks:
            return None
        at = sorted(self.chunks, key=lambda each: each.threads)
        fewer = [each for each in at if threads is None or each.threads <= threads]
        return fewer[-1] if fewer else at[0]

    def sharing(self, kinds: str) -> Sharing:
        """What was measured with these kinds of trainers together, else what is known in general."""
        known = self.sharing_of.get(kinds)
        if known is not None:
            return known
        return Sharing(
            step_s=self.step_s, efficiency=self.core_efficiency, wait_s=self.wait_s, lock_s=self.lock_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """`count` equal devices, each a trainer.

    Parameters
    ----------
    kind
        Names them: `a5000` gives `a5000:0`, `a5000:1`.
    memory_gb_s, macs_per_s, launch_s, values_per_s
        Rates as in `TrainerRates`.
    link_gb_s
        The bandwidth from host memory to one of them, in 1e9 bytes per second; infinite where it reads host
        memory in place.
    pipelined
        Whether aggregation and update overlap on the device.
    reads_each_source_once
        Whether a source row is read once, however many edges leave it, and later layers stay on the chip.
    count
        How many there are.
    memory_gib
        Memory of one of them; None where it is not known.
    link_latency_s
        What a transfer costs whatever its size.
    flush_s, fill_s
        What draining and filling the device's own pipeline add to each layer.
    host_cores
        Cores of the host that one computes with; 0 for a real accelerator.
    models
        Rates by kind of model, where they were measured.
    forms
        The forms in which it takes its input.
    switch_gb_s
        What the links of all `count` together carry, in 1e9 bytes a second, in a simulation; None where each
        has its own way to host memory.
    design
        The design of an FPGA with this project's kernels: its cycle model then says what propagation takes,
        instead of rates.
    arena_words
        With a design: words of each bank of its on-chip memory, which bounds what one task may be.
    task_targets
        With a design: the most targets of one task; a mini-batch with more is several tasks, one after the
        other.
    """

    kind: str
    memory_gb_s: Positive
    macs_per_s: Positive
    link_gb_s: Unbounded
    pipelined: Truth = False
    reads_each_source_once: Truth = False
    count: Index = 1
    memory_gib: Positive | None = None
    link_latency_s: NotNegative = 0.0
    launch_s: NotNegative = 0.0
    flush_s: NotNegative = 0.0
    fill_s: NotNegative = 0.0
    values_per_s: Unbounded = math.inf
    host_cores: Index = 0
    models: Mapping[str, TrainerRates] = field(default_factory=dict)
    forms: tuple[LoadForm, ...] = ("rows",)
    switch_gb_s: Positive | None = None
    design: FpgaDesign | None = None
    arena_words: Count | None = None
    task_targets: Count | None = None

    def __post_init__(self) -> None:
        if not self.kind:
            raise ValueError("an accelerator's kind is empty: give a name, such as gpu")
        check_numbers(f"accelerator {self.kind!r}", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformTrainer:
    """One trainer of a platform."""

    name: str
    """`cpu:0`, or an accelerator's kind with its number."""
    device: Accelerator
    """What it computes on; the host is described as an accelerator that reads host memory in place."""
    rates: TrainerRates
    """The device's rates for one kind of model; the host's are those with all its cores."""
    rates_alone: TrainerRates | None = None
    """The host's rates with one thread, where they were measured."""
    is_host: bool = False
    """Whether the host's cores are the trainer: its threads are part of the assignment."""
    switch: int | None = None
    """The number of the switch that it shares with others; None where it has its own way to host memory."""

    def taken(self, work: Workload) -> Workload:
        """The work as it reaches the trainer: its rows are dense where it does not take sparse ones, and
        float32 where kernels of a known design would need scales of columns for them.
        """
        if self.device.design is not None and work.input_bytes == work.features[0]:
            work = replace(work, input_bytes=None)
        if work.sparse is None or "sparse" in self.device.forms:
            return work
        return replace(work, sparse=None)

    def over_sparse_rows(self) -> PlatformTrainer:
        """The same with its rates for a first layer that multiplies sparse rows."""
        alone = None if self.rates_alone is None else self.rates_alone.over_sparse_rows()
        return replace(self, rates=self.rates.over_sparse_rows(), rates_alone=alone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A machine."""

    name: str
    """A name for people."""
    host: Host
    accelerators: tuple[Accelerator, ...] = ()
    """`host` and `accelerators`: what it is made of."""
    source: str = "assumed"
    """Where the numbers are from: `measured <date>`, or `assumed: ...`."""
    relative_error: Number | None = None
    """How far predictions from these numbers are expected to be off, as a fraction; None where nobody has
    looked."""

    def __post_init__(self) -> None:
        error = self.relative_error
        if error is not None and not 0 <= error <= 1:
            raise ValueError(
                f"platform {self.name!r}: relative_error is {error!r}: give a fraction from 0 to 1"
            )
        if not self.host.trains and not any(accelerator.count for accelerator in self.accelerators):
            raise ValueError(
                f"platform {self.name!r} has no trainer: let the host train, or add an accelerator"
            )

    def trainers(self, model: str = "") -> tuple[PlatformTrainer, ...]:
        """All trainers, the host's first, with their rates for a kind of model."""
        host = self.host
        found: list[PlatformTrainer] = []
        if host.trains:
            device = Accelerator(
                kind="cpu",
                memory_gb_s=host.memory_gb_s,
                macs_per_s=host.macs_per_s,
                link_gb_s=math.inf,
                memory_gib=host.memory_gib,
                forms=host.forms,
            )
            alone = host.models_alone.get(model)
            found.append(
                PlatformTrainer(
                    name="cpu:0", device=device, rates=_rates(host, model), rates_alone=alone, is_host=True
                )
            )
        numbers: Counter[str] = Counter()
        for entry, each in enumerate(self.accelerators):
            device, rates = replace(each, count=1), _rates(each, model)
            switch = None if each.switch_gb_s is None else entry
            for _ in range(each.count):
                name = f"{each.kind}:{numbers[each.kind]}"
                found.append(PlatformTrainer(name=name, device=device, rates=rates, switch=switch))
                numbers[each.kind] += 1
        return tuple(found)


def _rates(owner: Host | Accelerator, model: str) -> TrainerRates:
    """For a kind of model where they were measured with it, else in general."""
    return owner.models.get(model) or TrainerRates(
        memory_gb_s=owner.memory_gb_s,
        macs_per_s=owner.macs_per_s,
        launch_s=owner.launch_s,
        values_per_s=owner.values_per_s,
    )
