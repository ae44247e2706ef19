"""Edges that are excluded from the mini-batches of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.links.edges import find_edges_of_pairs
from hyrt.graph.topology import Topology
from hyrt.runtime.buffer_pool import PooledArrays
from hyrt.sampling.block import Ids
from hyrt.sampling.kernels import close_gaps, find_excluded
from hyrt.sampling.sampler import Hop


class ExcludedEdges:
    """Edges of a topology that carry no messages in a step: those of all of its targets, on all trainers.

    `pairs` are arrays [n, 2] of (source, destination), each with the relation whose edges are excluded, or
    None in a homogeneous graph. Pairs without an edge, and duplicates, have no effect.
    """

    def __init__(self, topology: Topology, pairs: Sequence[tuple[NDArray[Any], int | None]]) -> None:
        num = topology.num_vertices
        self._is_hetero = any(relation is not None for _, relation in pairs)
        ends, codes, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        for each, relation in pairs:
            there = np.unique(each[:, 1].astype(np.int64) * num + each[:, 0])
            there = np.stack([there % num, there // num], axis=1)
            found = find_edges_of_pairs(topology, there, relation)[1]
            there = there[found > 0]
            ends.append(there[:, 1])
            codes.append(there[:, 0] + num * (relation or 0))
            counts.append(found[found > 0])
        into, code, count = (np.concatenate(each) for each in (ends, codes, counts))
        # Sorted by destination, relation and source, without duplicates.
        order = np.lexsort((code, into))
        into, code, count = into[order], code[order], count[order]
        once = np.append(True, (into[1:] != into[:-1]) | (code[1:] != code[:-1]))[: len(into)]
        into, self._codes, count = into[once], code[once], count[once]
        self._topology = topology
        self._destinations, starts = np.unique(into, return_index=True)
        self._starts = np.append(starts, len(into)).astype(np.int64)
        self._removed = (
            np.add.reduceat(count, starts).astype(np.int32) if len(into) else np.empty(0, np.int32)
        )

    @cached_property
    def in_degrees(self) -> NDArray[np.int32]:
        """Return [V] int32, the in-degrees without these edges."""
        degrees = self._topology.in_degrees.copy()
        degrees[self._destinations] -= self._removed
        return degrees

    @cached_property
    def weighted_degrees(self) -> NDArray[np.float32]:
        """Return [V] float32, as `Topology.weighted_degrees`, without these edges."""
        topology = self._topology
        if topology.edge_weights is None:
            return self.in_degrees.astype(np.float32)
        # Sum the remaining weights: subtracting all weights of a vertex would leave a rounding error.
        sums = topology.weighted_degrees.copy()
        rows, positions = self._left
        weights = topology.edge_weights[positions]
        sums[self._destinations] = np.bincount(rows, weights, minlength=len(self._destinations))
        return sums

    def run_weights(
        self, rows: NDArray[Any], relations: NDArray[Any], sums: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return `Topology.run_weights` for some edges, without the excluded edges.

        `rows` and `relations` are [E], the destination and relation of each edge; `sums` [E] are the values
        of `Topology.run_weights`, which are overwritten.
        """
        keys, left = self._runs_left
        if not len(keys):
            return sums
        edge_keys = self._run_keys(rows, relations)
        at = np.searchsorted(keys, edge_keys).clip(max=len(keys) - 1)
        hit = keys[at] == edge_keys
        sums[hit] = left[at[hit]]
        return sums

    @cached_property
    def _runs_left(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the runs with excluded edges in ascending order, and the remaining weight of each run."""
        weights, types = self._topology.edge_weights, self._topology.edge_types
        assert weights is not None
        assert types is not None
        into = np.repeat(self._destinations, np.diff(self._starts))
        keys = np.unique(self._run_keys(into, self._codes // self._topology.num_vertices))
        rows, positions = self._left
        edge_keys = self._run_keys(self._destinations[rows], types[positions])
        at = np.searchsorted(keys, edge_keys)
        hit = np.append(keys, -1)[at] == edge_keys
        return keys, np.bincount(at[hit], weights[positions[hit]], minlength=len(keys)).astype(np.float32)

    def _run_keys(self, rows: NDArray[Any], relations: NDArray[Any]) -> NDArray[np.int64]:
        types = self._topology.edge_types
        assert types is not None
        num: int = np.iinfo(types.dtype).max
        keys: NDArray[np.int64] = rows.astype(np.int64) * (num + 1) + relations
        return keys

    @cached_property
    def _left(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the remaining in-edges of the destinations: destination index and edge position."""
        topology = self._topology
        starts, stops = topology.indptr[self._destinations], topology.indptr[self._destinations + 1]
        counts = stops - starts
        rows = np.repeat(np.arange(len(counts)), counts)
        positions = np.arange(len(rows)) + np.repeat(stops - np.cumsum(counts), counts)
        codes = topology.indices[positions].astype(np.int64)
        if self._is_hetero:
            assert topology.edge_types is not None
            codes += topology.edge_types[positions].astype(np.int64) * topology.num_vertices
        # Codes are grouped by destination, in ascending order.
        stride = int(codes.max(initial=0)) + 1
        excluded = np.repeat(np.arange(len(counts)), np.diff(self._starts)) * stride + self._codes
        is_included = ~np.isin(rows * stride + codes, excluded)
        return rows[is_included], positions[is_included]

    def remove_from(self, vertices: Ids, hop: Hop, rows: NDArray[np.int32], arrays: PooledArrays) -> Hop:
        """Remove the excluded edges from the sampled neighbours of `vertices` [n].

        `hop` is not relabelled yet, and its arrays are overwritten. `rows` is scratch, [V] int32, all -1
        before and after the call.
        """
        assert hop.columns is None, "neighbours are left out before vertices are numbered"
        if not len(self._destinations) or not len(hop.neighbors):
            return hop
        rows[self._destinations] = np.arange(len(self._destinations), dtype=np.int32)
        offsets = arrays.take(len(hop.offsets), hop.offsets.dtype)
        buffer = arrays.take(len(hop.neighbors), np.int64)
        types = hop.edge_types if self._is_hetero else None
        edges = (vertices, hop.offsets, hop.neighbors, types)
        num = find_excluded(*edges, rows, self._starts, self._codes, offsets, buffer)
        rows[self._destinations] = -1
        if not num:
            return hop
        dropped = buffer[:num]

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
class EdgeExcludingSampler(Protocol):
    """Sampler of mini-batches around arbitrary vertices, with support for excluded edges."""

    def exclude(self, step: int, excluded: ExcludedEdges | None) -> None:
        """Exclude edges from a step's mini-batches (None: exclude nothing).

        The remaining neighbours are sampled uniformly.
        """
        ...
