"""Mini-batches whose blocks are one square adjacency."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.topology import Topology
from hyrt.machine.buffer_pool import TakenArrays
from hyrt.machine.workers import Workers
from hyrt.sampling.block import Block, Ids
from hyrt.sampling.edges.edge_values import EdgeValues, edge_values


def square_blocks(
    topology: Topology,
    arrays: TakenArrays,
    *,
    layers: int,
    step: int,
    seed: int,
    sources: Ids,
    num_targets: int,
    offsets: Ids,
    columns: Ids,
    weights: NDArray[np.float32] | None = None,
    workers: Workers,
    in_place: bool,
) -> list[Block]:
    """Build the blocks of all layers: the same edges, but the last has only target destinations.

    Parameters
    ----------
    topology
        The edges of the graph.
    arrays
        Where the memory of the result is taken from.
    layers
        The number of blocks.
    step, seed
        The key of the dropout masks.
    sources
        [n] vertices of the rows, the targets' first; one may have several rows.
    num_targets
        How many of the rows are targets.
    offsets, columns, weights
        The edges as CSR over all rows, and their weights.
    workers
        The team of threads that looks up what edges have.
    in_place
        Whether the first block's sources are vertices of the graph.
    """
    num = len(sources)
    degrees = arrays.take(num, np.int32)
    np.take(topology.in_degrees, sources, out=degrees, mode="clip")
    values, sums, of_sources = EdgeValues(), None, None
    if topology.has_edge_values:
        values = edge_values(topology, sources, offsets, sources[columns], workers, arrays)
    if values.weights is not None:
        sums = topology.weighted_degrees
        of_sources = sums[sources]
    blocks = []
    for layer in range(1, layers + 1):
        rows = num_targets if layer == layers else num
        edges = slice(0, int(offsets[rows]))
        block = Block(
            indptr=offsets[: rows + 1],
            columns=columns[edges],
            destinations=sources[:rows],
            sources=sources,
            num_src=num,
            degrees=degrees[:rows],
            source_degrees=degrees,
            layer=layer,
            step=step,
            seed=seed,
            weights=None if weights is None else weights[edges],
            edge_weights=None if values.weights is None else values.weights[edges],
            edge_features=None if values.features is None else values.features[edges],
            weighted_degrees=None if of_sources is None else of_sources[:rows],
            source_weighted_degrees=of_sources,
        )
        if in_place and layer == 1:
            vertices = arrays.take(block.num_edges, sources.dtype)
            np.take(sources, block.columns, out=vertices, mode="clip")
            block.columns, block.sources = vertices, None
            block.num_src, block.source_degrees = topology.num_vertices, topology.in_degrees
            block.source_scale = lambda: topology.gcn_scale
            block.source_weighted_degrees = sums
        blocks.append(block.trusted())
    return blocks
