"""Mini-batches on their way to the card: tasks in slots of their compute units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hyrt_hls.task.layout import Task

from hyrt_devices.fpga.pools import BufferPlace, Pools, Slot
from hyrt_devices.fpga.programs import TrainerPrograms
from hyrt_devices.fpga.queue import Queue

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

    def release(self, pools: Pools) -> None:
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

    def __init__(self, programs: TrainerPrograms, pools: Pools, queue: Queue) -> None:
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
        DeviceOutOfMemory
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
        """A slot in the memory bank of a compute unit's argument. Raises DeviceOutOfMemory."""
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
