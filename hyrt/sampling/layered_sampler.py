"""Samplers that sample edges layer by layer, either per mini-batch or for a whole step at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import ArgumentError
from hyrt.formatting import short_repr
from hyrt.graph.graph import Graph
from hyrt.runtime.buffer_pool import BufferPool, PooledArrays
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.block_builder import BlockBuilder, TargetShuffler
from hyrt.sampling.kernels import copy_rows, prefix_sum, relabel
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.sampler import Hop, HopSampler, check_call, check_hop, check_layer_sampler, check_sampler


class LayerSampler(Protocol):
    """Sampler of the edges of one layer of a mini-batch."""

    def draw(
        self, step: int, layer: int, vertices: Ids, workers: Workers, pool: BufferPool, arrays: PooledArrays
    ) -> Hop:
        """Sample edges. The result for a vertex depends only on the step, the layer and the vertex.

        Parameters
        ----------
        step
            Step of the run.
        layer
            Layer from 1 to L, counted from the input.
        vertices
            Distinct vertices [n].
        workers
            Worker team that runs the chunks.
        pool
            Buffer pool for temporary arrays.
        arrays
            Allocator of the resulting arrays.
        """
        ...


class LayeredSampler:
    """Sampler of L blocks around targets, with edges from `layer_sampler`. A unit is one target."""

    def __init__(
        self,
        graph: Graph,
        targets: Ids,
        layers: int,
        layer_sampler: LayerSampler,
        batch_size: int,
        seed: int,
        class_weights: NDArray[np.float32] | None = None,
    ) -> None:
        graph, targets = check_sampler(
            graph, targets, seed, class_weights, batch_size=batch_size, layers=layers
        )
        self._num_vertices = graph.num_vertices
        self._draw = check_layer_sampler(layer_sampler)
        self._blocks = BlockBuilder(graph, layers, seed, class_weights)
        self.ids = self._blocks.ids
        self._order = TargetShuffler(targets, batch_size, seed)

    def steps_per_epoch(self) -> int:
        return self._order.steps_per_epoch

    def units(self, step: int) -> Ids:
        return self._order.batch(step)

    def sample(
        self, step: int, units: Ids, workers: Workers, *, in_place: bool, hops: HopSampler | None = None
    ) -> MiniBatch:
        num = self._num_vertices
        units = check_call(step, units, workers, in_place, hops, num, "vertices")

        def draw(layer: int, vertices: Ids, renumber: bool, arrays: PooledArrays) -> Hop:
            hop = self._draw.draw(step, layer, vertices, workers, self._blocks.pool, arrays)
            return check_hop(hop, vertices, num, relabelled=renumber)

        return self._blocks.build(step, units, workers, draw, in_place=in_place)


_GRAIN = 1024


class StepLayerSampler(Protocol):
    """Sampler of the edges of a layer for all destinations of a step."""

    def draw(self, step: int, layer: int, vertices: Ids, workers: Workers) -> Hop:
        """Sample edges. The result depends only on the step, the layer and the set of vertices.

        Parameters
        ----------
        step
            Step of the run.
        layer
            Layer from 1 to L, counted from the input.
        vertices
            Distinct vertices [n]: all destinations of the layer.
        workers
            Worker team that runs the chunks.
        """
        ...


@dataclass(frozen=True, slots=True)
class StepLayer:
    """Sampled edges of one layer of a step."""

    vertices: Ids
    """All destinations of the layer, [n]."""
    hop: Hop
    """Sampled neighbours of each destination."""

    __repr__ = short_repr


class StepSampler:
    """Sampler of L blocks around targets, with edges that are sampled per step. A unit is one target.

    Each process and device first samples the edges of the whole step, with the same result everywhere, and
    then selects the rows of its mini-batch. The in-edges of a vertex are therefore equal in all mini-batches
    of the step, although they depend on all of its targets. The edges of the last step are cached, because
    mini-batches of a step are sampled one after the other.

    Parameters
    ----------
    layers
        Number of blocks per mini-batch.
    layer_sampler
        Sampler of the edges of each layer of a step.
    graph, targets, batch_size, seed, class_weights
        See `hyrt.sampling.sampler_settings.SamplerSettings.build`.
    """

    def __init__(
        self,
        graph: Graph,
        targets: Ids,
        layers: int,
        layer_sampler: StepLayerSampler,
        batch_size: int,
        seed: int,
        class_weights: NDArray[np.float32] | None = None,
    ) -> None:
        graph, targets = check_sampler(
            graph, targets, seed, class_weights, batch_size=batch_size, layers=layers
        )
        self._num_vertices = graph.num_vertices
        self._layers = layers
        self._draw = check_layer_sampler(layer_sampler)
        self._blocks = BlockBuilder(graph, layers, seed, class_weights)
        self.ids = self._blocks.ids
        self._order = TargetShuffler(targets, batch_size, seed)
        self._drawn: tuple[int, list[StepLayer]] | None = None

    def steps_per_epoch(self) -> int:
        return self._order.steps_per_epoch

    def units(self, step: int) -> Ids:
        return self._order.batch(step)

    def sample(
        self, step: int, units: Ids, workers: Workers, *, in_place: bool, hops: HopSampler | None = None
    ) -> MiniBatch:
        """Sample a mini-batch; see `Sampler.sample`. Raises ValueError for a unit that is not in the step."""
        units = check_call(step, units, workers, in_place, hops, self._num_vertices, "vertices")
        if self._drawn is None or self._drawn[0] != step:
            self._drawn = step, self._layers_of(step, workers)
        layers = self._drawn[1]

        def cut(layer: int, vertices: Ids, renumber: bool, arrays: PooledArrays) -> Hop:
            return self._cut(layers[layer - 1], vertices, step, workers, arrays)

        return self._blocks.build(step, units, workers, cut, in_place=in_place, may_overwrite=False)

    def _layers_of(self, step: int, workers: Workers) -> list[StepLayer]:
        """Return the edges of all layers, input layer first."""
        found: list[StepLayer] = []
        vertices = self.units(step)
        for layer in range(self._layers, 0, -1):
            hop = self._draw.draw(step, layer, vertices, workers)
            check_hop(hop, vertices, self._num_vertices, relabelled=False)
            found.append(StepLayer(vertices, hop))
            if layer > 1:
                buffer = np.empty(min(len(vertices) + len(hop.neighbors), self._num_vertices), vertices.dtype)
                columns = np.empty(len(hop.neighbors), np.int32)
                vertices = buffer[: relabel(vertices, hop.neighbors, self._blocks.local, buffer, columns)]
        return found[::-1]

    def _cut(
        self, of_step: StepLayer, vertices: Ids, step: int, workers: Workers, arrays: PooledArrays
    ) -> Hop:
        hop = of_step.hop
        if np.array_equal(vertices, of_step.vertices):
            return hop
        local = self._blocks.local
        local[of_step.vertices] = np.arange(len(of_step.vertices), dtype=np.int32)
        rows = local[vertices]
        local[of_step.vertices] = -1
        if rows.min(initial=0) < 0:
            stranger = int(vertices[rows < 0][0])
            raise ArgumentError(
                f"vertex {stranger} is not part of step {step}, so its neighbours were not sampled: pass "
                "units from units(step)"
            )
        offsets = arrays.take(len(rows) + 1, np.int32)
        prefix_sum(np.diff(hop.offsets)[rows], offsets)

        def of_rows(values: NDArray[Any]) -> NDArray[Any]:
            out = arrays.take(int(offsets[-1]), values.dtype)
            workers.run(
                lambda start, stop: copy_rows(hop.offsets, values, rows, offsets, start, stop, out),
                len(rows),
                _GRAIN,
            )
            return out

        return Hop(
            degrees=hop.degrees[rows],
            offsets=offsets,
            neighbors=of_rows(hop.neighbors),
            edge_types=None if hop.edge_types is None else of_rows(hop.edge_types),
            weights=None if hop.weights is None else of_rows(hop.weights),
        )
