"""A layer that concatenates messages, over a whole graph in chunks of rows, beside float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from concatenated_layer import Concatenated, concatenated_result
from graphs import random_graph
from hetero_layers import assert_step
from test_replica import ALONE, batch_of, replica_of

from hyrt.errors import UnsupportedModelError
from hyrt.nn import stack
from hyrt.nn.torch_threads import torch_threads
from hyrt.objective.classification import Classification

WIDTH = 5


def test_a_step_is_that_of_all_edges() -> None:
    graph = random_graph(100, features=WIDTH, classes=WIDTH, symmetric=False)
    topology = graph.topology
    slots = int(topology.in_degrees.max()) + 1
    torch.manual_seed(2)
    model = stack(*(Concatenated(WIDTH, WIDTH, slots) for _ in range(2)))
    for targets in (None, 20):
        batch = replace(batch_of(graph, 2, targets), target_weights=None)
        taken, x = [], torch.from_numpy(graph.features.matrix).double()
        for i, layer in enumerate(model.layers):
            p = {key: value.detach().double().requires_grad_() for key, value in layer.named_parameters()}
            x = concatenated_result(p, x.relu() if i else x, topology.indptr, topology.indices, slots)
            taken += p.values()
        labels = torch.from_numpy(graph.labels[batch.targets]).long()
        loss = torch.nn.functional.cross_entropy(x[batch.targets], labels, reduction="sum")
        expected = float(loss.detach()), list(torch.autograd.grad(loss, taken))
        for rows in (17, 1000):
            with torch_threads(1):
                step = replica_of(model, graph, batch, rows, 0).step(batch, Classification(), ALONE)
            assert_step(step.loss_sum, step.gradients, expected)
    few = stack(Concatenated(WIDTH, WIDTH, slots - 1))
    batch = batch_of(graph, 1)
    with pytest.raises(
        UnsupportedModelError, match=rf"{slots - 1} message slots, but vertex \d+ has {slots} edg"
    ):
        replica_of(few, graph, batch, 50, 0)
