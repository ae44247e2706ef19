"""The FPGA trainer without a card: its HLS kernels simulated on the host, its times from the cycle model."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from hyrt_hls.csim import Design, Simulator
from hyrt_hls.parts import Part, load_part
from hyrt_hls.resources import estimate
from hyrt_hls.task_layout import Task
from hyrt_perfmodel.cycles.design import FpgaDesign
from numpy.typing import NDArray

from hyrt.device import DeviceInfo, DeviceOptions, Health, Rates, StepResult
from hyrt.errors import DeviceOutOfMemory, DeviceUnavailable
from hyrt.graph.graph import Graph
from hyrt.nn.description import ModelDescription, describe
from hyrt.sampling.block import MiniBatch
from hyrt_devices.fpga.modelled_time import LINK_BYTES_PER_S, ModelledTime, task_bytes
from hyrt_devices.fpga.tiles import build_tasks
from hyrt_devices.fpga.weights import WeightLayout

# The card whose trainer is simulated, and its four banks of 16 GiB.
_PART = "u250"
_MEMORY_BYTES = 64 << 30


@dataclass(slots=True)
class _Staged:
    """What `transfer` returns and `propagate` uses up; `owner` is the model it was staged for."""

    owner: WeightLayout | None
    targets: int
    normalizer: float
    tasks: list[Task]
    size_bytes: int
    seconds: Mapping[str, float]


class FpgaCsimDevice:
    """Trains with the kernels of `hyrt_hls`, compiled with g++ and run as they are; for correctness, not for speed.

    What it computes is what the card would compute. The seconds it reports are not the simulation's but those of the
    cycle model for the card, so that a run is balanced as one with the card would be.

    Parameters
    ----------
    info
        What `probe` told.
    options
        The run's.
    design
        Of the trainer; that of the paper's Table IV if None.
    """

    def __init__(self, info: DeviceInfo, options: DeviceOptions, design: Design | None = None) -> None:
        self.info = info
        self._health = Health(info.name)
        self._design = design or _trainer(load_part(_PART))
        self._time = ModelledTime(_modelled(self._design, load_part(_PART)))
        limit = info.memory_bytes
        if options.memory_bytes is not None:
            limit = min(limit, options.memory_bytes)
        self._limit_bytes = limit
        self._used_bytes = 0
        self._lock = threading.Lock()
        self._simulator = Simulator(self._design)
        self._model: ModelDescription | None = None
        self._layout: WeightLayout | None = None
        self._weights: NDArray[np.float32] = np.empty(0, np.float32)

    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        return [] if cls.missing() else [_info()]

    @classmethod
    def missing(cls) -> str:
        """Why there is no simulation, and what to do; empty if nothing is wrong."""
        if shutil.which("g++") is None:
            return "no g++ in PATH, which compiles the kernels for simulation: install it (Debian: apt install g++)"
        return ""

    @classmethod
    def open(cls, info: DeviceInfo, options: DeviceOptions) -> FpgaCsimDevice:
        try:
            return cls(info, options)
        except (ValueError, OSError) as error:
            raise DeviceUnavailable(f"{info.name} cannot be simulated: {error}") from error

    def load(self, model: torch.nn.Module, parameters: Sequence[torch.Tensor]) -> None:
        self._health.check()
        described = describe(model, self.info.name)
        trainable = [p for p in model.parameters() if p.requires_grad]
        with self._health.terminal("load"):
            layout = WeightLayout(described, trainable, self.info.name)
            if self._layout is not None:
                self._give(_weight_bytes(self._layout))
            self._model = self._layout = None
            self._take(_weight_bytes(layout), "the weights")
            self._model, self._layout = described, layout
        self.update(parameters)

    def sampler(self, graph: Graph) -> None:
        return None

    def gathers(self, graph: Graph) -> bool:
        return False

    def transfer(self, batch: MiniBatch) -> _Staged:
        with self._health.terminal("transfer"):
            if self._model is None or self._layout is None:
                raise RuntimeError("no model was loaded")
            staged = _Staged(self._layout, len(batch.targets), batch.normalizer, [], 0, {})
            if staged.targets:
                tasks = build_tasks(batch, self._model, self._design, self.info.name)
                size_bytes = sum(map(task_bytes, tasks))
                self._take(size_bytes, f"a mini-batch of {staged.targets} targets")
                staged.tasks, staged.size_bytes = tasks, size_bytes
            return staged

    def propagate(self, staged: _Staged) -> StepResult:
        with self._health.terminal("propagate"):
            layout = self._layout
            if layout is None:
                raise RuntimeError("no model was loaded")
            if not isinstance(staged, _Staged) or staged.owner is not layout:
                raise TypeError(f"{type(staged).__name__} is not a mini-batch that transfer staged")
            tasks, staged.tasks, staged.owner = staged.tasks, [], None
            try:
                return self._step(layout, tasks, staged)
            finally:
                self._give(staged.size_bytes)

    def _step(self, layout: WeightLayout, tasks: Sequence[Task], staged: _Staged) -> StepResult:
        sums = np.zeros(layout.num_floats, np.float32)
        loss_sum, correct = 0.0, 0
        for task in tasks:
            outcome = self._simulator.train(replace(task, weights=self._weights))
            sums += outcome.gradients
            loss_sum += outcome.loss_sum
            correct += outcome.correct
        gradients = layout.unpack(sums) if tasks else []
        seconds = {
            "transfer": self._time.transfer_s(tasks),
            "propagate": self._time.propagate_s(tasks),
        }
        return StepResult(
            loss_sum=loss_sum,
            correct=correct,
            targets=staged.targets,
            normalizer=staged.normalizer,
            gradients=[torch.from_numpy(gradient) for gradient in gradients],
            seconds=seconds if tasks else {},
        )

    def update(self, parameters: Sequence[torch.Tensor]) -> None:
        with self._health.terminal("update"):
            if self._layout is None:
                raise RuntimeError("no model was loaded")
            self._weights = self._layout.pack(parameters)

    def close(self) -> None:
        self._health.close()
        self._model = self._layout = None
        self._weights = np.empty(0, np.float32)
        self._simulator.close()

    def _take(self, size_bytes: int, what: str) -> None:
        with self._lock:
            if self._used_bytes + size_bytes > self._limit_bytes:
                raise DeviceOutOfMemory(
                    f"{self.info.name} is out of memory: no room for {what}, {_mib(size_bytes)}, {_mib(self._used_bytes)} in use "
                    f"of {_mib(self._limit_bytes)}: give it fewer targets"
                )
            self._used_bytes += size_bytes

    def _give(self, size_bytes: int) -> None:
        with self._lock:
            self._used_bytes -= size_bytes


def _weight_bytes(layout: WeightLayout) -> int:
    """Of weights and gradients."""
    return 8 * layout.num_floats


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.4g} MiB"


def _trainer(part: Part) -> Design:
    return Design(pes=part.pes, mac_rows=part.mac_rows, mac_cols=part.mac_cols, arena_words=part.arena_words)


def _modelled(design: Design, part: Part) -> FpgaDesign:
    return FpgaDesign(
        pes=design.pes,
        mac_rows=design.mac_rows,
        mac_cols=design.mac_cols,
        fifo_depth=design.fifo_depth,
        # Features come through one port, from one bank.
        ddr_bytes_per_s=part.bank_bytes_per_s,
    )


def _info() -> DeviceInfo:
    part = load_part(_PART)
    design = _trainer(part)
    modelled = _modelled(design, part)
    macs = design.mac_rows * design.mac_cols
    arena_bytes = design.pes * design.arena_words * 64
    uram = estimate(modelled, design.arena_words).of(part)["uram"]
    return DeviceInfo(
        kind="fpga-csim",
        index=0,
        description=f"simulated {part.name.upper()}: HLS kernels in C simulation on the host, {design.pes} PEs, {macs} MACs, "
        f"{arena_bytes >> 20} MiB on chip ({uram:.0%} of its UltraRAM), times of the cycle model",
        memory_bytes=_MEMORY_BYTES,
        link="PCIe (modelled)",
        rates=Rates(
            macs_per_s=macs * modelled.clock_hz / modelled.update_ii,
            memory_bytes_per_s=modelled.ddr_bytes_per_s * modelled.ddr_efficiency,
            link_bytes_per_s=LINK_BYTES_PER_S,
            source=f"assumed: {macs} MACs x {modelled.clock_hz / 1e6:.0f} MHz, {modelled.ddr_efficiency:.0%} of "
            f"{part.name.upper()}'s memory, 75 % of PCIe 3.0 x16",
        ),
        simulated=True,
    )
