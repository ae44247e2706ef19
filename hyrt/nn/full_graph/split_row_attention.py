"""Attention at a row with very many edges, which several threads compute in pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.formatting import short_repr
from hyrt.nn.full_graph.aggregate import spmm_into

Array = NDArray[Any]

Piece = Callable[[int, tuple[Array, ...]], None]
"""Function that computes the piece of an index into arrays like those of the operator's loop for a row."""


@dataclass(frozen=True, slots=True)
class SplitRowAttention:
    """Forward pass of a split row; see `hyrt.nn.full_graph.attention.attend_into`."""

    compute: Piece
    row: Sequence[Array | None]
    """The row's out and positive [H, d], lse and positive_weight [H], in the order of `attend_into`."""
    parts: tuple[Array, ...]
    """[pieces, ...] the same values per piece."""

    __repr__ = short_repr

    @classmethod
    def allocate(
        cls, pieces: int, compute: Piece, row: Sequence[Array | None], kind: np.dtype[Any]
    ) -> SplitRowAttention:
        """Allocate the results of `pieces` pieces, summed in dtype `kind`."""
        out = row[0]
        assert out is not None
        heads = len(out)
        shapes = (out.shape, (heads,), out.shape, (heads,))
        return cls(compute, row, tuple(np.empty((pieces, *shape), kind) for shape in shapes))

    def compute_piece(self, number: int) -> None:
        self.compute(number, tuple(part[number].reshape(-1) for part in self.parts))

    def finish(self) -> None:
        (out, lse, positive, positive_weight), parts = self.row, self.parts
        lses = parts[1]
        top = lses.max(0)
        # The softmax is undefined if all scores of a row are -inf, in pieces or not.
        with np.errstate(invalid="ignore"):
            weights = np.exp(lses - top)
            total = weights.sum(0)
            weights /= total
        for part in (parts[0], parts[2]):
            # A piece whose scores are all -inf contributes nothing; its own softmax is NaN.
            part[np.isneginf(lses)] = 0
        assert out is not None
        _add_up(parts[0], weights, out)
        if lse is None or positive is None or positive_weight is None:
            return
        _add_up(parts[2], weights, positive)
        np.add(top, np.log(total), out=lse)
        parts[3][np.isneginf(lses)] = 0
        np.sum(weights * parts[3], 0, out=positive_weight)


@dataclass(frozen=True, slots=True)
class SplitRowGradient:
    """Backward pass of a split row; see `hyrt.nn.full_graph.attention.attend_backward_sources_into`."""

    compute: Piece
    p_grad: Array
    source_grad: Array
    """`p_grad` [H, d] and `source_grad` [H] of the row."""
    parts: tuple[Array, ...]
    """[pieces, ...] the same values per piece."""

    __repr__ = short_repr

    @classmethod
    def allocate(
        cls, pieces: int, compute: Piece, p_grad: Array, source_grad: Array, kind: np.dtype[Any]
    ) -> SplitRowGradient:
        """Allocate the results of `pieces` pieces, summed in dtype `kind`."""
        shapes = (p_grad.shape, source_grad.shape)
        return cls(compute, p_grad, source_grad, tuple(np.empty((pieces, *shape), kind) for shape in shapes))

    def compute_piece(self, number: int) -> None:
        self.compute(number, tuple(part[number].reshape(-1) for part in self.parts))

    def finish(self) -> None:
        rows, scores = self.parts
        _add_up(rows, None, self.p_grad)
        np.sum(scores, 0, out=self.source_grad)


def _add_up(parts: Array, weights: Array | None, out: Array) -> None:
    """Write the sum of the pieces [pieces, H, d], weighted by [pieces, H], in their order."""
    pieces = len(parts)
    borders, order = np.array([0, pieces]), np.arange(pieces, dtype=np.int32)
    spmm_into(borders, order, parts.reshape(pieces, -1), out.reshape(1, -1), weights=weights)
