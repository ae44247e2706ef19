"""What weights and features of edges add to a prediction's bytes."""

from __future__ import annotations

import pytest
from graphs import random_graph, with_values
from hyrt_perfmodel.prediction.stages import topology_bytes

from hyrt.config import build_config
from hyrt.predict.workload import sampled_workload


@pytest.mark.parametrize("columns", [0, 3])
def test_weights_and_features_travel_with_their_edges(columns: int) -> None:
    bare = random_graph(200, symmetric=False)
    graph = with_values(bare, columns)
    config = build_config({"sampler": {"fanout": [4, 3]}, "data": {"batch_size": 20}})
    without, work = (sampled_workload(config, each) for each in (bare, graph))
    edges = sum(work.at(20.0).edges)
    assert edges == sum(without.at(20.0).edges)
    more = topology_bytes(work.at(20.0)) - topology_bytes(without.at(20.0))
    assert more == pytest.approx(4 * (1 + columns) * edges)
    assert work.graph_bytes == graph.topology.nbytes
    assert work.graph_bytes - without.graph_bytes == 4 * (1 + columns) * graph.num_edges


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_transpose_numbers_edges_that_have_weights(symmetric: bool) -> None:
    graph = with_values(random_graph(200, symmetric=symmetric))
    config = build_config({"sampler": {"kind": "full"}, "model": {"kind": "gcn"}})
    topology = graph.topology
    turned = topology.transposed
    kept = topology.transposed_edges.nbytes + (
        0 if symmetric else turned.indptr.nbytes + turned.indices.nbytes
    )
    assert sampled_workload(config, graph).transpose_bytes == kept
