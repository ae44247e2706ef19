"""GNNs for link prediction, whose last layer is followed by the vertex-wise part of a decoder."""

from __future__ import annotations

import torch

from hyrt.errors import UnsupportedModel
from hyrt.nn.architecture import Architecture
from hyrt.nn.description import ModelDescription
from hyrt.nn.inputs import Rows
from hyrt.nn.links.link_heads import LINK_HEADS
from hyrt.nn.model import GNN
from hyrt.nn.typed.typed_gnn import TypedGNN
from hyrt.sampling.block import Block


class LinkGNN(GNN):
    """GNN with the head of a decoder after its last layer.

    Parameters
    ----------
    architecture
        Architecture of the GNN; `num_classes` is the width of an embedding.
    decoder
        Name in `LINK_HEADS`.
    columns
        Width of an output row.
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
        """Return the model without the head, sharing its parameters."""
        plain = GNN(self.architecture, [self._layer(i) for i in range(self.architecture.layers)])
        plain.norms, plain.shortcuts = self.norms, self.shortcuts
        return plain.train(self.training)

    def layer(self, i: int, block: Block, x: Rows) -> torch.Tensor:
        """Compute `GNN.layer`; after the last layer also the head."""
        out = super().layer(i, block, x)
        if i < self.architecture.layers - 1:
            return out
        rows: torch.Tensor = self.head(out)
        return rows

    def description(self) -> ModelDescription:
        raise UnsupportedModel(f"the decoder {self._decoder} of links (links.decoder=dot needs no weights)")


class TypedLinkGNN(LinkGNN, TypedGNN):
    """`LinkGNN` over a heterogeneous graph."""

    def embedding_model(self) -> GNN:
        plain = TypedGNN(self.architecture, [self._layer(i) for i in range(self.architecture.layers)])
        plain.norms, plain.shortcuts, plain.input = self.norms, self.shortcuts, self.input
        return plain.train(self.training)
