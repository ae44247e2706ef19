"""Edges that a step's mini-batches are sampled without."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.links.known_edges import edges_of_pairs
from hyrt.graph.topology import Topology
from hyrt.machine.buffer_pool import TakenArrays
from hyrt.sampling.block import Ids
from hyrt.sampling.links.link_kernels import close_gaps, find_excluded
from hyrt.sampling.sampler import Hop


class ExcludedEdges:
    """Edges of a topology that carry no messages in a step: those of all of its targets, on whatever trainer.

    Parameters
    ----------
    topology
        The edges that carry messages.
    pairs
        [n, 2] sources and destinations; those that are no edges, and those that repeat, change nothing.
    """

    def __init__(self, topology: Topology, pairs: NDArray[Any]) -> None:
        num = topology.num_vertices
        # Sorted by destination, then by source.
        keys = np.unique(pairs[:, 1].astype(np.int64) * num + pairs[:, 0])
        there = np.stack([keys % num, keys // num], axis=1)
        counts = edges_of_pairs(topology, there)[1]
        there, counts = there[counts > 0], counts[counts > 0]
        self._topology = topology
        self._destinations, starts = np.unique(there[:, 1], return_index=True)
        self._starts = np.append(starts, len(there)).astype(np.int64)
        self._sources = np.ascontiguousarray(there[:, 0])
        self._removed = (
            np.add.reduceat(counts, starts).astype(np.int32) if len(there) else np.empty(0, np.int32)
        )

    @cached_property
    def in_degrees(self) -> NDArray[np.int32]:
        """[V] int32, the in-degrees without these edges."""
        degrees = self._topology.in_degrees.copy()
        degrees[self._destinations] -= self._removed
        return degrees

    @cached_property
    def weighted_degrees(self) -> NDArray[np.float32]:
        """[V] float32, as `Topology.weighted_degrees`, without these edges."""
        topology = self._topology
        if topology.edge_weights is None:
            return self.in_degrees.astype(np.float32)
        # Of what is left: a difference of two sums would be of the size of their rounding where nothing is.
        sums = topology.weighted_degrees.copy()
        for k, v in enumerate(self._destinations):
            first, last = topology.indptr[v], topology.indptr[v + 1]
            kept = ~np.isin(
                topology.indices[first:last], self._sources[self._starts[k] : self._starts[k + 1]]
            )
            sums[v] = topology.edge_weights[first:last][kept].sum(dtype=np.float64)
        return sums

    def without(self, vertices: Ids, hop: Hop, rows: NDArray[np.int32], arrays: TakenArrays) -> Hop:
        """The neighbours that were drawn, without those along these edges.

        Parameters
        ----------
        vertices
            [n] the destinations.
        hop
            Their neighbours, not numbered yet; its arrays are overwritten.
        rows
            [V] int32 of -1, which it is again afterwards.
        arrays
            Where memory is taken from.
        """
        assert hop.columns is None, "neighbours are left out before vertices are numbered"
        if not len(self._destinations) or not len(hop.neighbors):
            return hop
        rows[self._destinations] = np.arange(len(self._destinations), dtype=np.int32)
        offsets = arrays.take(len(hop.offsets), hop.offsets.dtype)
        room = arrays.take(len(hop.neighbors), np.int64)
        num = find_excluded(
            vertices, hop.offsets, hop.neighbors, rows, self._starts, self._sources, offsets, room
        )
        rows[self._destinations] = -1
        if not num:
            return hop
        dropped = room[:num]

        def closed(values: NDArray[Any] | None) -> NDArray[Any] | None:
            if values is None:
                return None
            close_gaps(values, dropped)
            return values[: len(values) - num]

        neighbors = closed(hop.neighbors)
        assert neighbors is not None
        return replace(
            hop,
            offsets=offsets,
            neighbors=neighbors,
            edge_types=closed(hop.edge_types),
            weights=closed(hop.weights),
            edges=closed(hop.edges),
        )


@runtime_checkable
class ExcludesEdges(Protocol):
    """A sampler of mini-batches around any vertices, which can leave edges out of them.

    Its `sample` takes any distinct vertices as units, and what it draws for a vertex depends on the seed, the
    step, the layer and the vertex alone.
    """

    def exclude(self, step: int, excluded: ExcludedEdges | None) -> None:
        """Leave edges out of the mini-batches of a step; None for none.

        What is left of a vertex's neighbours is what was drawn without them: each is drawn with the same
        chance as any other.
        """
        ...
