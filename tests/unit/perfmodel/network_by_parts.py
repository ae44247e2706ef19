"""The aggregate network as objects that talk to each other: a reference for the simulation over arrays."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

Address = tuple[int, int]


@dataclass
class Gather:
    """A gather unit with its queues, one from each scatter unit."""

    queues: list[deque[Address]]
    latency: int
    turn: int = 0
    free_at: dict[Address, int] = field(default_factory=dict)

    def choose(self, cycle: int) -> int | None:
        for step in range(len(self.queues)):
            number = (self.turn + step) % len(self.queues)
            queue = self.queues[number]
            if queue and self.free_at.get(queue[0], 0) <= cycle:
                return number
        return None

    def take(self, number: int, cycle: int) -> None:
        self.free_at[self.queues[number].popleft()] = cycle + self.latency
        self.turn = (number + 1) % len(self.queues)


def cycles_of(
    groups: Sequence[Sequence[int]], units: int, chunks: int, depth: int, latency: int
) -> tuple[int, list[Address]]:
    """Cycles, and the messages in the order in which the gather units take them."""
    waiting = deque(
        {unit: (row, chunk) for unit, row in enumerate(group)} for group in groups for chunk in range(chunks)
    )
    gathers = [Gather([deque() for _ in range(units)], latency) for _ in range(units)]
    registers: dict[int, Address] = {}
    order: list[Address] = []
    last = cycle = 0
    while waiting or registers or any(queue for gather in gathers for queue in gather.queues):
        grants = [gather.choose(cycle) for gather in gathers]
        leaving = {
            unit: message
            for unit, message in registers.items()
            if len(gathers[message[0] % units].queues[unit]) < depth
        }
        for gather, grant in zip(gathers, grants, strict=True):
            if grant is not None:
                order.append(gather.queues[grant][0])
                gather.take(grant, cycle)
                last = cycle + latency
        for unit, message in leaving.items():
            gathers[message[0] % units].queues[unit].append(message)
            del registers[unit]
        if waiting:
            for unit in [unit for unit in waiting[0] if unit not in registers]:
                registers[unit] = waiting[0].pop(unit)
            if not waiting[0]:
                waiting.popleft()
        cycle += 1
    return last, order
