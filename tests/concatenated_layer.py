"""A layer that concatenates messages, and what it computes written vertex by vertex in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hyrt.nn import SagaLayer


class Concatenated(SagaLayer):
    """Messages in the order of the edges, a vertex's own loop first."""

    accumulate = "concatenation"
    self_loops = True

    def __init__(self, in_features: int, out_features: int, slots: int) -> None:
        super().__init__(in_features, out_features)
        self.slots = slots
        self.near = nn.Linear(in_features, 3)
        self.far = nn.Linear(in_features, 3)
        self.update = nn.Linear(slots * 3, out_features)

    def apply_edge(self, edge):
        return torch.tanh(self.near(edge.dst) + self.far(edge.src))

    def apply_vertex(self, vertex, gathered):
        return self.update(gathered.flatten(1))


def concatenated_result(p: Mapping[str, Tensor], x: Tensor, indptr: Any, columns: Any, slots: int) -> Tensor:
    """What the layer computes for the first [n] of [m] vertices, of their rows [m, f] in float64."""
    rows = []
    for i in range(len(indptr) - 1):
        near = x[i] @ p["near.weight"].T + p["near.bias"]
        sources = [i, *np.asarray(columns[indptr[i] : indptr[i + 1]]).tolist()]
        messages = [torch.tanh(near + x[j] @ p["far.weight"].T + p["far.bias"]) for j in sources]
        messages += [torch.zeros(3, dtype=x.dtype)] * (slots - len(sources))
        rows.append(torch.cat(messages) @ p["update.weight"].T + p["update.bias"])
    return torch.stack(rows)
