"""Mini-batches for link prediction: positive links, sampled negatives, and blocks around their endpoints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hyrt.formatting import short_repr
from hyrt.graph.links.edges import mark_edge_pairs
from hyrt.graph.links.link_split import LinkEndpoints, LinkRelation
from hyrt.graph.topology import Topology
from hyrt.runtime.rng import LINKS, random_bits_array, random_ints_below, stream_key, vertex_streams
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.block_builder import EdgeExcludingSampler, ExcludedEdges, TargetShuffler
from hyrt.sampling.full_sampler import FullSampler
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.sampler import HopSampler

NegativeKind = Literal["uniform", "degree", "batch", "given"]
"""Replacement of an endpoint: any vertex (`uniform`), a vertex with a probability proportional to its degree
(`degree`), or the same endpoint of another link of the step (`batch`). For `given`, a listed pair replaces
both endpoints.
"""

# Number of attempts to sample a pair that is not an edge. The result of the last attempt is used anyway.
_TRIES = 8
_STEP = 7


@dataclass(frozen=True, slots=True)
class NegativeSampler:
    """Sampler of negative pairs, which are vertex pairs without a link."""

    kind: NegativeKind
    num: int
    """Number of negatives per link; `kind` is the kind of negatives."""
    seed: int
    known_edges: Topology
    """Edges that are known in training. A sampled pair that is one of these edges is sampled again."""
    ends: LinkEndpoints
    """Vertices that links may connect."""
    listed_pairs: NDArray[Any] | None = None
    """Pairs for the kind `given`, [n, 2]."""

    __repr__ = short_repr

    def sample(
        self, step: int, units: NDArray[Any], links: NDArray[Any], step_links: NDArray[Any]
    ) -> NDArray[np.int64]:
        """Sample vertex pairs [n, num, 2] without a link.

        `units` [n] are positions in the list of all links, and `links` [n, 2] are the sources and
        destinations of these links. `step_links` [S, 2] are all links of the step in order.
        """
        streams = vertex_streams(stream_key(self.seed, LINKS, step, _STEP), units)
        row, place = (at.ravel() for at in np.indices((len(units), self.num)))
        pairs = np.repeat(links.astype(np.int64), self.num, axis=0)
        left = np.arange(len(pairs))
        for attempt in range(_TRIES):
            counters = place[left] + self.num * attempt
            bits = random_bits_array(streams[row[left]], 2 * counters)
            if self.kind == "given":
                assert self.listed_pairs is not None
                pairs[left] = self.listed_pairs[random_ints_below(bits, len(self.listed_pairs))]
                break
            # The second random number selects the endpoint to replace.
            ends = random_ints_below(random_bits_array(streams[row[left]], 2 * counters + 1), 2)
            pairs[left] = links[row[left]]
            pairs[left, ends] = self._vertices(bits, ends, step_links)
            drawn = pairs[left]
            left = left[(drawn[:, 0] == drawn[:, 1]) | mark_edge_pairs(self.known_edges, drawn)]
            if not len(left):
                break
        return pairs.reshape(len(units), self.num, 2)

    def _vertices(
        self, bits: NDArray[np.uint64], ends: NDArray[np.int64], of_step: NDArray[Any]
    ) -> NDArray[Any]:
        """Return replacement vertices [n] for the endpoints, from one random number each."""
        topology = self.known_edges
        if self.kind == "uniform":
            return self.ends.sample(bits, ends)
        if self.kind == "degree":
            # An endpoint of a random edge has a probability proportional to its degree.
            at = random_ints_below(bits, topology.num_edges)
            into = np.searchsorted(topology.indptr, at, side="right") - 1
            return np.where(ends == 0, topology.indices[at], into)
        return of_step[random_ints_below(bits, len(of_step)), ends]


class LinkSampler:
    """Sampler of link mini-batches. A unit is one link. Targets are the endpoints of links and negatives.

    The labels are [n, 1 + K, 2] int64: for each link, the rows of its two endpoints and of the endpoints of
    its K negatives. The edges of all links of a step carry no messages in the step, on any trainer. `sampler`
    samples around vertices, `links` are [M, 2], and `batch_size` is the number of links per step.

    `exclude` selects the message-passing edges to exclude in a step: the edges of the step's links (`edges`);
    all edges between the endpoints of a link, in either direction and of any relation (`both`); or no edges
    (`none`). `relation` is the relation whose edges are the links; None in a homogeneous graph.
    """

    def __init__(
        self,
        links: NDArray[Any],
        sampler: EdgeExcludingSampler,
        negatives: NegativeSampler,
        topology: Topology,
        exclude: str,
        batch_size: int,
        seed: int,
        relation: LinkRelation | None = None,
    ) -> None:
        self._links = links
        self._relation = relation
        self._vertices: Any = sampler
        self._negatives = negatives
        self._topology = topology
        self._exclude = exclude
        numbers: Ids = np.arange(len(links)).astype(np.int32 if len(links) < 2**31 else np.int64)
        self._order = TargetShuffler(numbers, batch_size, seed)
        # `units` and `sample` run in different threads, so each has its own shuffler.
        self._sampled = TargetShuffler(numbers, batch_size, seed)
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
        pairs, vertices = sample_pairs(step, units, self._links, self._negatives, self._of_step)
        batch: MiniBatch = self._vertices.sample(step, vertices, workers, in_place=in_place)
        batch.labels = pairs
        batch.normalizer = float(len(units))
        return batch

    def _begin(self, step: int) -> None:
        """Select the links of a step and exclude their edges."""
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
    """Sampler of full-graph link prediction. Every step has all links, with new negatives."""

    def __init__(self, links: NDArray[Any], sampler: FullSampler, negatives: NegativeSampler) -> None:
        self._links = links
        self._numbers = np.arange(len(links))
        self._whole = sampler
        self._negatives = negatives

    def steps_per_epoch(self) -> int:
        return 1

    def units(self, step: int) -> Ids:
        return self._whole.units(step)

    def sample(
        self, step: int, units: Ids, workers: Workers, *, in_place: bool, hops: HopSampler | None = None
    ) -> MiniBatch:
        pairs, vertices = sample_pairs(step, self._numbers, self._links, self._negatives, self._links)
        batch = self._whole.sample(step, units, workers, in_place=in_place)
        rows = vertices.astype(batch.targets.dtype)
        return replace(
            batch, targets=rows, target_rows=rows, labels=pairs, normalizer=float(len(self._links))
        )


def sample_pairs(
    step: int, units: Ids, links: NDArray[Any], negatives: NegativeSampler, step_links: NDArray[Any]
) -> tuple[NDArray[np.int64], Ids]:
    """Return links and negatives as pairs of positions in the distinct vertices, and these vertices.

    The positions are [n, 1 + K, 2] int64. The vertices [v] are sorted, with the dtype of `links`.
    """
    positives = links[units]
    others = negatives.sample(step, units, positives, step_links)
    pairs = np.concatenate([positives[:, None].astype(np.int64), others], axis=1)
    vertices, places = np.unique(pairs, return_inverse=True)
    return places.reshape(pairs.shape).astype(np.int64), vertices.astype(links.dtype)
