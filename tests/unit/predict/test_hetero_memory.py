"""What is known of the memory of a heterogeneous graph before a run."""

from __future__ import annotations

import pytest

from hyrt.errors import ConfigError
from hyrt.graph import open_graph
from hyrt.predict.memory_needs import hetero_memory_facts, hetero_memory_lines


def test_counts_the_graph_its_rows_and_the_rows_that_are_learned() -> None:
    graph = open_graph("synthetic:hetero,vertices=2k,features=10")
    arrays = hetero_memory_facts(graph, "rgcn")["arrays"]
    assert arrays == {
        "topology": 8 * 2001 + graph.num_edges * (4 + 1),
        "feature rows of paper": 1000 * 10 * 4,
        "feature rows of author": 800 * 5 * 4,
        # Adam keeps two moments of each, and the default width is 128.
        "learned rows of field, moments": 200 * 128 * 4 * 3,
    }
    text = "\n".join(hetero_memory_lines({"model": "rgcn", "arrays": arrays}))
    assert "training with rgcn needs" in text
    assert "learned rows of field, moments     300 KiB" in text
    with pytest.raises(
        ConfigError, match=r"gcn does not support heterogeneous graphs, .*: set model\.kind to .*rgcn"
    ):
        hetero_memory_facts(graph, "gcn")
