"""Adapters that use PyG and DGL convolutions, and modules over DGL blocks, as hyrt models."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import nn

from hyrt.errors import UnsupportedModelError
from hyrt.nn.conv_stack import (
    BLOCKS,
    GRAPHS,
    ConvStack,
    as_tensor,
    build_conv_stack,
    first_linear_width,
    is_dgl_module,
    suggest_from_dgl,
    suggest_from_pyg,
)
from hyrt.nn.operators.tensor_ops import TensorBlock
from hyrt.sampling.block import Block


@dataclass(frozen=True, slots=True)
class _PygCalls:
    """PyG adapter, which passes a block as a bipartite graph: `conv((x, x[:num_dst]), edge_index)`."""

    factory_name: str = "from_pyg"
    input_description: str = "a pair of source and destination rows"
    edge_width_argument: str = "edge_dim"

    def __call__(self, conv: nn.Module, block: Block | TensorBlock, x: torch.Tensor) -> Any:
        pair = (x, x[: block.num_dst])
        return conv(pair, block.edge_index(), **self._edge_arguments(conv, block, x.dtype))

    def _edge_arguments(
        self, conv: nn.Module, block: Block | TensorBlock, dtype: torch.dtype
    ) -> dict[str, torch.Tensor]:
        """Return the edge weights or edge features as keyword arguments, if `conv` accepts them."""
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
        # GINEConv does not store `edge_dim`. It equals the input width of `lin` or, without `lin`, the width
        # of the rows.
        width = getattr(getattr(conv, "lin", None), "in_channels", None)
        return self.in_width(conv) if width is None else int(width)

    def takes_weights(self, conv: nn.Module) -> bool:
        return _takes(conv, "edge_weight")

    def activates(self, conv: nn.Module) -> bool:
        return False

    def adds_self_loops(self, conv: nn.Module) -> bool:
        # A stack removes self-loops from the data, even if only some of its convolutions add self-loops.
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
    `edge_weight`, and edge features (or the weights as one column) to convolutions that were created with
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
        If a convolution is not supported; the message gives the reason and the remedy.
    """
    convs: Sequence[Any] = convolutions
    if len(convs) == 1 and isinstance(getattr(convs[0], "convs", None), nn.ModuleList):
        model = convs[0]
        convs, activation, dropout = _split_basic_model(model)
    for i, conv in enumerate(convs):
        _check_pyg_conv(f"convolution {i + 1} ({type(conv).__name__}) of from_pyg()", conv)
    return build_conv_stack(convs, _PygCalls(), activation, dropout)


def _split_basic_model(model: Any) -> tuple[Sequence[Any], Callable[[torch.Tensor], torch.Tensor], float]:
    """Return the convolutions, the activation and the dropout rate of a PyG basic model."""
    name = type(model).__name__
    norms = getattr(model, "norms", None)
    if norms is not None and any(not isinstance(norm, nn.Identity) for norm in norms):
        raise UnsupportedModelError(
            f"from_pyg() does not support the norms of {name}: set norm=None, or write a module that takes "
            "blocks"
        )
    if getattr(model, "jk_mode", None) is not None:
        raise UnsupportedModelError(
            f"from_pyg() does not support the jumping knowledge of {name}: set jk=None"
        )
    rate = getattr(model, "dropout", 0.0)
    act = getattr(model, "act", None)
    return list(model.convs), act or nn.Identity(), float(getattr(rate, "p", rate))


def _check_pyg_conv(label: str, conv: Any) -> None:
    if hasattr(conv, "edge_index"):
        raise UnsupportedModelError(
            f"{label} is a graph: pass graphs to hyrt.load, and only convolutions to from_pyg()"
        )
    if not isinstance(conv, nn.Module) or not hasattr(conv, "propagate"):
        inside = isinstance(conv, nn.Module) and any(hasattr(child, "propagate") for child in conv.modules())
        remedy = suggest_from_pyg(conv) if inside else "pass one, such as SAGEConv(16, 32)"
        raise UnsupportedModelError(f"{label} is not a convolution from torch_geometric.nn: {remedy}")
    if any(isinstance(each, nn.parameter.UninitializedParameter) for each in conv.parameters()):
        raise UnsupportedModelError(
            f"{label} has no input width yet: set in_channels to a number other than -1"
        )
    if getattr(conv, "dropout", 0.0):
        raise UnsupportedModelError(
            f"{label} drops attention weights with torch's own random numbers, so results would depend on "
            "how steps are split among devices: create it with dropout=0"
        )


WEIGHTS, FEATURES = "weight", "feat"
"""Names of edge weights and edge features in `edata`; `hyrt.load` reads the same names from a DGL graph."""


def import_dgl(factory_name: str) -> None:
    """Import dgl; raise UnsupportedModelError if it cannot be imported."""
    try:
        import_module("dgl")
    # dgl raises OSError if its shared libraries are built for another version of torch.
    except (ImportError, OSError) as error:
        raise UnsupportedModelError(
            f"{factory_name}() cannot import the package dgl ({' '.join(str(error).split())}): install a "
            "dgl that is compatible with this torch, for example with pip install dgl==1.1.3 (see "
            "docs/from-dgl.md)"
        ) from error


def to_dgl_block(block: Block | TensorBlock, dtype: torch.dtype, *, self_loops: bool) -> Any:
    """Convert a block to a `DGLBlock` with edge weights and edge features in `edata`.

    The block must not be read in place. If `self_loops`, each destination gets a self-loop, whose weight and
    features are 1 as in `dgl.add_self_loop`.
    """
    indptr, columns = _as_ids(block.indptr), _as_ids(block.columns)
    values = {
        name: as_tensor(rows, dtype)
        for name, rows in ((WEIGHTS, block.edge_weights), (FEATURES, block.edge_features))
    }
    if self_loops:
        num_dst = block.num_dst
        number = torch.arange(num_dst + 1, device=indptr.device)
        indptr = indptr + number
        # Each self-loop becomes the last edge of its row.
        loops = indptr[1:] - 1
        others = torch.ones(block.num_edges + num_dst, dtype=torch.bool, device=indptr.device)
        others[loops] = False
        grown = columns.new_empty(len(others))
        grown[others], grown[loops] = columns, number[:num_dst]
        columns = grown
        for name, rows in values.items():
            if rows is not None:
                with_loops = rows.new_ones(len(others), *rows.shape[1:])
                with_loops[others] = rows
                values[name] = with_loops
    # Without explicit edge ids, some sums in DGL 1.1 and 2.1 dereference a null pointer.
    numbers = torch.arange(len(columns), device=columns.device)
    edges = ("csc", (indptr, columns, numbers))
    made = sys.modules["dgl"].create_block(
        edges, num_src_nodes=block.num_src, num_dst_nodes=block.num_dst, device=columns.device
    )
    for name, rows in values.items():
        if rows is not None:
            made.edata[name] = rows
    return made


def _as_ids(ids: Any) -> torch.Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(ids)) if isinstance(ids, np.ndarray) else ids
    return tensor.long()


# Names in DGL: arguments of `forward` for edge features, attributes for the input and edge widths.
_EDGE_ARGUMENTS = ("edge_feat", "edge_feats", "efeat", "efeats")
_WIDTHS = ("_in_src_feats", "_in_src_node_feats", "_in_feats", "in_feats")
_EDGE_WIDTHS = ("_edge_feats", "_in_edge_feats", "edge_feats", "edge_feat_size")


@dataclass(frozen=True, slots=True)
class _DglCalls:
    """Adapter for DGL: calls `conv(block, x)` with a `DGLBlock` and its source rows."""

    self_loops: bool
    factory_name: str = "from_dgl"
    input_description: str = "a block and its source rows"
    edge_width_argument: str = "edge_feats"

    def __call__(self, conv: nn.Module, block: Block | TensorBlock, x: torch.Tensor) -> Any:
        dgl_input = to_dgl_block(block, x.dtype, self_loops=self.self_loops)
        edge_arguments = {}
        if (name := _features_name(conv)) is not None:
            if FEATURES in dgl_input.edata:
                edge_arguments[name] = dgl_input.edata[FEATURES]
            elif WEIGHTS in dgl_input.edata:
                edge_arguments[name] = dgl_input.edata[WEIGHTS][:, None]
        elif self.takes_weights(conv) and WEIGHTS in dgl_input.edata:
            edge_arguments["edge_weight"] = dgl_input.edata[WEIGHTS]
        return conv(dgl_input, x, **edge_arguments)

    def in_width(self, conv: nn.Module) -> int | None:
        widths = (getattr(conv, name, None) for name in _WIDTHS)
        return next(
            (width for width in widths if isinstance(width, int) and width > 0), first_linear_width(conv)
        )

    def edge_width(self, conv: nn.Module) -> int | None:
        if _features_name(conv) is None:
            return None
        widths = (getattr(conv, name, None) for name in _EDGE_WIDTHS)
        edge_width = next((width for width in widths if isinstance(width, int) and width > 0), None)
        weight_function = getattr(conv, "edge_func", None)
        if edge_width is None and isinstance(weight_function, nn.Module):
            # NNConv computes its weights from the edge features.
            edge_width = first_linear_width(weight_function)
        # GINEConv adds edge features to rows, so both must have the same width.
        return edge_width or self.in_width(conv)

    def takes_weights(self, conv: nn.Module) -> bool:
        return "edge_weight" in inspect.signature(conv.forward).parameters

    def adds_self_loops(self, conv: nn.Module) -> bool:
        return self.self_loops

    def activates(self, conv: nn.Module) -> bool:
        return any(getattr(conv, name, None) is not None for name in ("activation", "_activation"))


def _features_name(conv: nn.Module) -> str | None:
    return next(
        (name for name in inspect.signature(conv.forward).parameters if name in _EDGE_ARGUMENTS), None
    )


class DglModel(nn.Module):
    """Wrapper of a module over a list of `DGLBlock` and source rows [num_src, f]; created by `from_dgl`."""

    def __init__(self, model: nn.Module, *, self_loops: bool) -> None:
        super().__init__()
        self.model = model
        self.self_loops = self_loops

    @property
    def adds_self_loops(self) -> bool:
        return self.self_loops

    def forward(self, blocks: Sequence[Block | TensorBlock], x: torch.Tensor) -> Any:
        """Compute the module's scores [targets, classes]."""
        return self.model([to_dgl_block(block, x.dtype, self_loops=self.self_loops) for block in blocks], x)


def from_dgl(
    *convolutions: Any,
    activation: Callable[[torch.Tensor], torch.Tensor] = torch.relu,
    dropout: float = 0.0,
    self_loops: bool = False,
) -> ConvStack | DglModel:
    """Build a model for `hyrt.train` from DGL convolutions, keeping their weights.

    Works with SAGEConv, GATConv, GATv2Conv, GINConv, GraphConv with `norm="right"` or `"none"`, EdgeGATConv,
    GINEConv, and other convolutions that accept a block. Edge weights are passed to convolutions that have an
    argument `edge_weight`. Edge features (or the weights, as one column) are passed to convolutions that have
    an argument `edge_feat` or `efeat`. Attention heads are concatenated in hidden rows and averaged in the
    last convolution.

    Parameters
    ----------
    *convolutions
        `dgl.nn` convolutions, input layer first; or one module whose `forward(blocks, x)` accepts DGL blocks,
        which is trained unmodified and reads edge values from `block.edata["weight"]` and `["feat"]`.
    activation
        Activation of hidden rows, applied after each convolution that has none itself.
    dropout
        Dropout rate of hidden rows in training.
    self_loops
        Whether each vertex gets one self-loop in each block, which replaces any in the data, as
        `dgl.add_self_loop(dgl.remove_self_loop(g))` does for a graph.

    Returns
    -------
    A module over blocks that shares the convolutions' parameters.

    Raises
    ------
    UnsupportedModelError
        If dgl cannot be imported or a convolution is not supported; the message gives the reason and the
        remedy.
    """
    import_dgl("from_dgl")
    if len(convolutions) == 1 and _takes_blocks(convolutions[0]):
        if activation is not torch.relu or dropout:
            raise UnsupportedModelError(
                f"{type(convolutions[0]).__name__} has its own activation and dropout, which from_dgl() "
                "cannot change: remove the arguments activation and dropout"
            )
        return DglModel(convolutions[0], self_loops=self_loops)
    for i, conv in enumerate(convolutions):
        _check_dgl_conv(f"convolution {i + 1} ({type(conv).__name__}) of from_dgl()", conv, self_loops)
    return build_conv_stack(convolutions, _DglCalls(self_loops), activation, dropout)


def _takes_blocks(module: Any) -> bool:
    return isinstance(module, nn.Module) and _first_argument(module) in BLOCKS


def _first_argument(module: nn.Module) -> str | None:
    return next(iter(inspect.signature(module.forward).parameters), None)


def _check_dgl_conv(label: str, conv: Any, self_loops: bool) -> None:
    if hasattr(conv, "ndata"):
        raise UnsupportedModelError(
            f"{label} is a graph: pass graphs to hyrt.load, and only convolutions to from_dgl()"
        )
    if not isinstance(conv, nn.Module) or not (is_dgl_module(conv) or _first_argument(conv) in GRAPHS):
        inside = isinstance(conv, nn.Module) and any(map(is_dgl_module, conv.modules()))
        remedy = suggest_from_dgl(conv) if inside else "pass one, such as SAGEConv(16, 32, 'mean')"
        raise UnsupportedModelError(f"{label} is not a convolution from dgl.nn: {remedy}")
    if getattr(conv, "_norm", None) in ("both", "left"):
        raise UnsupportedModelError(
            f"{label} divides by each source's out-degree, which differs between mini-batches, so results "
            "would depend on how steps are split among devices: create it with norm='right', or use hyrt's "
            "built-in model='gcn'"
        )
    if any(isinstance(module, nn.Dropout) and module.p > 0 for module in conv.modules()):
        raise UnsupportedModelError(
            f"{label} drops elements with torch's own random numbers, so results would depend on how steps "
            "are split among devices: create it with feat_drop=0 and attn_drop=0, and pass dropout=... to "
            "from_dgl() for hidden rows"
        )
    if getattr(conv, "_allow_zero_in_degree", None) is False and not self_loops:
        raise UnsupportedModelError(
            f"{label} rejects vertices without incoming edges, which a graph may have: pass self_loops=True "
            "to from_dgl(), or create the convolution with allow_zero_in_degree=True"
        )
