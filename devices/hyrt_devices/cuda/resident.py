"""The whole graph on the device: copied once, used by every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.nn.fused.c_loops.tensor_loops import TensorLoops
from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.sampling.full.whole_graph import WholeGraph
from hyrt.sampling.minibatch import MiniBatch
from hyrt_devices.cuda.blocks import OF_EDGES, Aggregate, Delivery


@dataclass(frozen=True, slots=True)
class DeliveredGraph:
    """A mini-batch of the whole graph that stays on the device."""

    whole: WholeGraph
    """`MiniBatch.whole` of its steps."""
    first: Delivery
    """The mini-batch that it was made of."""

    def step(self, batch: MiniBatch) -> Delivery:
        """Another step: the same tensors, under the step's key of the dropout masks."""
        blocks = [
            replace(there, step=block.step, seed=block.seed)
            for there, block in zip(self.first.blocks, batch.blocks, strict=True)
        ]
        return replace(self.first, blocks=blocks)


def resident_graph(
    batch: MiniBatch,
    put: Callable[[NDArray[Any]], torch.Tensor],
    rows_of: Callable[[torch.Tensor], torch.Tensor] | None,
    aggregate: Aggregate | None,
    loops: TensorLoops | None,
) -> DeliveredGraph:
    """Copy the whole graph to the device.

    Parameters
    ----------
    batch
        A loaded mini-batch of the whole graph.
    put
        Copies an array to the device.
    rows_of
        Gives the feature rows of vertices on the device; None where the mini-batch has them.
    aggregate
        The device's own kernels for the aggregation, where it has them.
    loops
        Its own loops over edges, where it has them.
    """
    there: dict[int, torch.Tensor] = {}

    def moved(array: NDArray[Any]) -> torch.Tensor:
        if id(array) not in there:
            there[id(array)] = put(array)
        return there[id(array)]

    block = batch.blocks[0]
    assert block.sources is not None
    # The device's kernels take starts of 32 bits, which do for fewer than 2^31 edges.
    starts = block.indptr.astype(np.int32) if block.num_edges < 2**31 else block.indptr
    of_edges: dict[str, Any] = {
        name: moved(array) for name in OF_EDGES if (array := getattr(block, name)) is not None
    }
    one = TensorBlock(
        indptr=moved(starts),
        columns=moved(block.columns),
        sources=moved(block.sources),
        num_dst=block.num_dst,
        degrees=moved(block.degrees),
        source_degrees=moved(block.source_degrees),
        layer=block.layer,
        **of_edges,
        aggregate=aggregate,
        loops=loops,
    )
    weights, rows = batch.target_weights, batch.target_rows
    assert batch.whole is not None
    first = Delivery(
        # The same tensors, and what is built of them, in every layer.
        blocks=[replace(one, layer=each.layer) for each in batch.blocks],
        labels=moved(batch.labels),
        target_weights=None if weights is None else moved(weights),
        inputs=moved(batch.inputs.numpy()) if rows_of is None else rows_of(one.sources),
        target_rows=None if rows is None else moved(rows),
    )
    return DeliveredGraph(batch.whole, first)


def copied_bytes(batch: MiniBatch) -> int:
    """The bytes that `resident_graph` copies to the device."""
    block = batch.blocks[0]
    assert block.sources is not None
    arrays: list[NDArray[Any]] = [block.columns, block.sources, block.degrees, batch.labels]
    optional = (batch.target_weights, batch.target_rows, *(getattr(block, name) for name in OF_EDGES[:-1]))
    arrays += [each for each in optional if each is not None]
    starts = 4 if block.num_edges < 2**31 else 8
    inputs = 0 if batch.inputs is None else batch.inputs.nbytes
    return starts * len(block.indptr) + sum(array.nbytes for array in arrays) + int(inputs)
