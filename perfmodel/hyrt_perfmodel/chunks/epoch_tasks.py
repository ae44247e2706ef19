"""The tasks of one epoch over a whole graph in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.chunks.chunk_costs import ChunkCosts, edge_bytes, row_bytes
from hyrt_perfmodel.chunks.chunk_grid import GridSizes
from hyrt_perfmodel.chunks.chunk_machines import ChunkMachine
from hyrt_perfmodel.chunks.chunk_schedule import ChunkSchedule
from hyrt_perfmodel.chunks.dealt_columns import dealt_columns
from hyrt_perfmodel.chunks.device_queues import DeviceQueues
from hyrt_perfmodel.chunks.queued_tasks import QueuedTask
from hyrt_perfmodel.chunks.swap_order import swapped_order
from hyrt_perfmodel.workloads.chunk_work import ChunkShape, GatheringLayer

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Pass:
    """Gathering in one layer and direction."""

    name: str
    grid: GridSizes
    """Whose rows are read, and whose columns are added to."""
    layer: GatheringLayer
    is_back: bool
    finish: Callable[[int, int], int]
    """Adds what follows when a device has all of a column; the last task of it."""

    @property
    def read_width(self) -> int:
        """Columns of the rows that come for a chunk."""
        return self.layer.summed if self.is_back else self.layer.gathered

    @property
    def added_width(self) -> int:
        """Columns of the rows that are added to."""
        return self.layer.gathered if self.is_back else self.layer.summed

    @property
    def drops_read(self) -> bool:
        """Whether rows are dropped at random when they come."""
        return self.layer.drops_read and not self.is_back

    def shapes(self, source: int, column: int) -> Iterator[ChunkShape]:
        """What is gathered for a chunk: along its edges, and own rows."""
        grid, layer = self.grid, self.layer
        own = float(grid.in_both[source, column]) if layer.reads_own else 0.0
        edges, rows = float(grid.edges[source, column]), float(grid.destinations[source, column])
        scaled = self.is_back or layer.scales_sources
        for count, added, by_factor in ((edges, rows, scaled), (own, own, self.is_back)):
            if count:
                yield ChunkShape(
                    edges=count,
                    rows=added,
                    width=layer.gathered,
                    read_rows=float(grid.rows[source]),
                    scaled=by_factor,
                )


class EpochTasks:
    """Collects the tasks of one epoch: forward layer by layer, then backward.

    A layer reads the rows of all intervals, so layers, and the two passes, follow each other. The last layer
    is computed at the targets alone, interval by interval up to their loss and back. What a layer before it
    makes of its rows is computed again when their gradient is there.

    Parameters
    ----------
    grid
        The chunks.
    targets
        The chunks of the edges into the targets.
    machine
        What computes.
    schedule
        What is switched on.
    """

    def __init__(
        self, grid: GridSizes, targets: GridSizes, machine: ChunkMachine, schedule: ChunkSchedule
    ) -> None:
        self._grid, self._targets, self._machine, self._schedule = grid, targets, machine, schedule
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
        last = len(layers) - 1
        for number, layer in enumerate(layers):
            name = f"layer {number + 1}"
            if number == last:
                self._pass(_Pass(name, self._targets, layer, False, partial(self._lose, layer, name)))
            elif layer.kept:
                self._update(layer, name)
            else:
                self._pass(_Pass(name, self._grid, layer, False, partial(self._results, layer, name)))
        for number in range(last, 0, -1):
            grid = (self._targets if number == last else self._grid).turned
            below, name = layers[number - 1], f"layer {number} backward"
            finish = partial(self._turn_back, below, name)
            self._pass(_Pass(f"layer {number + 1} backward", grid, layers[number], True, finish))

    def _pass(self, what: _Pass) -> None:
        """Gather at all intervals: forward what the sources send, backward what the destinations do.

        Forward by columns and backward by rows, the chunk that is gathered into stays on the device while
        the chunks that it gathers from come by. In the other order each chunk that is gathered from stays,
        and the sums come and go.
        """
        columns = dealt_columns(len(what.grid.rows_into), self._speeds(what))
        ended: list[int] = []
        for group in self._groups():
            if self._schedule.order == "column-row":
                ended += self._columns(group, columns, what)
            else:
                ended += self._rows(group, columns, what)
        self._before = tuple(ended)

    def _speeds(self, what: _Pass) -> tuple[float, ...]:
        """Columns a second of each device: computed, or copied if that takes longer; or its share."""
        if self._schedule.shares:
            return self._schedule.shares
        grid, layer, fused = what.grid, what.layer, self._schedule.fused
        num = len(grid.rows_into)
        edges, rows = float(grid.edges.sum()) / num, float(grid.rows_into.sum()) / num
        shape = ChunkShape(
            edges=edges,
            rows=float(grid.destinations.sum()) / num,
            width=layer.gathered,
            read_rows=float(grid.rows.mean()),
            scaled=what.is_back or layer.scales_sources,
        )
        brought = row_bytes(float(grid.rows.sum()), what.read_width) + edge_bytes(edges)
        return tuple(
            1 / max(rates.gather_s(shape, fused=fused) + rates.forward_s(rows, layer), rates.bring_s(brought))
            for rates in self._machine.devices
        )

    def _groups(self) -> list[list[int]]:
        """Devices that pass chunks on to each other, or each device for itself."""
        devices, switches = range(len(self._machine.devices)), self._machine.switches
        if not self._schedule.chain:
            return [[device] for device in devices]
        return [[d for d in devices if switches[d] == switch] for switch in sorted(set(switches))]

    def _columns(self, group: list[int], dealt: list[list[int]], what: _Pass) -> list[int]:
        """The columns of a group's devices, one of each device at a time."""
        ended: list[int] = []
        for columns in zip_longest(*(dealt[device] for device in group)):
            mine = {d: column for d, column in zip(group, columns, strict=True) if column is not None}
            size, is_filtered = self._source_bytes(group, list(mine.values()), what)
            for piece in self._order(size, list(mine.values()), what, next(iter(mine))):
                source = piece // self._schedule.sub_chunks
                part = size[source] / self._schedule.sub_chunks
                self._piece(mine, source, part, what, is_filtered=is_filtered[source])
            ended += [what.finish(device, column) for device, column in mine.items()]
        return ended

    def _piece(
        self, columns: dict[int, int], source: int, size: float, what: _Pass, *, is_filtered: bool
    ) -> None:
        """One sub-chunk of source rows, and its edges to each device's column; none where no edges are."""
        queues, parts, passed = self._queues, self._schedule.sub_chunks, None
        for device, column in columns.items():
            shapes = list(what.shapes(source, column))
            if not shapes:
                continue
            needs = [*self._before, *queues.room_for_more(device)]
            rows = f"{what.name}: rows {source}"
            if passed is None:
                if is_filtered and size:
                    needs = [queues.filter(device, size, needs, rows)]
                passed = queues.bring(device, size, needs, rows)
            else:
                passed = queues.pass_on(device, size, [*needs, passed], f"{rows}, passed on")
            place, count = f"{source}, {column}", sum(each.edges for each in shapes) / parts
            of_edges = queues.edges_in(device, count, needs, f"{what.name}: edges {place}")
            rates = self._machine.devices[device]
            seconds = self._gather_s(rates, shapes) / parts
            if what.drops_read:
                seconds += rates.drop_read_s(size)
            queues.compute(device, seconds, [passed, of_edges], f"{what.name}: gather {place}")

    def _gather_s(self, rates: ChunkCosts, shapes: Sequence[ChunkShape]) -> float:
        return sum(rates.gather_s(shape, fused=self._schedule.fused) for shape in shapes)

    def _rows(self, group: list[int], dealt: list[list[int]], what: _Pass) -> list[int]:
        """Each chunk of sources once; the sums of all destinations come and go with each of them."""
        queues, grid, ended = self._queues, what.grid, []
        for device in group:
            rates = self._machine.devices[device]
            for source in range(grid.parts):
                needs = [*self._before, *queues.room_for_more(device)]
                size = row_bytes(float(grid.rows[source]), what.read_width)
                held = queues.bring(device, size, needs, f"{what.name}: rows {source}")
                for column in dealt[device]:
                    place, shapes = f"{source}, {column}", list(what.shapes(source, column))
                    sums = row_bytes(float(grid.rows_into[column]), what.added_width)
                    needs = [held, *queues.room_for_more(device)]
                    count = sum(each.edges for each in shapes)
                    copied = [held, queues.edges_in(device, count, needs, f"{what.name}: edges {place}")]
                    if source:
                        copied.append(queues.copy_in(device, sums, needs, f"{what.name}: sums {place}"))
                    seconds = self._gather_s(rates, shapes)
                    if what.drops_read and column == dealt[device][0]:
                        seconds += rates.drop_read_s(size)
                    done = queues.compute(device, seconds, copied, f"{what.name}: gather {place}")
                    if source < grid.parts - 1:
                        queues.copy_out(device, sums, [done], f"{what.name}: sums {place}")
                    else:
                        ended.append(what.finish(device, column))
        return ended

    def _source_bytes(
        self, group: list[int], columns: list[int], what: _Pass
    ) -> tuple[list[float], list[bool]]:
        """What is copied of each source chunk for some columns, and whether it is filtered for them."""
        rows, useful = what.grid.rows, what.grid.sources[:, columns]
        whole = row_bytes(1, what.read_width) * rows
        if not self._schedule.selective:
            return whole.tolist(), [False] * len(rows)
        # Rows that any of the columns needs, where they need rows independently of each other.
        needed = 1 - np.prod(1 - useful / rows[:, None], axis=1)
        is_filtered = needed < self._filter_limit(group)
        return np.where(is_filtered, needed * whole, whole).tolist(), is_filtered.tolist()

    def _filter_limit(self, group: list[int]) -> float:
        """The useful fraction of rows below which they are filtered for a group of devices."""
        if all(self._machine.devices[device].copies_itself for device in group):
            return 0.0
        limit = self._schedule.filter_below
        return max(map(self._machine.filter_limit, group)) if limit is None else limit

    def _order(self, size: Sequence[float], columns: list[int], what: _Pass, device: int) -> Sequence[int]:
        """Numbers of the sub-chunks of a round, source by source or swapped."""
        pieces, rates = self._schedule.sub_chunks, self._machine.devices[device]
        if not self._schedule.swaps or pieces == 1:
            return range(len(size) * pieces)
        copy_s, compute_s = [], []
        for source, rows in enumerate(size):
            of_columns = [list(what.shapes(source, column)) for column in columns]
            shapes = max(of_columns, key=lambda shapes: sum(each.edges for each in shapes))
            count = sum(each.edges for each in shapes)
            copy_s += [rates.bring_s(rows / pieces) + rates.edges_s(count / pieces)] * pieces
            compute_s += [self._gather_s(rates, shapes) / pieces] * pieces
        return swapped_order(copy_s, compute_s, pieces)

    def _results(self, layer: GatheringLayer, name: str, device: int, column: int) -> int:
        """What a layer makes of an interval that has gathered; both go to the host, for the backward pass."""
        queues, rows = self._queues, float(self._grid.rows[column])
        queues.copy_out(
            device, row_bytes(rows, layer.summed), queues.last_computed(device), f"{name}: state {column}"
        )
        return self._made(layer, name, device, column, queues.last_computed(device))

    def _made(self, layer: GatheringLayer, name: str, device: int, column: int, needs: Sequence[int]) -> int:
        queues, rows = self._queues, float(self._grid.rows[column])
        seconds = self._machine.devices[device].forward_s(rows, layer)
        done = queues.compute(device, seconds, needs, f"{name}: update {column}")
        return queues.copy_out(device, row_bytes(rows, layer.out), [done], f"{name}: results {column}")

    def _lose(self, layer: GatheringLayer, name: str, device: int, column: int) -> int:
        """The scores of an interval of targets, their loss, and the gradient of what they have gathered."""
        queues, rates = self._queues, self._machine.devices[device]
        rows = float(self._targets.rows_into[column])
        seconds = rates.forward_s(rows, layer) + rates.loss_s(rows, layer.out)
        seconds += rates.back_s(rows, layer, wanted=layer.gathers_back)
        done = queues.compute(device, seconds, queues.last_computed(device), f"{name}: update {column}")
        if not layer.gathers_back:
            return done
        size = row_bytes(rows, layer.summed)
        return queues.copy_out(device, size, [done], f"{name}: gradient {column}")

    def _update(self, layer: GatheringLayer, name: str) -> None:
        """What a layer makes of what it gathered in the first epoch, interval by interval."""
        queues, ended, grid = self._queues, [], self._grid
        what = _Pass(name, grid, layer, False, lambda device, column: -1)
        for device, columns in enumerate(dealt_columns(grid.parts, self._speeds(what))):
            for column in columns:
                needs = [*self._before, *queues.room_for_more(device)]
                size = row_bytes(float(grid.rows[column]), layer.summed)
                copied = queues.bring(device, size, needs, f"{name}: gathered {column}")
                ended.append(self._made(layer, name, device, column, [copied]))
        self._before = tuple(ended)

    def _turn_back(self, layer: GatheringLayer, name: str, device: int, column: int) -> int:
        """Back through a layer's products, once the gradient of what it has made is there.

        They are computed again; what they were made of comes from the host, where its gradient takes its
        place.
        """
        queues, rates = self._queues, self._machine.devices[device]
        rows, done = float(self._grid.rows[column]), queues.last_computed(device)
        size = row_bytes(rows, layer.summed)
        # It takes the place of the rows that were gathered from.
        copied = queues.bring(device, size, [*done, *queues.room_for_more(device)], f"{name}: state {column}")
        seconds = rates.forward_s(rows, layer) + rates.back_s(rows, layer, wanted=layer.gathers_back)
        turned = queues.compute(device, seconds, [*done, copied], f"{name}: update {column}")
        if not layer.gathers_back:
            return turned
        return queues.copy_out(device, size, [turned], f"{name}: gathered {column}")
