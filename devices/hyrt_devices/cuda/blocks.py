"""Mini-batches and full graphs on a torch device, which are copied in a few coalesced transfers, and
aggregation over their blocks with hyrt's CUDA kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.graph.feature_cache import CachedRows
from hyrt.graph.quantized.rows import QuantizedRows
from hyrt.nn.architecture import Aggregation
from hyrt.nn.fused.c_codegen import TensorLoops
from hyrt.nn.hetero.inputs import HeteroInput
from hyrt.nn.hetero.type_order import TensorOrder, TypeOrder
from hyrt.nn.layer import AggregatedFeatures
from hyrt.nn.operators.autograd import once_differentiable
from hyrt.nn.operators.tensor_ops import TensorBlock, aggregate_tensors, tensor_scales
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import FullGraph, MiniBatch
from hyrt_devices.cuda.driver import CoalescedCopy
from hyrt_devices.cuda.feature_rows import RowArrays, RowTensors, SentRows
from hyrt_devices.cuda.launch import ROWS, Argument, KernelLauncher, KernelProgram


class _AggregateOnDevice(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, block: TensorBlock, aggregation: Aggregation, program: KernelProgram
    ) -> torch.Tensor:
        x = x.detach().contiguous()
        width = x.shape[1]
        out = x.new_empty(block.num_dst, aggregation.width(width))
        sum_at, self_at = (width, 0) if aggregation.self_path == "concat" else (0, -1)
        shape = [np.int32(n) for n in (block.num_dst, width, out.shape[1], sum_at, self_at)]
        winners = None
        factors: list[torch.Tensor | None] = []
        if aggregation.reduce == "max":
            winners = torch.empty(block.num_dst, width, dtype=torch.int32, device=x.device)
            arguments: list[Argument] = [block.indptr, block.columns, x, out, winners, *shape]
            program.launch("aggregate_max", block.num_dst, ROWS, arguments)
        else:
            row, source, self_loop, edge = tensor_scales(aggregation, block, x.dtype)
            factors = [row, source, edge, self_loop]
            arguments = [block.indptr, block.columns, x, *factors, out, *shape]
            program.launch("aggregate", block.num_dst, ROWS, arguments)
        ctx.block, ctx.program, ctx.factors, ctx.winners = block, program, factors, winners
        ctx.shape, ctx.at = x.shape, (sum_at, self_at)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        block: TensorBlock = ctx.block
        transposed = block.transposed()
        grad = grad.detach().contiguous()
        num_src, width = ctx.shape
        out = grad.new_empty(num_src, width)
        shape = [np.int32(n) for n in (block.num_dst, num_src, width, grad.shape[1], *ctx.at)]
        edges = [transposed.indptr, transposed.rows, transposed.edges]
        if ctx.winners is not None:
            arguments = [*edges, grad, ctx.winners, out, *shape]
            ctx.program.launch("aggregate_max_backward", num_src, ROWS, arguments)
        else:
            arguments = [*edges, grad, *ctx.factors, out, *shape]
            ctx.program.launch("aggregate_backward", num_src, ROWS, arguments)
        return out, None, None, None


class TorchAggregation:
    """Implementation of `TensorBlock.aggregate` with hyrt's CUDA kernels."""

    def __init__(self, launcher: KernelLauncher) -> None:
        self._program = KernelProgram(launcher, "aggregate")

    def __call__(self, block: TensorBlock, x: torch.Tensor, aggregation: Aggregation) -> torch.Tensor:
        """Aggregate with the same result as `aggregate_tensors`, the fallback for unsupported dtypes."""
        compiled = (torch.float32, torch.int32, torch.int32)
        if (x.dtype, block.indptr.dtype, block.columns.dtype) != compiled:
            return aggregate_tensors(block, x, aggregation)
        out = _AggregateOnDevice.apply(x, block, aggregation, self._program)  # type: ignore[no-untyped-call]
        return cast(torch.Tensor, out)


Aggregate = Callable[[TensorBlock, torch.Tensor, Aggregation], torch.Tensor]
InputsOf = Callable[[SentRows, TensorBlock], torch.Tensor | AggregatedFeatures]


@dataclass(frozen=True, slots=True)
class ResidentHop:
    """Device tensors of a hop that was sampled on the device, whose block need not be copied."""

    device: torch.device
    indptr: torch.Tensor
    columns: torch.Tensor
    sources: torch.Tensor
    degrees: torch.Tensor
    source_degrees: torch.Tensor
    """`indptr`, `columns`, `sources`, `degrees` and `source_degrees` have the meaning of `TensorBlock`."""


_FIELDS = ("indptr", "columns", "sources", "degrees", "source_degrees")
OF_EDGES = (
    "edge_types",
    "edge_weights",
    "edge_features",
    "run_weights",
    "weighted_degrees",
    "source_weighted_degrees",
)
"""Names of the block arrays that exist only if edges have types, weights or features."""


class PackedBatch:
    """Arrays of a mini-batch that must be copied to the device, packed for one transfer."""

    def __init__(self, batch: MiniBatch, device: torch.device) -> None:
        self._batch = batch
        self._device = device
        self.parcel = CoalescedCopy()
        self._blocks = [self._pack(block) for block in batch.blocks]
        self._labels = self.parcel.add(batch.labels)
        self._target_weights = self._optional(batch.target_weights)
        self._target_rows = self._optional(batch.target_rows)
        self._hetero_input = batch.inputs if isinstance(batch.inputs, HeteroInput) else None
        self._rows, self._places = self._pack_rows(None if self._hetero_input is not None else batch.inputs)
        if self._hetero_input is not None:
            # Hold references to the arrays, because `CoalescedCopy` identifies them by id().
            self._arrays = self._arrays_of(self._hetero_input)
            for array in self._arrays:
                self.parcel.add(array)

    def _pack_rows(self, inputs: Any) -> tuple[RowArrays | None, NDArray[np.int32] | None]:
        """Return the packed rows to copy, and each row's slot if the device caches rows."""
        if inputs is None:
            return None, None
        cached = inputs if isinstance(inputs, CachedRows) else None
        rows = inputs.missing_rows if cached is not None else inputs
        packed = RowArrays.of(rows if isinstance(rows, QuantizedRows | np.ndarray) else rows.numpy())
        for each in (packed.codes, packed.row_scales, packed.column_scales):
            self._optional(each)
        if cached is not None:
            self.parcel.add(cached.slots)
        return packed, None if cached is None else cached.slots

    @staticmethod
    def _arrays_of(hetero: HeteroInput) -> list[NDArray[Any]]:
        """Return the arrays of heterogeneous inputs to copy: the matrices and the order of the sources."""
        order = hetero.order
        assert isinstance(order, TypeOrder), "the host builds the type order"
        matrices = [matrix.numpy() for matrix in hetero.matrices if matrix is not None]
        return [*matrices, order.order, order.inverse]

    def _unpack_hetero(self, hetero: HeteroInput, arrived: list[torch.Tensor]) -> HeteroInput:
        """Create the heterogeneous inputs on the device. Row numbers of learned tables stay on the host."""
        *matrices, order, places = (arrived[self.parcel.add(each)] for each in self._arrays)
        return HeteroInput(
            TensorOrder(order.long(), places.long(), hetero.order.starts),
            [None if matrix is None else matrices.pop(0) for matrix in hetero.matrices],
            hetero.tables,
            self._device,
        )

    def _unpack_rows(self, arrived: list[torch.Tensor], cached: RowTensors | None) -> SentRows | None:
        if self._rows is None:
            return None
        rows = self._rows.moved(lambda array: arrived[self.parcel.add(array)])
        if self._places is None:
            return SentRows(rows)
        if cached is None:
            raise TypeError("inputs are CachedRows, but this device caches no feature rows")
        return SentRows(rows, cached, arrived[self.parcel.add(self._places)])

    def _optional(self, array: NDArray[Any] | None) -> int | None:
        return None if array is None else self.parcel.add(array)

    def _resident(self, block: Block) -> ResidentHop | None:
        there = block.resident
        return there if isinstance(there, ResidentHop) and there.device == self._device else None

    def _pack(self, block: Block) -> dict[str, int | None]:
        optional = ("weights", *OF_EDGES)
        places: dict[str, int | None] = {name: self._optional(getattr(block, name)) for name in optional}
        if self._resident(block) is None:
            for name in _FIELDS:
                places[name] = self.parcel.add(getattr(block, name))
        return places

    def unpack(
        self,
        arrived: list[torch.Tensor],
        aggregate: Aggregate | None,
        loops: TensorLoops | None,
        cached: RowTensors | None = None,
        inputs_of: InputsOf = lambda rows, block: rows.numbers(),
    ) -> DeviceBatch:
        """Create a mini-batch from the tensors of `CoalescedCopy.send`, device kernels and cached rows.

        `inputs_of` computes the first layer's inputs from the rows and the first block.
        """

        def at(place: int | None) -> torch.Tensor | None:
            return None if place is None else arrived[place]

        blocks = []
        for block, places in zip(self._batch.blocks, self._blocks, strict=True):
            there: Any = self._resident(block)
            fields: dict[str, Any] = {name: at(places[name]) for name in OF_EDGES}
            fields |= {name: at(places[name]) if there is None else getattr(there, name) for name in _FIELDS}
            blocks.append(
                TensorBlock(
                    **fields,
                    num_dst=block.num_dst,
                    layer=block.layer,
                    step=block.step,
                    seed=block.seed,
                    weights=at(places["weights"]),
                    aggregate=aggregate,
                    loops=loops,
                )
            )
        rows = self._unpack_rows(arrived, cached)
        inputs: torch.Tensor | AggregatedFeatures | HeteroInput | None = None
        if self._hetero_input is not None:
            inputs = self._unpack_hetero(self._hetero_input, arrived)
        elif rows is not None:
            inputs = inputs_of(rows, blocks[0])
        return DeviceBatch(
            blocks=blocks,
            labels=arrived[self._labels],
            target_weights=at(self._target_weights),
            inputs=inputs,
            target_rows=at(self._target_rows),
        )


@dataclass(slots=True)
class DeviceBatch:
    """Mini-batch on the device."""

    blocks: list[TensorBlock]
    """Blocks of the L layers, from the input layer to the output layer."""
    labels: torch.Tensor
    """Labels of the targets: [n] int64."""
    target_weights: torch.Tensor | None
    """Loss weights of the targets: [n] float32, or None."""
    inputs: torch.Tensor | AggregatedFeatures | HeteroInput | None
    """Feature rows of the first block's sources, [num_src, f], or their aggregate; None before the gather."""
    target_rows: torch.Tensor | None = None
    """Row index of each target in the scores: [n]. None if all rows are targets, in order."""


@dataclass(frozen=True, slots=True)
class DeviceGraph:
    """Mini-batch of the full graph that stays on the device for all steps."""

    whole: FullGraph
    """Value of `MiniBatch.full_graph` in the steps that use this copy."""
    first: DeviceBatch
    """Mini-batch of the first step on the device."""

    def step(self, batch: MiniBatch) -> DeviceBatch:
        """Return the mini-batch of another step, with the same tensors but the dropout key of `batch`."""
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
) -> DeviceGraph:
    """Copy the full graph to the device with `put`, which copies one array.

    `rows_of` returns the feature rows of vertices on the device, and is None if the mini-batch contains the
    rows. `aggregate` and `loops` are None if there are no such kernels.
    """
    there: dict[int, torch.Tensor] = {}

    def moved(array: NDArray[Any]) -> torch.Tensor:
        if id(array) not in there:
            there[id(array)] = put(array)
        return there[id(array)]

    block = batch.blocks[0]
    assert block.sources is not None
    # The kernels take 32-bit row starts if these suffice, which is the case for fewer than 2^31 edges.
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
    assert batch.full_graph is not None
    first = DeviceBatch(
        # All layers share the same tensors, including those that are cached on the block.
        blocks=[replace(one, layer=each.layer) for each in batch.blocks],
        labels=moved(batch.labels),
        target_weights=None if weights is None else moved(weights),
        inputs=moved(batch.inputs.numpy()) if rows_of is None else rows_of(one.sources),
        target_rows=None if rows is None else moved(rows),
    )
    return DeviceGraph(batch.full_graph, first)


def copied_bytes(batch: MiniBatch) -> int:
    """Return the number of bytes that `resident_graph` copies to the device."""
    block = batch.blocks[0]
    assert block.sources is not None
    arrays: list[NDArray[Any]] = [block.columns, block.sources, block.degrees, batch.labels]
    optional = (batch.target_weights, batch.target_rows, *(getattr(block, name) for name in OF_EDGES[:-1]))
    arrays += [each for each in optional if each is not None]
    starts = 4 if block.num_edges < 2**31 else 8
    inputs = 0 if batch.inputs is None else batch.inputs.nbytes
    return starts * len(block.indptr) + sum(array.nbytes for array in arrays) + int(inputs)
