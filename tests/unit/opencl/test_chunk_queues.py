"""Copies of chunks run ahead of computing, but not of what they depend on: in any interleaving of queues."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from hyrt_devices.opencl.chunk_buffers import ChunkQueues, ChunkSlot
from hyrt_devices.opencl.chunk_launches import ChunkLaunches

from hyrt.fullgraph.device_relay import DeviceRelay, RelayedRows, RowReader, plan_forwarding
from hyrt.fullgraph.matrix_pool import HostMemoryBudget, MatrixPool


@dataclass(eq=False)
class Command:
    """Something that a queue has still to do."""

    action: Callable[[], None]
    waits: Sequence[Command]
    is_done: bool = False

    def wait(self) -> None:
        for other in self.waits:
            other.wait()
        if not self.is_done:
            self.action()
            self.is_done = True


@dataclass(eq=False)
class LazyQueue:
    """A queue that does nothing before it is told to; `Launcher`'s calls that `ChunkQueues` needs."""

    pending: list[Command] = field(default_factory=list)
    waits: Sequence[Command] = ()
    last: Command | None = None
    about: str = ""
    in_bytes: int = 0
    out_bytes: int = 0
    commands: list[Any] = field(default_factory=list)

    def wait_for(self, events: Sequence[Command]) -> None:
        self.waits = list(events)

    def do(self, action: Callable[[], None]) -> Command:
        self.last = Command(action, self.waits)
        self.waits = ()
        self.pending.append(self.last)
        return self.last

    def write(self, buffer: dict[str, Any], array: Any) -> Command:
        return self.do(lambda: buffer.update(content=array.copy()))

    def copy(self, buffer: dict[str, Any], source: dict[str, Any], size_bytes: int) -> Command:
        return self.do(lambda: buffer.update(content=source["content"].copy()))

    def read(self, array: Any, buffer: dict[str, Any]) -> Command:
        return self.do(lambda: np.copyto(array, buffer["content"]))

    def flush(self) -> None:
        pass

    def finish(self) -> None:
        pass


def run(queues: Sequence[LazyQueue], seed: int) -> None:
    """Do everything, in the order of each queue and after what is waited for, else in a random order."""
    chosen = random.Random(seed)
    while any(queue.pending for queue in queues):
        ready = [
            queue
            for queue in queues
            if queue.pending and all(event.is_done for event in queue.pending[0].waits)
        ]
        assert ready, "the queues wait for each other"
        command = chosen.choice(ready).pending.pop(0)
        command.action()
        command.is_done = True


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize(("in_flight", "num"), [(1, 5), (2, 5), (3, 5), (3, 2)])
def test_sums_are_those_of_one_queue(seed: int, in_flight: int, num: int) -> None:
    """Two layers: each adds the chunks of the one before to sums, in turn, and copies them back in place."""
    queues = LazyQueue(), LazyQueue(), LazyQueue()
    ins, compute, outs = queues
    chunks: Any = ChunkQueues(compute, ins, outs)  # type: ignore[arg-type]
    host = [np.array([float(n)]) for n in range(1, 1 + num)]
    wanted = [np.array(array) for array in host]
    slots = [ChunkSlot(({"content": None},)) for _ in range(in_flight)]
    sums = ChunkSlot(({"content": None},))
    chunks.begin()

    def clear() -> None:
        sums.buffers[0]["content"] = np.zeros(1)

    def add(slot: ChunkSlot) -> Callable[[], None]:
        def action() -> None:
            sums.buffers[0]["content"] = 2 * sums.buffers[0]["content"] + slot.buffers[0]["content"]

        return action

    turn = 0
    for _ in range(2):
        made = [np.empty(1) for _ in host]
        for i in range(len(host)):
            chunks.before(sums)
            compute.do(clear)
            chunks.after(sums)
            for each in host:
                slot = slots[turn % in_flight]
                turn += 1
                chunks.fill(slot, each)
                chunks.before(slot, sums)
                compute.do(add(slot))
                chunks.after(slot, sums)
            chunks.drain(sums, sums.buffers[0], made[i])
        host = made
        before, wanted = wanted, []
        for _ in before:
            total = np.zeros(1)
            for each in before:
                total = 2 * total + each
            wanted.append(total)
    run(queues, seed)
    assert [float(each[0]) for each in host] == [float(each[0]) for each in wanted]


def launches(in_flight: int) -> tuple[ChunkLaunches, list[LazyQueue]]:
    """A device without kernels, and its queues; one does everything where one chunk is there at once."""
    queues = [LazyQueue() for _ in range(3 if in_flight > 1 else 1)]
    compute, ins, outs = queues if in_flight > 1 else 3 * queues
    buffers = SimpleNamespace(
        **dict.fromkeys(("rows", "starts", "columns", "row_scale", "column_scale"), ()),
        read=[{} for _ in range(in_flight)],
        accumulated={},
    )
    chunks: Any = ChunkQueues(compute, ins, outs)  # type: ignore[arg-type]
    return ChunkLaunches(MagicMock(), MagicMock(), chunks, MagicMock(), buffers), queues  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("in_flight", [(1, 1), (2, 2), (1, 3), (2, 1), (2, 3, 2)])
def test_rows_that_are_handed_on_stay_until_the_next_device_has_copied_them(
    seed: int, in_flight: tuple[int, ...]
) -> None:
    """In any interleaving of all queues; after each column, something else takes the place of its rows."""
    devices = [launches(each) for each in in_flight]
    host = [np.full((1, 1), number, np.float32) for number in range(1, 6)]
    columns = [range(first, 3 * len(devices), len(devices)) for first in range(len(devices))]
    chain = DeviceRelay(
        plan_forwarding(range(len(devices)), columns, range(len(host)), lambda column, read: True)
    )
    readers = [RowReader(0, MatrixPool(HostMemoryBudget())) for _ in devices]
    chained = [
        RelayedRows(chain, kernels, reader) for (kernels, _), reader in zip(devices, readers, strict=True)
    ]
    seen: list[list[float]] = [[] for _ in devices]

    def compute(kernels: ChunkLaunches, action: Callable[[dict[str, Any]], None]) -> None:
        slot, queues = kernels._read[-1], kernels._queues
        queues.before(slot)
        queues.compute.do(partial(action, slot.buffers[0]))  # type: ignore[attr-defined]
        queues.after(slot)

    def look(found: list[float], buffer: dict[str, Any]) -> None:
        found.append(float(buffer["content"][0, 0]))

    def overwrite(buffer: dict[str, Any]) -> None:
        buffer["content"] = np.full((1, 1), -1, np.float32)

    for turn in range(3):
        for read, array in enumerate(host):
            for (kernels, _), rows, mine, found in zip(devices, chained, columns, seen, strict=True):
                rows.fetch((mine[turn], read), partial(kernels.put, "read", array), 1, 1)
                compute(kernels, partial(look, found))
        for (kernels, _), rows in zip(devices, chained, strict=True):
            rows.wait_until_copied()
            compute(kernels, overwrite)
    run([queue for _, queues in devices for queue in queues], seed)
    assert seen == [3 * [1.0, 2.0, 3.0, 4.0, 5.0]] * len(devices)
    assert [reader.reads for reader in readers] == [0, *(15 for _ in devices[1:])]


@pytest.mark.parametrize("seed", range(10))
def test_sums_that_nothing_was_added_to_go_back_as_they_came(seed: int) -> None:
    """As in row-column order, where no edge ends in an interval."""
    queues = LazyQueue(), LazyQueue(), LazyQueue()
    ins, compute, outs = queues
    chunks: Any = ChunkQueues(compute, ins, outs)  # type: ignore[arg-type]
    slot, back = ChunkSlot(({"content": np.zeros(1)},)), np.zeros(1)
    chunks.begin()
    chunks.fill(slot, np.ones(1))
    chunks.drain(slot, slot.buffers[0], back)
    run(queues, seed)
    assert back[0] == 1


def test_an_array_that_is_settled_may_be_read_and_written() -> None:
    queues = LazyQueue(), LazyQueue(), LazyQueue()
    ins, compute, outs = queues
    chunks: Any = ChunkQueues(compute, ins, outs)  # type: ignore[arg-type]
    slot, other, array, back = ChunkSlot(({},)), ChunkSlot(({},)), np.ones(1), np.zeros(1)
    chunks.begin()
    chunks.fill(slot, array)
    chunks.settle(array)
    array[:] = 5
    chunks.fill(other, array)
    chunks.drain(slot, slot.buffers[0], back)
    chunks.settle(back)
    assert back[0] == 1
    chunks.settle(array)
    assert other.buffers[0]["content"][0] == 5
    assert all(command.is_done for queue in queues for command in queue.pending)
    chunks.settle(array)  # Nothing is left to wait for.


def test_one_queue_waits_for_nothing() -> None:
    queue = LazyQueue()
    chunks: Any = ChunkQueues(queue, queue, queue)  # type: ignore[arg-type]
    slot, array = ChunkSlot(({},)), np.ones(1)
    chunks.fill(slot, array)
    chunks.before(slot)
    queue.do(lambda: None)
    chunks.after(slot)
    chunks.drain(slot, slot.buffers[0], array)
    assert [list(command.waits) for command in queue.pending] == [[], [], []]
