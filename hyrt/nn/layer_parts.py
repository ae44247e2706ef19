"""Decomposition of a layer into Scatter, Gather and ApplyVertex."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from hyrt.nn.aggregation import Aggregation
from hyrt.nn.operators.sparse import SparseRows
from hyrt.nn.saga.gather import SagaSum
from hyrt.quantities import one_line


@dataclass(frozen=True, slots=True)
class AttentionSum:
    """Gather that sums with softmax weights over a vertex's edges and its self-loop (GAT).

    Each vertex sends three messages: its row [n, heads * width], and its scores [n, heads] as a source and as
    a destination. The score of an edge is LeakyReLU(source score + destination score).
    """

    heads: int
    slope: float = 0.2
    dropout: float = 0.0
    """Dropout rate of the softmax weights, in training."""


class Apply(Protocol):
    """Row-wise function from gathered rows to the layer's result."""

    def __call__(
        self, gathered: torch.Tensor, self_rows: torch.Tensor | SparseRows | None, /, *, relu: bool
    ) -> torch.Tensor:
        """Return [n, out] from gathered rows and, if `reads_own`, the input rows [n, in]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParts:
    """Scatter, Gather and ApplyVertex of a layer (NeuGraph, section 2.2).

    Only the gather reads edges; the other stages are row-wise. They can therefore be computed in chunks of
    any number of rows, and recomputed if that is cheaper than saving their results.
    """

    scatter: Callable[[torch.Tensor | SparseRows], tuple[torch.Tensor, ...]] | None
    """Function from rows [n, in] to messages; None if the rows themselves are the messages."""
    message_widths: tuple[int, ...]
    """Width of each message."""
    gather: Aggregation | AttentionSum | SagaSum
    """Combination of messages along the edges. The self path of an `Aggregation` is `none` or `add`."""
    gathered_width: int
    """Number of columns of the gathered rows."""
    apply: Apply
    """Function from gathered rows to the layer's result."""
    reads_own: bool = False
    """Whether `apply` also reads the input rows of the vertices."""

    __repr__ = one_line
