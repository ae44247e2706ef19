"""Sampled mini-batches whose sizes are counted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hyrt.graph.graph import Graph
    from hyrt.sampling.minibatch import MiniBatch


def whole_batches(graph: Graph, fanouts: Sequence[int], batch: int) -> Iterator[MiniBatch]:
    """Iterate endlessly over mini-batches of the training split. Each is valid until the next one.

    An incomplete last mini-batch of an epoch is skipped.

    Parameters
    ----------
    graph
        Graph from which mini-batches are sampled.
    fanouts
        Number of neighbours per vertex in each layer, starting with the targets' layer.
    batch
        Number of targets per mini-batch, or the whole split if it is smaller.
    """
    from hyrt.runtime.workers import Workers
    from hyrt.sampling.neighbor_sampler import NeighborSampler

    targets = graph.split("train")
    sampler = NeighborSampler(graph, targets, fanouts, batch, 0)
    with Workers(1, "tool.sample") as workers:
        for step in itertools.count():
            units = sampler.units(step)
            if len(units) == min(batch, len(targets)):
                drawn = sampler.sample(step, units, workers, in_place=False)
                yield drawn
                drawn.release()
