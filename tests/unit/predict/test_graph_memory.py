"""The memory of full-graph training, counted for an open graph."""

from __future__ import annotations

import pytest
from graphs import random_graph

from hyrt.errors import ConfigError
from hyrt.predict.memory_needs import memory_facts, memory_lines


@pytest.mark.parametrize("symmetric", [True, False])
def test_topology_is_counted_as_graphpy_does(symmetric: bool) -> None:
    graph = random_graph(60, 5, symmetric=symmetric)
    facts = memory_facts(graph, "gcn")
    assert facts["symmetric"] == symmetric
    assert facts["topology_integers"] == (60 + graph.num_edges) * (1 if symmetric else 2)
    of, turned = graph.topology, graph.topology.transposed
    there = {id(array): array for each in (of, turned) for array in (each.indptr, each.indices)}
    stored = sum(map(len, there.values())) + len(of.transposed_edges)
    # Where rows begin is one number more than there are rows.
    assert facts["edge_tensor_integers"] == stored - (1 if symmetric else 2)
    assert ("edges by source" in facts["arrays"]) == (not symmetric)
    assert facts["arrays"]["topology"] == graph.topology.nbytes
    assert not facts["at_most"]
    scored = len(graph.split("val")) + len(graph.split("test"))
    # And where each vertex is among them.
    assert facts["arrays"]["scores of an evaluation"] == scored * graph.num_classes * 4 + 60 * 4
    lines = memory_lines(facts)
    assert len(lines) == len(facts["arrays"]) + 3
    assert f"{facts['topology_integers']:,} integers" in lines[-2]
    assert f"{facts['edge_tensor_integers']:,}" in lines[-1]


def test_an_unknown_model_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"unknown model.kind 'gcm'"):
        memory_facts(random_graph(60, 5), "gcm")
