"""Convolutions of PyG, one after the other over the blocks of a mini-batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hyrt.errors import UnsupportedModel
from hyrt.nn.own_modules.conv_stack import ConvStack, as_tensor, first_in_width, stack_of
from hyrt.nn.own_modules.modules_of_edges import from_pyg_instead
from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.sampling.block import Block


@dataclass(frozen=True, slots=True)
class _PygCalls:
    """A block is given as PyG's bipartite graphs are: `conv((x, x[:num_dst]), edge_index)`."""

    maker: str = "from_pyg"
    given: str = "a pair of rows, of sources and destinations,"
    features_argument: str = "edge_dim"

    def __call__(self, conv: nn.Module, block: Block | TensorBlock, x: torch.Tensor) -> Any:
        pair = (x, x[: block.num_dst])
        return conv(pair, block.edge_index(), **self._of_edges(conv, block, x.dtype))

    def _of_edges(
        self, conv: nn.Module, block: Block | TensorBlock, dtype: torch.dtype
    ) -> dict[str, torch.Tensor]:
        """The weights or features of a block's edges, where a convolution takes them."""
        if self.edge_width(conv) is not None:
            name, rows = "edge_attr", block.edge_rows
        elif self.takes_weights(conv):
            name, rows = "edge_weight", block.edge_weights
        else:
            return {}
        values = as_tensor(rows, dtype)
        return {} if values is None else {name: values}

    def in_width(self, conv: nn.Module) -> int | None:
        into = getattr(conv, "in_channels", None)
        if isinstance(into, tuple | list):
            into = into[0]
        return into if isinstance(into, int) and into > 0 else first_in_width(conv)

    def edge_width(self, conv: nn.Module) -> int | None:
        if hasattr(conv, "edge_dim") or not _takes(conv, "edge_attr"):
            return getattr(conv, "edge_dim", None)
        # GINEConv keeps no number: it has a product of them, or takes as many as rows have columns.
        wide = getattr(getattr(conv, "lin", None), "in_channels", None)
        return self.in_width(conv) if wide is None else int(wide)

    def takes_weights(self, conv: nn.Module) -> bool:
        return _takes(conv, "edge_weight")

    def activates(self, conv: nn.Module) -> bool:
        return False


def _takes(conv: nn.Module, argument: str) -> bool:
    return argument in inspect.signature(conv.forward).parameters


def from_pyg(
    *convolutions: Any,
    activation: Callable[[torch.Tensor], torch.Tensor] = torch.relu,
    dropout: float = 0.0,
) -> ConvStack:
    """A model of PyG's convolutions for `hyrt.train`, with the weights that they have.

    Tested with SAGEConv, GATv2Conv, TransformerConv, GraphConv and GINConv; any other convolution works that
    takes a pair of rows, of sources and destinations. Weights of edges go to those that take `edge_weight`,
    features of edges (or the weights, as one column) to those that were made with `edge_dim`. As in PyG, a
    sum over sampled neighbours is not scaled up for those left out.

    Parameters
    ----------
    *convolutions
        `torch_geometric.nn` convolutions, the input's first, with their widths given. Or one model of
        `torch_geometric.nn.models` such as `GraphSAGE` or `GAT`: then its own activation and dropout count.
    activation
        What hidden rows go through.
    dropout
        The rate at which elements of hidden rows are dropped in training.

    Returns
    -------
    A module over blocks that shares the convolutions' parameters.

    Raises
    ------
    UnsupportedModel
        Naming the convolution, what is wrong with it, and what to do.
    """
    given: Sequence[Any] = convolutions
    if len(given) == 1 and isinstance(getattr(given[0], "convs", None), nn.ModuleList):
        model = given[0]
        given, activation, dropout = _parts_of(model)
    for i, conv in enumerate(given):
        _check_conv(f"from_pyg(): convolution {i + 1} ({type(conv).__name__})", conv)
    return stack_of(given, _PygCalls(), activation, dropout)


def _parts_of(model: Any) -> tuple[Sequence[Any], Callable[[torch.Tensor], torch.Tensor], float]:
    """The convolutions, the activation and the dropout of one of PyG's basic models."""
    name = type(model).__name__
    norms = getattr(model, "norms", None)
    if norms is not None and any(not isinstance(norm, nn.Identity) for norm in norms):
        raise UnsupportedModel(
            f"{name}: from_pyg() takes no norms: give norm=None, or write a module over blocks"
        )
    if getattr(model, "jk_mode", None) is not None:
        raise UnsupportedModel(f"{name}: from_pyg() takes no jumping knowledge: give jk=None")
    rate = getattr(model, "dropout", 0.0)
    act = getattr(model, "act", None)
    return list(model.convs), act or nn.Identity(), float(getattr(rate, "p", rate))


def _check_conv(named: str, conv: Any) -> None:
    if hasattr(conv, "edge_index"):
        raise UnsupportedModel(f"{named} is a graph: give it to hyrt.load, and convolutions to from_pyg()")
    if not isinstance(conv, nn.Module) or not hasattr(conv, "propagate"):
        inside = isinstance(conv, nn.Module) and any(hasattr(each, "propagate") for each in conv.modules())
        remedy = from_pyg_instead(conv) if inside else "give one, such as SAGEConv(16, 32)"
        raise UnsupportedModel(f"{named} is not a convolution of torch_geometric.nn: {remedy}")
    if any(isinstance(each, nn.parameter.UninitializedParameter) for each in conv.parameters()):
        raise UnsupportedModel(f"{named} does not know its width yet: give in_channels, not -1")
    if getattr(conv, "dropout", 0.0):
        raise UnsupportedModel(
            f"{named} drops attention weights by torch's own generator, so a step would depend "
            "on the split: make it with dropout=0"
        )
