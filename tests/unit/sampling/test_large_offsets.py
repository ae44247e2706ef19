"""Rows past 2^31 edges, in a sparse file of which only the pages that are written exist."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_graphs import graph_of, sampled_rows

from hyrt.graph.graph import Graph
from hyrt.runtime.workers import Workers
from hyrt.sampling.neighbor_sampler import NeighborSampler

# Four vertices whose rows fill the first 2^31 + 4000 edges, then three small rows.
BIG = 2**29 + 1000
SMALL = [[4, 5, 6], [0, 1, 2, 3, 4, 5, 6], list(range(200, 300))]
VERTICES = 400


@pytest.fixture
def far_graph(tmp_path: Path) -> Graph:
    degrees = np.zeros(VERTICES, np.int64)
    degrees[:4] = BIG
    degrees[4:7] = [len(row) for row in SMALL]
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    path = tmp_path / "indices.bin"
    with path.open("wb") as file:
        file.truncate(int(indptr[-1]) * 4)
        file.seek(int(indptr[4]) * 4)
        file.write(np.concatenate(SMALL).astype(np.int32).tobytes())
    assert path.stat().st_size > 2**31 * 4
    assert path.stat().st_blocks * 512 < 2**20, "the file system stores the holes of sparse files"
    indices = np.memmap(path, np.int32, "r")
    rest = graph_of([[]] * VERTICES)
    return Graph.from_arrays("far", indptr, indices, rest.features, rest.labels, rest.masks)


@pytest.mark.parametrize("fanout", [-1, 2, 70, 1000])
def test_neighbours_past_2_to_31_edges_are_those_written(far_graph: Graph, fanout: int) -> None:
    sampler = NeighborSampler(far_graph, np.array([4, 5, 6]), [fanout], 3, seed=0)
    workers = Workers(1, "test")
    targets = np.array([6, 4, 5], np.int32)
    for in_place in (False, True):
        block = sampler.sample(0, targets, workers, in_place=in_place).blocks[0]
        expected = [SMALL[v - 4] for v in targets]
        np.testing.assert_array_equal(block.degrees, [len(row) for row in expected])
        for neighbors, everyone in zip(sampled_rows(block), expected, strict=True):
            if fanout < 0 or fanout >= len(everyone):
                assert neighbors == everyone
            else:
                assert len(set(neighbors)) == len(neighbors) == fanout
                assert set(neighbors) <= set(everyone)


def test_a_second_layer_reads_near_and_far_rows(far_graph: Graph) -> None:
    sampler = NeighborSampler(far_graph, np.array([4]), [-1, 3], 1, seed=0)
    blocks = sampler.sample(0, np.array([4], np.int32), Workers(1, "test"), in_place=False).blocks
    assert sampled_rows(blocks[1]) == [SMALL[0]]
    rows = dict(zip(blocks[0].destinations.tolist(), sampled_rows(blocks[0]), strict=True))
    assert rows[4] == SMALL[0]
    assert len(rows[5]) == len(rows[6]) == 3
    assert set(rows[5]) <= set(SMALL[1])
    assert set(rows[6]) <= set(SMALL[2])
    # The holes before them read as vertex 0.
    near = NeighborSampler(far_graph, np.array([3]), [4], 1, seed=0)
    block = near.sample(0, np.array([3], np.int32), Workers(1, "test"), in_place=False).blocks[0]
    assert sampled_rows(block) == [[0, 0, 0, 0]]
