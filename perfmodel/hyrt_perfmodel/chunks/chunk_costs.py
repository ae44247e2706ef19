"""Cost of copying and computing chunks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from hyrt_perfmodel.workloads.chunk_work import ChunkShape, GatheringLayer

_FLOAT_BYTES = 4
# A column index and a portion of the row offsets.
_EDGE_BYTES = 8
# Passes over each edge's row in an unfused gather: read the source row, write the edge row, read and write it
# for the element-wise work, and read it for the sum.
_UNFUSED_PASSES = 5


class ChunkCosts(Protocol):
    """Times of one device for copying and computing chunks, without contention."""

    @property
    def copies_itself(self) -> bool:
        """Whether the compute threads also copy, so that the two alternate."""
        ...

    @property
    def link_bytes_per_s(self) -> float:
        """Bandwidth of row transfers in both directions; infinite if rows are read in place."""
        ...

    def copy_s(self, size: float) -> float:
        """Return the seconds to copy `size` bytes of rows to or from the device."""
        ...

    def bring_s(self, size: float) -> float:
        """Return the seconds to upload `size` bytes of source rows."""
        ...

    def edges_s(self, edges: float) -> float:
        """Return the seconds to upload `edges` edges."""
        ...

    def drop_read_s(self, size: float) -> float:
        """Return the seconds of dropout on `size` bytes of uploaded source rows."""
        ...

    def gather_s(self, shape: ChunkShape, *, fused: bool) -> float:
        """Return the seconds to gather rows along the edges of a chunk."""
        ...

    def forward_s(self, rows: float, layer: GatheringLayer) -> float:
        """Return the seconds of a layer's forward pass over gathered rows."""
        ...

    def back_s(self, rows: float, layer: GatheringLayer, *, wanted: bool) -> float:
        """Return the seconds of a layer's weight gradients and, if `wanted`, of the gradient of its gathered
        input.
        """
        ...

    def loss_s(self, rows: float, classes: int) -> float:
        """Return the seconds to compute the loss of the scores and its gradient."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRates:
    """Rates at which one device processes chunks, without contention."""

    link_bytes_per_s: float
    """Bandwidth from host memory to the device, and back; infinite if the device reads host memory in
    place."""
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
    def copies_itself(self) -> bool:
        return False

    def bring_s(self, size: float) -> float:
        """Return the seconds to copy `size` bytes of rows to the device."""
        return self.copy_s(size)

    def drop_read_s(self, size: float) -> float:
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

    def forward_s(self, rows: float, layer: GatheringLayer) -> float:
        """Return the seconds of a layer's products."""
        return self.launch_s + rows * layer.weights / self.macs_per_s

    def back_s(self, rows: float, layer: GatheringLayer, *, wanted: bool) -> float:
        """Return the seconds of a layer's weight gradients and, if `wanted`, of the gradient of its gathered
        input.
        """
        return self.launch_s + rows * layer.back_macs(wanted=wanted) / self.macs_per_s

    def loss_s(self, rows: float, classes: int) -> float:
        """Return one kernel launch, as a lower bound: the rate of the loss is unknown."""
        return self.launch_s


def row_bytes(rows: float, width: int) -> float:
    """Return the bytes of `rows` rows of `width` columns."""
    return rows * width * _FLOAT_BYTES


def edge_bytes(edges: float) -> float:
    """Return the bytes of a chunk of edges."""
    return edges * _EDGE_BYTES


def least_parts(
    num_vertices: float,
    num_edges: float,
    layers: tuple[GatheringLayer, ...],
    budget_bytes: float,
    *,
    fused: bool,
    room: int = 2,
) -> int:
    """Return the smallest P for which equally large chunks fit a device (NeuGraph, section 3.1).

    Source rows are read P times, so fewer chunks are better. A device holds `room` chunks of source rows and
    of edges, the destination chunk, and its result.

    Parameters
    ----------
    num_vertices, num_edges
        Size of the graph.
    layers
        Layers of the model.
    budget_bytes
        Device memory for chunks.
    fused
        Whether the gather needs no array with one row per edge.
    room
        Number of chunks on the device at once.
    """
    widest = max(max(layer.gathered, layer.out) for layer in layers)

    def chunk_bytes(parts: int) -> float:
        rows, edges = num_vertices / parts, num_edges / parts**2
        chunk_edge_bytes = edge_bytes(edges) + (0.0 if fused else 2 * row_bytes(edges, widest))
        return room * (row_bytes(rows, widest) + chunk_edge_bytes) + 2 * row_bytes(rows, widest)

    parts = 1
    while chunk_bytes(parts) > budget_bytes:
        parts += 1
    return parts
