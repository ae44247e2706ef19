"""What the destinations of a block gather, and the gradient taken back: of numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.machine.workers import current_workers
from hyrt.nn.fused.edges import Edges
from hyrt.nn.operators.result_memory import empty_array
from hyrt.nn.saga.gather import SagaSum
from hyrt.quantities import one_line
from hyrt.sampling.block import Block

Array = NDArray[Any]


def edges_of_block(what: SagaSum, block: Block, dtype: np.dtype[Any]) -> Edges:
    """The edges of a relabelled block by destination, with the factors of the accumulator.

    A sum counts each of k sampled neighbours out of d as d / k, so that its expectation is that of all. Where
    edges have weights, these undo the sampling, and a mean divides by d. A maximum and a softmax know no
    factors.
    """
    scale = loop_scale = None
    accumulate = what.program.accumulate
    # Numbers of edges: `np.diff` and `np.array_equal` take three times as long.
    counts = block.degrees if block.weights is not None else block.indptr[1:] - block.indptr[:-1]
    if accumulate == "sum" and (counts != block.degrees).any():
        scale = np.divide(block.degrees, np.maximum(counts, 1), dtype=dtype)
    if accumulate == "mean":
        scale = dtype.type(1) / np.maximum(counts + what.loops, 1).astype(dtype)
        loop_scale = scale if what.loops else None
    return Edges(
        indptr=block.indptr,
        columns=block.columns,
        by_number=True,
        factors=block.weights if accumulate in ("sum", "mean") else None,
        row_scale=scale,
        loop_scale=loop_scale,
        loops=block.num_dst if what.loops else 0,
    )


@dataclass(frozen=True, slots=True)
class BlockGathering:
    """What was gathered over a relabelled block, and is needed to take a gradient back."""

    what: SagaSum
    block: Block
    edges: Edges
    messages: list[Array]
    fixed: list[Array]
    kept: tuple[Array, ...]

    __repr__ = one_line

    @classmethod
    def forward(
        cls, what: SagaSum, block: Block, given: Sequence[torch.Tensor], *, keeps: bool
    ) -> tuple[BlockGathering, torch.Tensor]:
        """Gather.

        Parameters
        ----------
        what
            The messages and how they are combined.
        block
            The block.
        given
            The messages, [num_src, w] of sources and then [num_dst, w] of destinations.
        keeps
            Whether a gradient will be taken back.

        Returns
        -------
        What is needed for that, and what was gathered, [num_dst, width].
        """
        messages = [np.ascontiguousarray(each.detach().numpy()) for each in given]
        dtype = messages[0].dtype if messages else np.dtype(np.float32)
        edges = edges_of_block(what, block, dtype)
        fixed = what.fixed_rows(block.source_degrees, block.degrees, block, dtype)
        out = empty_array((block.num_dst, what.program.gathered_width), dtype)
        take = empty_array if keeps else None
        kept = what.forward(edges, messages, fixed, out, current_workers(), take)
        return cls(what, block, edges, messages, fixed, kept), torch.from_numpy(out)

    def backward(
        self, grad: torch.Tensor, wanted: Sequence[bool]
    ) -> tuple[list[Array | None], list[torch.Tensor]]:
        """Take the gradient of what was gathered back.

        Parameters
        ----------
        grad
            [num_dst, width].
        wanted
            Whether a gradient is wanted, for each message: features take none, and half of what a first
            layer's loops compute is left out.

        Returns
        -------
        Those of the messages, None where it is not wanted, and those of `SagaSum.parameters`.
        """
        outs = [
            empty_array(each.shape, each.dtype) if is_wanted else None
            for each, is_wanted in zip(self.messages, wanted, strict=True)
        ]
        along = np.ascontiguousarray(grad.detach().numpy())
        found = self.what.backward(
            *(self.edges, self._by_source, self.messages, self.fixed, self.kept),
            *(along, outs, current_workers()),
        )
        return outs, found

    def _by_source(self) -> Edges:
        turned, edges = self.block.transposed(), self.edges
        # `replace` takes as long as a loop over a small block.
        return Edges(
            indptr=turned.indptr,
            columns=turned.rows,
            numbers=turned.edges,
            by_number=edges.by_number,
            factors=edges.factors,
            row_scale=edges.row_scale,
            loop_scale=edges.loop_scale,
            loops=edges.loops,
        )
