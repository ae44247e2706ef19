"""Simulation of a full-graph epoch in chunks: device queues, tasks and times."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.chunk_costs import ChunkCosts, ChunkMachine, GridSizes, edge_bytes, row_bytes
from hyrt_perfmodel.chunk_schedule import ChunkSchedule, assign_columns, order_by_swaps
from hyrt_perfmodel.task_simulation import (
    QueuedTask,
    TaskTimes,
    merge_spans,
    overlap_length,
    run_tasks,
    total_length,
)
from hyrt_perfmodel.workload import ChunkShape, GatherLayer


class DeviceQueues:
    """List of tasks under construction, with the last tasks of each device.

    A device holds at most `max_resident` sub-chunks. If this is 1, each task of a device waits for the
    previous task.
    """

    def __init__(self, machine: ChunkMachine, max_resident: int) -> None:
        self.machine = machine
        self.tasks: list[QueuedTask] = []
        self._max_resident = max_resident
        self._computed: list[list[int]] = [[] for _ in machine.devices]
        self._latest: list[list[int]] = [[] for _ in machine.devices]

    @property
    def capacities(self) -> dict[str, float]:
        links = enumerate(self.machine.switch_bytes_per_s)
        return {"filter": 1.0, **{f"switch {switch}": link for switch, link in links if not math.isinf(link)}}

    def last_computed(self, device: int) -> list[int]:
        """Return the last compute task of a device, or an empty list if there is none."""
        return self._computed[device][-1:]

    def slot_dependencies(self, device: int) -> list[int]:
        """Return the tasks that must end before the next copy to a device."""
        if self._is_serial(device):
            return self._latest[device]
        return (
            [self._computed[device][-self._max_resident]]
            if len(self._computed[device]) >= self._max_resident
            else []
        )

    def _is_serial(self, device: int) -> bool:
        return self._max_resident == 1 or self.machine.devices[device].compute_copies

    def filter(self, device: int, size: float, needs: Sequence[int], name: str) -> int:
        """Add a task of the host that filters `size` bytes of rows for a device."""
        seconds = size / self.machine.filter_bytes_per_s
        return self._add("filter", device, seconds, needs, name, (("filter", 1.0),))

    def copy_in(self, device: int, size: float, needs: Sequence[int], name: str) -> int:
        """Add a copy of `size` bytes from host memory to a device."""
        rates = self.machine.devices[device]
        return self._add("copy in", device, rates.copy_s(size), needs, name, self._shared_uses(device))

    def upload(self, device: int, size: float, needs: Sequence[int], name: str) -> int:
        """Add an upload of source rows to a device."""
        rates = self.machine.devices[device]
        return self._add("copy in", device, rates.upload_s(size), needs, name, self._shared_uses(device))

    def upload_edges(self, device: int, edges: float, needs: Sequence[int], name: str) -> int:
        """Add a copy of edges from host memory to a device."""
        rates = self.machine.devices[device]
        return self._add("copy in", device, rates.edges_s(edges), needs, name, self._shared_uses(device))

    def _shared_uses(self, device: int) -> tuple[tuple[str, float], ...]:
        """Return the resources that copies to a device share with copies to other devices."""
        rates = self.machine.devices[device]
        if rates.compute_copies or math.isinf(rates.link_bytes_per_s):
            return ()
        return ((f"switch {self.machine.switches[device]}", rates.link_bytes_per_s),)

    def forward(self, device: int, size: float, needs: Sequence[int], name: str) -> int:
        """Add a copy to a device from its predecessor in the chain, which uses only the shared switch."""
        return self._add("copy in", device, self.machine.devices[device].copy_s(size), needs, name)

    def copy_out(self, device: int, size: float, needs: Sequence[int], name: str) -> int:
        """Add a copy from a device to host memory. Links are full duplex."""
        return self._add("copy out", device, self.machine.devices[device].copy_s(size), needs, name)

    def compute(self, device: int, seconds: float, needs: Sequence[int], name: str) -> int:
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


Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Pass:
    """Gather of one layer in one direction."""

    name: str
    grid: GridSizes
    """Chunk grid of the gather, which reads its rows and adds to its columns."""
    layer: GatherLayer
    is_backward: bool
    finish: Callable[[int, int], int]
    """Callback that adds the tasks after a device's gather of a column, and returns the last task."""

    @property
    def read_width(self) -> int:
        """Number of columns of the rows that are uploaded for a chunk."""
        return self.layer.sum_width if self.is_backward else self.layer.gather_width

    @property
    def added_width(self) -> int:
        return self.layer.gather_width if self.is_backward else self.layer.sum_width

    @property
    def drops_read(self) -> bool:
        """Whether dropout is applied to uploaded rows."""
        return self.layer.has_source_dropout and not self.is_backward

    def shapes(self, source: int, column: int) -> Iterator[ChunkShape]:
        """Yield the gathers of a chunk: along its edges, and of the self rows."""
        grid, layer = self.grid, self.layer
        self_rows = float(grid.in_both[source, column]) if layer.reads_self else 0.0
        edges, rows = float(grid.edges[source, column]), float(grid.destinations[source, column])
        scaled = self.is_backward or layer.scales_sources
        for count, added, is_scaled in ((edges, rows, scaled), (self_rows, self_rows, self.is_backward)):
            if count:
                yield ChunkShape(
                    edges=count,
                    rows=added,
                    width=layer.gather_width,
                    read_rows=float(grid.rows[source]),
                    scaled=is_scaled,
                )


class EpochTasks:
    """Tasks of one epoch: the forward pass layer by layer, then the backward pass.

    A layer reads the rows of all intervals, so layers and passes run one after the other. The last layer is
    computed only for the targets, interval by interval through the loss and back. `targets` contains the
    chunks of the edges into the targets. Earlier layers recompute their forward products in the backward
    pass.
    """

    def __init__(
        self, grid: GridSizes, targets: GridSizes, machine: ChunkMachine, schedule: ChunkSchedule
    ) -> None:
        self._grid, self._targets, self._machine, self._schedule = grid, targets, machine, schedule
        self._queues = DeviceQueues(machine, schedule.max_resident or schedule.sub_chunks)
        self._previous: tuple[int, ...] = ()

    @property
    def tasks(self) -> tuple[QueuedTask, ...]:
        return tuple(self._queues.tasks)

    @property
    def capacities(self) -> dict[str, float]:
        return self._queues.capacities

    def epoch(self, layers: Sequence[GatherLayer]) -> None:
        last = len(layers) - 1
        for number, layer in enumerate(layers):
            name = f"layer {number + 1}"
            if number == last:
                self._add_pass(_Pass(name, self._targets, layer, False, partial(self._add_loss, layer, name)))
            elif layer.is_cached:
                self._add_cached_layer(layer, name)
            else:
                self._add_pass(_Pass(name, self._grid, layer, False, partial(self._add_results, layer, name)))
        for number in range(last, 0, -1):
            grid = (self._targets if number == last else self._grid).transposed
            below, name = layers[number - 1], f"layer {number} backward"
            finish = partial(self._add_backward, below, name)
            self._add_pass(_Pass(f"layer {number + 1} backward", grid, layers[number], True, finish))

    def _add_pass(self, gather: _Pass) -> None:
        """Add the gathers of all intervals: forward from sources, backward from destinations.

        In the order `column-row`, the destination chunk stays on the device while source chunks are streamed.
        In the other order, each source chunk stays, and the sums are copied in and out.
        """
        columns = assign_columns(len(gather.grid.rows_into), self._speeds(gather))
        ended: list[int] = []
        for group in self._groups():
            if self._schedule.order == "column-row":
                ended += self._add_columns(group, columns, gather)
            else:
                ended += self._add_rows(group, columns, gather)
        self._previous = tuple(ended)

    def _speeds(self, gather: _Pass) -> tuple[float, ...]:
        """Return each device's share, or its columns per second in the slower of computation and copies."""
        if self._schedule.shares:
            return self._schedule.shares
        grid, layer, fused = gather.grid, gather.layer, self._schedule.fused
        num = len(grid.rows_into)
        edges, rows = float(grid.edges.sum()) / num, float(grid.rows_into.sum()) / num
        shape = ChunkShape(
            edges=edges,
            rows=float(grid.destinations.sum()) / num,
            width=layer.gather_width,
            read_rows=float(grid.rows.mean()),
            scaled=gather.is_backward or layer.scales_sources,
        )
        upload_bytes = row_bytes(float(grid.rows.sum()), gather.read_width) + edge_bytes(edges)
        return tuple(
            1
            / max(
                rates.gather_s(shape, fused=fused) + rates.forward_s(rows, layer),
                rates.upload_s(upload_bytes),
            )
            for rates in self._machine.devices
        )

    def _groups(self) -> list[list[int]]:
        """Return the groups of devices that forward chunks to each other: single devices without `chain`."""
        devices, switches = range(len(self._machine.devices)), self._machine.switches
        if not self._schedule.chain:
            return [[device] for device in devices]
        return [[d for d in devices if switches[d] == switch] for switch in sorted(set(switches))]

    def _add_columns(self, group: list[int], assigned: list[list[int]], gather: _Pass) -> list[int]:
        """Add the columns of a group's devices, one column per device at a time."""
        ended: list[int] = []
        for columns in zip_longest(*(assigned[device] for device in group)):
            column_of = {d: column for d, column in zip(group, columns, strict=True) if column is not None}
            size, is_filtered = self._source_bytes(group, list(column_of.values()), gather)
            for piece in self._order(size, list(column_of.values()), gather, next(iter(column_of))):
                source = piece // self._schedule.sub_chunks
                piece_bytes = size[source] / self._schedule.sub_chunks
                self._add_piece(column_of, source, piece_bytes, gather, is_filtered=is_filtered[source])
            ended += [gather.finish(device, column) for device, column in column_of.items()]
        return ended

    def _add_piece(
        self, columns: dict[int, int], source: int, size: float, gather: _Pass, *, is_filtered: bool
    ) -> None:
        """Add one sub-chunk of source rows, with the edges to each device's column if there are any."""
        queues, parts, uploaded = self._queues, self._schedule.sub_chunks, None
        for device, column in columns.items():
            shapes = list(gather.shapes(source, column))
            if not shapes:
                continue
            needs = [*self._previous, *queues.slot_dependencies(device)]
            rows = f"{gather.name}: rows {source}"
            if uploaded is None:
                if is_filtered and size:
                    needs = [queues.filter(device, size, needs, rows)]
                uploaded = queues.upload(device, size, needs, rows)
            else:
                uploaded = queues.forward(device, size, [*needs, uploaded], f"{rows}, passed on")
            location, count = f"{source}, {column}", sum(shape.edges for shape in shapes) / parts
            edges_task = queues.upload_edges(device, count, needs, f"{gather.name}: edges {location}")
            rates = self._machine.devices[device]
            seconds = self._gather_s(rates, shapes) / parts
            if gather.drops_read:
                seconds += rates.source_dropout_s(size)
            queues.compute(device, seconds, [uploaded, edges_task], f"{gather.name}: gather {location}")

    def _gather_s(self, rates: ChunkCosts, shapes: Sequence[ChunkShape]) -> float:
        return sum(rates.gather_s(shape, fused=self._schedule.fused) for shape in shapes)

    def _add_rows(self, group: list[int], assigned: list[list[int]], gather: _Pass) -> list[int]:
        """Add each source chunk once, and for each the copies of all destination sums in and out."""
        queues, grid, ended = self._queues, gather.grid, []
        for device in group:
            rates = self._machine.devices[device]
            for source in range(grid.parts):
                needs = [*self._previous, *queues.slot_dependencies(device)]
                size = row_bytes(float(grid.rows[source]), gather.read_width)
                uploaded = queues.upload(device, size, needs, f"{gather.name}: rows {source}")
                for column in assigned[device]:
                    location, shapes = f"{source}, {column}", list(gather.shapes(source, column))
                    sums = row_bytes(float(grid.rows_into[column]), gather.added_width)
                    needs = [uploaded, *queues.slot_dependencies(device)]
                    count = sum(shape.edges for shape in shapes)
                    copied = [
                        uploaded,
                        queues.upload_edges(device, count, needs, f"{gather.name}: edges {location}"),
                    ]
                    if source:
                        copied.append(queues.copy_in(device, sums, needs, f"{gather.name}: sums {location}"))
                    seconds = self._gather_s(rates, shapes)
                    if gather.drops_read and column == assigned[device][0]:
                        seconds += rates.source_dropout_s(size)
                    done = queues.compute(device, seconds, copied, f"{gather.name}: gather {location}")
                    if source < grid.parts - 1:
                        queues.copy_out(device, sums, [done], f"{gather.name}: sums {location}")
                    else:
                        ended.append(gather.finish(device, column))
        return ended

    def _source_bytes(
        self, group: list[int], columns: list[int], gather: _Pass
    ) -> tuple[list[float], list[bool]]:
        """Return the bytes to copy of each source chunk for the columns, and whether it is filtered."""
        rows, useful = gather.grid.rows, gather.grid.sources[:, columns]
        full_bytes = row_bytes(1, gather.read_width) * rows
        if not self._schedule.selective:
            return full_bytes.tolist(), [False] * len(rows)
        # Rows that any of the columns needs, if columns need rows independently of each other.
        needed = 1 - np.prod(1 - useful / rows[:, None], axis=1)
        is_filtered = needed < self._filter_limit(group)
        return np.where(is_filtered, needed * full_bytes, full_bytes).tolist(), is_filtered.tolist()

    def _filter_limit(self, group: list[int]) -> float:
        """Return the fraction of useful rows below which rows are filtered for a group of devices."""
        if all(self._machine.devices[device].compute_copies for device in group):
            return 0.0
        limit = self._schedule.filter_below
        return max(map(self._machine.filter_limit, group)) if limit is None else limit

    def _order(self, size: Sequence[float], columns: list[int], gather: _Pass, device: int) -> Sequence[int]:
        """Return the order of sub-chunks for the given columns: by source, or from `order_by_swaps`."""
        pieces, rates = self._schedule.sub_chunks, self._machine.devices[device]
        if not self._schedule.swaps or pieces == 1:
            return range(len(size) * pieces)
        copy_s, compute_s = [], []
        for source, rows in enumerate(size):
            column_shapes = [list(gather.shapes(source, column)) for column in columns]
            shapes = max(column_shapes, key=lambda shapes: sum(shape.edges for shape in shapes))
            count = sum(shape.edges for shape in shapes)
            copy_s += [rates.upload_s(rows / pieces) + rates.edges_s(count / pieces)] * pieces
            compute_s += [self._gather_s(rates, shapes) / pieces] * pieces
        return order_by_swaps(copy_s, compute_s, pieces)

    def _add_results(self, layer: GatherLayer, name: str, device: int, column: int) -> int:
        """Add a layer's update of a gathered interval, with copies of its input and result to the host."""
        queues, rows = self._queues, float(self._grid.rows[column])
        queues.copy_out(
            device, row_bytes(rows, layer.sum_width), queues.last_computed(device), f"{name}: state {column}"
        )
        return self._add_update(layer, name, device, column, queues.last_computed(device))

    def _add_update(
        self, layer: GatherLayer, name: str, device: int, column: int, needs: Sequence[int]
    ) -> int:
        queues, rows = self._queues, float(self._grid.rows[column])
        seconds = self._machine.devices[device].forward_s(rows, layer)
        done = queues.compute(device, seconds, needs, f"{name}: update {column}")
        return queues.copy_out(device, row_bytes(rows, layer.out_width), [done], f"{name}: results {column}")

    def _add_loss(self, layer: GatherLayer, name: str, device: int, column: int) -> int:
        """Add the scores of an interval of targets, their loss, and the gradient of the gathered rows."""
        queues, rates = self._queues, self._machine.devices[device]
        rows = float(self._targets.rows_into[column])
        seconds = rates.forward_s(rows, layer) + rates.loss_s(rows, layer.out_width)
        seconds += rates.backward_s(rows, layer, needs_input_grad=layer.has_input_grad)
        done = queues.compute(device, seconds, queues.last_computed(device), f"{name}: update {column}")
        if not layer.has_input_grad:
            return done
        size = row_bytes(rows, layer.sum_width)
        return queues.copy_out(device, size, [done], f"{name}: gradient {column}")

    def _add_cached_layer(self, layer: GatherLayer, name: str) -> None:
        """Add the update of each interval, for a layer whose gathered rows are cached."""
        queues, ended, grid = self._queues, [], self._grid
        gather = _Pass(name, grid, layer, False, lambda device, column: -1)
        for device, columns in enumerate(assign_columns(grid.parts, self._speeds(gather))):
            for column in columns:
                needs = [*self._previous, *queues.slot_dependencies(device)]
                size = row_bytes(float(grid.rows[column]), layer.sum_width)
                copied = queues.upload(device, size, needs, f"{name}: gathered {column}")
                ended.append(self._add_update(layer, name, device, column, [copied]))
        self._previous = tuple(ended)

    def _add_backward(self, layer: GatherLayer, name: str, device: int, column: int) -> int:
        """Add the backward pass through a layer's products, given the gradient of their results.

        The products are recomputed from their input on the host, which its gradient then replaces.
        """
        queues, rates = self._queues, self._machine.devices[device]
        rows, done = float(self._grid.rows[column]), queues.last_computed(device)
        size = row_bytes(rows, layer.sum_width)
        # The uploaded input is stored in the memory for source rows.
        copied = queues.upload(
            device, size, [*done, *queues.slot_dependencies(device)], f"{name}: state {column}"
        )
        seconds = rates.forward_s(rows, layer) + rates.backward_s(
            rows, layer, needs_input_grad=layer.has_input_grad
        )
        gradient = queues.compute(device, seconds, [*done, copied], f"{name}: update {column}")
        if not layer.has_input_grad:
            return gradient
        return queues.copy_out(device, size, [gradient], f"{name}: gathered {column}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedEpoch:
    """Result of simulating one epoch."""

    seconds: float
    copy_s: float
    compute_s: float
    """Compute time of the busiest device; `copy_s` is its copy time."""
    hidden_fraction: float
    """Fraction of the total copy time in which the device that copies also computes."""
    tasks: tuple[QueuedTask, ...]
    times: TaskTimes


def simulate_epoch(
    grid: GridSizes,
    layers: Sequence[GatherLayer],
    machine: ChunkMachine,
    schedule: ChunkSchedule,
    targets: GridSizes | None = None,
) -> ChunkedEpoch:
    """Simulate one epoch, forward and backward.

    `targets` contains the chunks of the edges into the vertices for which the last layer is computed, by
    default all.
    """
    epoch = EpochTasks(grid, targets or grid, machine, schedule)
    epoch.epoch(layers)
    times = run_tasks(epoch.tasks, epoch.capacities)
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for task, begin, end in zip(epoch.tasks, times.begin_s, times.end_s, strict=True):
        spans[task.queue].append((begin, end))
    copying = [
        merge_spans(spans[f"copy in {d}"] + spans[f"copy out {d}"]) for d in range(len(machine.devices))
    ]
    computing = [merge_spans(spans[f"compute {d}"]) for d in range(len(machine.devices))]
    total = sum(map(total_length, copying))
    both = sum(overlap_length(a, b) for a, b in zip(copying, computing, strict=True))
    return ChunkedEpoch(
        seconds=times.total_s,
        copy_s=max(map(total_length, copying)),
        compute_s=max(map(total_length, computing)),
        hidden_fraction=both / total if total else 1.0,
        tasks=epoch.tasks,
        times=times,
    )
