"""A layer taken apart: what each row sends, how a vertex combines what it receives, what it makes of that."""

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
    """Sums weighted by a softmax over a vertex's edges and itself (GAT).

    Three messages are sent: rows [n, heads * width], and the scores [n, heads] of a vertex as a source and as
    a destination. An edge's score is LeakyReLU(source score + destination score).
    """

    heads: int
    slope: float = 0.2
    dropout: float = 0.0
    """The rate at which weights are dropped after the softmax, in training."""


class Apply(Protocol):
    """Makes a layer's result of what was gathered; a function of each row alone."""

    def __call__(
        self, gathered: torch.Tensor, own: torch.Tensor | SparseRows | None, *, relu: bool
    ) -> torch.Tensor:
        """[n, out] from [n, gathered] and, where the layer reads them, the vertices' own rows [n, in]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParts:
    """Scatter, Gather and ApplyVertex of a layer (NeuGraph, section 2.2).

    Only the gathering looks at edges; all else is a function of single rows. So it can be done in chunks of
    rows of any size, and again where that costs less than keeping what it gave.
    """

    scatter: Callable[[torch.Tensor | SparseRows], tuple[torch.Tensor, ...]] | None
    """Makes the messages of rows [n, in]; None where the rows themselves are sent."""
    message_widths: tuple[int, ...]
    """Columns of the messages."""
    gather: Aggregation | AttentionSum | SagaSum
    """How messages are combined along the edges; its self path is `none` or `add`."""
    gathered_width: int
    """Columns of what is gathered."""
    apply: Apply
    """Makes the layer's result."""
    reads_own: bool = False
    """Whether `apply` reads the vertices' own rows, too."""

    __repr__ = one_line
