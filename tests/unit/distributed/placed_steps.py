"""Steps whose roots are placed, and mini-batches of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from unit.sampling.small_graphs import graph_of

from hyrt.distributed.strategies.strategy import InputBlock
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.neighbor_sampler import NeighborSampler

ALONE = Workers(1, "test")


def drawn_block(sources: Sequence[int]) -> Block:
    """A block of which only the sources count."""
    ids = np.array(sorted(sources), np.int32)
    return Block(
        indptr=np.zeros(1, np.int32),
        columns=np.zeros(0, np.int32),
        destinations=ids[:0],
        sources=ids,
        num_src=len(ids),
        degrees=np.zeros(0, np.int32),
        source_degrees=np.zeros(len(ids), np.int32),
        layer=1,
    )


def micrographs(roots: Sequence[int], vertices: Mapping[int, set[int]]) -> InputBlock:
    """Mini-batches that are unions of given micrographs."""
    return lambda positions: drawn_block(sorted(set().union(*(vertices[roots[i]] for i in positions))))


def random_sampler(num: int, seed: int) -> NeighborSampler:
    """Two layers of small fan-outs on a graph in which neighbours are mostly near each other."""
    rng = np.random.default_rng(seed)
    near = [(v + rng.geometric(0.2, 5) * rng.choice([-1, 1], 5)) % num for v in range(num)]
    graph = graph_of([np.unique(row) for row in near])
    return NeighborSampler(graph, np.arange(num), [3, 2], num // 3, seed)


def input_blocks(sampler: NeighborSampler, step: int) -> InputBlock:
    """The input's blocks of a step's units."""
    units = sampler.units(step)
    return lambda positions: sampler.sample(step, units[positions], ALONE, in_place=False).blocks[0]
