"""Chunk grids of a graph, the cost of copying and computing chunks, and the machine that computes them."""

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
    """Sizes of chunks; entry (i, j) is the chunk of edges from interval i to interval j."""

    rows: Floats
    """[P] vertices per interval."""
    edges: Floats
    """[P, P] edges."""
    sources: Floats
    """[P, P] vertices of interval i with an edge to interval j."""
    destinations: Floats
    """[P, P] vertices of interval j with an edge from interval i."""
    destination_rows: Floats | None = None
    """[Q] destinations per interval if their intervals differ from the sources'; entries are then [P, Q]."""
    shared_rows: Floats | None = None
    """[P, Q] vertices in both intervals, if the destination intervals differ."""

    @property
    def parts(self) -> int:
        """P."""
        return len(self.rows)

    @property
    def rows_into(self) -> Floats:
        """[Q] destinations per interval."""
        return self.rows if self.destination_rows is None else self.destination_rows

    @property
    def in_both(self) -> Floats:
        """[P, Q] vertices in both intervals."""
        return np.diag(self.rows) if self.shared_rows is None else self.shared_rows

    @property
    def transposed(self) -> GridSizes:
        """The transposed grid: the same edges from destinations to sources."""
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

    Each edge of a vertex independently stays in its interval with probability `inside`, and otherwise leads
    to one of the other intervals with equal probability. Locality-preserving vertex orders increase `inside`;
    None means a random order, 1/P. Of n vertices with d edges each, n (1 - (1 - p)^d) then have at least one
    edge to an interval that an edge leads to with probability p.
    """
    share = np.full((parts, parts), 1.0 if parts == 1 else 1 / parts)
    if inside is not None and parts > 1:
        share[:] = (1 - inside) / (parts - 1)
        np.fill_diagonal(share, inside)
    rows = np.full(parts, degrees.num_vertices / parts)
    per_interval = degrees.counts / parts

    # There are at most two distinct values for all P x P chunks.
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
    """Estimate the chunks of `edges` edges into `targets` vertices, which are evenly distributed.

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
# Each edge has a column index and a portion of the row offsets.
_EDGE_BYTES = 8
# Passes over each edge's row in an unfused gather: read the source row, write the edge row, read and write it
# for the element-wise work, and read it for the sum.
_UNFUSED_PASSES = 5


class ChunkCosts(Protocol):
    """Times of one device for copying and computing chunks, without contention."""

    @property
    def compute_copies(self) -> bool:
        """Whether the compute threads also copy, so that the two alternate."""
        ...

    @property
    def link_bytes_per_s(self) -> float:
        """Bandwidth of row transfers in both directions; infinite if rows are read in place."""
        ...

    def copy_s(self, size: float) -> float:
        """Return the seconds to copy `size` bytes of rows to or from the device."""
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
    """Rates at which one device processes chunks, without contention."""

    link_bytes_per_s: float
    """Bandwidth from host memory to the device, and back; infinite if the device reads it in place."""
    memory_bytes_per_s: float
    """Bandwidth of gathering rows."""
    macs_per_s: float
    """Multiply-accumulates per second."""
    link_latency_s: float = 0.0
    launch_s: float = 0.0
    """`link_latency_s` and `launch_s`: fixed costs of a copy and of a kernel."""
    fused: bool = True
    """Whether the device can gather in one kernel."""

    def copy_s(self, size: float) -> float:
        """Return the seconds to copy `size` bytes to or from the device; 0 for no bytes."""
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
        """Return one kernel launch, as a lower bound: the dropout rate is unknown."""
        return self.launch_s

    def edges_s(self, edges: float) -> float:
        """Return the seconds to copy `edges` edges to the device."""
        return self.copy_s(edge_bytes(edges))

    def gather_s(self, shape: ChunkShape, *, fused: bool) -> float:
        """Return the seconds to gather rows along the edges of a chunk; 0 if there are no edges."""
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
        """Return one kernel launch, as a lower bound: the rate of the loss is unknown."""
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

    Source rows are read P times, so fewer chunks are better. A device holds `max_resident` chunks of source
    rows and of edges, the destination chunk, and its result, in `budget_bytes`. `fused` means that the gather
    needs no array with one row per edge.
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
# Approximate number of kernels in a two-layer mini-batch step, for which `launch_s` was measured.
_KERNELS_PER_STEP = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkMachine:
    """Host with devices behind switches."""

    devices: tuple[ChunkCosts, ...]
    switches: tuple[int, ...]
    """Switch number of each device, from 0; devices of one switch share its link to host memory."""
    switch_bytes_per_s: tuple[float, ...]
    """Bandwidth of each switch's link to host memory."""
    filter_bytes_per_s: float
    """Rate at which the host gathers rows, for all devices together."""

    def filter_limit(self, device: int) -> float:
        """Return the useful fraction below which a device's rows are filtered; 0 for in-place reads."""
        links = [
            math.inf if device_costs.compute_copies else device_costs.link_bytes_per_s
            for device_costs in self.devices
        ]
        if math.isinf(links[device]):
            return 0.0
        # The host filters rows for all devices that need copies of rows.
        copied = [d for d, link in enumerate(links) if not math.isinf(link)]
        switch_rate = sum(self.switch_bytes_per_s[switch] for switch in {self.switches[d] for d in copied})
        return filter_threshold(self.filter_bytes_per_s, min(switch_rate, sum(links[d] for d in copied)))


def chunk_machine(platform: Platform, model: str) -> ChunkMachine:
    """Build the machine model of a platform's accelerators, whose rows the host cores filter.

    Accelerators of one entry share a switch if it defines a switch bandwidth; others have separate links.
    `model` selects rates measured with a kind of model.
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
    """Build the machine model of trainers that train one graph together.

    The host filters rows for the devices; a host trainer gathers with unfused operators from host memory,
    with `threads` threads (by default the maximum that was measured).
    """
    devices = tuple(_trainer_costs(trainer, host, threads) for trainer in trainers)
    switches: list[int] = []
    links: dict[object, float] = {}
    for number, trainer in enumerate(trainers):
        # A trainer without a switch has a separate link, identified by the trainer's name.
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
    # Each byte is read and written.
    return _GB * min(host.memory_gb_s, threads) / 2
