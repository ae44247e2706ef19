"""PyG convolutions as hyrt models."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hyrt.errors import UnsupportedModelError
from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.nn.user_modules.conv_stack import (
    ConvStack,
    as_tensor,
    build_conv_stack,
    first_linear_width,
    suggest_from_pyg,
)
from hyrt.sampling.block import Block


@dataclass(frozen=True, slots=True)
class _PygCalls:
    """Adapter that passes a block as a bipartite graph: `conv((x, x[:num_dst]), edge_index)`."""

    factory_name: str = "from_pyg"
    input_description: str = "a pair of rows, of sources and destinations,"
    edge_width_argument: str = "edge_dim"

    def __call__(self, conv: nn.Module, block: Block | TensorBlock, x: torch.Tensor) -> Any:
        pair = (x, x[: block.num_dst])
        return conv(pair, block.edge_index(), **self._edge_arguments(conv, block, x.dtype))

    def _edge_arguments(
        self, conv: nn.Module, block: Block | TensorBlock, dtype: torch.dtype
    ) -> dict[str, torch.Tensor]:
        """Return the edge weights or edge features of a block, if a convolution accepts them."""
        if self.edge_width(conv) is not None:
            name, rows = "edge_attr", block.edge_rows
        elif self.takes_weights(conv):
            name, rows = "edge_weight", block.edge_weights
        else:
            return {}
        values = as_tensor(rows, dtype)
        return {} if values is None else {name: values}

    def in_width(self, conv: nn.Module) -> int | None:
        width = getattr(conv, "in_channels", None)
        if isinstance(width, tuple | list):
            width = width[0]
        return width if isinstance(width, int) and width > 0 else first_linear_width(conv)

    def edge_width(self, conv: nn.Module) -> int | None:
        if hasattr(conv, "edge_dim") or not _takes(conv, "edge_attr"):
            return getattr(conv, "edge_dim", None)
        # GINEConv does not store the width, which is that of a linear map or, without one, of the rows.
        width = getattr(getattr(conv, "lin", None), "in_channels", None)
        return self.in_width(conv) if width is None else int(width)

    def takes_weights(self, conv: nn.Module) -> bool:
        return _takes(conv, "edge_weight")

    def activates(self, conv: nn.Module) -> bool:
        return False

    def adds_self_loops(self, conv: nn.Module) -> bool:
        # A stack removes self-loops in the data for all convolutions, so that both kinds can be combined.
        return getattr(conv, "add_self_loops", False) is True


def _takes(conv: nn.Module, argument: str) -> bool:
    return argument in inspect.signature(conv.forward).parameters


def from_pyg(
    *convolutions: Any,
    activation: Callable[[torch.Tensor], torch.Tensor] = torch.relu,
    dropout: float = 0.0,
) -> ConvStack:
    """Build a model for `hyrt.train` from PyG convolutions, keeping their weights.

    Tested with SAGEConv, GATv2Conv, TransformerConv, GraphConv and GINConv; other convolutions work if they
    accept a pair of source and destination rows. Edge weights are passed to convolutions with an argument
    `edge_weight`, edge features (or the weights as one column) to convolutions that were created with
    `edge_dim`. As in PyG, a sum over sampled neighbours is not scaled up to all neighbours.

    Parameters
    ----------
    *convolutions
        `torch_geometric.nn` convolutions with explicit widths, input layer first; or one model of
        `torch_geometric.nn.models` such as `GraphSAGE` or `GAT`, whose activation and dropout are used.
    activation
        Activation of hidden rows.
    dropout
        Dropout rate of hidden rows in training.

    Returns
    -------
    A module over blocks that shares the convolutions' parameters.

    Raises
    ------
    UnsupportedModelError
        If a convolution is not supported; the message has the reason and a fix.
    """
    convs: Sequence[Any] = convolutions
    if len(convs) == 1 and isinstance(getattr(convs[0], "convs", None), nn.ModuleList):
        model = convs[0]
        convs, activation, dropout = _split_basic_model(model)
    for i, conv in enumerate(convs):
        _check_pyg_conv(f"from_pyg(): convolution {i + 1} ({type(conv).__name__})", conv)
    return build_conv_stack(convs, _PygCalls(), activation, dropout)


def _split_basic_model(model: Any) -> tuple[Sequence[Any], Callable[[torch.Tensor], torch.Tensor], float]:
    """Return the convolutions, the activation and the dropout rate of a PyG basic model."""
    name = type(model).__name__
    norms = getattr(model, "norms", None)
    if norms is not None and any(not isinstance(norm, nn.Identity) for norm in norms):
        raise UnsupportedModelError(
            f"{name}: from_pyg() takes no norms: give norm=None, or write a module over blocks"
        )
    if getattr(model, "jk_mode", None) is not None:
        raise UnsupportedModelError(f"{name}: from_pyg() takes no jumping knowledge: give jk=None")
    rate = getattr(model, "dropout", 0.0)
    act = getattr(model, "act", None)
    return list(model.convs), act or nn.Identity(), float(getattr(rate, "p", rate))


def _check_pyg_conv(label: str, conv: Any) -> None:
    if hasattr(conv, "edge_index"):
        raise UnsupportedModelError(
            f"{label} is a graph: give it to hyrt.load, and convolutions to from_pyg()"
        )
    if not isinstance(conv, nn.Module) or not hasattr(conv, "propagate"):
        inside = isinstance(conv, nn.Module) and any(hasattr(child, "propagate") for child in conv.modules())
        remedy = suggest_from_pyg(conv) if inside else "give one, such as SAGEConv(16, 32)"
        raise UnsupportedModelError(f"{label} is not a convolution of torch_geometric.nn: {remedy}")
    if any(isinstance(each, nn.parameter.UninitializedParameter) for each in conv.parameters()):
        raise UnsupportedModelError(f"{label} does not know its width yet: give in_channels, not -1")
    if getattr(conv, "dropout", 0.0):
        raise UnsupportedModelError(
            f"{label} drops attention weights by torch's own generator, so a step would depend "
            "on the split: make it with dropout=0"
        )
