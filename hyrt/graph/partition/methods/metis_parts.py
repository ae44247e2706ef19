"""Parts with few edges between them, by METIS.

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
from hyrt.graph.partition.methods.method import DEFAULT_BOUNDS, PartBounds, ReportLine, check_partition_args
from hyrt.graph.partition.methods.metis_process import run_metis
from hyrt.graph.topology import Topology
from hyrt.runtime.hardware import available_cores
from hyrt.runtime.workers import Workers, use_workers

# METIS keeps the graph and all coarser ones, with 64-bit numbers. An estimate.
_EDGE_BYTES = 160
_VERTEX_BYTES = 400
_PIECE = 1 << 22
# Entries of undirected edges that are built at once.
_RANGE = 1 << 26
# Edges give a vertex this weight on average.
_WEIGHT = 1 << 10
_ITERATIONS = 10
# What training vertices weigh beside all edges: less, one after the other, where parts come out uneven.
_TRAINING_SHARES = (1.0, 1 / 4, 1 / 16, 0.0)
# The most that a part may have of the edges, or of the training vertices, over the mean before that is tried;
# not counting what no parts could be without.
_UNEVEN = 0.5


class MetisParts:
    """Cuts few edges, while parts get equal shares of edges and training vertices together.

    METIS balances one weight a vertex here: the vertex's share of all in-edges (one more than its degree)
    plus its share of all training vertices. Where training vertices are few, it may find a part of most edges
    and another of most training vertices, with an equal sum; then they weigh less, and it begins again.
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
        # METIS seeds the C library's generator, which takes 0 for 1, with 32 bits.
        drawn_from = (seed + 1) % 2**31
        options = {"seed": drawn_from, "niter": _ITERATIONS, "ufactor": max(1, round(1000 * allowed))}
        best, least_uneven = None, float("inf")
        for share in _TRAINING_SHARES:
            weights = _weights(edges, training, share)
            found = run_metis(pointers, neighbors, weights, num_parts, **options)
            found = fill_empty_parts(found, weights, num_parts)
            uneven = max(_needlessly_over(found, of, num_parts) for of in (edges, training))
            if uneven < least_uneven:
                best, least_uneven = found, uneven
            if least_uneven <= _UNEVEN or not training.any():
                break
        assert best is not None
        return best


def fill_empty_parts(part_ids: NDArray[Any], weights: NDArray[Any], num_parts: int) -> NDArray[Any]:
    """Give each part that METIS has left empty about half of the part that is then the heaviest.

    Parameters
    ----------
    part_ids
        [V] integers, the part of each vertex.
    weights
        [V] what each vertex weighs.
    num_parts
        The number of parts, at most V.
    """
    sizes = np.bincount(part_ids, minlength=num_parts)
    if sizes.all():
        return part_ids
    part_ids = part_ids.copy()
    loads = np.bincount(part_ids, weights, minlength=num_parts)
    for empty in np.flatnonzero(sizes == 0):
        heaviest = int(np.argmax(np.where(sizes > 1, loads, -1)))
        members = np.flatnonzero(part_ids == heaviest)
        passed = np.cumsum(weights[members])
        kept = min(1 + int(np.argmin(np.abs(passed - loads[heaviest] / 2))), len(members) - 1)
        part_ids[members[kept:]] = empty
        loads[empty], loads[heaviest] = loads[heaviest] - passed[kept - 1], passed[kept - 1]
        sizes[empty], sizes[heaviest] = len(members) - kept, kept
    return part_ids


def _weights(
    edges: NDArray[np.float64], training: NDArray[np.bool_], training_share: float
) -> NDArray[np.int64]:
    """[V] what each vertex weighs, with all training vertices `training_share` of what all edges weigh."""
    weights = edges * (_WEIGHT / edges.mean())
    if training.any():
        weights += training * (training_share * _WEIGHT / training.mean())
    whole: NDArray[np.int64] = np.maximum(1, np.rint(weights)).astype(np.int64)
    return whole


def _needlessly_over(homes: NDArray[Any], amounts: NDArray[Any], num_parts: int) -> float:
    """By how much the largest part's sum of [V] whole amounts exceeds what the largest of any parts has at
    least, as a share of the mean: a vertex is in one part, and few ones are not shared out evenly.
    """
    total = amounts.sum()
    least = max(amounts.max(), np.ceil(total / num_parts))
    largest = np.bincount(homes, amounts, minlength=num_parts).max()
    return float((largest - least) * num_parts / total) if total else 0.0


def _undirected(topology: Topology) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The edges in both directions, each pair once and no vertex with itself: what METIS takes."""
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
