"""Poisson sampling, for `hyrt run ... sampler.kind=poisson`: every neighbour is kept or not by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba as nb
import numpy as np

from hyrt.graph.graph import Graph
from hyrt.runtime.rng import SAMPLE, random_bits, stream_key, vertex_stream
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.neighbor_sampler import NeighborSampler
from hyrt.sampling.sampler import Hop
from hyrt.sampling.sampler_settings import SamplerSettings


class PoissonSettings(SamplerSettings):
    """The Poisson form of LABOR-0 (Balin and Catalyurek, "Layer-Neighbor Sampling", 2023).

    Each vertex has one random number in a layer, the same for all destinations. Destination v keeps its
    neighbour u if u's number is below fanout / degree(v), so `fanout` neighbours are expected, where hyrt's
    own `labor` takes exactly so many; destinations share them.
    """

    same_in_all_layers: bool = False
    """Whether a vertex has one random number for all layers, so that layers share neighbours too."""

    def build(
        self, graph: Graph, targets: Ids, *, layers: int, batch_size: int, seed: int, **more: Any
    ) -> Any:
        blocks = NeighborSampler(graph, targets, self.fanouts(layers), batch_size, seed, **more)
        return PoissonSampler(graph, blocks, seed if self.same_in_all_layers else None)


@dataclass
class PoissonSampler:
    """Builds mini-batches as neighbour sampling does, of other neighbours.

    It is a `hyrt.sampling.sampler.Sampler`.
    """

    graph: Graph
    blocks: NeighborSampler
    shared_seed: int | None

    def steps_per_epoch(self) -> int:
        return self.blocks.steps_per_epoch()

    def units(self, step: int) -> Ids:
        return self.blocks.units(step)

    def sample(
        self, step: int, units: Ids, workers: Workers, *, in_place: bool, hops: Any = None
    ) -> MiniBatch:
        key = None if self.shared_seed is None else stream_key(self.shared_seed, SAMPLE, step, 0)
        return self.blocks.sample(step, units, workers, in_place=in_place, hops=Neighbors(self.graph, key))


@dataclass
class Neighbors:
    """Draws the neighbours of one layer: a `hyrt.sampling.sampler.HopSampler`."""

    graph: Graph
    key: np.uint64 | None

    def draw(self, vertices: Ids, fanout: int, key: np.uint64, *, relabel: bool) -> Hop:
        topology = self.graph.topology
        degrees = topology.in_degrees[vertices]
        offsets = np.zeros(len(vertices) + 1, np.int32)
        kept = np.empty(degrees.sum(dtype=np.int64), vertices.dtype)
        used = key if self.key is None else self.key
        keep(topology.indptr, topology.indices, vertices, fanout, used, offsets, kept)
        return Hop(degrees, offsets, kept[: offsets[-1]])

    def close(self) -> None:
        pass


@nb.njit(nogil=True, cache=True)
def keep(indptr, indices, vertices, fanout, key, offsets, kept):
    """Write the neighbours that are kept; their numbers depend on (seed, step, layer, vertex) alone."""
    num = 0
    for i, v in enumerate(vertices):
        degree = indptr[v + 1] - indptr[v]
        for u in indices[indptr[v] : indptr[v + 1]]:
            number = random_bits(vertex_stream(key, np.uint64(u)), np.uint64(0)) / 2.0**64
            if fanout < 0 or number * degree < fanout:
                kept[num] = u
                num += 1
        offsets[i + 1] = num
