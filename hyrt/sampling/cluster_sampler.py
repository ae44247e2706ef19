"""Sampler whose mini-batches are parts of the graph.

Chiang et al., "Cluster-GCN: an efficient algorithm for training deep and large graph convolutional networks",
KDD 2019.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.checks import check_array, check_range
from hyrt.errors import ArgumentError
from hyrt.graph.graph import Graph
from hyrt.runtime.buffer_pool import BufferPool, PooledArrays
from hyrt.runtime.rng import SHUFFLE, stream_key
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.block_builder import build_square_blocks
from hyrt.sampling.kernels import prefix_sum
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.sampler import HopSampler, check_call, check_sampler, check_step, id_dtype
from hyrt.sampling.subgraph_kernels import assign_rows, count_columns, reset_rows, write_columns

_GRAIN = 256


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
        self._graph = graph
        self._layers = layers
        self._units_per_step = units_per_step
        self._parts_per_unit = parts_per_unit
        self._seed = seed
        self._class_weights = class_weights
        self.ids = id_dtype(graph)
        is_target = np.zeros(graph.num_vertices, np.bool_)
        is_target[targets] = True
        self._is_target = is_target
        # Sort the vertices by part, with the targets of each part first.
        order = np.lexsort((~is_target, parts))
        self._vertices: Ids = order.astype(self.ids)
        self._starts = np.searchsorted(parts[order], np.arange(int(parts.max()) + 2))
        self._num_targets = np.bincount(parts[targets], minlength=len(self._starts) - 1)
        self._parts = np.flatnonzero(self._num_targets)
        self._local = np.full(graph.num_vertices, -1, np.int32)
        self._pool = BufferPool()

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
        arrays = PooledArrays(self._pool)
        topology = self._graph.topology
        graph = (topology.indptr, topology.indices)
        subgraphs = [self._members(int(unit)) for unit in units]
        num, num_targets = (sum(each) for each in zip(*((len(v), t) for v, t in subgraphs), strict=True))
        sources, counts = arrays.take(num, self.ids), np.empty(num, np.int32)
        # Rows begin with the targets of all groups, followed by all other vertices.
        firsts = np.cumsum([[0, num_targets], *([t, len(v) - t] for v, t in subgraphs)], axis=0)[:-1]
        for (vertices, targets), first in zip(subgraphs, firsts, strict=True):
            assign_rows(vertices, targets, first[0], first[1], self._local, sources)
            count = partial(count_columns, *graph, vertices, self._local, counts)
            workers.run(count, len(vertices), _GRAIN)
            reset_rows(vertices, self._local)
        edges = int(counts.sum(dtype=np.int64))
        if edges >= 2**31:
            raise OverflowError(
                f"the parts of step {step} have too many edges ({edges:,}): raise sampler.parts"
            )
        offsets, columns = arrays.take(num + 1, np.int32), arrays.take(edges, np.int32)
        prefix_sum(counts, offsets)
        for (vertices, targets), first in zip(subgraphs, firsts, strict=True):
            assign_rows(vertices, targets, first[0], first[1], self._local, sources)
            write = partial(write_columns, *graph, vertices, self._local, offsets, columns)
            workers.run(write, len(vertices), _GRAIN)
            reset_rows(vertices, self._local)
        chosen = sources[:num_targets]
        labels = self._graph.vertices.select_labels(chosen)
        batch = MiniBatch(
            step=step,
            targets=chosen,
            blocks=build_square_blocks(
                topology,
                arrays,
                layers=self._layers,
                step=step,
                seed=self._seed,
                sources=sources,
                num_targets=num_targets,
                offsets=offsets,
                columns=columns,
                workers=workers,
                in_place=in_place,
            ),
            labels=labels,
            target_weights=None if self._class_weights is None else self._class_weights[labels],
            normalizer=float(num_targets),
        )
        batch.on_release(arrays.release)
        return batch

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
