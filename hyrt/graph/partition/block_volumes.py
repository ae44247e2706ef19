"""Numbers of rows and edges that blocks of vertices exchange in a product over the full graph."""

# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

from typing import Any

import numpy as np
from hyrt_perfmodel.distributed_epoch import BlockVolumes
from numpy.typing import NDArray

from hyrt.checks import check_array, check_int, check_range
from hyrt.graph.partition.partitioned_rows import group_by_part
from hyrt.graph.topology import Topology
from hyrt.runtime.numba_cache import nb

Array = NDArray[Any]


def count_block_volumes(indptr: Array, indices: Array, blocks: Array, num_blocks: int) -> BlockVolumes:
    """Count the rows and edges that blocks exchange; edges are CSR by destination, `blocks` [V] indices."""
    _ = Topology(indptr, indices).checked
    check_int("num_blocks", num_blocks, 1, 2**31 - 1)
    check_array("blocks", blocks, "iu", (len(indptr) - 1,), "a block index for each vertex")
    check_range("blocks", blocks, num_blocks, "blocks")
    order, bounds = group_by_part(blocks, num_blocks)
    needed = np.zeros((num_blocks, num_blocks), np.int64)
    edges = np.zeros((num_blocks, num_blocks), np.int64)
    last = np.full(len(blocks), -1, np.int32)
    for block in range(num_blocks):
        members = order[bounds[block] : bounds[block + 1]]
        _count(indptr, indices, blocks, members, block, last, needed[block], edges[block])
    rows = np.bincount(blocks, minlength=num_blocks).astype(np.int64)
    return BlockVolumes(rows=rows, needed=needed, edges=edges)


def merge_parts(part_ids: Array, num_parts: int, num_blocks: int) -> Array:
    """Return the block of each vertex, [V] int64, after merging neighbouring parts to blocks."""
    found: Array = part_ids.astype(np.int64) * num_blocks // num_parts
    return found


@nb.njit(nogil=True, cache=True, boundscheck=False)
def _count(indptr, indices, blocks, members, block, last, needed, edges):
    """Count the distinct sources and the edges of a block's members for each block of the source."""
    for v in members:
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            edges[blocks[u]] += 1
            if last[u] != block:
                last[u] = block
                if blocks[u] != block:
                    needed[blocks[u]] += 1
