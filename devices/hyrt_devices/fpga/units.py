"""The compute units of a card: each with its copy of the weights, and places for what it computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt_devices.fpga.pools import Pools, Slot
from hyrt_devices.fpga.programs import KERNEL, TrainerPrograms
from hyrt_devices.fpga.queue import Queue
from hyrt_devices.fpga.staged import GRADIENTS, RESULTS, WEIGHTS, StagedTask, TaskStager
from hyrt_devices.opencl_host.profiling import Command

# Of gradients and results: one is read back while the other is written.
_OUTPUTS = 2


@dataclass(slots=True)
class _Output:
    """Where one launch leaves its sums."""

    gradients: Slot
    results: Slot


@dataclass(slots=True)
class _Unit:
    """A compute unit; the events are those of the last copy of weights and of the last launch."""

    kernel: Any
    weights: Slot
    outputs: list[_Output]
    brought: list[Any]
    launched: list[Any]


@dataclass(slots=True)
class _Flight:
    """A launch, and the way of its sums to the host."""

    unit: int
    launch: Any
    back: Any
    output: _Output


@dataclass(slots=True)
class Sums:
    """What tasks computed, added up."""

    gradients: NDArray[np.float32]
    """float32, packed as the weights."""
    loss_sum: float = 0.0
    correct: int = 0
    """`loss_sum` and `correct`: over all targets."""
    commands: list[Command] = field(default_factory=list)
    """The launches, and what was read back."""

    @property
    def events(self) -> list[Any]:
        """Of the commands."""
        return [event for _, event in self.commands]


class Units:
    """Launches tasks on compute units in turn, and adds up their sums in the order of the tasks.

    So the sums do not depend on which unit is done first, nor on how many there are.

    Parameters
    ----------
    programs, pools
        The device's.
    stager
        Places buffers.
    queue
        The queue of the launches.
    weight_floats
        Floats of the packed weights, and of the gradients.

    Raises
    ------
    DeviceOutOfMemory
        If weights and gradients do not fit; nothing is taken then.
    """

    def __init__(
        self, programs: TrainerPrograms, pools: Pools, stager: TaskStager, queue: Queue, weight_floats: int
    ) -> None:
        self._pools = pools
        self._stager = stager
        self._queue = queue
        self._floats = weight_floats
        self._slots: list[Slot] = []
        self._units: list[_Unit] = []
        try:
            for number in range(programs.num_units):
                outputs = [
                    _Output(
                        self._take(number, GRADIENTS, 4 * weight_floats, written=True),
                        self._take(number, RESULTS, 8, written=True),
                    )
                    for _ in range(_OUTPUTS)
                ]
                weights = self._take(number, WEIGHTS, 4 * weight_floats, written=False)
                self._units.append(_Unit(programs.kernel(number), weights, outputs, [], []))
        except BaseException:
            self.release()
            raise

    def _take(self, unit: int, argument: int, size_bytes: int, *, written: bool) -> Slot:
        self._slots.append(self._stager.take(unit, argument, size_bytes, written=written))
        return self._slots[-1]

    def release(self) -> None:
        """Give the memory back; nothing may be running."""
        slots, self._slots, self._units = self._slots, [], []
        for slot in slots:
            self._pools.give(slot)

    def update(self, weights: NDArray[np.float32]) -> list[Any]:
        """Start the way of new weights to every unit, and return its events; nothing may be running."""
        for unit in self._units:
            # The card may still be reading what the last update wrote.
            self._queue.wait(unit.brought)
            unit.weights.fill(weights)
            fresh = [slot for output in unit.outputs for slot in (output.gradients, output.results)]
            unit.brought = self._stager.bring([unit.weights, *fresh])
        # Launches of another queue wait for it, and the last step's transfer may have been the last that
        # starts this one.
        self._stager.flush()
        return [event for unit in self._units for event in unit.brought]

    def run(self, tasks: Sequence[StagedTask]) -> Sums:
        """Run tasks, and wait for their sums."""
        sums = Sums(np.zeros(self._floats, np.float32))
        flights: deque[_Flight] = deque()
        for number, task in enumerate(tasks):
            if len(flights) == _OUTPUTS * len(self._units):
                self._land(flights.popleft(), sums)
            output = (number // len(self._units)) % _OUTPUTS
            flights.append(self._launch(task, self._units[task.unit].outputs[output]))
        while flights:
            self._land(flights.popleft(), sums)
        return sums

    def _land(self, flight: _Flight, sums: Sums) -> None:
        events = [flight.launch, flight.back]
        self._queue.wait(events)
        # v++ numbers units from 1.
        sums.commands += [(f"{KERNEL}_{flight.unit + 1}", flight.launch), ("sums to host", flight.back)]
        sums.gradients += flight.output.gradients.view((self._floats,), np.float32)
        loss, hits = flight.output.results.view((2,), np.float32)
        sums.loss_sum += float(loss)
        sums.correct += int(hits)

    def _launch(self, task: StagedTask, output: _Output) -> _Flight:
        unit = self._units[task.unit]
        slots = {**task.slots, WEIGHTS: unit.weights, GRADIENTS: output.gradients, RESULTS: output.results}
        buffers = [slots[argument].buffer for argument in range(len(slots))]
        launch = self._queue.launch(unit.kernel, buffers, [*task.events, *unit.brought, *unit.launched])
        back = self._queue.to_host([output.gradients.buffer, output.results.buffer], [launch])
        self._queue.flush()
        unit.launched = [launch]
        return _Flight(task.unit, launch, back, output)
