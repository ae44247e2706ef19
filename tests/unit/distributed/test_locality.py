"""The tool that tells how local micrographs are."""

from __future__ import annotations

import locality
import numpy as np
import pytest
from unit.sampling.small_graphs import graph_of

from hyrt.runtime.workers import Workers
from hyrt.sampling.neighbor_sampler import NeighborSampler


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
        found = locality.sample_vertices(sampler, np.array([3], np.int32), workers)
    assert sorted(found) == [0, 1, 3]


def test_a_micrograph_of_layer_wise_sampling_is_what_of_the_step_leads_to_its_root() -> None:
    # 0 and 1 are roots; whatever is drawn for both, 4 and 5 lead to 1 alone.
    graph = graph_of([np.array(each, int) for each in ([2, 3], [4, 5], [], [], [], [])])
    roots = np.array([0, 1], np.int32)
    with Workers(1, "test") as workers:
        sampler = locality.LocalityCase.of("1xladies6").build(graph, roots, 2, 0)
        found = [locality.sample_vertices(sampler, roots[i : i + 1], workers) for i in range(2)]
        whole = locality.sample_vertices(sampler, roots, workers)
    assert [sorted(each) for each in found] == [[0, 2, 3], [1, 4, 5]]
    assert sorted(whole) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("10x2", "10 layers, fan-out 2"),
        ("2xladies512", "2 layers, LADIES 512 per layer"),
        ("3xfastgcn64", "3 layers, FastGCN 64 per layer"),
    ],
)
def test_cases_by_name(text: str, name: str) -> None:
    assert locality.LocalityCase.of(text).name == name


def test_no_case() -> None:
    with pytest.raises(ValueError, match="'2xlabor5' is not a case: use one such as 2x10"):
        locality.LocalityCase.of("2xlabor5")
