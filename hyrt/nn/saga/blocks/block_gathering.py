"""Forward and backward gather over a block, on arrays without autograd."""

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
    """Return the edges of a relabelled block by destination, with the factors of the accumulator.

    A sum counts each of k sampled neighbours out of d as d / k, so that its expectation is the sum over all
    neighbours. If the block has weights, the weights correct for the sampling, and a mean divides by d. A
    maximum and a softmax have no factors.
    """
    scale = loop_scale = None
    accumulate = what.program.accumulate
    # Plain subtraction: `np.diff` and `np.array_equal` take three times as long.
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
    """A gather over a relabelled block, with the state for its backward pass."""

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
        """Gather the messages of a block.

        Parameters
        ----------
        what
            The gather.
        block
            The block.
        given
            The messages: [num_src, w] of sources, then [num_dst, w] of destinations.
        keeps
            Whether to save the state for a backward pass.

        Returns
        -------
        The object with the saved state, and the gathered rows [num_dst, width].
        """
        messages = [np.ascontiguousarray(message.detach().numpy()) for message in given]
        dtype = messages[0].dtype if messages else np.dtype(np.float32)
        edges = edges_of_block(what, block, dtype)
        fixed = what.fixed_rows(block.source_degrees, block.degrees, block, dtype)
        out = empty_array((block.num_dst, what.program.gathered_width), dtype)
        allocate = empty_array if keeps else None
        saved = what.forward(edges, messages, fixed, out, current_workers(), allocate)
        return cls(what, block, edges, messages, fixed, saved), torch.from_numpy(out)

    def backward(
        self, grad: torch.Tensor, wanted: Sequence[bool]
    ) -> tuple[list[Array | None], list[torch.Tensor]]:
        """Backpropagate the gradient of the gathered rows.

        Parameters
        ----------
        grad
            [num_dst, width], gradient of the gathered rows.
        wanted
            For each message, whether its gradient is needed. Input features need none, which saves half of
            the work in a first layer's backward loops.

        Returns
        -------
        The gradients of the messages, None if not needed, and the gradients of `SagaSum.parameters`.
        """
        outs = [
            empty_array(message.shape, message.dtype) if is_wanted else None
            for message, is_wanted in zip(self.messages, wanted, strict=True)
        ]
        gradient = np.ascontiguousarray(grad.detach().numpy())
        parameter_grads = self.what.backward(
            *(self.edges, self._by_source, self.messages, self.fixed, self.kept),
            *(gradient, outs, current_workers()),
        )
        return outs, parameter_grads

    def _by_source(self) -> Edges:
        transposed_block, edges = self.block.transposed(), self.edges
        # `replace` takes as long as the loop over a small block.
        return Edges(
            indptr=transposed_block.indptr,
            columns=transposed_block.rows,
            numbers=transposed_block.edges,
            by_number=edges.by_number,
            factors=edges.factors,
            row_scale=edges.row_scale,
            loop_scale=edges.loop_scale,
            loops=edges.loops,
        )
