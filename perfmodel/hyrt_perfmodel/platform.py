"""Description of a machine by its devices, links and effective rates, and selection of devices."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hyrt_perfmodel.fpga_design import FpgaDesign
from hyrt_perfmodel.measured_costs import (
    FullGraphRates,
    HostChunkRates,
    LoadCost,
    SampleCost,
    SparseCost,
    WalkCost,
)
from hyrt_perfmodel.validation import (
    Count,
    Index,
    NonNegative,
    Number,
    Positive,
    StrictBool,
    Unbounded,
    check_numbers,
)
from hyrt_perfmodel.workload import LoadForm, Workload

_GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRates:
    """Compute rates of a trainer."""

    memory_gb_s: Positive
    """Bandwidth of the memory that aggregation reads, in 1e9 bytes per second."""
    macs_per_s: Positive
    """Multiply-accumulates per second in matrix products."""
    launch_s: NonNegative = 0.0
    """Fixed cost of a step with two layers in seconds."""
    layer_s: NonNegative | None = None
    """Fixed cost of each further layer, or None for half of `launch_s`."""
    sparse_launch_s: NonNegative | None = None
    """Value of `launch_s` if the first layer multiplies sparse rows with other operators; None if equal."""
    weights_per_s: Unbounded = math.inf
    """Weights per second that a step reads and whose gradients it writes, for any mini-batch; infinite if
    products take longer."""
    chunk_rows: Count | None = None
    """Number of rows that a host thread computes at a time, or None if rows are divided evenly."""
    waking_s: NonNegative = 0.0
    """Additional cost per layer if host threads share it, because each operator wakes the threads. If this
    cost exceeds the gain, one thread computes the layer."""
    values_per_s: Unbounded = math.inf
    """Values per second that enter and leave the updates; infinite if products take longer."""
    results_per_s: Unbounded = math.inf
    """Result values per second that bias, activation, dropout and loss process, in addition to
    `values_per_s`; infinite if products take longer."""
    rows_per_s: Unbounded = math.inf
    """Result rows per second, for any width; infinite if only the number of values matters."""
    edges_per_s: Unbounded = math.inf
    """Rows per second that are read along edges, for any width; infinite if only their bytes matter."""
    sorted_edges_per_s: Unbounded = math.inf
    """Edges per second that a thread sorts by source for the backward pass; infinite if not measured."""

    def __post_init__(self) -> None:
        check_numbers("rates", self)

    @property
    def memory_bytes_per_s(self) -> float:
        return self.memory_gb_s * _GB

    def fixed_s(self, layers: float) -> float:
        """Return the fixed cost of a step with `layers` layers."""
        layer_s = self.launch_s / 2 if self.layer_s is None else self.layer_s
        return max(0.0, self.launch_s + (layers - 2) * layer_s)

    def with_sparse_launch(self) -> TrainerRates:
        """Return the rates for a first layer that multiplies sparse rows."""
        return self if self.sparse_launch_s is None else replace(self, launch_s=self.sparse_launch_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreContention:
    """Contention between stages and trainers for the host cores."""

    step_s: NonNegative
    """Fixed cost of synchronization, which is the call of the optimizer."""
    efficiency: Positive
    """Fraction of the core time that is useful when sampling and loading compete with the trainers."""
    wait_s: NonNegative = 0.0
    """Waiting time per step outside its stages, in which woken threads wait for a core."""
    lock_s: NonNegative = 0.0
    """Time per step that trainers wait for the interpreter lock if sampling and loading overlap."""

    def __post_init__(self) -> None:
        check_numbers("host: sharing_of", self)
        if self.efficiency > 1:
            raise ValueError(f"host: sharing_of: efficiency must be at most 1, got {self.efficiency!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """CPU of a machine, which samples, loads and optionally trains."""

    memory_gb_s: Positive
    """Effective bandwidth of host memory for feature rows with all cores, in 1e9 bytes per second."""
    macs_per_s: Positive
    """Multiply-accumulates per second of all cores together."""
    trains: StrictBool = True
    cores: Count | None = None
    """Number of cores, or None if it is unknown, in which case threads have no effect."""
    memory_gib: Positive | None = None
    thread_load_gb_s: Positive | None = None
    """Loading bandwidth of one thread in 1e9 bytes per second; None if it is proportional to threads."""
    thread_edges_per_s: Positive | None = None
    """Number of edges that one thread samples per second, or None if unknown."""
    launch_s: NonNegative = 0.0
    values_per_s: Unbounded = math.inf
    """Rate of the CPU trainer, as is `launch_s`; see `TrainerRates`."""
    step_s: NonNegative = 0.0
    wait_s: NonNegative = 0.0
    lock_s: NonNegative = 0.0
    """Contention on the host cores, together with `step_s` and `wait_s`; see `CoreContention`."""
    weights_gb_s: Unbounded = math.inf
    """Bandwidth of gradient sum, optimizer step and weight broadcast in 1e9 bytes per second."""
    models: Mapping[str, TrainerRates] = field(default_factory=dict)
    """Rates of the CPU trainer with all cores, by measured kind of model."""
    models_alone: Mapping[str, TrainerRates] = field(default_factory=dict)
    """Rates of the CPU trainer with one thread. Amdahl's law interpolates between one thread and all cores;
    without these rates, `serial_part` is used."""
    forms: tuple[LoadForm, ...] = ("rows",)
    """Input forms that the CPU trainer accepts."""
    serial_part: NonNegative = 0.0
    """Fraction of the CPU trainer's single-thread time that more threads do not shorten (Amdahl)."""
    core_efficiency: Positive = 1.0
    """Fraction of the core time that is useful when sampling and loading compete with the trainers."""
    sharing_of: Mapping[str, CoreContention] = field(default_factory=dict)
    """Contention by set of trainer kinds that compute on the host together, such as `cpu+opencl`."""
    loading: tuple[LoadCost, ...] = ()
    sampling: tuple[SampleCost, ...] = ()
    walking: tuple[WalkCost, ...] = ()
    """Costs of random-walk sampling; empty, like `loading` and `sampling`, if only bandwidths are known."""
    sparse: tuple[SparseCost, ...] = ()
    """Measured costs of the CPU trainer's sparse products; empty if the rate of dense products applies."""
    whole_graph: FullGraphRates | None = None
    """Measured rates of the CPU trainer's full-graph steps; None if the mini-batch rates apply."""
    chunks: tuple[HostChunkRates, ...] = ()
    """Measured CPU rates of full-graph chunks, by number of threads; empty if the mini-batch rates apply."""
    file_gb_s: Positive | None = None
    """Bandwidth of writing a file to disk and reading it in 1e9 bytes per second; None if not measured."""
    shared_memory_gb_s: Positive | None = None
    """In a simulation, memory bandwidth that loading, transfers and the CPU trainer's aggregation share, in
    1e9 bytes per second; None if these do not slow each other down."""

    def __post_init__(self) -> None:
        check_numbers("host", self)
        if self.core_efficiency > 1 or self.serial_part > 1:
            raise ValueError("host: core_efficiency and serial_part must be at most 1")

    def chunk_rates(self, threads: int | None = None) -> HostChunkRates | None:
        """Return the chunk rates with the most measured threads up to `threads`, or with the fewest.

        By default, return those with the most threads.
        """
        if not self.chunks:
            return None
        by_threads = sorted(self.chunks, key=lambda rates: rates.threads)
        fewer = [rates for rates in by_threads if threads is None or rates.threads <= threads]
        return fewer[-1] if fewer else by_threads[0]

    def core_contention(self, kinds: str) -> CoreContention:
        """Return the contention measured for these trainer kinds, or else the host's general values."""
        measured = self.sharing_of.get(kinds)
        if measured is not None:
            return measured
        return CoreContention(
            step_s=self.step_s, efficiency=self.core_efficiency, wait_s=self.wait_s, lock_s=self.lock_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """Group of `count` identical devices, each of which is a trainer, with rates as in `TrainerRates`."""

    kind: str
    """Name of the kind; kind `a5000` has the trainers `a5000:0`, `a5000:1`."""
    memory_gb_s: Positive
    macs_per_s: Positive
    link_gb_s: Unbounded
    """Bandwidth from host memory to one device, in 1e9 bytes per second; infinite for in-place reads."""
    pipelined: StrictBool = False
    """Whether aggregation and update overlap on the device."""
    reads_each_source_once: StrictBool = False
    """Whether a source row is read only once for all its edges, and later layers stay on the chip."""
    count: Index = 1
    memory_gib: Positive | None = None
    """Memory per device in GiB, or None if unknown."""
    link_latency_s: NonNegative = 0.0
    """Fixed cost of a transfer."""
    launch_s: NonNegative = 0.0
    flush_s: NonNegative = 0.0
    fill_s: NonNegative = 0.0
    """Time per layer to fill the device's internal pipeline; `flush_s` is the time to drain it."""
    values_per_s: Unbounded = math.inf
    host_cores: Index = 0
    """Number of host cores on which one device computes; 0 for a real accelerator."""
    models: Mapping[str, TrainerRates] = field(default_factory=dict)
    """Rates by measured kind of model."""
    forms: tuple[LoadForm, ...] = ("rows",)
    switch_gb_s: Positive | None = None
    """In a simulation, total bandwidth of all device links; None if the links are independent."""
    design: FpgaDesign | None = None
    """FPGA design with hyrt's kernels, whose cycle model replaces the rates of propagation."""
    arena_words: Count | None = None
    """With a design, number of words per bank of on-chip memory, which limits the size of a task."""
    task_targets: Count | None = None
    """With a design, maximum targets per task. A larger mini-batch is divided into sequential tasks."""

    def __post_init__(self) -> None:
        if not self.kind:
            raise ValueError("an accelerator's kind is empty: set a name such as gpu")
        check_numbers(f"accelerator {self.kind!r}", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformTrainer:
    """One trainer of a platform."""

    name: str
    """Name of the trainer: `cpu:0`, or the kind and number of an accelerator."""
    device: Accelerator
    """Device that computes. The host is represented by an accelerator that reads host memory in place."""
    rates: TrainerRates
    """Rates of the device for one kind of model; for the host, with all cores."""
    single_thread_rates: TrainerRates | None = None
    """Rates of the host with one thread, if measured."""
    is_host: bool = False
    """Whether the trainer runs on the host cores and uses the assignment's threads."""
    switch: int | None = None
    """Index of the switch that the trainer shares with others; None if it has a separate path."""

    def adapt_workload(self, work: Workload) -> Workload:
        """Return the workload in the form that the trainer receives.

        Rows are dense if the trainer does not accept sparse rows, and float32 if FPGA kernels would need
        column scales for quantized rows.
        """
        if self.device.design is not None and work.input_bytes == work.features[0]:
            work = replace(work, input_bytes=None)
        if work.sparse is None or "sparse" in self.device.forms:
            return work
        return replace(work, sparse=None)

    def with_sparse_launch(self) -> PlatformTrainer:
        """Return the trainer with its rates for a first layer that multiplies sparse rows."""
        alone = None if self.single_thread_rates is None else self.single_thread_rates.with_sparse_launch()
        return replace(self, rates=self.rates.with_sparse_launch(), single_thread_rates=alone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Machine with host and accelerators."""

    name: str
    host: Host
    accelerators: tuple[Accelerator, ...] = ()
    source: str = "assumed"
    """Origin of the rates: `measured <date>` or `assumed: ...`."""
    relative_error: Number | None = None
    """Expected relative error of predictions with these rates, or None if it was not evaluated."""

    def __post_init__(self) -> None:
        error = self.relative_error
        if error is not None and not 0 <= error <= 1:
            raise ValueError(
                f"platform {self.name!r}: relative_error must be a fraction from 0 to 1, got {error!r}"
            )
        if not self.host.trains and not any(accelerator.count for accelerator in self.accelerators):
            raise ValueError(
                f"platform {self.name!r} has no trainer: let the host train, or add an accelerator"
            )

    def trainers(self, model: str = "") -> tuple[PlatformTrainer, ...]:
        """Return all trainers with their rates for a kind of model, the host's trainer first."""
        host = self.host
        trainers: list[PlatformTrainer] = []
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
            trainers.append(
                PlatformTrainer(
                    name="cpu:0",
                    device=device,
                    rates=_rates(host, model),
                    single_thread_rates=alone,
                    is_host=True,
                )
            )
        numbers: Counter[str] = Counter()
        for entry, accelerator in enumerate(self.accelerators):
            device, rates = replace(accelerator, count=1), _rates(accelerator, model)
            switch = None if accelerator.switch_gb_s is None else entry
            for _ in range(accelerator.count):
                name = f"{accelerator.kind}:{numbers[accelerator.kind]}"
                trainers.append(PlatformTrainer(name=name, device=device, rates=rates, switch=switch))
                numbers[accelerator.kind] += 1
        return tuple(trainers)


def _rates(owner: Host | Accelerator, model: str) -> TrainerRates:
    """Return the rates for a kind of model if they were measured, or else the general rates."""
    return owner.models.get(model) or TrainerRates(
        memory_gb_s=owner.memory_gb_s,
        macs_per_s=owner.macs_per_s,
        launch_s=owner.launch_s,
        values_per_s=owner.values_per_s,
    )


def device_name(name: str) -> str:
    """Return a device name in the form `kind:number`, with number 0 if it has none."""
    return name if ":" in name else f"{name}:0"


def select_trainers(platform: Platform, names: Sequence[str]) -> Platform | None:
    """Return the platform with only the named trainers, such as `cpu:0`, or None if one is missing.

    Accelerators are in the order of `names`. In `platform`, each must have count 1; each kind is numbered.
    """
    by_name: dict[str, Accelerator] = {}
    for accelerator in platform.accelerators:
        number = sum(name.partition(":")[0] == accelerator.kind for name in by_name)
        by_name[f"{accelerator.kind}:{number}"] = accelerator
    selected = [name for name in names if name != "cpu:0"]
    if any(name not in by_name for name in selected):
        return None
    return replace(
        platform,
        host=replace(platform.host, trains="cpu:0" in names),
        accelerators=tuple(by_name[name] for name in selected),
    )
