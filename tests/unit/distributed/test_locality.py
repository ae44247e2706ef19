"""The tool that tells how local micrographs are."""

from __future__ import annotations

import locality
import numpy as np
import pytest
from unit.sampling.small_graphs import graph_of

from hyrt.machine.workers import Workers
from hyrt.sampling.neighbor import NeighborSampler


def test_locality_is_counted_as_in_the_paper() -> None:
    # Two micrographs of HopGNN's Fig. 8: 6 with 5, 7 and one vertex of the other server; 3 with 0 and 1, and
    # two vertices of the other server. Their roots count in the wholes alone.
    homes = np.array([1, 1, 1, 1, 0, 0, 0, 0])
    sampled = [np.array([6, 5, 7, 2]), np.array([3, 0, 1, 5, 4])]
    whole = np.arange(8)
    found = locality.locality(sampled, whole, np.array([6, 3]), homes)
    assert found.micrograph == pytest.approx((2 / 4 + 2 / 5) / 2)
    assert found.subgraph == pytest.approx(3 / 8)
    assert found.vertices == 4.5


def test_a_micrograph_has_its_root_and_all_that_is_drawn() -> None:
    graph = graph_of([np.array([1]), np.array([2]), np.array([]), np.array([0])])
    with Workers(1, "test") as workers:
        sampler = NeighborSampler(graph, np.arange(4), [-1, -1], 4, 0)
        found = locality.vertices_of(sampler, np.array([3], np.int32), workers)
    assert sorted(found) == [0, 1, 3]
