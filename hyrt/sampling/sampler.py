"""Interface of a sampler, and the sampled neighbours of a hop with edge weights and edge features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.formatting import short_repr
from hyrt.graph.topology import Topology
from hyrt.runtime.buffer_pool import PooledArrays
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.kernels import find_edges
from hyrt.sampling.minibatch import MiniBatch

_GRAIN = 1 << 14
_ROWS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class EdgeValues:
    """Weights and features of some edges."""

    weights: NDArray[np.float32] | None = None
    """[E] float32 edge weights; None if edges have no weights."""
    features: NDArray[np.float32] | None = None
    """[E, d] float32 edge features; None if edges have no features."""

    __repr__ = short_repr

    def select(self, edges: NDArray[Any]) -> EdgeValues:
        """Return the weights and features of some of the edges, by position."""
        return EdgeValues(*(None if each is None else each[edges] for each in (self.weights, self.features)))


def gather_edge_values(
    topology: Topology,
    vertices: Ids,
    offsets: Ids,
    neighbors: Ids,
    workers: Workers,
    arrays: PooledArrays,
    edges: NDArray[np.int64] | None = None,
) -> EdgeValues:
    """Gather the weights and features of the edges from `neighbors` [E] to `vertices` [n].

    `offsets` are [n + 1], and `edges` [E] the positions of the edges in the topology; None to look them up by
    source and destination. Raises DataError if an edge that must be looked up is not unique, or its row is
    not sorted.
    """
    if not topology.has_edge_values:
        return EdgeValues()
    if edges is None:
        edges = _edges_between(topology, vertices, offsets, neighbors, workers, arrays)
    gathered: list[NDArray[np.float32] | None] = []
    for values in (topology.edge_weights, topology.edge_features):
        if values is None:
            gathered.append(None)
            continue
        out = arrays.take((len(edges), *values.shape[1:]), np.float32)
        workers.run(_gather(values, edges, out), len(edges), _GRAIN)
        gathered.append(out)
    return EdgeValues(*gathered)


def _edges_between(
    topology: Topology, vertices: Ids, offsets: Ids, neighbors: Ids, workers: Workers, arrays: PooledArrays
) -> NDArray[np.int64]:
    edges = arrays.take(len(neighbors), np.int64)
    graph = (topology.indptr, topology.indices, vertices, offsets, neighbors)

    def find(start: int, stop: int) -> None:
        missing = find_edges(*graph, start, stop, edges)
        if missing >= 0:
            row = int(np.searchsorted(offsets, missing, side="right")) - 1
            raise DataError(
                f"the edge from vertex {neighbors[missing]} into vertex {vertices[row]} cannot be "
                "identified by its ends, so its weight and its features are unknown: rows must be sorted, "
                "with at most one edge from one vertex to another: hyrt data convert --sort --unique"
            )

    workers.run(find, len(vertices), _ROWS)
    return edges


def _gather(
    values: NDArray[np.float32], edges: NDArray[np.int64], out: NDArray[np.float32]
) -> Callable[[int, int], None]:
    def gather(start: int, stop: int) -> None:
        np.take(values, edges[start:stop], axis=0, out=out[start:stop], mode="clip")

    return gather


class Sampler(Protocol):
    """Interface of a sampler, which divides the work of a step into mini-batches.

    A step consists of units that can be assigned to any trainer: single targets if a mini-batch can be split
    anywhere, otherwise whole subgraphs. The sampled edges of a unit depend only on the seed and the step,
    never on the other units.
    """

    def steps_per_epoch(self) -> int:
        """Return the number of steps per epoch, which covers all training targets if each is visited once."""
        ...

    def units(self, step: int) -> Ids:
        """Return the [n] units of a step in splitting order; the last step may have fewer."""
        ...

    def sample(
        self, step: int, units: Ids, workers: Workers, *, in_place: bool, hops: HopSampler | None = None
    ) -> MiniBatch:
        """Sample the mini-batch of some units of a step.

        Parameters
        ----------
        step
            Step of the run, counted from 0.
        units
            Some of the units of `units(step)`.
        workers
            Worker team that runs the chunks.
        in_place
            Whether the first block keeps vertex ids as its sources and reads the feature matrix in place.
        hops
            Device sampler to use instead of the host; only for samplers that build mini-batches from hops.
        """
        ...


@dataclass(frozen=True, slots=True)
class Hop:
    """Sampled neighbours of some vertices, in host memory."""

    degrees: NDArray[np.int32]
    """[n] int32, in-degrees in the full graph."""
    offsets: NDArray[np.int32]
    """[n + 1] int32, offset of each vertex's neighbours."""
    neighbors: Ids
    """[E] vertex ids of the neighbours."""
    sources: Ids | None = None
    """[num_src] vertices numbered as in a block (the given vertices first, then neighbours in order of
    appearance), if the sampler relabels; otherwise None.
    """
    columns: NDArray[np.int32] | None = None
    """[E] int32 positions in `sources`, if the sampler relabels; otherwise None."""
    edge_types: NDArray[Any] | None = None
    """[E] edge types, as in `Block`."""
    weights: NDArray[np.float32] | None = None
    """[E] float32 edge factors, as in `Block.weights`."""
    edges: NDArray[np.int64] | None = None
    """[E] int64, edge positions in the graph, if needed and known."""
    values: EdgeValues | None = None
    """Edge weights and features, if they differ from the local graph's; `edges` is then ignored."""
    resident: Any = None
    """Device copy of the arrays, for the device's `transfer`."""

    __repr__ = short_repr


class HopSampler(Protocol):
    """Sampler of a layer's neighbours on a device, with bitwise the same result as on the host."""

    def draw(self, vertices: Ids, fanout: int, key: np.uint64, *, relabel: bool) -> Hop:
        """Sample neighbours of some vertices.

        Parameters
        ----------
        vertices
            [n] distinct vertices.
        fanout
            Number of neighbours per vertex; -1 takes all.
        key
            Key from `hyrt.runtime.rng.stream_key`.
        relabel
            Whether to compute sources and columns, if the device supports it.
        """
        ...

    def close(self) -> None:
        """Release the topology; idempotent."""
        ...
