"""Node-wise neighbour sampling without replacement.

Hamilton, Ying and Leskovec, "Inductive representation learning on large graphs", NeurIPS 2017.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.graph import Graph
from hyrt.machine.buffer_pool import BufferPool, TakenArrays
from hyrt.machine.generator import SAMPLE, stream_key
from hyrt.machine.workers import Workers
from hyrt.sampling.block import Block, Ids
from hyrt.sampling.draw_hop import draw_hop
from hyrt.sampling.kernels import relabel
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.order import TargetOrder
from hyrt.sampling.sampler import Hop, HopSampler

_GRAIN = 1024


class NeighborSampler:
    """Samples L blocks around targets; a unit is one target.

    A vertex's neighbours in layer l of a step are drawn with the key (seed, step, l, vertex), so they are the
    same in every mini-batch, on every thread and for every split.

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
        self._graph = graph
        self._fanouts = list(fanouts)
        self._seed = seed
        self._class_weights = class_weights
        self.ids = np.int32 if graph.num_vertices < 2**31 else np.int64
        self._order = TargetOrder(targets.astype(self.ids), batch_size, seed)
        self._local = np.full(graph.num_vertices, -1, np.int32)
        self._pool = BufferPool()

    def steps_per_epoch(self) -> int:
        return self._order.steps_per_epoch

    def units(self, step: int) -> Ids:
        return self._order.batch(step)

    def sample(
        self, step: int, units: Ids, workers: Workers, *, in_place: bool, hops: HopSampler | None = None
    ) -> MiniBatch:
        arrays = TakenArrays(self._pool)
        blocks: list[Block] = []
        layers = len(self._fanouts)
        destinations = units
        for depth, fanout in enumerate(self._fanouts):
            layer = layers - depth
            key = stream_key(self._seed, SAMPLE, step, layer)
            reads_in_place = in_place and layer == 1
            if hops is None:
                hop = draw_hop(self._graph.topology, destinations, fanout, key, workers, self._pool, arrays)
            else:
                hop = hops.draw(destinations, fanout, key, relabel=not reads_in_place)
            block = self._block(
                destinations, hop, layer, step, workers, reads_in_place, arrays, drawn_here=hops is None
            )
            blocks.append(block)
            if block.sources is not None:
                destinations = block.sources
        labels = self._graph.labels[units].astype(np.int64)
        batch = MiniBatch(
            step=step,
            targets=units,
            blocks=blocks[::-1],
            labels=labels,
            target_weights=None if self._class_weights is None else self._class_weights[labels],
            normalizer=float(len(units)),
        )
        batch.when_released(arrays.give_back)
        return batch

    def _block(
        self,
        destinations: Ids,
        hop: Hop,
        layer: int,
        step: int,
        workers: Workers,
        in_place: bool,
        arrays: TakenArrays,
        *,
        drawn_here: bool,
    ) -> Block:
        topology = self._graph.topology
        if in_place:
            sources, columns = None, hop.neighbors
            num_src, source_degrees = topology.num_vertices, topology.in_degrees
        else:
            sources, columns = self._relabelled(destinations, hop, arrays, drawn_here)
            num_src = len(sources)
            source_degrees = arrays.take(num_src, np.int32)

            def look_up(start: int, stop: int) -> None:
                np.take(topology.in_degrees, sources[start:stop], out=source_degrees[start:stop], mode="clip")

            workers.run(look_up, num_src, 16 * _GRAIN)
        return Block(
            indptr=hop.offsets,
            columns=columns,
            destinations=destinations,
            sources=sources,
            num_src=num_src,
            degrees=hop.degrees,
            source_degrees=source_degrees,
            source_scale=(lambda: topology.gcn_scale) if in_place else None,
            layer=layer,
            step=step,
            seed=self._seed,
            edge_types=hop.edge_types,
            resident=hop.resident,
        )

    def _relabelled(
        self, destinations: Ids, hop: Hop, arrays: TakenArrays, drawn_here: bool
    ) -> tuple[Ids, Ids]:
        """Sources and columns, from whoever numbers them."""
        if hop.sources is not None and hop.columns is not None:
            return hop.sources, hop.columns
        # However many edges lead to them, there are no more sources than vertices.
        most = min(len(destinations) + len(hop.neighbors), self._graph.num_vertices)
        room = arrays.take(most, self.ids)
        # An edge's neighbour is read before its column is written, and nobody else reads what was drawn here.
        in_its_place = drawn_here and hop.neighbors.dtype == np.int32
        columns = hop.neighbors if in_its_place else arrays.take(len(hop.neighbors), np.int32)
        return room[: relabel(destinations, hop.neighbors, self._local, room, columns)], columns
