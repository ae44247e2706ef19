"""Stacks of PyG or DGL convolutions over blocks, and checks of user-defined modules."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from hyrt.checks import check_number, show
from hyrt.errors import DataError, UnsupportedModelError
from hyrt.nn.model import GNN
from hyrt.nn.operators.dropout import dropout as drop
from hyrt.nn.operators.tensor_ops import TensorBlock
from hyrt.sampling.block import Block

# Argument names for edges in PyG modules.
_EDGES = ("edge_index", "adj_t")
GRAPHS = ("g", "graph")
"""Argument names for a graph or a block in DGL modules."""
BLOCKS = ("blocks", "mfgs")
"""Argument names for the blocks of a mini-batch in DGL modules."""


def check_forward_signature(module: nn.Module) -> None:
    """Reject a module that would take feature rows for edges; the error suggests a replacement.

    Raises UnsupportedModelError if `forward` has an argument `edge_index` or `adj_t`, or if it has a graph
    argument and the module contains DGL convolutions.
    """
    try:
        names = list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        # The signature of a compiled forward is unknown.
        return
    if any(name in _EDGES for name in names) and "blocks" not in names:
        raise UnsupportedModelError(
            f"{type(module).__name__}.forward takes ({', '.join(names)}), but hyrt passes (blocks, x): "
            f"{suggest_from_pyg(module)}, or make forward accept blocks (see docs/from-pyg.md)"
        )
    if names and names[0] in GRAPHS and any(map(is_dgl_module, module.modules())):
        raise UnsupportedModelError(
            f"{type(module).__name__}.forward takes ({', '.join(names)}), but hyrt passes (blocks, x): "
            f"{suggest_from_dgl(module)} (see docs/from-dgl.md)"
        )


def suggest_from_pyg(module: nn.Module) -> str:
    """Return a message that suggests the `hyrt.from_pyg` call for the convolutions in a module."""
    return _suggest_call("from_pyg", module, lambda conv: hasattr(conv, "propagate"))


def suggest_from_dgl(module: nn.Module) -> str:
    """Return a message that suggests the `hyrt.from_dgl` call for the convolutions in a module."""
    return _suggest_call("from_dgl", module, is_dgl_module)


def is_dgl_module(module: nn.Module) -> bool:
    """Return whether the class of a module is defined in DGL, without importing dgl."""
    return any(base.__module__.split(".")[0] == "dgl" for base in type(module).__mro__)


def _suggest_call(factory: str, module: nn.Module, is_conv: Callable[[nn.Module], bool]) -> str:
    convs = [name for name, child in module.named_modules() if name and is_conv(child)]
    # Ignore convolutions that are part of another convolution.
    outer = [name for name in convs if not any(name.startswith(f"{other}.") for other in convs)]
    arguments = (
        ", ".join(re.sub(r"\.(\d+)\b", r"[\1]", f"model.{name}") for name in outer) or "its convolutions"
    )
    return f"pass its convolutions in order, as in hyrt.{factory}({arguments}, activation=torch.relu)"


# Edges of the test block, which has two destinations (the first two of its three sources): destination 0
# receives from sources 1 and 2, destination 1 from sources 0 and 2.
_SENDERS = ((1, 2), (0, 2))
_SOURCES = 3


class ConvAdapter(Protocol):
    """Adapter that calls the convolutions of a library and returns their properties."""

    @property
    def factory_name(self) -> str:
        """Return the name of the public function that the user called, for messages."""
        ...

    @property
    def input_description(self) -> str:
        """Return a description of the inputs of the library's convolutions, for messages."""
        ...

    @property
    def edge_width_argument(self) -> str:
        """Return the name of the constructor argument that sets the number of edge features."""
        ...

    def __call__(self, conv: nn.Module, block: Block | TensorBlock, x: torch.Tensor) -> Any:
        """Call a convolution with a block and its source rows [num_src, f]."""
        ...

    def in_width(self, conv: nn.Module) -> int | None:
        """Return the input width of a convolution; None if unknown."""
        ...

    def edge_width(self, conv: nn.Module) -> int | None:
        """Return the number of edge features that a convolution reads; None if it reads none."""
        ...

    def takes_weights(self, conv: nn.Module) -> bool:
        """Return whether a convolution accepts edge weights."""
        ...

    def activates(self, conv: nn.Module) -> bool:
        """Return whether a convolution applies an activation itself."""
        ...

    def adds_self_loops(self, conv: nn.Module) -> bool:
        """Return whether a convolution gets a self-loop per vertex, which replaces any in the data."""
        ...


class ConvStack(nn.Module):
    """Stack of unmodified convolutions, with activation and dropout between them.

    The activation follows each hidden convolution that has none itself. Dropout masks depend on seed, step,
    layer, vertex and column, but neither on the split nor on the mini-batch.
    """

    def __init__(
        self,
        convolutions: Sequence[nn.Module],
        adapter: ConvAdapter,
        activation: Callable[[torch.Tensor], torch.Tensor],
        dropout: float,
    ) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convolutions)
        self.activation = activation
        self.dropout = dropout
        self._calls = adapter

    def forward(self, blocks: Sequence[Block | TensorBlock], x: torch.Tensor) -> torch.Tensor:
        """Compute scores [targets, last width] from the first block's source rows [num_src, f]."""
        last = len(self.convs) - 1
        for i, (block, conv) in enumerate(zip(blocks, self.convs, strict=True)):
            x = self._calls(conv, block, x)
            if x.ndim == 3:
                # Attention heads are concatenated in hidden rows and averaged in scores.
                x = x.mean(1) if i == last else x.flatten(1)
            if i == last:
                return x
            if not self._calls.activates(conv):
                x = self.activation(x)
            if self.training and self.dropout:
                masks = {"seed": block.seed, "step": block.step, "layer": i + 1}
                dropped = drop(x, block.destinations, rate=self.dropout, **masks)
                assert isinstance(dropped, torch.Tensor)
                x = dropped
        return x

    @property
    def adds_self_loops(self) -> bool:
        """Whether all convolutions get a self-loop per vertex, which replaces any in the data."""
        return all(map(self._calls.adds_self_loops, self.convs))

    def check_edges(self, name: str, *, has_weights: bool, width: int) -> None:
        """Check that the convolutions fit the edge weights and the `width` edge features of the graph `name`.

        Raises UnsupportedModelError if the number of edge features differs, and DataError if no convolution
        reads the weights or the features.
        """
        argument = self._calls.edge_width_argument
        num_readers = 0
        for number, conv in enumerate(self.convs, 1):
            expected = self._calls.edge_width(conv)
            actual = width or int(has_weights)
            num_readers += expected is not None
            if expected is not None and expected != actual:
                raise UnsupportedModelError(
                    f"convolution {number} ({type(conv).__name__}) expects {expected} edge features, but "
                    f"{name} has {actual}: create it with {argument}={actual or None}"
                )
        if has_weights and not num_readers and not any(map(self._calls.takes_weights, self.convs)):
            raise DataError(
                f"no convolution uses the edge weights of {name} (key 'edge_weight'): use one that does, "
                "such as GraphConv, or rewrite the dataset without this key"
            )
        if width and not num_readers:
            raise DataError(
                f"no convolution uses the edge features of {name} (key 'edge_features'): create one with "
                f"{argument}={width}, or rewrite the dataset without this key"
            )


def build_conv_stack(
    convolutions: Sequence[Any],
    adapter: ConvAdapter,
    activation: Callable[[torch.Tensor], torch.Tensor],
    dropout: float,
) -> ConvStack:
    """Build a stack of convolutions after testing each one on a small synthetic block.

    Raises UnsupportedModelError if a convolution fails; the message gives its name, the reason and the
    remedy.
    """
    if not convolutions:
        raise UnsupportedModelError(
            f"{adapter.factory_name}() needs at least one convolution: pass all convolutions in order, "
            "starting with the one that reads the features"
        )
    if not 0 <= check_number("dropout", dropout) < 1:
        raise UnsupportedModelError(
            f"{adapter.factory_name}() got dropout={dropout}, which is not in [0, 1): use a rate in this "
            "range"
        )
    if not callable(activation):
        raise UnsupportedModelError(
            f"activation is {show(activation)}: pass a function of a tensor, such as torch.relu"
        )
    width = None
    for i, conv in enumerate(convolutions):
        label = f"convolution {i + 1} ({type(conv).__name__}) of {adapter.factory_name}()"
        width = _width_after(label, conv, adapter, width, is_last=i + 1 == len(convolutions))
    return ConvStack(convolutions, adapter, activation, dropout)


def _width_after(label: str, conv: nn.Module, calls: ConvAdapter, width: int | None, *, is_last: bool) -> int:
    """Test a convolution on a synthetic block with two destinations; return the width of its result."""
    into = calls.in_width(conv)
    if into is None and width is None:
        raise UnsupportedModelError(
            f"{label} does not declare its input width: put it after a convolution that does"
        )
    if width is not None and into is not None and into != width:
        raise UnsupportedModelError(
            f"{label} expects {into} columns, but gets {width}: use layers with matching widths"
        )
    columns = into or width or 1
    values = torch.arange(_SOURCES * columns, dtype=_dtype(conv))
    x = torch.sin(values).view(_SOURCES, columns)
    edge_width = calls.edge_width(conv)
    was_training = conv.training
    try:
        with torch.no_grad():
            rows_of_two, rows_of_one = (
                calls(conv.eval(), _synthetic_block(number, edge_width), x) for number in (2, 1)
            )
    except Exception as error:
        raise UnsupportedModelError(
            f"{label} does not work on {calls.input_description} alone "
            f"({' '.join(str(error).split())[:200]}): use another convolution, or write a custom layer "
            "(docs/layers.md)"
        ) from error
    finally:
        conv.train(was_training)
    if not isinstance(rows_of_two, torch.Tensor) or rows_of_two.ndim not in (2, 3) or len(rows_of_two) != 2:
        shape = (
            list(rows_of_two.shape) if isinstance(rows_of_two, torch.Tensor) else type(rows_of_two).__name__
        )
        raise UnsupportedModelError(
            f"{label} returned {shape} for 2 destinations: return one row per destination"
        )
    if not torch.allclose(rows_of_two[:1], rows_of_one, rtol=1e-4, atol=1e-6):
        raise UnsupportedModelError(
            f"{label} returns a different row for a vertex if other vertices have edges in the mini-batch, "
            "so results would depend on how steps are split among devices: use one that reads only the "
            "edges into a vertex"
        )
    return int(rows_of_two.shape[-1] if is_last else rows_of_two[0].numel())


def _synthetic_block(num_dst: int, edge_width: int | None) -> Block:
    senders = _SENDERS[:num_dst]
    num_edges = sum(map(len, senders))
    degrees = np.full(_SOURCES, 2, np.int32)
    return Block(
        indptr=np.cumsum([0, *map(len, senders)], dtype=np.int32),
        columns=np.concatenate(senders).astype(np.int32),
        destinations=np.arange(num_dst, dtype=np.int32),
        sources=np.arange(_SOURCES, dtype=np.int32),
        num_src=_SOURCES,
        degrees=degrees[:num_dst],
        source_degrees=degrees,
        layer=1,
        edge_features=None if edge_width is None else np.ones((num_edges, edge_width), np.float32),
    )


def as_tensor(rows: Any, dtype: torch.dtype) -> torch.Tensor | None:
    """Convert the edge weights or features of a block to a tensor; None stays None."""
    if rows is None:
        return None
    values = torch.from_numpy(np.ascontiguousarray(rows)) if isinstance(rows, np.ndarray) else rows
    return values.to(dtype)


def first_linear_width(conv: nn.Module) -> int | None:
    """Return the input width of the first linear layer inside a convolution; None if it has none."""
    inner = next((module for module in conv.modules() if hasattr(module, "in_features")), None)
    width = getattr(inner, "in_features", getattr(inner, "in_channels", None))
    return width if isinstance(width, int) and width > 0 else None


def _dtype(conv: nn.Module) -> torch.dtype:
    return next((each.dtype for each in conv.parameters() if each.is_floating_point()), torch.float32)


def num_model_layers(module: torch.nn.Module) -> int | None:
    """Return the number of layers of a `GNN` or `ConvStack`; None for any other module."""
    if isinstance(module, ConvStack):
        return len(module.convs)
    return module.architecture.layers if isinstance(module, GNN) else None


def check_depth(module: torch.nn.Module, blocks: int) -> None:
    """Raise UnsupportedModelError if a module of known depth gets another number of `blocks`."""
    depth = num_model_layers(module)
    if depth is not None and depth != blocks:
        raise UnsupportedModelError(
            f"the model has {depth} layers, but mini-batches have {blocks}: set sampler.fanout to {depth} "
            "numbers, one per layer"
        )
