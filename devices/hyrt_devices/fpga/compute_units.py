"""Compute units of the FPGA trainer: command queues, staged tasks and their execution."""

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
    """Out-of-order command queue for migrations and launches, for use by one thread at a time.

    The wait list of a command contains its predecessors. Markers, barriers and fills are not used, because
    XRT rejects them through pyopencl. The queue references a command's buffers until the command has
    completed, because the kernel objects of OpenCL and pyopencl do not. `device` is required because a queue
    that is created for a context alone would use the parent of a sub-device.
    """

    def __init__(self, context: Any, device: Any) -> None:
        import pyopencl as cl

        self._cl = cl
        flags: Any = cl.command_queue_properties
        properties = flags.PROFILING_ENABLE | flags.OUT_OF_ORDER_EXEC_MODE_ENABLE
        self._queue: Any = cl.CommandQueue(context, device=device, properties=properties)
        self._pending: list[tuple[Any, Any]] = []

    def to_device(self, buffers: Sequence[Any]) -> Any:
        """Migrate buffers that the host has written to the device, and return the event."""
        return self._migrate(buffers, 0)

    def reserve(self, buffers: Sequence[Any]) -> Any:
        """Allocate device memory for buffers that only the device writes, and return the event."""
        return self._migrate(buffers, self._cl.mem_migration_flags.CONTENT_UNDEFINED)

    def to_host(self, buffers: Sequence[Any], after: Sequence[Any]) -> Any:
        """Migrate buffers that the device has written to the host, and return the event."""
        return self._migrate(buffers, self._cl.mem_migration_flags.HOST, after)

    def _migrate(self, buffers: Sequence[Any], flags: int, after: Sequence[Any] = ()) -> Any:
        event = self._cl.enqueue_migrate_mem_objects(
            self._queue, list(buffers), flags, wait_for=list(after) or None
        )
        return self._keep(event, (list(buffers), list(after)))

    def launch(self, kernel: Any, buffers: Sequence[Any], after: Sequence[Any]) -> Any:
        """Launch a kernel with these buffers as its first arguments, and return the event."""
        for position, buffer in enumerate(buffers):
            kernel.set_arg(position, buffer)
        event = self._cl.enqueue_nd_range_kernel(
            self._queue, kernel, (1,), (1,), wait_for=list(after) or None
        )
        return self._keep(event, (kernel, list(buffers), list(after)))

    def _keep(self, event: Any, objects: Any) -> Any:
        complete = self._cl.command_execution_status.COMPLETE
        self._pending = [
            command for command in self._pending if command[0].command_execution_status > complete
        ]
        self._pending.append((event, objects))
        return event

    def flush(self) -> None:
        """Start all enqueued commands."""
        self._queue.flush()

    def wait(self, events: Sequence[Any]) -> None:
        """Wait until events are complete; raise `pyopencl.Error` if a command failed."""
        if not events:
            return
        self._queue.flush()
        self._cl.wait_for_events(list(events))
        for event in events:
            status = event.command_execution_status
            if status < 0:
                # Some OpenCL implementations raise no error when a failed command is waited for.
                raise self._cl.RuntimeError(f"an OpenCL command failed with status {status}")

    def settle(self) -> None:
        """Wait until all commands have completed or failed, and drop the references to their buffers."""
        pending, self._pending = self._pending, []
        if pending:
            with suppress(self._cl.Error):
                self._queue.flush()
        for event, _ in pending:
            # Errors have already been raised by the calls in which they occurred.
            with suppress(self._cl.Error):
                event.wait()

    def close(self) -> None:
        """Wait for all commands and release the queue. Idempotent, and allowed after a device failure."""
        if self._queue is not None:
            self.settle()
            self._queue = None


def is_over(event: Any) -> bool:
    """Return whether a command has completed without an error, which is required for its times."""
    import pyopencl as cl

    return bool(event.command_execution_status == cl.command_execution_status.COMPLETE)


# Positions of the kernel's arguments. `INPUTS` and `SCORES` exist per task, the others per compute unit.
INPUTS = {"features": 0, "edges": 1, "labels": 3, "target_weights": 4, "vertices": 5, "task": 6}
WEIGHTS, SCORES, GRADIENTS, RESULTS = 2, 7, 8, 9
OF_THE_MODEL = frozenset({WEIGHTS, GRADIENTS, RESULTS})
"""Arguments whose slots are allocated once, when the model is loaded."""


@dataclass(slots=True)
class StagedTask:
    """Slots and events of one launch."""

    unit: int
    slots: dict[int, Slot]
    """Slots by argument: the inputs of the launch, and the scores that it writes."""
    events: list[Any]
    """Events that must be complete before the launch."""


@dataclass(slots=True, eq=False)
class StagedTasks:
    """Staged tasks of a mini-batch, returned by `transfer` and consumed by `propagate`."""

    owner: Any
    targets: int
    normalizer: float
    tasks: list[StagedTask] = field(default_factory=list)

    def release(self, pools: BufferPools) -> None:
        """Release the slots, which must be idle. Idempotent."""
        tasks, self.tasks, self.owner = self.tasks, [], None
        for task in tasks:
            for slot in task.slots.values():
                pools.give(slot)


class TaskStager:
    """Stager that copies tasks to slots and starts their transfer, for use by one thread at a time."""

    def __init__(self, programs: TrainerPrograms, pools: BufferPools, queue: Queue) -> None:
        self._pools = pools
        self._queue = queue
        # Create separate kernel objects for this thread, which are never launched.
        self._kernels = [programs.kernel(unit) for unit in range(programs.num_units)]

    @property
    def num_units(self) -> int:
        return len(self._kernels)

    def stage(self, staged: StagedTasks, tasks: Sequence[Task]) -> None:
        """Start the transfer of a mini-batch's tasks, which are assigned to compute units round-robin.

        Raises DeviceOutOfMemoryError if the tasks do not fit, after releasing all of their slots.
        """
        try:
            for number, task in enumerate(tasks):
                staged.tasks.append(self._task(number % self.num_units, task, staged))
            self._queue.flush()
        except BaseException:
            # The transfer of a slot may still be running.
            self._queue.settle()
            staged.release(self._pools)
            raise

    def _task(self, unit: int, task: Task, staged: StagedTasks) -> StagedTask:
        slots: dict[int, Slot] = {}
        # Create the task before its slots, so that a failure releases the slots allocated so far.
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
        """Return a slot in the memory bank of a compute unit's argument, or raise DeviceOutOfMemoryError."""
        slot = self._pools.take(BufferPlace(unit, argument, written), size_bytes)
        if slot.fresh:
            # XRT allocates a buffer in the memory bank of the first kernel argument that is set to it, so set
            # the argument before the first command that uses the buffer.
            self._kernels[unit].set_arg(argument, slot.buffer)
        return slot

    def flush(self) -> None:
        """Start the commands that `bring` enqueued."""
        self._queue.flush()

    def bring(self, slots: Any) -> list[Any]:
        """Start the transfer of input slots, allocate memory for output slots, and return the events."""
        slots = list(slots)
        read = [slot.buffer for slot in slots if not slot.place.written]
        written = [slot.buffer for slot in slots if slot.place.written and slot.fresh]
        events = [self._queue.to_device(read)] if read else []
        if written:
            events.append(self._queue.reserve(written))
        for slot in slots:
            slot.fresh = False
        return events


# Use two buffers for gradients and results: one is read back while the other is written.
_OUTPUTS = 2


@dataclass(slots=True)
class _Output:
    """Slots for the gradients and results of one launch."""

    gradients: Slot
    results: Slot


@dataclass(slots=True)
class _Unit:
    """Compute unit, with the events of its last weight transfer and of its last launch."""

    kernel: Any
    weights: Slot
    outputs: list[_Output]
    brought: list[Any]
    launched: list[Any]


@dataclass(slots=True)
class _InFlightLaunch:
    """Launch in flight, with the event for the transfer of its sums to the host."""

    unit: int
    launch: Any
    result: Any
    output: _Output


@dataclass(slots=True)
class Sums:
    """Sums of the results of several tasks."""

    gradients: NDArray[np.float32]
    """Gradient sums: float32, packed in the layout of the weights."""
    loss_sum: float = 0.0
    correct: int = 0
    """Number of correctly classified targets; `loss_sum` is the sum of the losses."""
    commands: list[Command] = field(default_factory=list)
    """Launches, and transfers of their results to the host."""

    @property
    def events(self) -> list[Any]:
        """Events of the commands that compute and transfer the sums."""
        return [event for _, event in self.commands]


class ComputeUnits:
    """Launcher that runs tasks on compute units round-robin, and adds up their sums in task order.

    Therefore, the sums depend neither on the order in which units finish nor on the number of units.
    `weight_floats` is the number of packed weights and of packed gradients. Raises DeviceOutOfMemoryError,
    after freeing all memory, if weights and gradients do not fit.
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
        """Release the memory. No command may be running."""
        slots, self._slots, self._units = self._slots, [], []
        for slot in slots:
            self._pools.give(slot)

    def update(self, weights: NDArray[np.float32]) -> list[Any]:
        """Start the transfer of new weights to all units, and return its events. No launch may be running."""
        for unit in self._units:
            # The card may still be reading the weights of the previous update.
            self._queue.wait(unit.brought)
            unit.weights.fill(weights)
            fresh = [slot for output in unit.outputs for slot in (output.gradients, output.results)]
            unit.brought = self._stager.bring([unit.weights, *fresh])
        # Flush now: launches on another queue wait for this transfer, and no later call may flush this queue.
        self._stager.flush()
        return [event for unit in self._units for event in unit.brought]

    def run(self, tasks: Sequence[StagedTask]) -> Sums:
        """Run tasks, wait for their results, and return the sums."""
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
        fetched = self._queue.to_host([output.gradients.buffer, output.results.buffer], [launch])
        self._queue.flush()
        unit.launched = [launch]
        return _InFlightLaunch(task.unit, launch, fetched, output)
