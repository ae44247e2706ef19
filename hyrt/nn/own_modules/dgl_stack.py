"""Convolutions of DGL, and modules over DGL's blocks, in hyrt."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hyrt.errors import UnsupportedModel
from hyrt.nn.own_modules.conv_stack import ConvStack, first_in_width, stack_of
from hyrt.nn.own_modules.dgl_blocks import FEATURES, WEIGHTS, check_dgl, dgl_block
from hyrt.nn.own_modules.modules_of_edges import BLOCKS, GRAPHS, from_dgl_instead, is_of_dgl
from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.sampling.block import Block

# What DGL's convolutions call the features of edges, the widths of their rows, and those of their edges.
_OF_EDGES = ("edge_feat", "edge_feats", "efeat", "efeats")
_WIDTHS = ("_in_src_feats", "_in_src_node_feats", "_in_feats", "in_feats")
_EDGE_WIDTHS = ("_edge_feats", "_in_edge_feats", "edge_feats", "edge_feat_size")


@dataclass(frozen=True, slots=True)
class _DglCalls:
    """A block is given as a `DGLBlock`, with the rows of its sources: `conv(block, x)`."""

    self_loops: bool
    maker: str = "from_dgl"
    given: str = "a block and the rows of its sources"
    features_argument: str = "edge_feats"

    def __call__(self, conv: nn.Module, block: Block | TensorBlock, x: torch.Tensor) -> Any:
        made = dgl_block(block, x.dtype, self_loops=self.self_loops)
        more = {}
        if (name := _features_name(conv)) is not None:
            if FEATURES in made.edata:
                more[name] = made.edata[FEATURES]
            elif WEIGHTS in made.edata:
                more[name] = made.edata[WEIGHTS][:, None]
        elif self.takes_weights(conv) and WEIGHTS in made.edata:
            more["edge_weight"] = made.edata[WEIGHTS]
        return conv(made, x, **more)

    def in_width(self, conv: nn.Module) -> int | None:
        known = (getattr(conv, name, None) for name in _WIDTHS)
        return next((each for each in known if isinstance(each, int) and each > 0), first_in_width(conv))

    def edge_width(self, conv: nn.Module) -> int | None:
        if _features_name(conv) is None:
            return None
        known = (getattr(conv, name, None) for name in _EDGE_WIDTHS)
        wide = next((each for each in known if isinstance(each, int) and each > 0), None)
        weights_of = getattr(conv, "edge_func", None)
        if wide is None and isinstance(weights_of, nn.Module):
            # NNConv, whose weights are a function of the features.
            wide = first_in_width(weights_of)
        # GINEConv adds features to rows, and takes as many as these have columns.
        return wide or self.in_width(conv)

    def takes_weights(self, conv: nn.Module) -> bool:
        return "edge_weight" in inspect.signature(conv.forward).parameters

    def activates(self, conv: nn.Module) -> bool:
        return any(getattr(conv, name, None) is not None for name in ("activation", "_activation"))


def _features_name(conv: nn.Module) -> str | None:
    return next((name for name in inspect.signature(conv.forward).parameters if name in _OF_EDGES), None)


class DglModel(nn.Module):
    """A module over DGL's blocks as it is; `from_dgl` makes one.

    Parameters
    ----------
    model
        Called with a list of `DGLBlock` and [num_src, f] rows of the first one's sources.
    self_loops
        Whether each destination gets an edge from itself.
    """

    def __init__(self, model: nn.Module, *, self_loops: bool) -> None:
        super().__init__()
        self.model = model
        self.self_loops = self_loops

    def forward(self, blocks: Sequence[Block | TensorBlock], x: torch.Tensor) -> Any:
        """What the module returns: [targets, classes] scores."""
        return self.model([dgl_block(block, x.dtype, self_loops=self.self_loops) for block in blocks], x)


def from_dgl(
    *convolutions: Any,
    activation: Callable[[torch.Tensor], torch.Tensor] = torch.relu,
    dropout: float = 0.0,
    self_loops: bool = False,
) -> ConvStack | DglModel:
    """A model of DGL's convolutions for `hyrt.train`, with the weights that they have.

    Works with SAGEConv, GATConv, GATv2Conv, GINConv, GraphConv with `norm="right"` or `"none"`, EdgeGATConv,
    GINEConv, and others that take a block. Weights of edges go to those that take `edge_weight`, features of
    edges (or the weights, as one column) to those that take `edge_feat` or `efeat`. The heads of an attention
    lie side by side in hidden rows; of the last convolution's, the mean is taken.

    Parameters
    ----------
    *convolutions
        `dgl.nn` convolutions, the input's first. Or one module whose `forward(blocks, x)` takes DGL's blocks:
        then it is trained as it is, and is given `weight` and `feat` of edges in `block.edata`.
    activation
        What hidden rows go through, after convolutions that were made without an activation.
    dropout
        The rate at which elements of hidden rows are dropped in training.
    self_loops
        Whether each vertex gets an edge from itself in each block, as `dgl.add_self_loop` adds it to a graph;
        `hyrt.load` leaves such edges out.

    Returns
    -------
    A module over blocks that shares the convolutions' parameters.

    Raises
    ------
    UnsupportedModel
        If dgl cannot be imported; or naming the convolution, what is wrong with it, and what to do.
    """
    check_dgl("from_dgl")
    if len(convolutions) == 1 and _takes_blocks(convolutions[0]):
        if activation is not torch.relu or dropout:
            raise UnsupportedModel(
                f"from_dgl(): {type(convolutions[0]).__name__} has its own activation and dropout: give "
                "activation and dropout with convolutions alone"
            )
        return DglModel(convolutions[0], self_loops=self_loops)
    for i, conv in enumerate(convolutions):
        _check_conv(f"from_dgl(): convolution {i + 1} ({type(conv).__name__})", conv, self_loops)
    return stack_of(convolutions, _DglCalls(self_loops), activation, dropout)


def _takes_blocks(module: Any) -> bool:
    return isinstance(module, nn.Module) and _first_argument(module) in BLOCKS


def _first_argument(module: nn.Module) -> str | None:
    return next(iter(inspect.signature(module.forward).parameters), None)


def _check_conv(named: str, conv: Any, self_loops: bool) -> None:
    if hasattr(conv, "ndata"):
        raise UnsupportedModel(f"{named} is a graph: give it to hyrt.load, and convolutions to from_dgl()")
    if not isinstance(conv, nn.Module) or not (is_of_dgl(conv) or _first_argument(conv) in GRAPHS):
        inside = isinstance(conv, nn.Module) and any(map(is_of_dgl, conv.modules()))
        remedy = f": {from_dgl_instead(conv)}" if inside else ""
        raise UnsupportedModel(f"{named} is not a convolution of dgl.nn{remedy}")
    if getattr(conv, "_norm", None) in ("both", "left"):
        raise UnsupportedModel(
            f"{named} divides by the number of edges that leave a source, which is another one in each "
            "mini-batch, so a step would depend on the split: make it with norm='right', or train hyrt's own "
            "model='gcn'"
        )
    if any(isinstance(each, nn.Dropout) and each.p > 0 for each in conv.modules()):
        raise UnsupportedModel(
            f"{named} drops elements by torch's own generator, so a step would depend on the split: make it "
            "with feat_drop=0 and attn_drop=0, and give from_dgl() dropout=... for hidden rows"
        )
    if getattr(conv, "_allow_zero_in_degree", None) is False and not self_loops:
        raise UnsupportedModel(
            f"{named} refuses vertices without incoming edges, which a graph may have: give from_dgl() "
            "self_loops=True, or make the convolution with allow_zero_in_degree=True"
        )
