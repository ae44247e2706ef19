"""Task queues of devices: filter, copy in, compute, and copy out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hyrt_perfmodel.chunks.chunk_machines import ChunkMachine
from hyrt_perfmodel.chunks.queued_tasks import QueuedTask


class DeviceQueues:
    """Task collector that tracks the last tasks of each device.

    Parameters
    ----------
    machine
        The devices.
    room
        Sub-chunks on a device at once. With 1, every task of a device waits for its previous task.
    """

    def __init__(self, machine: ChunkMachine, room: int) -> None:
        self.machine = machine
        self.tasks: list[QueuedTask] = []
        self._max_resident = room
        self._computed: list[list[int]] = [[] for _ in machine.devices]
        self._latest: list[list[int]] = [[] for _ in machine.devices]

    @property
    def capacities(self) -> dict[str, float]:
        """Capacities of the shared resources."""
        links = enumerate(self.machine.switch_bytes_per_s)
        return {"filter": 1.0, **{f"switch {switch}": link for switch, link in links if not math.isinf(link)}}

    def last_computed(self, device: int) -> list[int]:
        """Return the last compute task of a device, if there is one."""
        return self._computed[device][-1:]

    def room_for_more(self, device: int) -> list[int]:
        """Return the tasks that must end before the next copy to a device."""
        if self._is_serial(device):
            return self._latest[device]
        return (
            [self._computed[device][-self._max_resident]]
            if len(self._computed[device]) >= self._max_resident
            else []
        )

    def _is_serial(self, device: int) -> bool:
        return self._max_resident == 1 or self.machine.devices[device].copies_itself

    def filter(self, device: int, size: float, needs: Sequence[int], name: str) -> int:
        """Add the host's gather of `size` bytes of rows for a device."""
        seconds = size / self.machine.filter_bytes_per_s
        return self._add("filter", device, seconds, needs, name, (("filter", 1.0),))

    def copy_in(self, device: int, size: float, needs: Sequence[int], name: str) -> int:
        """Add a copy from host memory to a device."""
        rates = self.machine.devices[device]
        return self._add("copy in", device, rates.copy_s(size), needs, name, self._shared_uses(device))

    def bring(self, device: int, size: float, needs: Sequence[int], name: str) -> int:
        """Add an upload of source rows to a device."""
        rates = self.machine.devices[device]
        return self._add("copy in", device, rates.bring_s(size), needs, name, self._shared_uses(device))

    def edges_in(self, device: int, edges: float, needs: Sequence[int], name: str) -> int:
        """Add a copy of edges from host memory to a device."""
        rates = self.machine.devices[device]
        return self._add("copy in", device, rates.edges_s(edges), needs, name, self._shared_uses(device))

    def _shared_uses(self, device: int) -> tuple[tuple[str, float], ...]:
        """Return the resources that copies to a device share with copies to other devices."""
        rates = self.machine.devices[device]
        if rates.copies_itself or math.isinf(rates.link_bytes_per_s):
            return ()
        return ((f"switch {self.machine.switches[device]}", rates.link_bytes_per_s),)

    def pass_on(self, device: int, size: float, needs: Sequence[int], name: str) -> int:
        """Add a copy to a device from its predecessor in the chain, which uses only their switch."""
        return self._add("copy in", device, self.machine.devices[device].copy_s(size), needs, name)

    def copy_out(self, device: int, size: float, needs: Sequence[int], name: str) -> int:
        """Add a copy from a device to host memory; links are full duplex."""
        return self._add("copy out", device, self.machine.devices[device].copy_s(size), needs, name)

    def compute(self, device: int, seconds: float, needs: Sequence[int], name: str) -> int:
        """Add a computation on a device."""
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
        if self._is_serial(device):
            needs = [*needs, *self._latest[device]]
        self.tasks.append(QueuedTask(f"{queue} {device}", seconds, tuple(needs), uses, name))
        self._latest[device] = [number]
        return number
