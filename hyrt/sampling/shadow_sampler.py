"""Sampler of bounded subgraphs around targets.

Zeng et al., "Decoupling the depth and scope of graph neural networks", NeurIPS 2021 (ShaDow-GNN).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.graph import Graph
from hyrt.runtime.buffer_pool import PooledArrays
from hyrt.runtime.rng import SAMPLE, stream_key
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.block_builder import SubgraphBatchBuilder, TargetShuffler
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.sampler import HopSampler, check_call, check_sampler
from hyrt.sampling.subgraph_kernels import grow_subgraphs, rows_ascend, write_induced_edges

_GRAIN = 16


class ShadowSampler:
    """Sampler of a subgraph around each target. A unit is one target.

    The subgraph of a target has the target, `fanout` of its neighbours, `fanout` neighbours of each of these,
    and so on for `hops` hops, and all edges between these vertices. All layers of the model run on the
    subgraph. It is sampled with the keys (seed, step, hop, vertex), independently of other targets, so a
    vertex of two subgraphs has two rows.
    """

    def __init__(
        self,
        graph: Graph,
        targets: Ids,
        layers: int,
        hops: int,
        fanout: int,
        batch_size: int,
        seed: int,
        class_weights: NDArray[np.float32] | None = None,
    ) -> None:
        graph, targets = check_sampler(
            *(graph, targets, seed, class_weights),
            batch_size=batch_size,
            layers=layers,
            hops=hops,
            fanout=fanout,
        )
        self._graph = graph
        self._hops, self._fanout = hops, fanout
        self._max_members = min(sum(fanout**hop for hop in range(hops + 1)), graph.num_vertices)
        self._seed = seed
        self._batches = SubgraphBatchBuilder(graph, layers, seed, class_weights)
        self.ids = self._batches.ids
        self._order = TargetShuffler(targets, batch_size, seed)
        self._ascending = rows_ascend(graph.topology.indptr, graph.topology.indices)

    def steps_per_epoch(self) -> int:
        return self._order.steps_per_epoch

    def units(self, step: int) -> Ids:
        return self._order.batch(step)

    def sample(
        self, step: int, units: Ids, workers: Workers, *, in_place: bool, hops: HopSampler | None = None
    ) -> MiniBatch:
        """Sample a mini-batch; see `Sampler.sample`. Raises OverflowError for too many edges for int32."""
        vertices = self._graph.num_vertices
        units = check_call(step, units, workers, in_place, hops, vertices, "vertices")
        topology, num = self._graph.topology, len(units)
        graph, max_members = (topology.indptr, topology.indices), self._max_members
        arrays = PooledArrays(self._batches.pool)
        members = self._batches.pool.take((num, max_members), units.dtype)
        counts = np.empty(num, np.int32)
        keys = np.array([stream_key(self._seed, SAMPLE, step, hop + 1) for hop in range(self._hops)])

        def grow(start: int, stop: int) -> None:
            grow_subgraphs(*graph, units, keys, self._fanout, max_members, start, stop, members, counts)

        workers.run(grow, num, _GRAIN)
        rows = num + np.concatenate([[0], np.cumsum(counts[:-1] - 1, dtype=np.int64)])
        total = num + int((counts - 1).sum(dtype=np.int64))
        sources = arrays.take(total, units.dtype)
        sources[:num] = units
        for i in range(num):
            sources[rows[i] : rows[i] + counts[i] - 1] = members[i, 1 : counts[i]]
        ends = self._batches.pool.take(total + 1, np.int64)
        ends[0] = 0
        known = (self._ascending, members, counts, max_members, rows, num)

        def count(start: int, stop: int) -> None:
            write_induced_edges(*graph, *known, start, stop, False, ends, sources)

        workers.run(count, num, _GRAIN)
        np.cumsum(ends, out=ends)
        if ends[-1] >= 2**31:
            raise OverflowError(
                f"the subgraphs of step {step} have too many edges ({ends[-1]:,}): lower data.batch_size"
            )
        offsets = arrays.take(total + 1, np.int32)
        offsets[:] = ends
        columns = arrays.take(int(ends[-1]), np.int32)

        def write(start: int, stop: int) -> None:
            write_induced_edges(*graph, *known, start, stop, True, offsets, columns)

        workers.run(write, num, _GRAIN)
        self._batches.pool.release(members)
        self._batches.pool.release(ends)
        return self._batches.build(
            step,
            arrays,
            sources=sources,
            num_targets=num,
            offsets=offsets,
            columns=columns,
            normalizer=float(num),
            workers=workers,
            in_place=in_place,
        )
