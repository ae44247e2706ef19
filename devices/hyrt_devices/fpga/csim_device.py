"""Simulated FPGA device: a C simulation of the kernels, with times from a cycle model of the card."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from hyrt_hls.build_report import design_from_build, identify_part, read_build
from hyrt_hls.fpga_part import FpgaPart, load_part
from hyrt_hls.resources import KernelDesign, estimate_resources
from hyrt_hls.simulator import Simulator
from hyrt_hls.task_layout import CODE_BYTES, LayerRecord, Task
from hyrt_perfmodel.fpga_cycles import EdgeList, LayerSizes, TaskShape, task_seconds
from hyrt_perfmodel.fpga_design import FpgaDesign
from numpy.typing import NDArray

from hyrt.device import DeviceInfo, DeviceOptions, Health, QueueListener, Rates, StepResult
from hyrt.device.capabilities import ExplainsMissing, Traceable
from hyrt.errors import DeviceOutOfMemoryError, DeviceUnavailableError
from hyrt.formatting import format_bytes
from hyrt.nn.description import ModelDescription
from hyrt.sampling.minibatch import MiniBatch
from hyrt_devices.fpga.pools import remedy
from hyrt_devices.fpga.tasks import build_tasks
from hyrt_devices.fpga.weights import WeightLayout, described
from hyrt_devices.fpga.xclbin import KERNEL

REPORTS_VARIABLE = "HYRT_FPGA_REPORTS"
"""Environment variable with the folder of a build, whose design and reported clock are then simulated."""

_PART = "u250"


@dataclass(frozen=True, slots=True)
class SimulatedCard:
    """Card that the device simulates."""

    part: FpgaPart
    design: KernelDesign
    modelled: FpgaDesign
    """The design with the rates that the cycle model uses."""
    reported: bool = False
    """Whether the clock was read from build reports."""


def simulated_card() -> SimulatedCard:
    """Return the card of the build that HYRT_FPGA_REPORTS names, or a U250 with HyScale-GNN's design.

    Raises ValueError if the reports cannot be read, belong to several builds, or describe an unknown part.
    """
    reports = os.environ.get(REPORTS_VARIABLE)
    if not reports:
        part = load_part(_PART)
        sizes = KernelDesign(
            pes=part.pes, mac_rows=part.mac_rows, mac_cols=part.mac_cols, arena_words=part.arena_words
        )
        return SimulatedCard(part, sizes, assumed_design(sizes, part))
    place = Path(os.path.expanduser(reports))
    part = identify_part(place)
    build = read_build(place, part)
    design = KernelDesign(
        pes=build.design.pes,
        mac_rows=build.design.mac_rows,
        mac_cols=build.design.mac_cols,
        arena_words=build.arena_words,
        fifo_depth=build.design.fifo_depth,
    )
    return SimulatedCard(part, design, design_from_build(build, part), reported=True)


def assumed_design(design: KernelDesign, part: FpgaPart) -> FpgaDesign:
    """Return the assumed cycle-model parameters of a trainer that has not been built."""
    # Features are read through a single port, so from a single bank.
    return replace(design.design, ddr_bytes_per_s=part.bank_bytes_per_s)


# Bandwidth, 75 % of the 16 GB/s of PCIe 3.0 x16, and fixed cost of a transfer.
LINK_BYTES_PER_S = 12e9
LINK_LATENCY_S = 3e-5


def task_bytes(task: Task) -> int:
    """Return the bytes that a launch transfers, which are the inputs without weights, and the scores."""
    read = (task.features, task.edges, task.labels, task.target_weights, task.vertices, task.task)
    targets, columns = task.score_shape
    return sum(array.nbytes for array in read) + 4 * targets * columns


def task_shape(task: Task) -> TaskShape:
    """Return the sizes and edges of a task as the cycle model represents them."""
    return TaskShape(
        layers=tuple(_layer_shape(task, record, i > 0) for i, record in enumerate(task.records)),
        classes=task.header.classes,
    )


def _layer_shape(task: Task, record: LayerRecord, transposed: bool) -> LayerSizes:
    def edges(first: int, count: int) -> EdgeList:
        section = task.edges[first : first + count]
        return EdgeList(sources=section[:, 0], destinations=section[:, 1])

    return LayerSizes(
        rows=record.rows,
        parts=record.parts,
        num_src=record.num_src,
        in_width=record.in_width,
        out_width=record.out_width,
        edges=record.num_edges,
        value_bytes=CODE_BYTES[0 if transposed else task.header.row_codes],
        forward=edges(record.first_edge, record.num_edges),
        backward=edges(record.first_backward_edge, record.num_backward_edges) if transposed else None,
    )


@dataclass(frozen=True, slots=True)
class ModelledTime:
    """Model of the card's times, in seconds of a virtual clock."""

    design: FpgaDesign
    """Design of the trainer, whose field `assumed` names the assumptions."""

    def transfer_s(self, tasks: Iterable[Task]) -> float:
        """Return the time of a mini-batch's transfer to the card."""
        return sum(LINK_LATENCY_S + task_bytes(task) / LINK_BYTES_PER_S for task in tasks)

    def propagate_s(self, tasks: Iterable[Task]) -> float:
        """Return the time of a mini-batch's launches, one after the other on one compute unit."""
        return sum(task_seconds(task_shape(task), self.design) for task in tasks)


# A U250 has four memory banks of 16 GiB.
_MEMORY_BYTES = 64 << 30


@dataclass(slots=True)
class _Staged:
    """Mini-batch between `transfer` and `propagate`. `owner` is the model for which it was staged."""

    owner: WeightLayout | None
    targets: int
    normalizer: float
    tasks: list[Task]
    size_bytes: int
    seconds: Mapping[str, float]


class FpgaCsimDevice(ExplainsMissing, Traceable):
    """Trainer with the kernels of `hyrt_hls`, compiled with g++, to test correctness rather than speed.

    The results are equal to those of the card. The reported times are not those of the simulation but those
    that the cycle model predicts for the card, so that load balancing works as with a real card. `design` is
    by default that of `simulated_card`.
    """

    def __init__(self, info: DeviceInfo, options: DeviceOptions, design: KernelDesign | None = None) -> None:
        self.info = info
        self._health = Health(info.name)
        card = simulated_card()
        self._design = design or card.design
        self._time = ModelledTime(card.modelled if design is None else assumed_design(design, card.part))
        limit = info.memory_bytes
        if options.memory_bytes is not None:
            limit = min(limit, options.memory_bytes)
        self._limit_bytes = limit
        self._used_bytes = 0
        self._lock = threading.Lock()
        self._simulator = Simulator(self._design)
        self._listener: QueueListener | None = None
        self._model: ModelDescription | None = None
        self._layout: WeightLayout | None = None
        self._weights: NDArray[np.float32] = np.empty(0, np.float32)

    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        return [] if cls.missing() else [_info(simulated_card())]

    @classmethod
    def missing(cls) -> str:
        """Return the reason why the simulation is not available, and the remedy; "" if it is available."""
        if shutil.which("g++") is None:
            return (
                "g++, which compiles the kernels for simulation, is not on PATH: install it (Debian: "
                "apt install g++)"
            )
        try:
            simulated_card()
        except ValueError as error:
            return f"{REPORTS_VARIABLE}: {error}"
        return ""

    @classmethod
    def open(cls, info: DeviceInfo, options: DeviceOptions) -> FpgaCsimDevice:
        try:
            return cls(info, options)
        except (ValueError, OSError) as error:
            raise DeviceUnavailableError(f"{info.name} cannot be simulated: {error}") from error

    def load(self, model: torch.nn.Module, parameters: Sequence[torch.Tensor]) -> None:
        self._health.check()
        model_words = described(model, self.info.name)
        trainable = [p for p in model.parameters() if p.requires_grad]
        with self._health.terminal("load"):
            layout = WeightLayout(model_words, trainable, self.info.name)
            if self._layout is not None:
                self._give(_weight_bytes(self._layout))
            self._model = self._layout = None
            self._take(_weight_bytes(layout), "weights and gradients", is_model=True)
            self._model, self._layout = model_words, layout
        self.update(parameters)

    def trace(self, listener: QueueListener) -> None:
        """Report modelled spans of the card's link and trainer on a virtual clock, labelled as such."""
        self._listener = listener

    def transfer(self, batch: MiniBatch) -> _Staged:
        with self._health.terminal("transfer"):
            model, layout = self._health.loaded(self._model), self._health.loaded(self._layout)
            staged = _Staged(layout, len(batch.targets), batch.normalizer, [], 0, {})
            if staged.targets:
                tasks = build_tasks(batch, model, self._design, self.info.name)
                size_bytes = sum(map(task_bytes, tasks))
                self._take(size_bytes, f"a mini-batch of {staged.targets} targets")
                staged.tasks, staged.size_bytes = tasks, size_bytes
                self._report_times("link, modelled", f"{len(tasks)} tasks", self._time.transfer_s(tasks))
            return staged

    def propagate(self, staged: _Staged) -> StepResult:
        with self._health.terminal("propagate"):
            layout = self._health.loaded(self._layout)
            if not isinstance(staged, _Staged) or staged.owner is not layout:
                raise TypeError(f"propagate got {type(staged).__name__}, expected a mini-batch from transfer")
            tasks, staged.tasks, staged.owner = staged.tasks, [], None
            try:
                return self._step(layout, tasks, staged)
            finally:
                self._give(staged.size_bytes)

    def _step(self, layout: WeightLayout, tasks: Sequence[Task], staged: _Staged) -> StepResult:
        sums = np.zeros(layout.num_floats, np.float32)
        loss_sum, correct = 0.0, 0
        propagate_s = 0.0
        for task in tasks:
            outcome = self._simulator.train(replace(task, weights=self._weights))
            task_s = self._time.propagate_s([task])
            propagate_s += task_s
            self._report_times("trainer, modelled", KERNEL, task_s)
            sums += outcome.gradients
            loss_sum += outcome.loss_sum
            correct += outcome.correct
        gradients = layout.unpack(sums) if tasks else []
        seconds = {"transfer": self._time.transfer_s(tasks), "propagate": propagate_s}
        return StepResult(
            loss_sum=loss_sum,
            counts={"correct": correct, "targets": staged.targets} if tasks else {},
            normalizer=staged.normalizer,
            gradients=[torch.from_numpy(gradient) for gradient in gradients],
            seconds=seconds if tasks else {},
        )

    def _report_times(self, queue: str, name: str, seconds: float) -> None:
        """Report a span of modelled length that ends now, when the simulation of the step ends."""
        if self._listener is not None:
            now = time.perf_counter_ns()
            self._listener(queue, [(name, now - round(seconds * 1e9), now)])

    def update(self, parameters: Sequence[torch.Tensor]) -> None:
        with self._health.terminal("update"):
            self._weights = self._health.loaded(self._layout).pack(parameters)

    def close(self) -> None:
        self._health.close()
        self._model = self._layout = None
        self._weights = np.empty(0, np.float32)
        self._simulator.close()

    def _take(self, size_bytes: int, purpose: str, *, is_model: bool = False) -> None:
        with self._lock:
            if self._used_bytes + size_bytes > self._limit_bytes:
                resident_bytes = 0 if self._layout is None else _weight_bytes(self._layout)
                raise DeviceOutOfMemoryError(
                    f"{self.info.name} is out of memory for {purpose} ({format_bytes(size_bytes)} requested, "
                    f"{format_bytes(self._used_bytes)} of {format_bytes(self._limit_bytes)} in use): "
                    f"{remedy(size_bytes if is_model else 0, resident_bytes, self._limit_bytes)}"
                )
            self._used_bytes += size_bytes

    def _give(self, size_bytes: int) -> None:
        with self._lock:
            self._used_bytes -= size_bytes


def _weight_bytes(layout: WeightLayout) -> int:
    """Return the bytes of the weights and gradients."""
    return 8 * layout.num_floats


def _info(card: SimulatedCard) -> DeviceInfo:
    part, design, modelled = card.part, card.design, card.modelled
    macs = design.mac_rows * design.mac_cols
    arena_bytes = design.pes * design.arena_words * 64
    uram = estimate_resources(modelled, design.arena_words).fractions_of(part)["uram"]
    clock_source = "reported" if card.reported else "assumed"
    return DeviceInfo(
        kind="fpga-csim",
        index=0,
        description=f"simulated {part.name.upper()}: HLS kernels in C simulation on the host, {design.pes} "
        f"PEs, {macs} MACs, {format_bytes(arena_bytes)} on chip ({uram:.0%} of its UltraRAM), times from "
        f"the cycle model at {modelled.clock_hz / 1e6:.0f} MHz ({clock_source})",
        memory_bytes=_MEMORY_BYTES,
        link="PCIe (modelled)",
        forms=("rows", "quantized"),
        rates=Rates(
            macs_per_s=macs * modelled.clock_hz / modelled.update_ii,
            memory_bytes_per_s=modelled.ddr_bytes_per_s * modelled.ddr_efficiency,
            link_bytes_per_s=LINK_BYTES_PER_S,
            source=f"assumed: {macs} MACs x {modelled.clock_hz / 1e6:.0f} MHz ({clock_source}), "
            f"{modelled.ddr_efficiency:.0%} of {part.name.upper()}'s memory, 75 % of PCIe 3.0 x16",
        ),
        simulated=True,
    )
