"""GNNs for link prediction, which apply the vertex-wise part of the decoder after the last layer.

`hyrt.objective.link_prediction.DECODERS` scores pairs of the resulting rows.
"""

from __future__ import annotations

import torch
from torch import nn

from hyrt.errors import UnsupportedModelError
from hyrt.nn.architecture import Architecture
from hyrt.nn.description import ModelDescription
from hyrt.nn.hetero.hetero_gnn import HeteroGNN
from hyrt.nn.layer import Rows
from hyrt.nn.model import GNN
from hyrt.nn.operators.linear import linear
from hyrt.sampling.block import Block


class DistMultHead(nn.Module):
    """Head of DistMult: maps embeddings u to [r * u | u], with weights r initialized to 1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.relation = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, 2 D] from [n, D]."""
        return torch.cat([self.relation * x, x], dim=1)


class TransEHead(nn.Module):
    """Head of TransE: maps embeddings u to [u + r | u], with a translation r initialized to 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.relation = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, 2 D] from [n, D]."""
        return torch.cat([x + self.relation, x], dim=1)


class MlpHead(nn.Module):
    """Head of the MLP decoder: maps an embedding u to [A u + b | B u | w | c].

    A and B are the parts of the first layer for source and destination. w and c, the second layer, are equal
    in all rows. A pair uses the copy in its source row, and the gradients of all copies are summed.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        # A single matrix for both endpoints is initialized like a layer with twice the input width.
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
"""Head of each decoder. Decoders that are not listed score the embeddings directly."""


class LinkGNN(GNN):
    """GNN that applies the head of a decoder (a key of `LINK_HEADS`) after its last layer.

    `architecture.num_classes` is the width of an embedding, and `columns` the width of an output row.
    """

    def __init__(self, architecture: Architecture, decoder: str, columns: int) -> None:
        super().__init__(architecture)
        self.head = LINK_HEADS[decoder](architecture.num_classes)
        self._decoder = decoder
        self._columns = columns

    @property
    def widths(self) -> list[int]:
        return [*self.architecture.widths[:-1], self._columns]

    def embedding_model(self) -> GNN:
        """Return the model without the head. It shares the parameters of this model."""
        plain = GNN(self.architecture, [self._layer(i) for i in range(self.architecture.layers)])
        plain.norms, plain.shortcuts = self.norms, self.shortcuts
        return plain.train(self.training)

    def layer(self, i: int, block: Block, x: Rows) -> torch.Tensor:
        """Compute layer i like `GNN.layer`; after the last layer, also apply the head."""
        out = super().layer(i, block, x)
        if i < self.architecture.layers - 1:
            return out
        rows: torch.Tensor = self.head(out)
        return rows

    def description(self) -> ModelDescription:
        raise UnsupportedModelError(f"links.decoder={self._decoder} (links.decoder=dot has no weights)")


class HeteroLinkGNN(LinkGNN, HeteroGNN):
    """`LinkGNN` over a heterogeneous graph."""

    def embedding_model(self) -> GNN:
        plain = HeteroGNN(self.architecture, [self._layer(i) for i in range(self.architecture.layers)])
        plain.norms, plain.shortcuts, plain.input = self.norms, self.shortcuts, self.input
        return plain.train(self.training)
