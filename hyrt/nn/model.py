"""A GNN of any depth over blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from hyrt.errors import ConfigError, UnsupportedModel
from hyrt.nn.architecture import Architecture
from hyrt.nn.description import LayerDescription, ModelDescription
from hyrt.nn.inputs import Aggregated, DeclaresInputs, InPlace, ModelInputs, Multiplied, Rows, own_rows
from hyrt.nn.layer import Footprint, Layer
from hyrt.nn.models.model_kind import MODELS, find_model
from hyrt.nn.operators.dropout import dropout
from hyrt.nn.operators.product import linear
from hyrt.nn.operators.sparse import SparseRows, sparse_linear
from hyrt.nn.overridden import is_newer
from hyrt.sampling.block import Block


class GNN(nn.Module, DeclaresInputs):
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
        kind, widths, hidden = find_model(a.kind), a.widths, a.layers - 1
        if hidden:
            kind.check(hidden=a.hidden, heads=a.heads)
        self.layers = nn.ModuleList()
        for i in range(a.layers):
            with MODELS.blamed(a.kind, f"layer {i}"):
                layer = kind.layer(a, widths[i], widths[i + 1], last=i == hidden, **a.options)
            if not isinstance(layer, Layer):
                raise ConfigError(
                    f"{MODELS.named(a.kind)}: layer returned {type(layer).__name__}, which is not "
                    f"derived from {Layer.__module__}.{Layer.__name__}"
                )
            self.layers.append(layer)
        self.norms = nn.ModuleList(nn.LayerNorm(a.hidden) for _ in range(hidden if a.norm == "layer" else 0))
        self.shortcuts = nn.ModuleList(
            nn.Identity() if widths[i] == a.hidden else nn.Linear(widths[i], a.hidden, bias=False)
            for i in range(hidden if a.residual else 0)
        )

    def inputs(self) -> ModelInputs:
        """The forms that the first layer takes, where nothing else of the model looks at the rows."""
        a, aggregation = self.architecture, self._layer(0).aggregation
        if a.input_dropout > 0:
            return ModelInputs(sparse=True)
        if aggregation is None:
            return ModelInputs(in_place=True, sparse=True)
        return ModelInputs(aggregation=None if a.residual and a.layers > 1 else aggregation, sparse=True)

    def description(self) -> ModelDescription:
        """The model in the words kernel devices compile.

        Raises
        ------
        UnsupportedModel
            Naming the layer that does something else, or the class with a `forward` of its own.
        """
        a = self.architecture
        if any(is_newer(type(self), method, "description") for method in ("forward", "layer")):
            raise UnsupportedModel(f"{type(self).__name__}, whose forward is not that of its description")
        if a.low_precision:
            raise UnsupportedModel("layer 'layers.0' in bf16 (train.precision)")
        if len(self.norms):
            raise UnsupportedModel("layer 'norms.0' (model.norm=none leaves it out)")
        if len(self.shortcuts):
            raise UnsupportedModel("layer 'shortcuts.0' (model.residual=false leaves it out)")
        layers = []
        for i in range(a.layers):
            layer, last = self._layer(i), i == a.layers - 1
            aggregation = layer.aggregation
            stale = is_newer(type(layer), "forward", "products")
            if stale or aggregation is None or aggregation.reduce == "max":
                raise UnsupportedModel(
                    f"layer 'layers.{i}' ({type(layer).__name__}, aggregate={a.aggregate!r})"
                )
            layers.append(
                LayerDescription(
                    name=f"layers.{i}",
                    aggregation=aggregation,
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
            Rows of the first block's sources: [num_src, f] float32, sparse rows, or what the loader
            aggregated.

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
            assert not isinstance(x, Aggregated | InPlace | Multiplied)
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
            out = out + self._shortcut(i, own_rows(block, x))
        if a.norm == "layer":
            out = self.norms[i](out)
        return out.relu()

    def footprint(self, i: int, *, multiplied: bool = False) -> Footprint:
        """What `layer(i, ...)` keeps in memory: see `Layer.footprint`."""
        a, layer = self.architecture, self._layer(i).footprint(multiplied=multiplied)
        # Residual, norm, activation, and the rows in the caller's order; own rows as halves and as floats.
        own = 2 * a.widths[i] if a.residual and i < a.layers - 1 else 0
        return Footprint(layer.row + 4 * a.widths[i + 1] + own, layer.edge)

    def source_weight(self) -> torch.Tensor | None:
        """What the first layer multiplies source rows by before combining: see `Layer.source_weight`."""
        return self._layer(0).source_weight()

    def _layer(self, i: int) -> Layer:
        layer = self.layers[i]
        assert isinstance(layer, Layer)
        return layer

    def _shortcut(self, i: int, own: torch.Tensor | SparseRows) -> torch.Tensor:
        shortcut = self.shortcuts[i]
        if isinstance(own, SparseRows):
            return sparse_linear(own, shortcut.weight) if isinstance(shortcut, nn.Linear) else own.dense()
        return linear(own, shortcut.weight) if isinstance(shortcut, nn.Linear) else own
