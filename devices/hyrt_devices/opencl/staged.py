"""A mini-batch's way to the device."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.nn.description import ModelDescription
from hyrt.nn.inputs import Aggregated
from hyrt.nn.operators.aggregate import scales
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch
from hyrt_devices.opencl.launch import Launcher
from hyrt_devices.opencl.memory import DeviceMemory, Lease
from hyrt_devices.opencl_host.batch_check import input_values


@dataclass(slots=True)
class StagedBlock:
    """One block's buffers; None where the layer does not need them."""

    num_dst: int
    num_src: int
    seed: int
    step: int
    indptr: Any = None
    columns: Any = None
    row_scale: Any = None
    source_scale: Any = None
    weights: Any = None
    own_scale: Any = None
    turned_indptr: Any = None
    turned_rows: Any = None
    turned_edges: Any = None
    destinations: Any = None


@dataclass(slots=True)
class StagedBatch:
    """What `transfer` returns and `propagate` uses up."""

    owner: Any
    targets: int
    normalizer: float
    blocks: list[StagedBlock] = field(default_factory=list)
    inputs: Any = None
    sources: Any = None
    aggregated: bool = False
    labels: Any = None
    target_weights: Any = None
    # Where the host computes the loss: [n] int64, and [n] float32 or None.
    host_labels: NDArray[Any] | None = None
    host_weights: NDArray[Any] | None = None
    events: list[Any] = field(default_factory=list)
    lease: Lease | None = None
    # Host arrays that the device may still read.
    kept: list[Any] = field(default_factory=list)

    def release(self) -> None:
        """Give the buffers back, once nothing is copied into them any more; idempotent."""
        import pyopencl as cl

        for event in self.events:
            # A copy that failed has failed the step that waited for it.
            with suppress(cl.Error):
                event.wait()
        self.events = []
        self.blocks, self.inputs, self.labels, self.kept = [], None, None, []
        self.owner = None
        if self.lease is not None:
            self.lease.release()
            self.lease = None


class Stager:
    """Puts mini-batches where the device reads them: in place if it shares the host's memory, else by copies.

    Parameters
    ----------
    memory, launcher
        The device's memory and the queue of its copies.
    model
        The model that will be computed.
    widths
        Width of the first layer's aggregate, and of the input rows.
    num_classes
        How many classes the labels have.
    """

    def __init__(
        self,
        memory: DeviceMemory,
        launcher: Launcher,
        *,
        model: ModelDescription,
        widths: tuple[int, int],
        num_classes: int,
    ) -> None:
        self._memory = memory
        self._launcher = launcher
        self._model = model
        self._aggregated_width, self._row_width = widths
        self._num_classes = num_classes

    def stage(self, batch: MiniBatch, owner: Any) -> StagedBatch:
        """Start a mini-batch's copies.

        Raises
        ------
        DeviceOutOfMemory
            Everything taken is free again.
        ValueError, TypeError
            If it is not a mini-batch for the model.
        """
        staged = StagedBatch(owner=owner, targets=len(batch.targets), normalizer=batch.normalizer)
        if not staged.targets:
            return staged
        values = input_values(
            batch,
            num_layers=len(self._model.layers),
            num_classes=self._num_classes,
            row_width=self._row_width,
            aggregated_width=self._aggregated_width,
        )
        staged.aggregated = isinstance(batch.inputs, Aggregated)
        if staged.aggregated and self._model.input_dropout:
            raise ValueError("input dropout needs the input rows, not their aggregate")
        staged.lease = Lease(self._memory)
        try:
            self._fill(staged, batch, values)
        except BaseException:
            # A copy may be under way into a buffer that is about to be handed out again.
            self._launcher.finish()
            staged.release()
            raise
        finally:
            staged.events += [event for _, event in self._launcher.taken()]
        self._launcher.flush()
        return staged

    def _fill(self, staged: StagedBatch, batch: MiniBatch, values: torch.Tensor) -> None:
        staged.inputs = self._place(staged, values.detach().numpy(), np.float32)
        if self._model.input_dropout:
            assert batch.blocks[0].sources is not None
            staged.sources = self._place(staged, batch.blocks[0].sources, np.int64)
        for i, block in enumerate(batch.blocks):
            staged.blocks.append(self._block(staged, i, block))
        staged.host_labels, staged.host_weights = batch.labels, batch.target_weights
        staged.labels = self._place(staged, batch.labels, np.int64)
        if batch.target_weights is not None:
            staged.target_weights = self._place(staged, batch.target_weights, np.float32)

    def _block(self, staged: StagedBatch, i: int, block: Block) -> StagedBlock:
        layer = self._model.layers[i]
        out = StagedBlock(block.num_dst, block.num_src, block.seed, block.step)
        if layer.dropout:
            out.destinations = self._place(staged, block.destinations, np.int64)
        if i == 0 and staged.aggregated:
            return out
        factors = scales(layer.aggregation, block, np.dtype(np.float32))
        out.indptr = self._place(staged, block.indptr, np.int32)
        out.columns = self._place(staged, block.columns, np.int32)
        out.row_scale = self._place(staged, factors.row, np.float32)
        if factors.source is not None:
            out.source_scale = self._place(staged, factors.source, np.float32)
        if factors.own is not None:
            out.own_scale = self._place(staged, factors.own, np.float32)
        if block.weights is not None:
            out.weights = self._place(staged, block.weights, np.float32)
        if i > 0:
            turned = block.transposed()
            out.turned_indptr = self._place(staged, turned.indptr, np.int32)
            out.turned_rows = self._place(staged, turned.rows, np.int32)
            if block.weights is not None:
                out.turned_edges = self._place(staged, turned.edges, np.int32)
        return out

    def _place(self, staged: StagedBatch, array: NDArray[Any], dtype: type) -> Any:
        assert staged.lease is not None
        host: NDArray[Any] = np.ascontiguousarray(array, dtype)
        staged.kept.append(host)
        return staged.lease.place(self._launcher, host)
