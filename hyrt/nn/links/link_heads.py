"""Vertex-wise parts of link decoders, with all of their weights.

`hyrt.objective.links.decoders.DECODERS` scores pairs of the resulting rows.
"""

from __future__ import annotations

import torch
from torch import nn

from hyrt.nn.operators.product import linear


class DistMultHead(nn.Module):
    """Rows [r * u | u] for embeddings u, with one weight r per column, initialized to 1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.relation = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, 2 D] from [n, D]."""
        return torch.cat([self.relation * x, x], dim=1)


class TransEHead(nn.Module):
    """Rows [u + r | u] for embeddings u, with one translation r, initialized to 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.relation = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, 2 D] from [n, D]."""
        return torch.cat([x + self.relation, x], dim=1)


class MlpHead(nn.Module):
    """Rows [A u + b | B u | w | c]: the first layer of a perceptron over both ends, and its second layer.

    The second layer's weights are equal in every row. A pair uses the copy in its source row, and the
    gradients of all copies are summed.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        # One matrix for both ends, so that it is initialized like a layer with twice the input width.
        self.hidden = nn.Linear(2 * width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, 3 D + 1] from [n, D]."""
        width = self.out.in_features
        source, destination = self.hidden.weight[:, :width], self.hidden.weight[:, width:]
        last = torch.cat([self.out.weight[0], self.out.bias]).expand(len(x), -1)
        return torch.cat([linear(x, source, self.hidden.bias), linear(x, destination), last], dim=1)


LINK_HEADS: dict[str, type[nn.Module]] = {
    "distmult": DistMultHead,
    "transe": TransEHead,
    "mlp": MlpHead,
}
"""Head per decoder; decoders that are not listed score the embeddings directly."""
