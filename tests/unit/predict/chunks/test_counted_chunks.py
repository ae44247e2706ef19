"""Chunks of an open graph are counted as brute force counts them."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import adjacency, random_graph

from hyrt.predict.chunked_work import count_graph_chunks


def cut(num_rows: int, num: int) -> list[np.ndarray]:
    return [np.arange(i * num_rows // num, (i + 1) * num_rows // num) for i in range(num)]


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("parts", [1, 3, 7])
def test_all_chunks(symmetric: bool, parts: int) -> None:
    graph = random_graph(90, degree=4, features=3, symmetric=symmetric)
    # [destination, source], how many edges there are.
    edges = adjacency(graph)
    targets = np.random.default_rng(parts).permutation(90)[:40]
    every, into = count_graph_chunks(graph.topology, targets, parts)
    rows, chosen = cut(90, parts), np.sort(targets)
    of_targets = [chosen[each] for each in cut(40, -(-40 // max(map(len, rows))))]
    for found, columns in ((every, rows), (into, of_targets)):
        assert found.rows.tolist() == [len(each) for each in rows]
        assert found.rows_into.tolist() == [len(each) for each in columns]
        for i, sources in enumerate(rows):
            for j, destinations in enumerate(columns):
                chunk = edges[np.ix_(destinations, sources)]
                assert found.edges[i, j] == chunk.sum()
                assert found.sources[i, j] == chunk.any(0).sum()
                assert found.destinations[i, j] == chunk.any(1).sum()
                assert found.in_both[i, j] == len(np.intersect1d(sources, destinations))
