"""Convolutions of another library, one after the other over the blocks of a mini-batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from hyrt.checks import check_number, show
from hyrt.errors import DataError, UnsupportedModel
from hyrt.nn.operators.dropout import dropout as drop
from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.sampling.block import Block

# Two destinations, the first of three sources; the second and the third source send to the first destination,
# the first and the third to the second.
_SENDERS = ((1, 2), (0, 2))
_SOURCES = 3


class ConvCalls(Protocol):
    """How the convolutions of one library are called, and what they tell of themselves."""

    @property
    def maker(self) -> str:
        """The function that the caller called, for messages."""
        ...

    @property
    def given(self) -> str:
        """What a convolution is given, for messages."""
        ...

    @property
    def features_argument(self) -> str:
        """The argument that tells a convolution how many features an edge has."""
        ...

    def __call__(self, conv: nn.Module, block: Block | TensorBlock, x: torch.Tensor) -> Any:
        """What a convolution returns for a block and the [num_src, f] rows of its sources."""
        ...

    def in_width(self, conv: nn.Module) -> int | None:
        """The columns that a convolution takes; None where it does not say."""
        ...

    def edge_width(self, conv: nn.Module) -> int | None:
        """The features of an edge that a convolution takes; None for none."""
        ...

    def takes_weights(self, conv: nn.Module) -> bool:
        """Whether a convolution takes weights of edges."""
        ...

    def activates(self, conv: nn.Module) -> bool:
        """Whether a convolution applies an activation of its own."""
        ...


class ConvStack(nn.Module):
    """Convolutions as they are, with activation and dropout between them.

    Parameters
    ----------
    convolutions
        The convolutions, the input's first.
    calls
        How they are called.
    activation
        What hidden rows go through, where the convolution has no activation of its own.
    dropout
        The rate at which elements of hidden rows are dropped in training. Masks depend on seed, step, layer,
        vertex and column, so neither on the split nor on the mini-batch.
    """

    def __init__(
        self,
        convolutions: Sequence[nn.Module],
        calls: ConvCalls,
        activation: Callable[[torch.Tensor], torch.Tensor],
        dropout: float,
    ) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convolutions)
        self.activation = activation
        self.dropout = dropout
        self._calls = calls

    def forward(self, blocks: Sequence[Block | TensorBlock], x: torch.Tensor) -> torch.Tensor:
        """[targets, width of the last convolution] from [num_src, f] rows of the first block's sources."""
        last = len(self.convs) - 1
        for i, (block, conv) in enumerate(zip(blocks, self.convs, strict=True)):
            x = self._calls(conv, block, x)
            if x.ndim == 3:
                # The heads of an attention: side by side in hidden rows, and their mean as scores.
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
        argument = self._calls.features_argument
        wants = 0
        for number, conv in enumerate(self.convs, 1):
            wanted = self._calls.edge_width(conv)
            given = width or int(has_weights)
            wants += wanted is not None
            if wanted is not None and wanted != given:
                raise UnsupportedModel(
                    f"convolution {number} ({type(conv).__name__}) takes {wanted} features of an edge, but "
                    f"those of {name} have {given}: make it with {argument}={given or None}"
                )
        if has_weights and not wants and not any(map(self._calls.takes_weights, self.convs)):
            raise DataError(
                f"{name}: key 'edge_weight': no convolution takes weights of edges, so they would be left "
                "out: take one that does, such as GraphConv, or write the dataset again without this key"
            )
        if width and not wants:
            raise DataError(
                f"{name}: key 'edge_features': no convolution takes features of edges, so they would be left "
                f"out: make one with {argument}={width}, or write the dataset again without this key"
            )


def stack_of(
    convolutions: Sequence[Any],
    calls: ConvCalls,
    activation: Callable[[torch.Tensor], torch.Tensor],
    dropout: float,
) -> ConvStack:
    """A stack of convolutions, each of which was tried on made-up vertices.

    Raises
    ------
    UnsupportedModel
        Naming the convolution, what is wrong with it, and what to do.
    """
    if not convolutions:
        raise UnsupportedModel(
            f"{calls.maker}() needs at least one convolution: give all of them, the one that reads features "
            "first"
        )
    if not 0 <= check_number("dropout", dropout) < 1:
        raise UnsupportedModel(f"{calls.maker}(): dropout={dropout} is not in [0, 1): give another rate")
    if not callable(activation):
        raise UnsupportedModel(
            f"activation is {show(activation)}: give a function of a tensor, such as torch.relu"
        )
    width = None
    for i, conv in enumerate(convolutions):
        named = f"{calls.maker}(): convolution {i + 1} ({type(conv).__name__})"
        width = _width_after(named, conv, calls, width, is_last=i + 1 == len(convolutions))
    return ConvStack(convolutions, calls, activation, dropout)


def _width_after(named: str, conv: nn.Module, calls: ConvCalls, width: int | None, *, is_last: bool) -> int:
    """Try a convolution on two made-up destinations; returns the width of its result."""
    into = calls.in_width(conv)
    if into is None and width is None:
        raise UnsupportedModel(
            f"{named} does not say how many columns it returns: put it after a convolution that does"
        )
    if width is not None and into is not None and into != width:
        raise UnsupportedModel(
            f"{named} takes {into} columns, but is given {width}: give layers whose widths go together"
        )
    columns = into or width or 1
    values = torch.arange(_SOURCES * columns, dtype=_dtype(conv))
    x = torch.sin(values).view(_SOURCES, columns)
    edge_width = calls.edge_width(conv)
    was_training = conv.training
    try:
        with torch.no_grad():
            of_two, of_one = (calls(conv.eval(), _made_up_block(number, edge_width), x) for number in (2, 1))
    except Exception as error:
        raise UnsupportedModel(
            f"{named} does not work on {calls.given} alone: {' '.join(str(error).split())[:200]}: use "
            "another convolution, or write a layer of your own (docs/layers.md)"
        ) from error
    finally:
        conv.train(was_training)
    if not isinstance(of_two, torch.Tensor) or of_two.ndim not in (2, 3) or len(of_two) != 2:
        shape = list(of_two.shape) if isinstance(of_two, torch.Tensor) else type(of_two).__name__
        raise UnsupportedModel(f"{named} returns {shape} for 2 destinations: return a row for each")
    if not torch.allclose(of_two[:1], of_one, rtol=1e-4, atol=1e-6):
        raise UnsupportedModel(
            f"{named} computes another row for a vertex if another vertex has edges in the mini-batch, too, "
            "so a step would depend on the split: take one that looks only at the edges into a vertex"
        )
    return int(of_two.shape[-1] if is_last else of_two[0].numel())


def _made_up_block(num_dst: int, edge_width: int | None) -> Block:
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
    """The weights or features of a block's edges as a tensor; None for None."""
    if rows is None:
        return None
    values = torch.from_numpy(np.ascontiguousarray(rows)) if isinstance(rows, np.ndarray) else rows
    return values.to(dtype)


def first_in_width(conv: nn.Module) -> int | None:
    """The columns that the first product inside a convolution takes; None where there is none."""
    inner = next((each for each in conv.modules() if hasattr(each, "in_features")), None)
    wide = getattr(inner, "in_features", getattr(inner, "in_channels", None))
    return wide if isinstance(wide, int) and wide > 0 else None


def _dtype(conv: nn.Module) -> torch.dtype:
    return next((each.dtype for each in conv.parameters() if each.is_floating_point()), torch.float32)
