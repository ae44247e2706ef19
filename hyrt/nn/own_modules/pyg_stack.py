"""Convolutions of PyG, one after the other over the blocks of a mini-batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from hyrt.errors import DataError, UnsupportedModel
from hyrt.nn.operators.dropout import dropout as drop
from hyrt.nn.own_modules.modules_of_edges import from_pyg_instead
from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.sampling.block import Block

# Three sources, of which the first two are the destinations; each of these has an edge from another vertex.
_EDGES = ((1, 2, 0), (0, 0, 1))
_SOURCES, _DESTINATIONS = 3, 2


class PygStack(nn.Module):
    """PyG's convolutions as they are, with activation and dropout between them; `from_pyg` makes one.

    Block l is given to convolution l as PyG's bipartite graphs are: `conv((x, x[:num_dst]), edge_index)`.

    Parameters
    ----------
    convolutions
        The convolutions, the input's first.
    activation
        What hidden rows go through.
    dropout
        The rate at which elements of hidden rows are dropped in training. Masks depend on seed, step, layer,
        vertex and column, so neither on the split nor on the mini-batch.
    """

    def __init__(
        self,
        convolutions: Sequence[nn.Module],
        activation: Callable[[torch.Tensor], torch.Tensor],
        dropout: float,
    ) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convolutions)
        self.activation = activation
        self.dropout = dropout

    def forward(self, blocks: Sequence[Block | TensorBlock], x: torch.Tensor) -> torch.Tensor:
        """[targets, width of the last convolution] from [num_src, f] rows of the first block's sources."""
        last = len(self.convs) - 1
        for i, (block, conv) in enumerate(zip(blocks, self.convs, strict=True)):
            x = conv((x, x[: block.num_dst]), block.edge_index(), **_of_edges(conv, block, x.dtype))
            if i == last:
                return x
            x = self.activation(x)
            if self.training and self.dropout:
                masks = {"seed": block.seed, "step": block.step, "layer": i + 1}
                dropped = drop(x, block.destinations, rate=self.dropout, **masks)
                assert isinstance(dropped, torch.Tensor)
                x = dropped
        return x

    def check_edges(self, name: str, *, has_weights: bool, width: int) -> None:
        """Check that the convolutions read the weights and features that the edges of a graph have.

        Parameters
        ----------
        name
            The graph.
        has_weights
            Whether its edges have weights.
        width
            Columns of their features; 0 for none.

        Raises
        ------
        UnsupportedModel
            Naming the convolution that takes others.
        DataError
            If none takes what there is.
        """
        wants = 0
        for number, conv in enumerate(self.convs, 1):
            wanted = _edge_width(conv)
            given = width or int(has_weights)
            wants += wanted is not None
            if wanted is not None and wanted != given:
                raise UnsupportedModel(
                    f"convolution {number} ({type(conv).__name__}) takes {wanted} features of an edge, but "
                    f"those of {name} have {given}: make it with edge_dim={given or None}"
                )
        if has_weights and not wants and not any(_takes(conv, "edge_weight") for conv in self.convs):
            raise DataError(
                f"{name}: key 'edge_weight': no convolution takes weights of edges, so they would be left "
                "out: take one that does, such as GraphConv, or write the dataset again without this key"
            )
        if width and not wants:
            raise DataError(
                f"{name}: key 'edge_features': no convolution takes features of edges, so they would be left "
                f"out: make one with edge_dim={width}, or write the dataset again without this key"
            )


def _takes(conv: nn.Module, argument: str) -> bool:
    return argument in inspect.signature(conv.forward).parameters


def _edge_width(conv: nn.Module) -> int | None:
    """The features of an edge that a convolution takes; None for none."""
    if hasattr(conv, "edge_dim") or not _takes(conv, "edge_attr"):
        return getattr(conv, "edge_dim", None)
    # GINEConv keeps no number: it has a product of them, or takes as many as rows have columns.
    wide = getattr(getattr(conv, "lin", None), "in_channels", None)
    return _in_width(conv) if wide is None else int(wide)


def _of_edges(conv: nn.Module, block: Block | TensorBlock, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The weights or features of a block's edges, where a convolution takes them."""
    if _edge_width(conv) is not None:
        name, rows = "edge_attr", block.edge_rows
    elif _takes(conv, "edge_weight"):
        name, rows = "edge_weight", block.edge_weights
    else:
        return {}
    if rows is None:
        return {}
    values = torch.from_numpy(np.ascontiguousarray(rows)) if isinstance(rows, np.ndarray) else rows
    return {name: values.to(dtype)}


def from_pyg(
    *convolutions: Any,
    activation: Callable[[torch.Tensor], torch.Tensor] = torch.relu,
    dropout: float = 0.0,
) -> PygStack:
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
    if not given:
        raise UnsupportedModel(
            "from_pyg() needs at least one convolution: give all of them, the one that reads features first"
        )
    if not 0 <= dropout < 1:
        raise UnsupportedModel(f"from_pyg(): dropout={dropout} is not in [0, 1)")
    width = None
    for i, conv in enumerate(given):
        width = _width_after(f"convolution {i + 1} ({type(conv).__name__})", conv, width)
    return PygStack(given, activation, dropout)


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


def _width_after(named: str, conv: Any, width: int | None) -> int:
    """Try a convolution on two made-up destinations; returns the width of its result."""
    if not isinstance(conv, nn.Module) or not hasattr(conv, "propagate"):
        inside = isinstance(conv, nn.Module) and any(hasattr(each, "propagate") for each in conv.modules())
        remedy = f": {from_pyg_instead(conv)}" if inside else ""
        raise UnsupportedModel(f"from_pyg(): {named} is no convolution of torch_geometric.nn{remedy}")
    if any(isinstance(each, nn.parameter.UninitializedParameter) for each in conv.parameters()):
        raise UnsupportedModel(f"from_pyg(): {named} does not know its width yet: give in_channels, not -1")
    if getattr(conv, "dropout", 0.0):
        raise UnsupportedModel(
            f"from_pyg(): {named} drops attention weights by torch's own generator, so a step would depend "
            "on the split: make it with dropout=0"
        )
    into = _in_width(conv)
    if into is None and width is None:
        raise UnsupportedModel(f"from_pyg(): {named} does not tell its width: put it behind one that does")
    if width is not None and into is not None and into != width:
        raise UnsupportedModel(f"from_pyg(): {named} takes {into} columns, but is given {width}")
    x = torch.ones(_SOURCES, into or width or 1, dtype=_dtype(conv))
    was_training = conv.training
    try:
        with torch.no_grad():
            pair, edges = (x, x[:_DESTINATIONS]), torch.tensor(_EDGES)
            if (wide := _edge_width(conv)) is not None:
                found = conv.eval()(pair, edges, edge_attr=torch.ones(edges.shape[1], wide, dtype=x.dtype))
            else:
                found = conv.eval()(pair, edges)
    except Exception as error:
        raise UnsupportedModel(
            f"from_pyg(): {named} does not work on a pair of rows, of sources and destinations, alone: "
            f"{' '.join(str(error).split())[:200]}"
        ) from error
    finally:
        conv.train(was_training)
    if not isinstance(found, torch.Tensor) or found.ndim != 2 or len(found) != _DESTINATIONS:
        shape = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise UnsupportedModel(f"from_pyg(): {named} returns {shape} for {_DESTINATIONS} destinations")
    return int(found.shape[1])


def _in_width(conv: nn.Module) -> int | None:
    """The columns that a convolution takes; None where it does not say."""
    into = getattr(conv, "in_channels", None)
    if isinstance(into, tuple | list):
        into = into[0]
    if isinstance(into, int) and into > 0:
        return into
    inner = next((each for each in conv.modules() if hasattr(each, "in_features")), None)
    wide = getattr(inner, "in_features", getattr(inner, "in_channels", None))
    return wide if isinstance(wide, int) and wide > 0 else None


def _dtype(conv: nn.Module) -> torch.dtype:
    return next((each.dtype for each in conv.parameters() if each.is_floating_point()), torch.float32)
