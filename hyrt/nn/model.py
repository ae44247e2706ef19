"""GNN with any number of layers over blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
from torch import nn

from hyrt.checks import check_choice, check_flag, check_number, show
from hyrt.errors import ArgumentError, ConfigError, UnsupportedModelError
from hyrt.nn.architecture import Aggregation, Architecture
from hyrt.nn.description import LayerDescription, ModelDescription, overrides_only
from hyrt.nn.layer import DeclaresInputs, Footprint, Layer, ModelInputs, Rows, destination_rows
from hyrt.nn.models.model_kind import MODELS, find_model
from hyrt.nn.operators.dropout import dropout
from hyrt.nn.operators.linear import linear
from hyrt.nn.operators.sparse import SparseRows, sparse_linear
from hyrt.nn.operators.tensor_ops import TensorBlock
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import check_blocks


@contextmanager
def _explain_allocation_failure(layer: int, in_features: int, out_features: int) -> Iterator[None]:
    """Raise ConfigError with the size of the layer if its allocation fails."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "can't allocate memory" not in str(error):
            raise
        raise ConfigError(
            f"there is not enough memory for layer {layer} with {in_features:,} x {out_features:,} weights: "
            "lower model.hidden or the number of features"
        ) from error


class GNN(nn.Module, DeclaresInputs):
    """GNN of L layers with dropout, and optionally LayerNorm and residual connections between layers.

    Each hidden layer is followed by the residual connection, LayerNorm, ReLU and dropout. If the model kind
    sets `adds_rows_last`, the order is LayerNorm, ReLU, residual connection and dropout. The last layer has
    none of these. The model kind creates the layers unless `layers` are given.
    """

    def __init__(self, architecture: Architecture, layers: Sequence[Layer] | None = None) -> None:
        super().__init__()
        a = self.architecture = architecture
        if a.layers < 1:
            raise ValueError(f"a model needs at least 1 layer, got {a.layers}")
        self._adds_last = bool(a.kind) and find_model(a.kind).adds_rows_last
        self.layers = nn.ModuleList(self._build_layers() if layers is None else layers)
        hidden = a.layers - 1
        self.norms = nn.ModuleList(nn.LayerNorm(a.hidden) for _ in range(hidden if a.norm == "layer" else 0))
        self.shortcuts = nn.ModuleList(
            nn.Identity()
            if a.widths[i] == a.hidden or not self.adds_residual(i)
            else nn.Linear(a.widths[i], a.hidden, bias=False)
            for i in range(hidden if a.residual else 0)
        )

    def _build_layers(self) -> list[Layer]:
        """Build the layers that the architecture's model kind defines."""
        a = self.architecture
        kind, widths, hidden, layers = find_model(a.kind), a.widths, a.layers - 1, []
        if hidden:
            kind.check(hidden=a.hidden, heads=a.heads)
        for i in range(a.layers):
            with (
                MODELS.wrap_errors(a.kind, f"layer {i}"),
                _explain_allocation_failure(i, widths[i], widths[i + 1]),
            ):
                layer = kind.layer(a, widths[i], widths[i + 1], last=i == hidden, **a.options)
            if not isinstance(layer, Layer):
                raise ConfigError(
                    f"{MODELS.describe(a.kind)}: layer returned {type(layer).__name__}, which is not a "
                    f"subclass of {Layer.__module__}.{Layer.__name__}"
                )
            layers.append(layer)
        return layers

    @property
    def widths(self) -> list[int]:
        """Return the widths of the input features and of each layer's output."""
        return self.architecture.widths

    def inputs(self) -> ModelInputs:
        """Return the first layer's input forms, except those that dropout or the residual excludes."""
        layer, aggregation = self._layer(0), self.input_aggregation
        if self.architecture.input_dropout > 0:
            return ModelInputs(sparse=True)
        if layer.aggregation is None:
            return ModelInputs(in_place=True, sparse=True, prefers_gathered_rows=layer.gathers_rows)
        if aggregation is None:
            return ModelInputs(sparse=True)
        return ModelInputs(aggregation=aggregation, in_place=True, sparse=True)

    @property
    def input_aggregation(self) -> Aggregation | None:
        """Return the first layer's aggregation of the unweighted input features, ignoring dropout.

        None if the aggregation cannot be precomputed, or the model also reads the features themselves.
        """
        return None if self.adds_residual(0) else self._layer(0).aggregation

    def description(self) -> ModelDescription:
        """Return the description from which kernel devices generate code.

        Raises UnsupportedModelError if a layer cannot be described, or a subclass overrides `forward`.
        """
        a = self.architecture
        if any(overrides_only(type(self), method, "description") for method in ("forward", "layer")):
            raise UnsupportedModelError(f"{type(self).__name__} (its forward does not match its description)")
        if a.low_precision:
            raise UnsupportedModelError("layer 'layers.0' in bf16 (train.precision)")
        for name, module in self.named_modules():
            if isinstance(module, nn.LayerNorm):
                raise UnsupportedModelError(f"layer {name!r} (model.norm=none removes it)")
        if len(self.shortcuts):
            raise UnsupportedModelError("layer 'shortcuts.0' (model.residual=false removes it)")
        layers = []
        for i in range(a.layers):
            layer, last = self._layer(i), i == a.layers - 1
            aggregation = layer.aggregation
            stale = overrides_only(type(layer), "forward", "products")
            if stale or aggregation is None or aggregation.reduce == "max":
                raise UnsupportedModelError(
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
        """Compute scores [targets, classes] from L blocks, input block first, and their source rows.

        `x` is [num_src, f] float32, or another form of `Rows`. Raises ValueError if the number of blocks is
        not L.
        """
        a = self.architecture
        check_model_input(blocks, x)
        if len(blocks) != a.layers:
            raise ValueError(
                f"the model has {a.layers} layers, but the mini-batch has {len(blocks)} blocks: pass one "
                "block per layer"
            )
        if self.training and a.input_dropout > 0:
            first = blocks[0]
            assert isinstance(x, torch.Tensor | SparseRows)
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
        """Compute layer i (from 0) with residual, norm and ReLU, but no dropout: [num_dst, width]."""
        out: torch.Tensor = self.layers[i](block, x, relu=self.ends_with_relu(i))
        return self.finish(i, out, destination_rows(block, x) if self.adds_residual(i) else None)

    def ends_with_relu(self, i: int) -> bool:
        """Return whether layer i (from 0) is followed by a ReLU and by nothing else."""
        a = self.architecture
        return i < a.layers - 1 and a.norm == "none" and not self.adds_residual(i)

    def adds_residual(self, i: int) -> bool:
        """Return whether layer i (from 0) has a residual connection."""
        a = self.architecture
        return a.residual and i < a.layers - 1 and not (i == 0 and self._adds_last)

    def finish(self, i: int, out: torch.Tensor, residual: torch.Tensor | SparseRows | None) -> torch.Tensor:
        """Apply residual, norm and ReLU to layer i's output [n, width], if the layer has not."""
        a = self.architecture
        if i == a.layers - 1 or self.ends_with_relu(i):
            return out
        if residual is not None and not self._adds_last:
            out = out + self._shortcut(i, residual)
        if a.norm == "layer":
            out = self.norms[i](out)
        out = out.relu()
        return out + self._shortcut(i, residual) if residual is not None and self._adds_last else out

    def footprint(self, i: int, *, multiplied: bool = False) -> Footprint:
        """Return the memory use of layer i (from 0); see `Layer.footprint`."""
        a, layer = self.architecture, self._layer(i).footprint(multiplied=multiplied)
        # Output rows: residual sum, norm, activation, reordered copy. The residual input exists as float16
        # and float32.
        residual = 2 * a.widths[i] if self.adds_residual(i) else 0
        return Footprint(layer.row + 4 * a.widths[i + 1] + residual, layer.edge)

    def source_weight(self) -> torch.Tensor | None:
        """Return the weight that multiplies source rows in the first layer; see `Layer.source_weight`."""
        return self._layer(0).source_weight()

    def _layer(self, i: int) -> Layer:
        layer = self.layers[i]
        assert isinstance(layer, Layer)
        return layer

    def _shortcut(self, i: int, rows: torch.Tensor | SparseRows) -> torch.Tensor:
        shortcut = self.shortcuts[i]
        if isinstance(rows, SparseRows):
            return (
                sparse_linear(rows, shortcut.weight) if isinstance(shortcut, nn.Linear) else rows.to_dense()
            )
        return linear(rows, shortcut.weight) if isinstance(shortcut, nn.Linear) else rows


def check_model_input(blocks: Any, x: Any) -> None:
    """Reject inconsistent blocks and inputs that are not feature rows."""
    if not isinstance(blocks, Sequence) or not all(isinstance(block, TensorBlock) for block in blocks):
        check_blocks(blocks)
    if not isinstance(x, get_args(Rows)):
        raise ArgumentError(
            f"x is {show(x)}: pass a float32 tensor with one row per source of the first block"
        )


def stack(
    *layers: Layer,
    norm: Literal["none", "layer"] = "none",
    residual: bool = False,
    dropout: float = 0.0,
    input_dropout: float = 0.0,
) -> GNN:
    """Build a model from user-defined layers, for `hyrt.train`.

    Parameters
    ----------
    *layers
        Layers with `in_features` and `out_features`, like a `SagaLayer`; input layer first.
    norm, residual, dropout, input_dropout
        Operations between layers; see `Architecture`.

    Raises
    ------
    ValueError
        If the widths of the layers do not match.
    """
    if not layers:
        raise ValueError(
            "stack() needs at least one layer: pass all layers in order, starting with the one that reads "
            "the features"
        )
    for i, layer in enumerate(layers):
        if (
            not isinstance(layer, Layer)
            or not hasattr(layer, "in_features")
            or not hasattr(layer, "out_features")
        ):
            raise ValueError(
                f"layer {i + 1} of stack() has type {type(layer).__name__}: use a hyrt.nn.SagaLayer, or "
                "another hyrt layer with in_features and out_features"
            )
    check_choice("norm", norm, ("none", "layer"))
    check_flag("residual", residual)
    for name, rate in (("dropout", dropout), ("input_dropout", input_dropout)):
        if check_number(name, rate, 0, 1) == 1:
            raise ArgumentError(f"{name} is 1, which drops everything: use a number below 1")
    sizes: list[tuple[Any, Any]] = [(layer.in_features, layer.out_features) for layer in layers]
    for i, ((_, out), (into, _)) in enumerate(pairwise(sizes), 1):
        if out != into or out != sizes[0][1]:
            raise ValueError(
                f"layer {i} of stack() returns {out} columns, but layer {i + 1} expects {into}: use the "
                "same width for all hidden layers"
            )
    architecture = Architecture(
        kind="",
        in_features=sizes[0][0],
        hidden=sizes[0][1],
        num_classes=sizes[-1][1],
        layers=len(layers),
        norm=norm,
        residual=residual,
        dropout=dropout,
        input_dropout=input_dropout,
    )
    return GNN(architecture, layers)


def num_torch_threads(model: nn.Module, count: int) -> int:
    """Return the number of threads that torch operators of a model may use, out of `count`.

    The thread team divides the work of `hyrt.nn` models, which get one thread. User-defined modules get all.
    """
    return 1 if isinstance(model, GNN) else count
