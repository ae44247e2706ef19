"""Node-wise neighbour sampling without replacement.

Hamilton, Ying and Leskovec, "Inductive representation learning on large graphs", NeurIPS 2017.
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
from hyrt.sampling.checks.arguments import check_call, check_fanouts, check_sampler
from hyrt.sampling.checks.hop import check_hop
from hyrt.sampling.draw_hop import draw_hop
from hyrt.sampling.links.excluded_edges import ExcludedEdges
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.order import TargetOrder
from hyrt.sampling.sampler import Hop, HopSampler


class NeighborSampler:
    """Samples L blocks around targets; a unit is one target.

    A vertex's neighbours in layer l of a step are drawn with the key (seed, step, l, vertex), so they are the
    same in every mini-batch, on every thread and for every split.

    Parameters
    ----------
    fanouts
        Neighbours of each vertex per layer, the targets' layer first; -1 takes all.
    sampled_degrees
        Say of each vertex that its degree is the number of neighbours that its layer draws.
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
        *,
        sampled_degrees: bool = False,
    ) -> None:
        graph, targets = check_sampler(
            graph, targets, seed, class_weights, may_be_empty=True, batch_size=batch_size
        )
        self._graph = graph
        # Counted from the input, as layers are.
        self._fanouts = check_fanouts(fanouts)[::-1]
        self._seed = seed
        most = self._fanouts if sampled_degrees else None
        self._blocks = BlockMaker(graph, len(self._fanouts), seed, class_weights, most)
        self.ids = self._blocks.ids
        self._order = TargetOrder(targets, batch_size, seed)

    def steps_per_epoch(self) -> int:
        return self._order.steps_per_epoch

    def units(self, step: int) -> Ids:
        return self._order.batch(step)

    def exclude(self, step: int, excluded: ExcludedEdges | None) -> None:
        """See `hyrt.sampling.links.excluded_edges.ExcludesEdges`."""
        self._blocks.exclude(excluded)

    def sample(
        self, step: int, units: Ids, workers: Workers, *, in_place: bool, hops: HopSampler | None = None
    ) -> MiniBatch:
        topology, pool = self._graph.topology, self._blocks.pool
        num = self._graph.num_vertices
        units = check_call(step, units, workers, in_place, hops, num, "vertices", takes_hops=True)

        def draw(layer: int, vertices: Ids, renumber: bool, arrays: TakenArrays) -> Hop:
            key, fanout = stream_key(self._seed, SAMPLE, step, layer), self._fanouts[layer - 1]
            if hops is not None:
                hop = hops.draw(vertices, fanout, key, relabel=renumber)
                return check_hop(hop, vertices, num, relabelled=renumber)
            return draw_hop(topology, vertices, fanout, key, workers, pool, arrays)

        return self._blocks.minibatch(step, units, workers, draw, in_place=in_place, drawn_here=hops is None)
