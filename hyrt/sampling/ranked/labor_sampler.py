"""LABOR-0: neighbour sampling in which destinations share their sources.

Balin and Catalyurek, "Layer-Neighbor Sampling: defusing neighborhood explosion in GNNs", NeurIPS 2023.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.graph import Graph
from hyrt.machine.buffer_pool import TakenArrays
from hyrt.machine.generator import SAMPLE, stream_key
from hyrt.machine.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.block_maker import BlockMaker
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.order import TargetOrder
from hyrt.sampling.ranked.labor_draw import draw_labor_hop
from hyrt.sampling.sampler import Hop, HopSampler


class LaborSampler:
    """Samples L blocks around targets; a unit is one target.

    A source's number in layer l of a step is drawn with the key (seed, step, l, source), so what a vertex
    draws does not depend on the mini-batch that it is in.

    Parameters
    ----------
    fanouts
        Neighbours of each vertex per layer, the targets' layer first; -1 takes all.
    graph, targets, batch_size, seed, class_weights
        The arguments of `hyrt.sampling.sampler_settings.SamplerSettings.build`.
    """

    def __init__(
        self,
        graph: Graph,
        targets: Ids,
        fanouts: Sequence[int],
        batch_size: int,
        seed: int,
        class_weights: NDArray[np.float32] | None = None,
    ) -> None:
        self._topology = graph.topology
        self._fanouts = list(fanouts)[::-1]
        self._seed = seed
        self._blocks = BlockMaker(graph, len(self._fanouts), seed, class_weights)
        self.ids = self._blocks.ids
        self._order = TargetOrder(targets.astype(self.ids), batch_size, seed)

    def steps_per_epoch(self) -> int:
        return self._order.steps_per_epoch

    def units(self, step: int) -> Ids:
        return self._order.batch(step)

    def sample(
        self, step: int, units: Ids, workers: Workers, *, in_place: bool, hops: HopSampler | None = None
    ) -> MiniBatch:
        assert hops is None, "no device draws as LABOR does"

        def draw(layer: int, vertices: Ids, renumber: bool, arrays: TakenArrays) -> Hop:
            key = stream_key(self._seed, SAMPLE, step, layer)
            fanout, pool = self._fanouts[layer - 1], self._blocks.pool
            return draw_labor_hop(self._topology, vertices, fanout, key, workers, pool, arrays)

        return self._blocks.minibatch(step, units, workers, draw, in_place=in_place)
