"""The tasks of one epoch over a whole graph in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.chunks.chunk_costs import GatheringLayer, edge_bytes, row_bytes
from hyrt_perfmodel.chunks.chunk_grid import GridSizes
from hyrt_perfmodel.chunks.chunk_machines import ChunkMachine
from hyrt_perfmodel.chunks.chunk_schedule import ChunkSchedule
from hyrt_perfmodel.chunks.dealt_columns import dealt_columns
from hyrt_perfmodel.chunks.device_queues import DeviceQueues
from hyrt_perfmodel.chunks.queued_tasks import QueuedTask
from hyrt_perfmodel.chunks.swap_order import swapped_order

Floats = NDArray[np.float64]


class EpochTasks:
    """Collects the tasks of one epoch: forward layer by layer, then backward.

    A layer reads the rows of all intervals, so layers, and the two passes, follow each other.

    Parameters
    ----------
    grid
        The chunks.
    machine
        What computes.
    schedule
        What is switched on.
    """

    def __init__(self, grid: GridSizes, machine: ChunkMachine, schedule: ChunkSchedule) -> None:
        self._grid, self._machine, self._schedule = grid, machine, schedule
        self._queues = DeviceQueues(machine, schedule.room or schedule.sub_chunks)
        self._before: tuple[int, ...] = ()

    @property
    def tasks(self) -> tuple[QueuedTask, ...]:
        """All tasks so far."""
        return tuple(self._queues.tasks)

    @property
    def capacities(self) -> dict[str, float]:
        """How much there is of what the tasks share."""
        return self._queues.capacities

    def epoch(self, layers: Sequence[GatheringLayer]) -> None:
        """Add all tasks of an epoch."""
        for number, layer in enumerate(layers):
            if layer.kept:
                self._update(layer, f"layer {number + 1}")
            else:
                self._pass(layer, f"layer {number + 1}", backward=False)
        for number, layer in reversed(list(enumerate(layers))):
            name = f"layer {number + 1} backward"
            self._update_back(layer, name)
            if layer.gathers_back:
                self._pass(layer, name, backward=True)

    def _pass(self, layer: GatheringLayer, name: str, *, backward: bool) -> None:
        """Gather at all intervals: forward what the sources send, backward what the destinations do.

        Forward by columns and backward by rows, the chunk that is gathered into stays on the device while
        the chunks that it gathers from come by. In the other order each chunk that is gathered from stays,
        and the sums come and go.
        """
        grid = self._grid
        edges = layer.at * (grid.edges.T if backward else grid.edges)
        useful = grid.destinations.T if backward else grid.sources
        columns = dealt_columns(grid.parts, self._speeds(layer))
        ended: list[int] = []
        for group in self._groups():
            if self._schedule.order == "column-row":
                ended += self._columns(group, columns, layer, name, edges, useful, backward=backward)
            else:
                ended += self._rows(group, columns, layer, name, edges, backward=backward)
        self._before = tuple(ended)

    def _speeds(self, layer: GatheringLayer) -> tuple[float, ...]:
        """Columns a second of each device: computed, or copied if that takes longer; or its share."""
        if self._schedule.shares:
            return self._schedule.shares
        parts, fused = self._grid.parts, self._schedule.fused
        edges, rows = float(self._grid.edges.sum()) / parts, float(self._grid.rows.sum())
        return tuple(
            1
            / max(
                rates.gather_s(edges, layer.gathered, fused=fused) + rates.product_s(rows / parts, layer),
                rates.copy_s(row_bytes(rows, layer.gathered) + edge_bytes(edges)),
            )
            for rates in self._machine.devices
        )

    def _groups(self) -> list[list[int]]:
        """Devices that pass chunks on to each other, or each device for itself."""
        devices, switches = range(len(self._machine.devices)), self._machine.switches
        if not self._schedule.chain:
            return [[device] for device in devices]
        return [[d for d in devices if switches[d] == switch] for switch in sorted(set(switches))]

    def _columns(
        self,
        group: list[int],
        dealt: list[list[int]],
        layer: GatheringLayer,
        name: str,
        edges: Floats,
        useful: Floats,
        *,
        backward: bool,
    ) -> list[int]:
        """The columns of a group's devices, one of each device at a time."""
        ended: list[int] = []
        for columns in zip_longest(*(dealt[device] for device in group)):
            mine = {d: column for d, column in zip(group, columns, strict=True) if column is not None}
            some = list(mine.values())
            size, is_filtered = self._source_bytes(group, useful[:, some], layer.gathered)
            if backward:
                size = [layer.at * each for each in size]
            for piece in self._order(size, edges[:, some], layer, next(iter(mine))):
                source = piece // self._schedule.sub_chunks
                part = size[source] / self._schedule.sub_chunks
                self._piece(mine, source, part, edges, layer, name, is_filtered=is_filtered[source])
            ended += [self._finish(d, column, layer, name, backward=backward) for d, column in mine.items()]
        return ended

    def _piece(
        self,
        columns: dict[int, int],
        source: int,
        size: float,
        edges: Floats,
        layer: GatheringLayer,
        name: str,
        *,
        is_filtered: bool,
    ) -> None:
        """One sub-chunk of source rows, and its edges to each device's column."""
        queues, fused, passed = self._queues, self._schedule.fused, None
        for device, column in columns.items():
            count = float(edges[source, column]) / self._schedule.sub_chunks
            needs = [*self._before, *queues.room_for_more(device)]
            rows = f"{name}: rows {source}"
            if passed is None:
                if is_filtered and size:
                    needs = [queues.filter(device, size, needs, rows)]
                passed = queues.copy_in(device, size, needs, rows)
            else:
                passed = queues.pass_on(device, size, [*needs, passed], f"{rows}, passed on")
            place = f"{source}, {column}"
            of_edges = queues.copy_in(device, edge_bytes(count), needs, f"{name}: edges {place}")
            seconds = self._machine.devices[device].gather_s(count, layer.gathered, fused=fused)
            queues.compute(device, seconds, [passed, of_edges], f"{name}: gather {place}")

    def _rows(
        self,
        group: list[int],
        dealt: list[list[int]],
        layer: GatheringLayer,
        name: str,
        edges: Floats,
        *,
        backward: bool,
    ) -> list[int]:
        """Each chunk of sources once; the sums of all destinations come and go with each of them."""
        queues, ended = self._queues, []
        for device in group:
            rates = self._machine.devices[device]
            for source in range(self._grid.parts):
                needs = [*self._before, *queues.room_for_more(device)]
                size = row_bytes(float(self._grid.rows[source]), layer.gathered)
                held = queues.copy_in(device, size, needs, f"{name}: rows {source}")
                for column in dealt[device]:
                    place, count = f"{source}, {column}", float(edges[source, column])
                    sums = row_bytes(float(self._grid.rows[column]), layer.gathered)
                    needs = [held, *queues.room_for_more(device)]
                    copied = [
                        held,
                        queues.copy_in(device, edge_bytes(count), needs, f"{name}: edges {place}"),
                    ]
                    if source:
                        copied.append(queues.copy_in(device, sums, needs, f"{name}: sums {place}"))
                    seconds = rates.gather_s(count, layer.gathered, fused=self._schedule.fused)
                    done = queues.compute(device, seconds, copied, f"{name}: gather {place}")
                    if source < self._grid.parts - 1:
                        queues.copy_out(device, sums, [done], f"{name}: sums {place}")
                    else:
                        ended.append(self._finish(device, column, layer, name, backward=backward))
        return ended

    def _source_bytes(self, group: list[int], useful: Floats, width: int) -> tuple[list[float], list[bool]]:
        """What is copied of each source chunk for some columns, and whether it is filtered for them."""
        rows = self._grid.rows
        whole = row_bytes(1, width) * rows
        if not self._schedule.selective:
            return whole.tolist(), [False] * len(rows)
        # Rows that any of the columns needs, where they need rows independently of each other.
        needed = 1 - np.prod(1 - useful / rows[:, None], axis=1)
        is_filtered = needed < self._filter_limit(group)
        return np.where(is_filtered, needed * whole, whole).tolist(), is_filtered.tolist()

    def _filter_limit(self, group: list[int]) -> float:
        """The useful fraction below which rows are filtered for a group of devices."""
        limit = self._schedule.filter_below
        return max(map(self._machine.filter_limit, group)) if limit is None else limit

    def _order(
        self, size: Sequence[float], edges: Floats, layer: GatheringLayer, device: int
    ) -> Sequence[int]:
        """Numbers of the sub-chunks of a round, source by source or swapped."""
        pieces, rates = self._schedule.sub_chunks, self._machine.devices[device]
        if not self._schedule.swaps or pieces == 1:
            return range(len(size) * pieces)
        copy_s, compute_s = [], []
        for rows, count in zip(size, edges.max(1).tolist(), strict=True):
            copy_s += [rates.copy_s(rows / pieces) + rates.copy_s(edge_bytes(count / pieces))] * pieces
            compute_s += [rates.gather_s(count / pieces, layer.gathered, fused=self._schedule.fused)] * pieces
        return swapped_order(copy_s, compute_s, pieces)

    def _finish(self, device: int, column: int, layer: GatheringLayer, name: str, *, backward: bool) -> int:
        """What follows when an interval has gathered: its product, and its rows go to the host."""
        queues, rows = self._queues, float(self._grid.rows[column])
        if not backward:
            rows *= layer.at
        if backward:
            size, done = row_bytes(rows, layer.gathered), queues.last_computed(device)
            return queues.copy_out(device, size, done, f"{name}: gradient {column}")
        seconds = self._machine.devices[device].product_s(rows, layer)
        updated = queues.compute(device, seconds, queues.last_computed(device), f"{name}: update {column}")
        # The backward pass needs what was gathered.
        size = row_bytes(rows, layer.gathered + layer.out)
        return queues.copy_out(device, size, [updated], f"{name}: results {column}")

    def _update(self, layer: GatheringLayer, name: str) -> None:
        """The products of what was gathered before, interval by interval."""
        queues, ended = self._queues, []
        for device, columns in enumerate(dealt_columns(self._grid.parts, self._speeds(layer))):
            for column in columns:
                rows = float(self._grid.rows[column])
                needs = [*self._before, *queues.room_for_more(device)]
                copied = queues.copy_in(
                    device, row_bytes(rows, layer.gathered), needs, f"{name}: gathered {column}"
                )
                seconds = self._machine.devices[device].product_s(rows, layer)
                done = queues.compute(device, seconds, [copied], f"{name}: update {column}")
                ended.append(
                    queues.copy_out(device, row_bytes(rows, layer.out), [done], f"{name}: results {column}")
                )
        self._before = tuple(ended)

    def _update_back(self, layer: GatheringLayer, name: str) -> None:
        """Back through the products, interval by interval: gradients of the weight and of gathered rows."""
        queues, ended = self._queues, []
        for device, columns in enumerate(dealt_columns(self._grid.parts, self._speeds(layer))):
            for column in columns:
                rows = layer.at * float(self._grid.rows[column])
                needs = [*self._before, *queues.room_for_more(device)]
                size = row_bytes(rows, layer.gathered + layer.out)
                copied = queues.copy_in(device, size, needs, f"{name}: state {column}")
                products = 2 if layer.gathers_back else 1
                seconds = products * self._machine.devices[device].product_s(rows, layer)
                done = queues.compute(device, seconds, [copied], f"{name}: update {column}")
                if layer.gathers_back:
                    size = row_bytes(rows, layer.gathered)
                    done = queues.copy_out(device, size, [done], f"{name}: gathered {column}")
                ended.append(done)
        self._before = tuple(ended)
