"""The queues of devices: filters, copies in, computing, and copies out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hyrt_perfmodel.chunks.chunk_machines import ChunkMachine
from hyrt_perfmodel.chunks.queued_tasks import QueuedTask


class DeviceQueues:
    """Collects tasks, and knows the last ones of each device.

    Parameters
    ----------
    machine
        The devices.
    room
        Sub-chunks that are on a device at once. With 1, whatever a device does waits for what it did before.
    """

    def __init__(self, machine: ChunkMachine, room: int) -> None:
        self.machine = machine
        self.tasks: list[QueuedTask] = []
        self._room = room
        self._computed: list[list[int]] = [[] for _ in machine.devices]
        self._latest: list[list[int]] = [[] for _ in machine.devices]

    @property
    def capacities(self) -> dict[str, float]:
        """How much there is of what the tasks share."""
        links = enumerate(self.machine.switch_bytes_per_s)
        return {"filter": 1.0, **{f"switch {switch}": link for switch, link in links if not math.isinf(link)}}

    def last_computed(self, device: int) -> list[int]:
        """The last task that a device computes, if there is one."""
        return self._computed[device][-1:]

    def room_for_more(self, device: int) -> list[int]:
        """What must end before more is copied to a device."""
        if self._takes_turns(device):
            return self._latest[device]
        return [self._computed[device][-self._room]] if len(self._computed[device]) >= self._room else []

    def _takes_turns(self, device: int) -> bool:
        return self._room == 1 or self.machine.devices[device].copies_itself

    def filter(self, device: int, size: float, needs: Sequence[int], name: str) -> int:
        """Gather `size` bytes of rows on the host for a device."""
        seconds = size / self.machine.filter_bytes_per_s
        return self._add("filter", device, seconds, needs, name, (("filter", 1.0),))

    def copy_in(self, device: int, size: float, needs: Sequence[int], name: str) -> int:
        """Copy from host memory to a device."""
        rates = self.machine.devices[device]
        return self._add("copy in", device, rates.copy_s(size), needs, name, self._uses(device))

    def bring(self, device: int, size: float, needs: Sequence[int], name: str) -> int:
        """Bring rows to a device that it reads."""
        rates = self.machine.devices[device]
        return self._add("copy in", device, rates.bring_s(size), needs, name, self._uses(device))

    def edges_in(self, device: int, edges: float, needs: Sequence[int], name: str) -> int:
        """Copy so many edges from host memory to a device."""
        rates = self.machine.devices[device]
        return self._add("copy in", device, rates.edges_s(edges), needs, name, self._uses(device))

    def _uses(self, device: int) -> tuple[tuple[str, float], ...]:
        """What copies to a device share with those to others."""
        rates = self.machine.devices[device]
        if rates.copies_itself or math.isinf(rates.link_bytes_per_s):
            return ()
        return ((f"switch {self.machine.switches[device]}", rates.link_bytes_per_s),)

    def pass_on(self, device: int, size: float, needs: Sequence[int], name: str) -> int:
        """Copy to a device from the one before it in its chain, through their switch alone."""
        return self._add("copy in", device, self.machine.devices[device].copy_s(size), needs, name)

    def copy_out(self, device: int, size: float, needs: Sequence[int], name: str) -> int:
        """Copy from a device to host memory. Links carry both ways at once."""
        return self._add("copy out", device, self.machine.devices[device].copy_s(size), needs, name)

    def compute(self, device: int, seconds: float, needs: Sequence[int], name: str) -> int:
        """Compute on a device."""
        number = self._add("compute", device, seconds, needs, name)
        self._computed[device].append(number)
        return number

    def _add(
        self,
        queue: str,
        device: int,
        seconds: float,
        needs: Sequence[int],
        name: str,
        uses: tuple[tuple[str, float], ...] = (),
    ) -> int:
        number = len(self.tasks)
        if self._takes_turns(device):
            needs = [*needs, *self._latest[device]]
        self.tasks.append(QueuedTask(f"{queue} {device}", seconds, tuple(needs), uses, name))
        self._latest[device] = [number]
        return number
