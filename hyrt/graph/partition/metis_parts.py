"""METIS partition method, which results in few edges between parts.

Karypis and Kumar, "A Fast and High Quality Multilevel Scheme for Partitioning Irregular Graphs", SIAM Journal
on Scientific Computing 20 (1998).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.csr import ArrayBuilder, build_csr, iter_row_ranges
from hyrt.graph.partition.method import DEFAULT_BOUNDS, PartBounds, ReportLine, check_partition_args
from hyrt.graph.partition.metis_process import run_metis
from hyrt.graph.topology import Topology
from hyrt.runtime.hardware import available_cores
from hyrt.runtime.workers import Workers, use_workers

# Estimated memory of METIS, which stores the graph and all coarsened graphs with 64-bit integers.
_EDGE_BYTES = 160
_VERTEX_BYTES = 400
_PIECE = 1 << 22
# Number of undirected edges to build at once.
_RANGE = 1 << 26
# Mean weight of a vertex, not counting the weight for training vertices.
_WEIGHT = 1 << 10
_ITERATIONS = 10
# Total weight of training vertices relative to that of edges. If parts are uneven, the next value is tried.
_TRAINING_SHARES = (1.0, 1 / 4, 1 / 16, 0.0)
# Parts are uneven if the edges or training vertices of a part exceed the mean by more than this fraction.
# Unavoidable excess does not count.
_UNEVEN = 0.5


class MetisParts:
    """METIS partition with few cut edges, and balanced sums of edges and training vertices.

    METIS balances one weight per vertex, which is here the vertex's share of all in-edges (plus one edge)
    plus its share of all training vertices. If training vertices are few, one part may get most edges and
    another one most training vertices, with equal sums. METIS is then run again with a smaller weight for
    training vertices.
    """

    imbalance: float | None = 0.03
    bounds_vertices = False

    def check_installed(self) -> None:
        if importlib.util.find_spec("pymetis") is None:
            raise DataError('--method metis needs pymetis: pip install "hyrt[partition]"')

    def memory_bytes(self, num_vertices: int, num_edges: int) -> int:
        return _VERTEX_BYTES * num_vertices + _EDGE_BYTES * num_edges

    def homes(
        self,
        topology: Topology,
        training: NDArray[np.bool_],
        num_parts: int,
        seed: int,
        bounds: PartBounds = DEFAULT_BOUNDS,
        announce: ReportLine | None = None,
    ) -> NDArray[Any]:
        self.check_installed()
        check_partition_args(topology, training, num_parts, seed)
        if num_parts == 1:
            return np.zeros(topology.num_vertices, np.int64)
        pointers, neighbors = _undirected(topology)
        edges: NDArray[np.float64] = topology.in_degrees + np.float64(1)
        allowed = self.imbalance if bounds.imbalance is None else bounds.imbalance
        assert allowed is not None
        # METIS uses the 32-bit seed of the C library's generator, which treats 0 like 1.
        drawn_from = (seed + 1) % 2**31
        options = {"seed": drawn_from, "niter": _ITERATIONS, "ufactor": max(1, round(1000 * allowed))}
        best, lowest_imbalance = None, float("inf")
        for share in _TRAINING_SHARES:
            weights = _weights(edges, training, share)
            found = run_metis(pointers, neighbors, weights, num_parts, **options)
            found = fill_empty_parts(found, weights, num_parts)
            part_imbalance = max(_needlessly_over(found, of, num_parts) for of in (edges, training))
            if part_imbalance < lowest_imbalance:
                best, lowest_imbalance = found, part_imbalance
            if lowest_imbalance <= _UNEVEN or not training.any():
                break
        assert best is not None
        return best


def fill_empty_parts(part_ids: NDArray[Any], weights: NDArray[Any], num_parts: int) -> NDArray[Any]:
    """Assign to each empty part in turn about half of the part that is then the heaviest."""
    sizes = np.bincount(part_ids, minlength=num_parts)
    if sizes.all():
        return part_ids
    part_ids = part_ids.copy()
    loads = np.bincount(part_ids, weights, minlength=num_parts)
    for empty in np.flatnonzero(sizes == 0):
        heaviest = int(np.argmax(np.where(sizes > 1, loads, -1)))
        members = np.flatnonzero(part_ids == heaviest)
        passed = np.cumsum(weights[members])
        split = min(1 + int(np.argmin(np.abs(passed - loads[heaviest] / 2))), len(members) - 1)
        part_ids[members[split:]] = empty
        loads[empty], loads[heaviest] = loads[heaviest] - passed[split - 1], passed[split - 1]
        sizes[empty], sizes[heaviest] = len(members) - split, split
    return part_ids


def _weights(
    edges: NDArray[np.float64], training: NDArray[np.bool_], training_share: float
) -> NDArray[np.int64]:
    """Return vertex weights [V]; training vertices weigh `training_share` times as much as edges in total."""
    weights = edges * (_WEIGHT / edges.mean())
    if training.any():
        weights += training * (training_share * _WEIGHT / training.mean())
    whole: NDArray[np.int64] = np.maximum(1, np.rint(weights)).astype(np.int64)
    return whole


def _needlessly_over(homes: NDArray[Any], amounts: NDArray[Any], num_parts: int) -> float:
    """Return the avoidable excess of the largest part's sum of integer amounts [V], relative to the mean.

    Some excess is unavoidable, because a vertex cannot be divided between parts.
    """
    total = amounts.sum()
    lower_bound = max(amounts.max(), np.ceil(total / num_parts))
    largest = np.bincount(homes, amounts, minlength=num_parts).max()
    return float((largest - lower_bound) * num_parts / total) if total else 0.0


def _undirected(topology: Topology) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the edges in both directions without duplicates and self-loops, which METIS requires."""
    with Workers(available_cores(), "partition") as workers, use_workers(workers):
        symmetric = topology.is_symmetric
    if symmetric and not has_self_loops(topology):
        return topology.indptr, topology.indices
    store = ArrayBuilder(topology.indices.dtype)

    def edges() -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        for starts, sources, first in iter_row_ranges(topology.indptr, topology.indices, _PIECE):
            vertices = np.arange(first, first + len(starts) - 1)
            yield sources.astype(np.int64), np.repeat(vertices, np.diff(starts))

    pointers = build_csr(
        edges,
        topology.num_vertices,
        symmetric=True,
        self_loops=False,
        emit=store.append,
        source="the graph",
        range_entries=_RANGE,
    )
    return pointers, store.finish()


def has_self_loops(topology: Topology) -> bool:
    for starts, sources, first in iter_row_ranges(topology.indptr, topology.indices, _PIECE):
        if np.any(sources == np.repeat(np.arange(first, first + len(starts) - 1), np.diff(starts))):
            return True
    return False
