"""Chunk grids of a graph, costs of copying and computing chunks, and the machine that computes chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.chunk_schedule import filter_threshold
from hyrt_perfmodel.degrees import DegreeDistribution
from hyrt_perfmodel.platform import Accelerator, Host, Platform, PlatformTrainer, TrainerRates
from hyrt_perfmodel.workload import ChunkShape, GatherLayer

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class GridSizes:
    """Sizes of the chunks of a graph. Chunk (i, j) contains the edges from interval i to interval j."""

    rows: Floats
    """Number of vertices in each interval: [P]."""
    edges: Floats
    """Number of edges in each chunk: [P, P]."""
    sources: Floats
    """Number of vertices of interval i with an edge to interval j: [P, P]."""
    destinations: Floats
    """Number of vertices of interval j with an edge from interval i: [P, P]."""
    destination_rows: Floats | None = None
    """Number of destinations in each interval, if the destination intervals differ from the sources': [Q]."""
    shared_rows: Floats | None = None
    """Number of vertices in both intervals, if the destination intervals differ: [P, Q]."""

    @property
    def parts(self) -> int:
        """Number of source intervals, P."""
        return len(self.rows)

    @property
    def rows_into(self) -> Floats:
        """Number of destinations in each interval: [Q]."""
        return self.rows if self.destination_rows is None else self.destination_rows

    @property
    def in_both(self) -> Floats:
        """Number of vertices in both intervals: [P, Q]."""
        return np.diag(self.rows) if self.shared_rows is None else self.shared_rows

    @property
    def transposed(self) -> GridSizes:
        """Return the grid of the reversed edges, from destinations to sources."""
        return GridSizes(
            rows=self.rows_into,
            edges=self.edges.T,
            sources=self.destinations.T,
            destinations=self.sources.T,
            destination_rows=self.rows,
            shared_rows=self.in_both.T,
        )


def counted_grid(indptr: NDArray[Any], indices: NDArray[Any], parts: int) -> GridSizes:
    """Count the chunks of a graph whose vertices are divided into `parts` intervals of equal size.

    `indptr` [V + 1] and `indices` [E] list the source vertices of each destination's edges.
    """
    num = len(indptr) - 1
    bounds = (np.arange(parts + 1) * num) // parts
    source = np.searchsorted(bounds, indices, side="right") - 1
    destination = np.searchsorted(bounds, np.arange(num), side="right") - 1
    edge_destination = np.repeat(np.arange(num), np.diff(indptr))
    shape = (parts, parts)

    def counts(i: NDArray[Any], j: NDArray[Any]) -> Floats:
        return np.bincount(i * parts + j, minlength=parts * parts).reshape(shape).astype(np.float64)

    by_source = np.unique(indices.astype(np.int64) * parts + destination[edge_destination])
    by_destination = np.unique(edge_destination.astype(np.int64) * parts + source)
    source_of = np.searchsorted(bounds, by_source // parts, side="right") - 1
    return GridSizes(
        rows=np.diff(bounds).astype(np.float64),
        edges=counts(source, destination[edge_destination]),
        sources=counts(source_of, by_source % parts),
        destinations=counts(by_destination % parts, destination[by_destination // parts]),
    )


def expected_grid(degrees: DegreeDistribution, parts: int, *, inside: float | None = None) -> GridSizes:
    """Estimate the chunks of a graph with P = `parts` intervals from its degrees.

    Each edge of a vertex independently stays in the vertex's interval with probability `inside`, and
    otherwise leads to any other interval with equal probability. Vertex orders that preserve locality
    increase `inside`; None means a random order, 1/P. If an edge leads to an interval with probability p, n
    (1 - (1 - p)^d) of n vertices with d edges each have at least one edge to this interval.
    """
    share = np.full((parts, parts), 1.0 if parts == 1 else 1 / parts)
    if inside is not None and parts > 1:
        share[:] = (1 - inside) / (parts - 1)
        np.fill_diagonal(share, inside)
    rows = np.full(parts, degrees.num_vertices / parts)
    per_interval = degrees.counts / parts

    # There are at most two distinct values among all P x P chunks.
    shares, number = np.unique(share, return_inverse=True)

    def touched(class_degrees: Floats) -> Floats:
        missed = (1 - shares)[None] ** class_degrees[:, None]
        touched_rows: Floats = (per_interval @ (1 - missed))[number].reshape(share.shape)
        return touched_rows

    return GridSizes(
        rows=rows,
        edges=share * (degrees.num_edges / parts),
        sources=touched(degrees.out_degrees),
        destinations=touched(degrees.in_degrees),
    )


def expected_target_grid(degrees: DegreeDistribution, parts: int, targets: float, edges: float) -> GridSizes:
    """Estimate the chunks of `edges` edges into `targets` vertices, which are distributed evenly.

    P = `parts` is the number of source intervals. The targets are divided into the fewest intervals that are
    at most as long as the intervals of all vertices.
    """
    num = max(1, math.ceil(targets / math.ceil(degrees.num_vertices / parts)))
    rows, into = np.full(parts, degrees.num_vertices / parts), np.full(num, targets / num)
    class_shares = degrees.counts / degrees.num_vertices

    def touched(class_degrees: Floats, fraction: float, vertices: float) -> Floats:
        return np.full(
            (parts, num), vertices * float((class_shares * (1 - (1 - fraction) ** class_degrees)).sum())
        )

    borders, starts = np.arange(parts + 1) / parts, np.arange(num + 1) / num
    ends = np.minimum(borders[1:, None], starts[None, 1:])
    shared = np.maximum(0.0, ends - np.maximum(borders[:-1, None], starts[None, :-1]))
    return GridSizes(
        rows=rows,
        edges=np.full((parts, num), edges / (parts * num)),
        sources=touched(degrees.out_degrees, min(1.0, into[0] / degrees.num_vertices), rows[0]),
        destinations=touched(degrees.in_degrees, 1 / parts, into[0]),
        destination_rows=into,
        shared_rows=shared * targets,
    )


_FLOAT_BYTES = 4
# Bytes per edge: a column index and a part of the row offsets.
_EDGE_BYTES = 8
# Passes over each edge's row in an unfused gather: read the source row, write the edge row, read and write it
# for the element-wise work, and read it for the sum.
_UNFUSED_PASSES = 5


class ChunkCosts(Protocol):
    """Times that one device takes to copy and compute chunks without contention."""

    @property
    def compute_copies(self) -> bool:
        """Whether the threads that compute also copy, so that copies and computations alternate."""
        ...

    @property
    def link_bytes_per_s(self) -> float:
        """Bandwidth of row transfers in each direction; infinite if rows are read in place."""
        ...

    def copy_s(self, size: float) -> float:
        """Return the time in seconds to copy `size` bytes of rows to or from the device."""
        ...

    def upload_s(self, size: float) -> float:
        """Return the seconds to upload `size` bytes of source rows."""
        ...

    def edges_s(self, edges: float) -> float:
        """Return the seconds to upload `edges` edges."""
        ...

    def source_dropout_s(self, size: float) -> float:
        """Return the seconds of dropout on `size` bytes of uploaded source rows."""
        ...

    def gather_s(self, shape: ChunkShape, *, fused: bool) -> float:
        """Return the seconds to gather rows along the edges of a chunk."""
        ...

    def forward_s(self, rows: float, layer: GatherLayer) -> float:
        """Return the seconds of a layer's forward pass over gathered rows."""
        ...

    def backward_s(self, rows: float, layer: GatherLayer, *, needs_input_grad: bool) -> float:
        """Return the seconds of weight gradients and, if `needs_input_grad`, of the input gradient."""
        ...

    def loss_s(self, rows: float, classes: int) -> float:
        """Return the seconds to compute the loss of the scores and its gradient."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRates:
    """Rates at which one device processes chunks without contention."""

    link_bytes_per_s: float
    """Bandwidth between host memory and the device in each direction; infinite if it is read in place."""
    memory_bytes_per_s: float
    """Bandwidth of gathers in bytes per second."""
    macs_per_s: float
    """Rate of multiply-accumulates per second."""
    link_latency_s: float = 0.0
    launch_s: float = 0.0
    """Fixed cost of a kernel launch; `link_latency_s` is that of a copy."""
    fused: bool = True
    """Whether the device can gather and sum in one kernel."""

    def copy_s(self, size: float) -> float:
        """Return the time in seconds to copy `size` bytes to or from the device, or 0 if `size` is 0."""
        if not size or math.isinf(self.link_bytes_per_s):
            return 0.0
        return self.link_latency_s + size / self.link_bytes_per_s

    @property
    def compute_copies(self) -> bool:
        return False

    def upload_s(self, size: float) -> float:
        """Return the seconds to copy `size` bytes of rows to the device."""
        return self.copy_s(size)

    def source_dropout_s(self, size: float) -> float:
        """Return the time of a kernel launch, as a lower bound because the rate of dropout is unknown."""
        return self.launch_s

    def edges_s(self, edges: float) -> float:
        """Return the seconds to copy `edges` edges to the device."""
        return self.copy_s(edge_bytes(edges))

    def gather_s(self, shape: ChunkShape, *, fused: bool) -> float:
        """Return the time in seconds to gather rows along the edges of a chunk, or 0 if there are none."""
        if not shape.edges:
            return 0.0
        row_bytes = shape.width * _FLOAT_BYTES * (1 if fused and self.fused else _UNFUSED_PASSES)
        return self.launch_s + shape.edges * (row_bytes + _EDGE_BYTES) / self.memory_bytes_per_s

    def forward_s(self, rows: float, layer: GatherLayer) -> float:
        """Return the seconds of a layer's products."""
        return self.launch_s + rows * layer.weights / self.macs_per_s

    def backward_s(self, rows: float, layer: GatherLayer, *, needs_input_grad: bool) -> float:
        """Return the seconds of weight gradients and, if `needs_input_grad`, of the input gradient."""
        return self.launch_s + rows * layer.backward_macs(needs_input_grad=needs_input_grad) / self.macs_per_s

    def loss_s(self, rows: float, classes: int) -> float:
        """Return the time of a kernel launch, as a lower bound because the rate of the loss is unknown."""
        return self.launch_s


def row_bytes(rows: float, width: int) -> float:
    return rows * width * _FLOAT_BYTES


def edge_bytes(edges: float) -> float:
    return edges * _EDGE_BYTES


def min_parts_for_memory(
    num_vertices: float,
    num_edges: float,
    layers: tuple[GatherLayer, ...],
    budget_bytes: float,
    *,
    fused: bool,
    max_resident: int = 2,
) -> int:
    """Return the smallest P for which equally large chunks fit a device (NeuGraph, section 3.1).

    Source rows are read P times, so fewer chunks are better. `budget_bytes` must suffice for `max_resident`
    chunks of source rows and of edges, the destination chunk and its result. With `fused`, the gather needs
    no array with one row per edge.
    """
    widest = max(max(layer.gather_width, layer.out_width) for layer in layers)

    def chunk_bytes(parts: int) -> float:
        rows, edges = num_vertices / parts, num_edges / parts**2
        chunk_edge_bytes = edge_bytes(edges) + (0.0 if fused else 2 * row_bytes(edges, widest))
        return max_resident * (row_bytes(rows, widest) + chunk_edge_bytes) + 2 * row_bytes(rows, widest)

    parts = 1
    while chunk_bytes(parts) > budget_bytes:
        parts += 1
    return parts


_GB = 1e9
# Approximate number of kernels in a step of a two-layer mini-batch, for which `launch_s` was measured.
_KERNELS_PER_STEP = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkMachine:
    """Host with several devices, which are connected through switches."""

    devices: tuple[ChunkCosts, ...]
    switches: tuple[int, ...]
    """Index of each device's switch. The devices of a switch share its link to host memory."""
    switch_bytes_per_s: tuple[float, ...]
    """Bandwidth of each switch's link to host memory."""
    filter_bytes_per_s: float
    """Rate at which the host filters rows for all devices together, in bytes per second."""

    def filter_limit(self, device: int) -> float:
        """Return the fraction of useful rows below which the host filters rows; 0 for in-place reads."""
        links = [
            math.inf if device_costs.compute_copies else device_costs.link_bytes_per_s
            for device_costs in self.devices
        ]
        if math.isinf(links[device]):
            return 0.0
        # The host filters rows for all devices to which rows are copied.
        copied = [d for d, link in enumerate(links) if not math.isinf(link)]
        switch_rate = sum(self.switch_bytes_per_s[switch] for switch in {self.switches[d] for d in copied})
        return filter_threshold(self.filter_bytes_per_s, min(switch_rate, sum(links[d] for d in copied)))


def chunk_machine(platform: Platform, model: str) -> ChunkMachine:
    """Return the machine model of a platform's accelerators, for which the host cores filter rows.

    The accelerators of an entry share a switch if the entry defines its bandwidth; others have separate
    links. `model` selects the rates that were measured with a kind of model.
    """
    devices: list[ChunkRates] = []
    switches: list[int] = []
    links: list[float] = []
    for entry in platform.accelerators:
        rates = entry.models.get(model, entry)
        device = _rates(entry, rates)
        for number in range(entry.count):
            if number == 0 or entry.switch_gb_s is None:
                links.append(_GB * (entry.link_gb_s if entry.switch_gb_s is None else entry.switch_gb_s))
            devices.append(device)
            switches.append(len(links) - 1)
    return ChunkMachine(
        devices=tuple(devices),
        switches=tuple(switches),
        switch_bytes_per_s=tuple(links),
        filter_bytes_per_s=_filter_bytes_per_s(platform.host),
    )


def group_machine(
    trainers: Sequence[PlatformTrainer], host: Host, threads: int | None = None
) -> ChunkMachine:
    """Return the machine model of trainers that train on one graph together.

    The host filters rows for the devices. A host trainer gathers from host memory with unfused operators and
    `threads` threads, by default the maximum number that was measured.
    """
    devices = tuple(_trainer_costs(trainer, host, threads) for trainer in trainers)
    switches: list[int] = []
    links: dict[object, float] = {}
    for number, trainer in enumerate(trainers):
        # A trainer without a switch has a separate link, for which its name is the key.
        switch: object = trainer.name if trainer.switch is None else trainer.switch
        switch_gb_s = trainer.device.switch_gb_s
        links.setdefault(
            switch, devices[number].link_bytes_per_s if switch_gb_s is None else switch_gb_s * _GB
        )
        switches.append(list(links).index(switch))
    return ChunkMachine(
        devices=devices,
        switches=tuple(switches),
        switch_bytes_per_s=tuple(links.values()),
        filter_bytes_per_s=_filter_bytes_per_s(host),
    )


def _trainer_costs(trainer: PlatformTrainer, host: Host, threads: int | None) -> ChunkCosts:
    if trainer.is_host and (measured := host.chunk_rates(threads)) is not None:
        return measured
    return _rates(trainer.device, trainer.rates, fused=not trainer.is_host)


def _rates(device: Accelerator, rates: Accelerator | TrainerRates, *, fused: bool = True) -> ChunkRates:
    return ChunkRates(
        link_bytes_per_s=device.link_gb_s * _GB,
        memory_bytes_per_s=rates.memory_gb_s * _GB,
        macs_per_s=rates.macs_per_s,
        link_latency_s=device.link_latency_s,
        launch_s=rates.launch_s / _KERNELS_PER_STEP,
        fused=fused,
    )


def _filter_bytes_per_s(host: Host) -> float:
    threads = math.inf if host.cores is None else host.cores * (host.thread_load_gb_s or math.inf)
    # Divide by two, because each byte is read and written.
    return _GB * min(host.memory_gb_s, threads) / 2
