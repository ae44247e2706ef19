"""Compute units of the FPGA trainer: command queues, staged tasks, and their execution."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hyrt_hls.task_layout import Task
from numpy.typing import NDArray

from hyrt_devices.fpga.pools import BufferPlace, BufferPools, Slot
from hyrt_devices.fpga.xclbin import KERNEL, TrainerPrograms
from hyrt_devices.opencl_host.profiling import Command


class Queue:
    """Enqueues migrations and launches on one device; one thread at a time drives it.

    Out of order: what must come before a command is in its wait list. Markers, barriers and fills, which XRT
    refuses through pyopencl, are not used. A command's buffers are kept until it is over: neither OpenCL's
    kernel objects nor pyopencl's keep them.

    Parameters
    ----------
    context, device
        The device is named: a queue made for a context alone would use the parent of a sub-device.
    """

    def __init__(self, context: Any, device: Any) -> None:
        import pyopencl as cl

        self._cl = cl
        wanted: Any = cl.command_queue_properties
        properties = wanted.PROFILING_ENABLE | wanted.OUT_OF_ORDER_EXEC_MODE_ENABLE
        self._queue: Any = cl.CommandQueue(context, device=device, properties=properties)
        self._kept: list[tuple[Any, Any]] = []

    def to_device(self, buffers: Sequence[Any]) -> Any:
        """Bring what the host wrote in buffers to the device; returns the event."""
        return self._migrate(buffers, 0)

    def reserve(self, buffers: Sequence[Any]) -> Any:
        """Make a place on the device for buffers that it only writes; returns the event."""
        return self._migrate(buffers, self._cl.mem_migration_flags.CONTENT_UNDEFINED)

    def to_host(self, buffers: Sequence[Any], after: Sequence[Any]) -> Any:
        """Bring what the device wrote to the host; returns the event."""
        return self._migrate(buffers, self._cl.mem_migration_flags.HOST, after)

    def _migrate(self, buffers: Sequence[Any], flags: int, after: Sequence[Any] = ()) -> Any:
        event = self._cl.enqueue_migrate_mem_objects(
            self._queue, list(buffers), flags, wait_for=list(after) or None
        )
        return self._keep(event, (list(buffers), list(after)))

    def launch(self, kernel: Any, buffers: Sequence[Any], after: Sequence[Any]) -> Any:
        """Run a kernel, its first arguments these buffers, once; returns the event."""
        for position, buffer in enumerate(buffers):
            kernel.set_arg(position, buffer)
        event = self._cl.enqueue_nd_range_kernel(
            self._queue, kernel, (1,), (1,), wait_for=list(after) or None
        )
        return self._keep(event, (kernel, list(buffers), list(after)))

    def _keep(self, event: Any, objects: Any) -> Any:
        complete = self._cl.command_execution_status.COMPLETE
        self._kept = [kept for kept in self._kept if kept[0].command_execution_status > complete]
        self._kept.append((event, objects))
        return event

    def flush(self) -> None:
        """Start what is enqueued."""
        self._queue.flush()

    def wait(self, events: Sequence[Any]) -> None:
        """Wait until events are over.

        Raises
        ------
        pyopencl.Error
            If a command failed.
        """
        if not events:
            return
        self._queue.flush()
        self._cl.wait_for_events(list(events))
        for event in events:
            status = event.command_execution_status
            if status < 0:
                # Some implementations wait without a word for what has failed.
                raise self._cl.RuntimeError(f"a command ended with status {status}")

    def settle(self) -> None:
        """Wait for all, whether it failed or not; nothing is kept then."""
        kept, self._kept = self._kept, []
        if kept:
            with suppress(self._cl.Error):
                self._queue.flush()
        for event, _ in kept:
            # What failed has been raised by the call that it failed in.
            with suppress(self._cl.Error):
                event.wait()

    def close(self) -> None:
        """Wait for all, and let go of the queue; idempotent, valid after the device failed."""
        if self._queue is not None:
            self.settle()
            self._queue = None


def is_over(event: Any) -> bool:
    """Whether a command has ended well: only then it has times."""
    import pyopencl as cl

    return bool(event.command_execution_status == cl.command_execution_status.COMPLETE)


# Of the kernel's arguments, by position; a task brings the first group, its compute unit has the others.
INPUTS = {"features": 0, "edges": 1, "labels": 3, "target_weights": 4, "vertices": 5, "task": 6}
WEIGHTS, SCORES, GRADIENTS, RESULTS = 2, 7, 8, 9
OF_THE_MODEL = frozenset({WEIGHTS, GRADIENTS, RESULTS})
"""Arguments whose slots are taken with the model and stay."""


@dataclass(slots=True)
class StagedTask:
    """One launch's arrays."""

    unit: int
    """Number of the compute unit that runs it."""
    slots: dict[int, Slot]
    """Slots by argument: the inputs, and the scores that it writes."""
    events: list[Any]
    """The events that must be over before it is launched."""


@dataclass(slots=True, eq=False)
class StagedTasks:
    """What `transfer` returns and `propagate` uses up."""

    owner: Any
    targets: int
    normalizer: float
    tasks: list[StagedTask] = field(default_factory=list)

    def release(self, pools: BufferPools) -> None:
        """Give the slots back, once nothing uses them any more; idempotent."""
        tasks, self.tasks, self.owner = self.tasks, [], None
        for task in tasks:
            for slot in task.slots.values():
                pools.give(slot)


class TaskStager:
    """Puts tasks into slots and starts their way to the card; one thread at a time drives it.

    Parameters
    ----------
    programs, pools
        The device's.
    queue
        The queue of the transfers.
    """

    def __init__(self, programs: TrainerPrograms, pools: BufferPools, queue: Queue) -> None:
        self._pools = pools
        self._queue = queue
        # Objects of this thread's own; they are never launched.
        self._kernels = [programs.kernel(unit) for unit in range(programs.num_units)]

    @property
    def num_units(self) -> int:
        return len(self._kernels)

    def stage(self, staged: StagedTasks, tasks: Sequence[Task]) -> None:
        """Start the transfer of a mini-batch's tasks, compute units in turn.

        Raises
        ------
        DeviceOutOfMemoryError
            Everything taken is free again.
        """
        try:
            for number, task in enumerate(tasks):
                staged.tasks.append(self._task(number % self.num_units, task, staged))
            self._queue.flush()
        except BaseException:
            # A slot may be on its way to the card.
            self._queue.settle()
            staged.release(self._pools)
            raise

    def _task(self, unit: int, task: Task, staged: StagedTasks) -> StagedTask:
        slots: dict[int, Slot] = {}
        # In the list before it is whole: what fails half-way gives back what it has.
        made = StagedTask(unit, slots, [])
        try:
            for name, argument in INPUTS.items():
                array = getattr(task, name)
                slots[argument] = self.take(unit, argument, array.nbytes)
                slots[argument].fill(array)
            slots[SCORES] = self.take(unit, SCORES, 4 * int(np.prod(task.score_shape)), written=True)
            made.events = self.bring(slots.values())
        except BaseException:
            self._queue.settle()
            for slot in slots.values():
                self._pools.give(slot)
            raise
        return made

    def take(self, unit: int, argument: int, size_bytes: int, *, written: bool = False) -> Slot:
        """A slot in the memory bank of a compute unit's argument. Raises DeviceOutOfMemoryError."""
        slot = self._pools.take(BufferPlace(unit, argument, written), size_bytes)
        if slot.fresh:
            # XRT chooses the bank by the first argument that a buffer is set as; after its first command it
            # is too late.
            self._kernels[unit].set_arg(argument, slot.buffer)
        return slot

    def flush(self) -> None:
        """Start what `bring` enqueued."""
        self._queue.flush()

    def bring(self, slots: Any) -> list[Any]:
        """Start the transfer of slots, and make places for what the device will write; returns the events."""
        slots = list(slots)
        read = [slot.buffer for slot in slots if not slot.place.written]
        written = [slot.buffer for slot in slots if slot.place.written and slot.fresh]
        events = [self._queue.to_device(read)] if read else []
        if written:
            events.append(self._queue.reserve(written))
        for slot in slots:
            slot.fresh = False
        return events


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
class _InFlightLaunch:
    """A launch, and the way of its sums to the host."""

    unit: int
    launch: Any
    result: Any
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


class ComputeUnits:
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
    DeviceOutOfMemoryError
        If weights and gradients do not fit; nothing is taken then.
    """

    def __init__(
        self,
        programs: TrainerPrograms,
        pools: BufferPools,
        stager: TaskStager,
        queue: Queue,
        weight_floats: int,
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
        flights: deque[_InFlightLaunch] = deque()
        for number, task in enumerate(tasks):
            if len(flights) == _OUTPUTS * len(self._units):
                self._land(flights.popleft(), sums)
            output = (number // len(self._units)) % _OUTPUTS
            flights.append(self._launch(task, self._units[task.unit].outputs[output]))
        while flights:
            self._land(flights.popleft(), sums)
        return sums

    def _land(self, flight: _InFlightLaunch, sums: Sums) -> None:
        events = [flight.launch, flight.result]
        self._queue.wait(events)
        # v++ numbers units from 1.
        sums.commands += [(f"{KERNEL}_{flight.unit + 1}", flight.launch), ("sums to host", flight.result)]
        sums.gradients += flight.output.gradients.view((self._floats,), np.float32)
        loss, hits = flight.output.results.view((2,), np.float32)
        sums.loss_sum += float(loss)
        sums.correct += int(hits)

    def _launch(self, task: StagedTask, output: _Output) -> _InFlightLaunch:
        unit = self._units[task.unit]
        slots = {**task.slots, WEIGHTS: unit.weights, GRADIENTS: output.gradients, RESULTS: output.results}
        buffers = [slots[argument].buffer for argument in range(len(slots))]
        launch = self._queue.launch(unit.kernel, buffers, [*task.events, *unit.brought, *unit.launched])
        back = self._queue.to_host([output.gradients.buffer, output.results.buffer], [launch])
        self._queue.flush()
        unit.launched = [launch]
        return _InFlightLaunch(task.unit, launch, back, output)
