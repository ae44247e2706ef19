"""What a decoder needs of each vertex: the part of its weights that looks at one end of a pair alone.

`hyrt.objective.links.decoders.DECODERS` scores pairs of the rows that come out.
"""

from __future__ import annotations

import torch
from torch import nn

from hyrt.nn.operators.product import linear


class DistMultHead(nn.Module):
    """Rows [r * u | u] of embeddings u, with one weight r a column, which starts at 1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.relation = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 2 D] from [n, D]."""
        return torch.cat([self.relation * x, x], dim=1)


class TransEHead(nn.Module):
    """Rows [u + r | u] of embeddings u, with one translation r, which starts at 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.relation = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 2 D] from [n, D]."""
        return torch.cat([x + self.relation, x], dim=1)


class MlpHead(nn.Module):
    """Rows [A u + b | B u | w | c]: the first layer of a perceptron over both ends, and its second layer.

    The second layer's weights are the same in every row. A pair reads those of its source, and the gradients
    of all rows add up to that of the weights.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        # Over both ends together, so that the weights start as those of one layer of twice the width.
        self.hidden = nn.Linear(2 * width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 3 D + 1] from [n, D]."""
        width = self.out.in_features
        source, destination = self.hidden.weight[:, :width], self.hidden.weight[:, width:]
        last = torch.cat([self.out.weight[0], self.out.bias]).expand(len(x), -1)
        return torch.cat([linear(x, source, self.hidden.bias), linear(x, destination), last], dim=1)


LINK_HEADS: dict[str, type[nn.Module]] = {
    "distmult": DistMultHead,
    "transe": TransEHead,
    "mlp": MlpHead,
}
"""By decoder, what is made of the embedding of a vertex; of the others, nothing is."""
