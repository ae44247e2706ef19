"""Sampler whose mini-batches are parts of the graph.

Chiang et al., "Cluster-GCN: an efficient algorithm for training deep and large graph convolutional networks",
KDD 2019.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.checks import check_array, check_range
from hyrt.errors import ArgumentError
from hyrt.graph.graph import Graph
from hyrt.runtime.buffer_pool import PooledArrays
from hyrt.runtime.rng import SHUFFLE, stream_key
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.block_builder import SubgraphBatchBuilder
from hyrt.sampling.kernels import prefix_sum
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.sampler import HopSampler, check_call, check_sampler, check_step
from hyrt.sampling.subgraph_kernels import count_columns, write_columns


class ClusterSampler:
    """Sampler with groups of graph parts as units. A unit is the global number of a group.

    In each epoch, the parts that have training vertices are shuffled and divided into groups of
    `parts_per_unit` parts. The subgraph of a group has the vertices of its parts and all edges between these
    vertices; edges to other parts are missing. All training vertices of a group are targets, so each training
    vertex is a target once per epoch. `parts` [V] is the index of each vertex's part.
    """

    def __init__(
        self,
        graph: Graph,
        targets: Ids,
        layers: int,
        parts: NDArray[Any],
        parts_per_unit: int,
        units_per_step: int,
        seed: int,
        class_weights: NDArray[np.float32] | None = None,
    ) -> None:
        graph, targets = check_sampler(
            graph,
            targets,
            seed,
            class_weights,
            layers=layers,
            parts_per_unit=parts_per_unit,
            units_per_step=units_per_step,
        )
        parts = check_array("homes", parts, "iu", (graph.num_vertices,), "the part of each vertex")
        check_range("homes", parts, graph.num_vertices, "parts")
        self._topology = graph.topology
        self._units_per_step = units_per_step
        self._parts_per_unit = parts_per_unit
        self._seed = seed
        self._batches = SubgraphBatchBuilder(graph, layers, seed, class_weights)
        self.ids = self._batches.ids
        is_target = np.zeros(graph.num_vertices, np.bool_)
        is_target[targets] = True
        self._is_target = is_target
        # Sort the vertices by part, with the targets of each part first.
        order = np.lexsort((~is_target, parts))
        self._vertices: Ids = order.astype(self.ids)
        self._starts = np.searchsorted(parts[order], np.arange(int(parts.max()) + 2))
        self._num_targets = np.bincount(parts[targets], minlength=len(self._starts) - 1)
        self._parts = np.flatnonzero(self._num_targets)

    @property
    def _groups(self) -> int:
        """Return the number of groups per epoch."""
        return -(-len(self._parts) // self._parts_per_unit)

    def steps_per_epoch(self) -> int:
        return -(-self._groups // self._units_per_step)

    def units(self, step: int) -> Ids:
        epoch, position = divmod(check_step(step), self.steps_per_epoch())
        first = position * self._units_per_step
        last = min(first + self._units_per_step, self._groups)
        return np.arange(epoch * self._groups + first, epoch * self._groups + last, dtype=np.int64)

    def sample(
        self, step: int, units: Ids, workers: Workers, *, in_place: bool, hops: HopSampler | None = None
    ) -> MiniBatch:
        units = check_call(step, units, workers, in_place, hops, 2**62, "groups")
        if not len(units):
            raise ArgumentError("units is empty: pass at least one group of units(step)")
        arrays, batches = PooledArrays(self._batches.pool), self._batches
        graph = (self._topology.indptr, self._topology.indices)
        subgraphs = [self._members(int(unit)) for unit in units]
        num = sum(len(vertices) for vertices, _ in subgraphs)
        num_targets = sum(targets for _, targets in subgraphs)
        sources, counts = arrays.take(num, self.ids), np.empty(num, np.int32)

        def count(vertices: Ids, start: int, stop: int) -> None:
            count_columns(*graph, vertices, batches.local, counts, start, stop)

        batches.join_subgraphs(subgraphs, sources, workers, count)
        edges = int(counts.sum(dtype=np.int64))
        if edges >= 2**31:
            raise OverflowError(
                f"the parts of step {step} have too many edges ({edges:,}): raise sampler.parts"
            )
        offsets, columns = arrays.take(num + 1, np.int32), arrays.take(edges, np.int32)
        prefix_sum(counts, offsets)

        def write(vertices: Ids, start: int, stop: int) -> None:
            write_columns(*graph, vertices, batches.local, offsets, columns, start, stop)

        batches.join_subgraphs(subgraphs, sources, workers, write)
        return batches.build(
            step,
            arrays,
            sources=sources,
            num_targets=num_targets,
            offsets=offsets,
            columns=columns,
            normalizer=float(num_targets),
            workers=workers,
            in_place=in_place,
        )

    def _members(self, unit: int) -> tuple[Ids, int]:
        """Return the vertices of a group, targets first, and the number of targets."""
        epoch, position = divmod(unit, self._groups)
        key = int(stream_key(self._seed, SHUFFLE, epoch, 1))
        shuffled = np.random.Generator(np.random.Philox(key=key)).permutation(self._parts)
        parts = np.sort(shuffled[position * self._parts_per_unit :][: self._parts_per_unit])
        members = np.concatenate([self._vertices[self._starts[p] : self._starts[p + 1]] for p in parts])
        if len(parts) > 1:
            members = members[np.argsort(~self._is_target[members], kind="stable")]
        return members, int(self._num_targets[parts].sum())
