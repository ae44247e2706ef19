"""Sampler of subgraphs that random walks visit.

Zeng et al., "GraphSAINT: graph sampling based inductive learning method", ICLR 2020.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.graph import Graph
from hyrt.runtime.buffer_pool import PooledArrays
from hyrt.runtime.rng import PRESAMPLE, WALK, stream_key
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.block_builder import SubgraphBatchBuilder
from hyrt.sampling.kernels import prefix_sum
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.sampler import HopSampler, check_call, check_sampler, check_step
from hyrt.sampling.subgraph_kernels import (
    collect_distinct,
    count_columns,
    count_members,
    mark_members,
    random_walks,
    write_edges,
)

_GRAIN = 256
# Number of subgraphs that are pre-sampled together, which have one bit each in a 64-bit word per vertex.
_ROUND = 64


class SaintSampler:
    """Sampler of subgraphs that random walks induce. A unit is the global number of a subgraph.

    A subgraph has the vertices that `roots` walks of `walk_length` steps visit, and all edges between these
    vertices. Walks start at training targets, sampled uniformly with replacement. Each step goes to the
    source of a uniformly sampled incoming edge; a walk at a vertex without incoming edges stays there. Walk i
    of a subgraph is sampled with the key (seed, walk, subgraph, i, step of the walk), so a subgraph does not
    depend on the other subgraphs of its mini-batch.

    The subgraphs of a mini-batch form a disjoint union: a vertex of two subgraphs has two rows. All blocks
    have the same square adjacency matrix, except that only targets are destinations of the last block. The
    rows therefore begin with the targets of all subgraphs.

    Both normalizations (section 3.2 of the paper) use counts over N pre-sampled subgraphs with separate
    random streams: C_v is the number of subgraphs with vertex v, and C_uv the number with edge (u, v).

    - aggregator: a sum over in-neighbours u of v weighs u by C_v / C_uv, an estimate of 1 / P(u in | v in),
      so that its expectation, given that v is in the subgraph, is the full-graph sum (`Block.weights`);
    - loss: v's loss counts N / (C_v n), an estimate of 1 / (p_v n) with n the number of training targets. The
      sum over one subgraph has the mean loss over all targets as its expectation, and a mini-batch's
      `normalizer` is its number of subgraphs.

    Both ratios are computed as (a + 1) / (b + 1). If b has a binomial distribution (a, p), its expected value
    is (1 - (1 - p)^(a + 1)) / p, which is nearly unbiased, whereas a / b is too large on average. It is also
    finite for vertices and edges that were never pre-sampled, for which other implementations use a constant
    and clip the ratio.

    Pre-sampling ends when the targets have been visited `coverage` times on average, as in the authors' code.
    The counts take 4 bytes per edge and per vertex. Raises ValueError if there are no targets, or a count is
    below 1.
    """

    def __init__(
        self,
        graph: Graph,
        targets: Ids,
        layers: int,
        roots: int,
        walk_length: int,
        units_per_step: int,
        seed: int,
        class_weights: NDArray[np.float32] | None = None,
        *,
        coverage: int = 50,
        workers: Workers | None = None,
    ) -> None:
        graph, targets = check_sampler(
            *(graph, targets, seed, class_weights),
            layers=layers,
            roots=roots,
            walk_length=walk_length,
            units_per_step=units_per_step,
            coverage=coverage,
        )
        self._topology = graph.topology
        self._roots = roots
        self._walk_length = walk_length
        self._units_per_step = units_per_step
        self._seed = seed
        self._batches = SubgraphBatchBuilder(graph, layers, seed, class_weights)
        self.ids = self._batches.ids
        self._targets = targets
        self._is_target = np.zeros(graph.num_vertices, np.bool_)
        self._is_target[targets] = True
        self._local, self._pool = self._batches.local, self._batches.pool
        self._vertex_counts = np.zeros(graph.num_vertices, np.int32)
        self._edge_counts = np.zeros(graph.num_edges, np.int32)
        self.num_presampled = self._presample(coverage, workers or Workers(1, "presample"))

    def steps_per_epoch(self) -> int:
        """Return the number of targets / (roots * walk_length * units_per_step), rounded up.

        This is the definition of the authors: the walks of an epoch have as many steps as there are targets,
        which does not imply that they visit each target.
        """
        return -(-len(self._targets) // (self._roots * self._walk_length * self._units_per_step))

    def units(self, step: int) -> Ids:
        first = check_step(step) * self._units_per_step
        return np.arange(first, first + self._units_per_step, dtype=np.int64)

    def sample(
        self,
        step: int,
        units: Ids,
        workers: Workers,
        *,
        in_place: bool = False,
        hops: HopSampler | None = None,
    ) -> MiniBatch:
        units = check_call(step, units, workers, in_place, hops, 2**62, "subgraphs")
        arrays, batches = PooledArrays(self._pool), self._batches
        subgraphs = self._find_vertices(units, workers)
        num = sum(len(vertices) for vertices, _ in subgraphs)
        num_targets = sum(targets for _, targets in subgraphs)
        sources, offsets = arrays.take(num, self.ids), arrays.take(num + 1, np.int32)
        graph = (self._topology.indptr, self._topology.indices)
        counts = self._pool.take(num, np.int32)

        def count(vertices: Ids, start: int, stop: int) -> None:
            count_columns(*graph, vertices, self._local, counts, start, stop)

        batches.join_subgraphs(subgraphs, sources, workers, count)
        edges = int(counts.sum(dtype=np.int64))
        if edges >= 2**31:
            raise OverflowError(
                f"the subgraphs of step {step} have too many edges ({edges:,}): lower sampler.roots"
            )
        prefix_sum(counts, offsets)
        self._pool.release(counts)
        columns, weights = arrays.take(edges, np.int32), arrays.take(edges, np.float32)
        sample_counts = (self._vertex_counts, self._edge_counts)

        def write(vertices: Ids, start: int, stop: int) -> None:
            write_edges(*graph, vertices, self._local, offsets, *sample_counts, start, stop, columns, weights)

        batches.join_subgraphs(subgraphs, sources, workers, write)
        for vertices, _ in subgraphs:
            self._pool.release(vertices)
        num_counted = self._vertex_counts[sources[:num_targets]]
        return batches.build(
            step,
            arrays,
            sources=sources,
            num_targets=num_targets,
            offsets=offsets,
            columns=columns,
            weights=weights,
            loss_weights=(self.num_presampled + 1.0) / ((num_counted + 1.0) * len(self._targets)),
            normalizer=float(len(units)),
            workers=workers,
            in_place=in_place,
        )

    def _walk(self, purpose: int, subgraph: int, workers: Workers) -> Ids:
        """Return the vertices [roots * (walk_length + 1)] that a subgraph's walks visit, with duplicates."""
        topology = self._topology
        visited: Ids = self._pool.take(self._roots * (self._walk_length + 1), self.ids)
        key = stream_key(self._seed, purpose, subgraph, 0)
        workers.run(
            lambda start, stop: random_walks(
                topology.indptr, topology.indices, self._targets, self._walk_length, key, start, stop, visited
            ),
            self._roots,
            4 * _GRAIN,
        )
        return visited

    def _presample(self, coverage: int, workers: Workers) -> int:
        """Count vertices and edges until the subgraphs cover the targets; return the number of subgraphs."""
        topology = self._topology
        members = np.empty(topology.num_vertices, np.uint64)
        counts = (self._vertex_counts, self._edge_counts)

        def count(start: int, stop: int) -> None:
            count_members(topology.indptr, topology.indices, members, start, stop, *counts)

        num = 0
        num_visits = 0
        while num_visits < coverage * len(self._targets):
            members[:] = 0
            for subgraph in range(_ROUND):
                visited = self._walk(PRESAMPLE, num + subgraph, workers)
                mark_members(visited, subgraph, members)
                self._pool.release(visited)
            workers.run(count, topology.num_vertices, 16 * _GRAIN)
            num += _ROUND
            num_visits = int(self._vertex_counts[self._targets].sum(dtype=np.int64))
        return num

    def _find_vertices(self, units: Ids, workers: Workers) -> list[tuple[Ids, int]]:
        """Return the vertices, targets first, and the number of targets of each subgraph."""
        subgraphs = []
        for unit in units:
            visited = self._walk(WALK, int(unit), workers)
            vertices: Ids = self._pool.take(len(visited), self.ids)
            num_targets, num = collect_distinct(visited, self._is_target, self._local, vertices)
            self._pool.release(visited)
            subgraphs.append((vertices[:num], num_targets))
        return subgraphs
