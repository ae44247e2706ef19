"""Every family of samplers gives several ranks the steps of one process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graphs import random_graph
from unit.distributed.ranks_in_threads import results_of
from unit.distributed.test_distributed_training import losses, settings, trained_alone, trained_on, weights

# Their variants (importance, replacement, fastgcn) are in test_all_samplers.py, where any split samples the
# same.
SAMPLERS: dict[str, dict[str, Any]] = {
    "labor": {"kind": "labor", "fanout": [4, 3]},
    "ladies": {"kind": "ladies", "layer_size": 60},
    "weighted": {"kind": "weighted", "fanout": [4, 3]},
    "shadow": {"kind": "shadow", "fanout": [4, 3]},
    "cluster": {"kind": "cluster", "parts": 12, "groups": 4, "method": "block"},
    "saint": {"kind": "saint", "units": 4, "roots": 20, "walk_length": 2},
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_ranks_train_what_one_process_trains(name: str) -> None:
    graph = random_graph(seed=1)
    if name.startswith("weighted"):
        drawn = np.random.default_rng(3).uniform(0.2, 3.0, graph.num_edges).astype(np.float32)
        graph = replace(graph, topology=replace(graph.topology, edge_weights=drawn))
    given = settings(
        "graphsage", sampler=SAMPLERS[name], train={"epochs": 2, "lr": 0.01, "weight_decay": 0.0}
    )
    homes = np.random.default_rng(2).integers(0, 3, graph.num_vertices)
    alone, heard = trained_alone(graph, given)
    for result, events in results_of(3, lambda ranks: trained_on(ranks, graph, homes, given)):
        assert losses(events) == pytest.approx(losses(heard), rel=1e-5)
        assert (weights(result) - weights(alone)).abs().max() < 1e-5
