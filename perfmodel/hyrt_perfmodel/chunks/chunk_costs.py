"""What it takes to copy and to compute chunks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from hyrt_perfmodel.workloads.chunk_work import ChunkShape, GatheringLayer

_FLOAT_BYTES = 4
# A column index and a share of the row offsets.
_EDGE_BYTES = 8
# What a gathering that is not fused moves of each edge's row: it reads the source's, writes the edge's, reads
# and writes it again for the element-wise work, and reads it to add it up.
_UNFUSED_PASSES = 5


class ChunkCosts(Protocol):
    """What copying and computing chunks takes on one device, alone."""

    @property
    def copies_itself(self) -> bool:
        """Whether what computes also copies, by turns."""
        ...

    @property
    def link_bytes_per_s(self) -> float:
        """At which rows come and go; infinite where they are read where they lie."""
        ...

    def copy_s(self, size: float) -> float:
        """Seconds for `size` bytes of rows to or from the device."""
        ...

    def bring_s(self, size: float) -> float:
        """Seconds for bringing `size` bytes of rows that are read on the device."""
        ...

    def edges_s(self, edges: float) -> float:
        """Seconds for so many edges to the device."""
        ...

    def drop_read_s(self, size: float) -> float:
        """Seconds for dropout of `size` bytes of rows that were brought."""
        ...

    def gather_s(self, shape: ChunkShape, *, fused: bool) -> float:
        """Seconds for gathering rows along the edges of a chunk."""
        ...

    def forward_s(self, rows: float, layer: GatheringLayer) -> float:
        """Seconds for what a layer makes of rows that are gathered."""
        ...

    def back_s(self, rows: float, layer: GatheringLayer, *, wanted: bool) -> float:
        """Seconds for the gradients of a layer's weights and, where it is wanted, of what it has gathered."""
        ...

    def loss_s(self, rows: float, classes: int) -> float:
        """Seconds for the loss of scores, and its gradient."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRates:
    """How fast one device works on chunks, alone."""

    link_bytes_per_s: float
    """From host memory to the device, and back; infinite where it reads host memory in place."""
    memory_bytes_per_s: float
    """At which gathering reads rows."""
    macs_per_s: float
    """Of products."""
    link_latency_s: float = 0.0
    launch_s: float = 0.0
    """`link_latency_s` and `launch_s`: what a copy and a kernel cost whatever their size."""
    fused: bool = True
    """Whether the device can gather in one kernel."""

    def copy_s(self, size: float) -> float:
        """Seconds for a copy of `size` bytes to or from the device; no bytes need no copy."""
        if not size or math.isinf(self.link_bytes_per_s):
            return 0.0
        return self.link_latency_s + size / self.link_bytes_per_s

    @property
    def copies_itself(self) -> bool:
        return False

    def bring_s(self, size: float) -> float:
        """Seconds for copying `size` bytes of rows to the device."""
        return self.copy_s(size)

    def drop_read_s(self, size: float) -> float:
        """What dropout takes is not known; a call at least."""
        return self.launch_s

    def edges_s(self, edges: float) -> float:
        """Seconds for copying so many edges to the device."""
        return self.copy_s(edge_bytes(edges))

    def gather_s(self, shape: ChunkShape, *, fused: bool) -> float:
        """Seconds for gathering rows along the edges of a chunk; with no edges there is nothing to do."""
        if not shape.edges:
            return 0.0
        row_bytes = shape.width * _FLOAT_BYTES * (1 if fused and self.fused else _UNFUSED_PASSES)
        return self.launch_s + shape.edges * (row_bytes + _EDGE_BYTES) / self.memory_bytes_per_s

    def forward_s(self, rows: float, layer: GatheringLayer) -> float:
        """Seconds for a layer's products."""
        return self.launch_s + rows * layer.weights / self.macs_per_s

    def back_s(self, rows: float, layer: GatheringLayer, *, wanted: bool) -> float:
        """Seconds for the gradients of a layer's weights and, where it is wanted, of what it has gathered."""
        return self.launch_s + rows * layer.back_macs(wanted=wanted) / self.macs_per_s

    def loss_s(self, rows: float, classes: int) -> float:
        """What the loss takes is not known; a call at least."""
        return self.launch_s


def row_bytes(rows: float, width: int) -> float:
    """Bytes of `rows` rows of `width` columns."""
    return rows * width * _FLOAT_BYTES


def edge_bytes(edges: float) -> float:
    """Bytes of a chunk of edges."""
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
    """The least P whose chunks, if all are equally large, fit a device (NeuGraph, section 3.1).

    Source rows are read P times, so fewer chunks are better. A device holds `room` chunks of source rows and
    of edges, the chunk that they are gathered into, and its result.

    Parameters
    ----------
    num_vertices, num_edges
        The size of the graph.
    layers
        The layers of the model.
    budget_bytes
        What the device has for chunks.
    fused
        Whether no array has a row an edge.
    room
        Chunks that are on the device at once.
    """
    widest = max(max(layer.gathered, layer.out) for layer in layers)

    def chunk_bytes(parts: int) -> float:
        rows, edges = num_vertices / parts, num_edges / parts**2
        of_edges = edge_bytes(edges) + (0.0 if fused else 2 * row_bytes(edges, widest))
        return room * (row_bytes(rows, widest) + of_edges) + 2 * row_bytes(rows, widest)

    parts = 1
    while chunk_bytes(parts) > budget_bytes:
        parts += 1
    return parts
