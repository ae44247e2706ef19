"""A GNN of any depth over blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from hyrt.errors import UnsupportedModel
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.description import LayerDescription, ModelDescription
from hyrt.nn.layers import (
    Aggregated,
    ConvolutionLayer,
    GatLayer,
    GcnLayer,
    GinLayer,
    InPlace,
    Rows,
    SageLayer,
    widened,
)
from hyrt.nn.operators.dropout import dropout
from hyrt.nn.operators.product import linear
from hyrt.nn.operators.sparse import SparseRows, sparse_linear
from hyrt.sampling.block import Block

Kind = Literal["graphsage", "gcn", "gin", "gat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What makes a model: equal architectures have parameters of equal names and shapes."""

    kind: Kind = "graphsage"
    in_features: int
    hidden: int = 128
    num_classes: int
    layers: int = 2
    aggregate: Literal["mean", "sum", "max"] = "mean"
    heads: int = 4
    dropout: float = 0.0
    input_dropout: float = 0.0
    norm: Literal["none", "layer"] = "none"
    residual: bool = False
    low_precision: bool = False


def _layer(a: Architecture, in_features: int, out_features: int, last: bool) -> nn.Module:
    makers: dict[str, Callable[[], nn.Module]] = {
        "graphsage": lambda: SageLayer(
            in_features, out_features, reduce=a.aggregate, low_precision=a.low_precision
        ),
        "gcn": lambda: GcnLayer(in_features, out_features, low_precision=a.low_precision),
        "gin": lambda: GinLayer(in_features, out_features, low_precision=a.low_precision),
        "gat": lambda: GatLayer(
            in_features,
            out_features if last else out_features // a.heads,
            a.heads,
            average=last,
            low_precision=a.low_precision,
        ),
    }
    return makers[a.kind]()


class GNN(nn.Module):
    """L layers with dropout, and optionally LayerNorm and residual connections between them.

    Each hidden layer is: layer, + residual, LayerNorm, ReLU, dropout. The last one is bare.

    Parameters
    ----------
    architecture
        What to build.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        a = self.architecture = architecture
        if a.layers < 1:
            raise ValueError(f"a model needs at least 1 layer, not {a.layers}")
        if a.kind == "gat" and a.layers > 1 and a.hidden % a.heads:
            raise ValueError(
                f"the hidden width {a.hidden} is not a multiple of {a.heads} heads: change one of them"
            )
        widths = [a.in_features, *[a.hidden] * (a.layers - 1), a.num_classes]
        self.layers = nn.ModuleList(
            _layer(a, widths[i], widths[i + 1], i == a.layers - 1) for i in range(a.layers)
        )
        hidden = a.layers - 1
        self.norms = nn.ModuleList(nn.LayerNorm(a.hidden) for _ in range(hidden if a.norm == "layer" else 0))
        self.shortcuts = nn.ModuleList(
            nn.Identity() if widths[i] == a.hidden else nn.Linear(widths[i], a.hidden, bias=False)
            for i in range(hidden if a.residual else 0)
        )

    @property
    def input_aggregation(self) -> Aggregation | None:
        """What the first layer does to raw features before any weight, where a loader may do it for the layer."""
        a = self.architecture
        if a.input_dropout > 0 or (a.residual and a.layers > 1):
            return None
        first = self.layers[0]
        return first.aggregation if isinstance(first, ConvolutionLayer | GinLayer) else None

    @property
    def reads_rows_in_place(self) -> bool:
        """Whether the first layer can read whole feature rows in place of gathered ones."""
        a = self.architecture
        return a.kind == "gat" and a.input_dropout == 0

    @property
    def takes_sparse_rows(self) -> bool:
        return True

    def description(self) -> ModelDescription:
        """The model in the words kernel devices compile.

        Raises
        ------
        UnsupportedModel
            Naming the layer that does something else.
        """
        a = self.architecture
        if a.low_precision:
            raise UnsupportedModel("layer 'layers.0' in bf16 (train.precision)")
        if a.norm != "none" or (a.residual and a.layers > 1):
            raise UnsupportedModel(f"layer 'norms.0' (model.norm={a.norm!r}, model.residual={a.residual})")
        layers = []
        for i, layer in enumerate(self.layers):
            if not isinstance(layer, ConvolutionLayer | GinLayer) or layer.aggregation.reduce == "max":
                raise UnsupportedModel(
                    f"layer 'layers.{i}' ({type(layer).__name__}, aggregate={a.aggregate!r})"
                )
            last = i == a.layers - 1
            layers.append(
                LayerDescription(
                    name=f"layers.{i}",
                    aggregation=layer.aggregation,
                    products=layer.products(relu=not last),
                    dropout=0.0 if last else a.dropout,
                )
            )
        return ModelDescription(tuple(layers), a.input_dropout)

    def forward(self, blocks: Sequence[Block], x: Rows) -> torch.Tensor:
        """Scores of the targets.

        Parameters
        ----------
        blocks
            L blocks, the input's first.
        x
            Rows of the first block's sources: [num_src, f] float32, sparse rows, or what the loader aggregated.

        Returns
        -------
        [targets, classes].

        Raises
        ------
        ValueError
            If there is not one block a layer.
        """
        a = self.architecture
        if len(blocks) != a.layers:
            raise ValueError(
                f"the model has {a.layers} layers, but the mini-batch has {len(blocks)} blocks: give "
                "one per layer"
            )
        if self.training and a.input_dropout > 0:
            first = blocks[0]
            assert not isinstance(x, Aggregated | InPlace)
            assert first.sources is not None
            x = dropout(x, first.sources, rate=a.input_dropout, seed=first.seed, step=first.step, layer=0)
        for i, block in enumerate(blocks):
            x = self.layer(i, block, x)
            if self.training and a.dropout > 0 and i < a.layers - 1:
                x = dropout(
                    x, block.destinations, rate=a.dropout, seed=block.seed, step=block.step, layer=i + 1
                )
        assert isinstance(x, torch.Tensor)
        return x

    def layer(self, i: int, block: Block, x: Rows) -> torch.Tensor:
        """Layer i (from 0) with its residual, norm and activation, without dropout: [num_dst, width]."""
        a = self.architecture
        last = i == a.layers - 1
        plain = last or (a.norm == "none" and not a.residual)
        out: torch.Tensor = self.layers[i](block, x, relu=plain and not last)
        if plain:
            return out
        if a.residual:
            out = out + self._shortcut(i, block, x)
        if a.norm == "layer":
            out = self.norms[i](out)
        return out.relu()

    def _shortcut(self, i: int, block: Block, x: Rows) -> torch.Tensor:
        assert not isinstance(x, Aggregated)
        shortcut = self.shortcuts[i]
        if isinstance(x, SparseRows):
            rows = x.head(block.num_dst)
            return sparse_linear(rows, shortcut.weight) if isinstance(shortcut, nn.Linear) else rows.dense()
        if isinstance(x, InPlace):
            own = torch.from_numpy(widened(x.values[block.destinations]))
        else:
            own = x[: block.num_dst]
        return linear(own, shortcut.weight) if isinstance(shortcut, nn.Linear) else own
