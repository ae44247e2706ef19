"""Mini-batches whose edges are drawn layer by layer."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.graph import Graph
from hyrt.machine.buffer_pool import BufferPool, TakenArrays
from hyrt.machine.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.block_maker import BlockMaker
from hyrt.sampling.checks.arguments import check_call, check_draw, check_sampler
from hyrt.sampling.checks.hop import check_hop
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.order import TargetOrder
from hyrt.sampling.sampler import Hop, HopSampler


class LayerDraw(Protocol):
    """Samples the edges of one layer of a mini-batch."""

    def draw(
        self, step: int, layer: int, vertices: Ids, workers: Workers, pool: BufferPool, arrays: TakenArrays
    ) -> Hop:
        """Sample edges; the result for a vertex depends only on the step, the layer and the vertex.

        Parameters
        ----------
        step
            Step of the run.
        layer
            Layer 1..L, counted from the input.
        vertices
            [n] distinct vertices.
        workers
            The team of threads that runs the chunks.
        pool
            The pool of temporary arrays.
        arrays
            Allocates the result.
        """
        ...


class LayeredSampler:
    """Samples L blocks around targets; a unit is one target.

    Parameters
    ----------
    layers
        The blocks of a mini-batch.
    draw
        Samples the edges of each layer.
    graph, targets, batch_size, seed, class_weights
        The arguments of `hyrt.sampling.sampler_settings.SamplerSettings.build`.
    """

    def __init__(
        self,
        graph: Graph,
        targets: Ids,
        layers: int,
        draw: LayerDraw,
        batch_size: int,
        seed: int,
        class_weights: NDArray[np.float32] | None = None,
    ) -> None:
        graph, targets = check_sampler(
            graph, targets, seed, class_weights, batch_size=batch_size, layers=layers
        )
        self._num_vertices = graph.num_vertices
        self._draw = check_draw(draw)
        self._blocks = BlockMaker(graph, layers, seed, class_weights)
        self.ids = self._blocks.ids
        self._order = TargetOrder(targets, batch_size, seed)

    def steps_per_epoch(self) -> int:
        return self._order.steps_per_epoch

    def units(self, step: int) -> Ids:
        return self._order.batch(step)

    def sample(
        self, step: int, units: Ids, workers: Workers, *, in_place: bool, hops: HopSampler | None = None
    ) -> MiniBatch:
        num = self._num_vertices
        units = check_call(step, units, workers, in_place, hops, num, "vertices")

        def draw(layer: int, vertices: Ids, renumber: bool, arrays: TakenArrays) -> Hop:
            hop = self._draw.draw(step, layer, vertices, workers, self._blocks.pool, arrays)
            return check_hop(hop, vertices, num, relabelled=renumber)

        return self._blocks.minibatch(step, units, workers, draw, in_place=in_place)
