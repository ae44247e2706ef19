"""Mini-batches of links, over the mini-batches that another sampler makes around their ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.links.relation_links import RelationLinks
from hyrt.graph.topology import Topology
from hyrt.machine.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.full.full_sampler import FullSampler
from hyrt.sampling.links.excluded_edges import ExcludedEdges, ExcludesEdges
from hyrt.sampling.links.negatives import Negatives
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.order import TargetOrder
from hyrt.sampling.sampler import HopSampler


class LinkSampler:
    """A unit is one link; the targets of a mini-batch are the distinct ends of its links and other pairs.

    The labels are [n, 1 + K, 2] int64: rows of the scores of each link's ends, and of those of K pairs that
    are no links. The edges of all links of a step carry no messages in it, whoever trains them.

    Parameters
    ----------
    links
        [M, 2] sources and destinations of the links to train on.
    vertices
        Makes mini-batches around vertices.
    negatives
        Draws the pairs that are no links.
    topology
        The edges that carry messages.
    exclude
        Which of them do not in a step: those of its links (`edges`); all between the ends of its links, in
        either direction and under any relation (`both`); or none.
    relation
        The relation of a typed graph whose edges links are; None of others.
    batch_size
        The links of a step.
    seed
        The seed of the order.
    """

    def __init__(
        self,
        links: NDArray[Any],
        vertices: ExcludesEdges,
        negatives: Negatives,
        topology: Topology,
        exclude: str,
        batch_size: int,
        seed: int,
        relation: RelationLinks | None = None,
    ) -> None:
        self._links = links
        self._relation = relation
        self._vertices: Any = vertices
        self._negatives = negatives
        self._topology = topology
        self._exclude = exclude
        numbers: Ids = np.arange(len(links)).astype(np.int32 if len(links) < 2**31 else np.int64)
        self._order = TargetOrder(numbers, batch_size, seed)
        # Steps are cut in one thread, and sampled in another.
        self._sampled = TargetOrder(numbers, batch_size, seed)
        self._step = -1
        self._of_step: NDArray[Any] = links[:0]

    def steps_per_epoch(self) -> int:
        return self._order.steps_per_epoch

    def units(self, step: int) -> Ids:
        return self._order.batch(step)

    def sample(
        self, step: int, units: Ids, workers: Workers, *, in_place: bool, hops: HopSampler | None = None
    ) -> MiniBatch:
        assert hops is None, "a device cannot leave edges out"
        if step != self._step:
            self._begin(step)
        pairs, vertices = pairs_of(step, units, self._links, self._negatives, self._of_step)
        batch: MiniBatch = self._vertices.sample(step, vertices, workers, in_place=in_place)
        batch.labels = pairs
        batch.normalizer = float(len(units))
        return batch

    def _begin(self, step: int) -> None:
        """Find the links of a step, and exclude their edges."""
        self._of_step = self._links[self._sampled.batch(step)]
        excluded = None
        if self._exclude != "none":
            links = self._of_step
            relation = self._relation
            left_out: list[tuple[NDArray[Any], int | None]]
            if self._exclude == "edges":
                left_out = [(links, None if relation is None else relation.number)]
            elif relation is None:
                left_out = [(links, None), (links[:, ::-1], None)]
            else:
                left_out = [*relation.edges_between(links)]
            excluded = ExcludedEdges(self._topology, left_out)
        self._vertices.exclude(step, excluded)
        self._step = step


class FullLinkSampler:
    """Steps of the whole graph: all links, with other pairs in each step.

    Parameters
    ----------
    links, negatives
        The links and what draws other pairs, as in `LinkSampler`.
    whole
        Makes the blocks.
    """

    def __init__(self, links: NDArray[Any], whole: FullSampler, negatives: Negatives) -> None:
        self._links = links
        self._numbers = np.arange(len(links))
        self._whole = whole
        self._negatives = negatives

    def steps_per_epoch(self) -> int:
        return 1

    def units(self, step: int) -> Ids:
        return self._whole.units(step)

    def sample(
        self, step: int, units: Ids, workers: Workers, *, in_place: bool, hops: HopSampler | None = None
    ) -> MiniBatch:
        pairs, vertices = pairs_of(step, self._numbers, self._links, self._negatives, self._links)
        batch = self._whole.sample(step, units, workers, in_place=in_place)
        rows = vertices.astype(batch.targets.dtype)
        return replace(
            batch, targets=rows, target_rows=rows, labels=pairs, normalizer=float(len(self._links))
        )


def pairs_of(
    step: int, units: Ids, links: NDArray[Any], negatives: Negatives, of_step: NDArray[Any]
) -> tuple[NDArray[np.int64], Ids]:
    """Return the pairs of links and negatives, and their distinct vertices.

    Returns
    -------
    [n, 1 + K, 2] int64 positions in the vertices, and [v] the vertices, sorted, of the dtype of `links`.
    """
    own = links[units]
    others = negatives.draw(step, units, own, of_step)
    pairs = np.concatenate([own[:, None].astype(np.int64), others], axis=1)
    vertices, places = np.unique(pairs, return_inverse=True)
    return places.reshape(pairs.shape).astype(np.int64), vertices.astype(links.dtype)
