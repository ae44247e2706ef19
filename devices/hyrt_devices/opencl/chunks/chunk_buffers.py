"""The buffers that chunks of a whole graph lie in, and their bytes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import prod
from typing import Any

from hyrt.fullgraph.grid.least_grid import ChunkSizes
from hyrt.fullgraph.grid.place_sizes import PlaceSizes, drops
from hyrt_devices.opencl.launch import ceil_div
from hyrt_devices.opencl.memory import SLACK_BYTES, DeviceMemory, Lease
from hyrt_devices.opencl.products import parts_shape
from hyrt_devices.opencl.replica import Replica
from hyrt_devices.opencl.tuning import Tuning

_FLOAT, _INT, _LONG = 4, 4, 8
_SEVERAL = ("read", "results", "rows", "starts", "columns", "row_scale", "column_scale")


@dataclass(frozen=True, slots=True)
class ChunkBuffers:
    """Buffers for each purpose, as large as the largest chunk needs them; several of what comes and goes."""

    read: tuple[Any, ...]
    """Rows that are gathered from; what a layer has gathered, in its backward pass; gradients of scores."""
    accumulated: Any
    """Rows that are added to."""
    results: tuple[Any, ...]
    """What each product of a layer makes; in the backward pass, the gradient of what it was made of."""
    rows: tuple[Any, ...]
    starts: tuple[Any, ...]
    columns: tuple[Any, ...]
    """`rows`, `starts`, `columns`: the edges of a chunk."""
    row_scale: tuple[Any, ...]
    column_scale: tuple[Any, ...]
    """`row_scale`, `column_scale`: factors of their ends."""
    vertices: Any
    """Numbers of the vertices of an interval, which key dropout; None where there is none."""
    parts: Any
    """Partial sums of a weight's gradient."""
    labels: Any
    weights: Any
    """`labels`, `weights`: of the targets of an interval."""
    losses: Any
    """Partial sums of losses and counts."""

    @classmethod
    def take(cls, lease: Lease, sizes: dict[str, list[int]]) -> ChunkBuffers:
        """Allocate what `buffer_sizes` gives. Raises DeviceOutOfMemory."""
        taken = {name: [lease.take(size, exact=True) for size in each] for name, each in sizes.items()}
        several = {name: tuple(pieces) for name, pieces in taken.items() if name in _SEVERAL}
        one: dict[str, Any] = {
            name: pieces[0] if pieces else None for name, pieces in taken.items() if name not in _SEVERAL
        }
        return cls(**several, **one)


def buffer_sizes(
    replica: Replica, tuning: Tuning, chunks: ChunkSizes, in_flight: int
) -> dict[str, list[int]]:
    """Bytes of each buffer for chunks of such sizes, without slack.

    Parameters
    ----------
    replica
        The model on the device.
    tuning
        How its kernels are cut.
    chunks
        The largest chunks.
    in_flight
        How many chunks are there at once.
    """
    model = replica.model
    places = PlaceSizes.of(model, chunks)
    last, parts = len(model.layers) - 1, 0
    for i, products in enumerate(replica.products):
        rows = chunks.targets if i == last else chunks.vertices
        parts = max(parts, *(prod(parts_shape(tuning, each.shape, rows)) for each in products), 0)
    return {
        "read": [_FLOAT * places.read] * in_flight,
        "accumulated": [_FLOAT * places.accumulated],
        "results": [_FLOAT * each for each in places.results],
        "rows": [_INT * places.edge_rows] * in_flight,
        "starts": [_INT * (places.edge_rows + 1)] * in_flight,
        "columns": [_INT * places.edges] * in_flight,
        "row_scale": [_FLOAT * places.vertices] * in_flight,
        "column_scale": [_FLOAT * places.vertices] * in_flight,
        "vertices": [_LONG * places.vertices] if drops(model) else [],
        "parts": [_FLOAT * parts],
        "labels": [_LONG * chunks.targets],
        "weights": [_FLOAT * chunks.targets],
        "losses": [2 * _FLOAT * ceil_div(chunks.targets, tuning.grain)],
    }


def needed_bytes(
    replica: Replica, tuning: Tuning, memory: DeviceMemory, chunks: ChunkSizes, in_flight: int
) -> int:
    """What all buffers take together; more than any device has where one is too large for a single piece."""
    sizes = buffer_sizes(replica, tuning, chunks, in_flight)
    pieces = [size + SLACK_BYTES for each in sizes.values() for size in each]
    return sys.maxsize if max(pieces) > memory.buffers.largest_bytes else sum(pieces)
