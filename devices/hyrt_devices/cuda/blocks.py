"""A mini-batch's way to the device: what travels, and the tensor blocks it becomes there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.graph.cached.cached_rows import CachedRows
from hyrt.graph.narrow.narrow_rows import NarrowRows
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.fused.c_loops.tensor_loops import TensorLoops
from hyrt.nn.inputs import Aggregated
from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.nn.typed.tensor_order import TensorOrder
from hyrt.nn.typed.type_order import TypeOrder
from hyrt.nn.typed.typed_input import TypedInput
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch
from hyrt_devices.cuda.rows.row_tensors import RowArrays, RowTensors, SentRows
from hyrt_devices.cuda.staging import Parcel

Aggregate = Callable[[TensorBlock, torch.Tensor, Aggregation], torch.Tensor]
InputsOf = Callable[[SentRows, TensorBlock], torch.Tensor | Aggregated]


@dataclass(frozen=True, slots=True)
class ResidentHop:
    """What a device's sampler leaves of a hop on the device, for the block made of it."""

    device: torch.device
    """The device that the block is on."""
    indptr: torch.Tensor
    columns: torch.Tensor
    sources: torch.Tensor
    degrees: torch.Tensor
    source_degrees: torch.Tensor
    """`indptr`, `columns`, `sources`, `degrees` and `source_degrees`: as in `TensorBlock`."""


_FIELDS = ("indptr", "columns", "sources", "degrees", "source_degrees")
OF_EDGES = (
    "edge_types",
    "edge_weights",
    "edge_features",
    "run_weights",
    "weighted_degrees",
    "source_weighted_degrees",
)
"""What blocks have only where edges have types, weights or features."""


class Shipment:
    """The arrays of a mini-batch that are not on the device yet.

    Parameters
    ----------
    batch
        Sampled and loaded.
    device
        The device to copy to.
    """

    def __init__(self, batch: MiniBatch, device: torch.device) -> None:
        self._batch = batch
        self._device = device
        self.parcel = Parcel()
        self._blocks = [self._pack(block) for block in batch.blocks]
        self._labels = self.parcel.add(batch.labels)
        self._target_weights = self._optional(batch.target_weights)
        self._target_rows = self._optional(batch.target_rows)
        self._typed = batch.inputs if isinstance(batch.inputs, TypedInput) else None
        self._rows, self._places = self._pack_rows(None if self._typed is not None else batch.inputs)
        if self._typed is not None:
            # Kept: the parcel knows arrays by where they are.
            self._arrays = self._arrays_of(self._typed)
            for array in self._arrays:
                self.parcel.add(array)

    def _pack_rows(self, inputs: Any) -> tuple[RowArrays | None, NDArray[np.int32] | None]:
        """The rows that travel, and where each row is, if the device keeps some."""
        if inputs is None:
            return None, None
        cached = inputs if isinstance(inputs, CachedRows) else None
        rows = inputs.sent if cached is not None else inputs
        packed = RowArrays.of(rows if isinstance(rows, NarrowRows | np.ndarray) else rows.numpy())
        for each in (packed.codes, packed.row_scales, packed.column_scales):
            self._optional(each)
        if cached is not None:
            self.parcel.add(cached.places)
        return packed, None if cached is None else cached.places

    @staticmethod
    def _arrays_of(typed: TypedInput) -> list[NDArray[Any]]:
        """What travels of rows of several types: the matrices, and the order of the sources."""
        order = typed.order
        assert isinstance(order, TypeOrder), "it comes from the host"
        matrices = [matrix.numpy() for matrix in typed.matrices if matrix is not None]
        return [*matrices, order.order, order.places]

    def _unpack_typed(self, typed: TypedInput, arrived: list[torch.Tensor]) -> TypedInput:
        """Rows of several types on the device; the numbers of rows of tables stay here."""
        *matrices, order, places = (arrived[self.parcel.add(each)] for each in self._arrays)
        return TypedInput(
            TensorOrder(order.long(), places.long(), typed.order.starts),
            [None if matrix is None else matrices.pop(0) for matrix in typed.matrices],
            typed.tables,
            self._device,
        )

    def _unpack_rows(self, arrived: list[torch.Tensor], kept: RowTensors | None) -> SentRows | None:
        if self._rows is None:
            return None
        rows = self._rows.moved(lambda array: arrived[self.parcel.add(array)])
        if self._places is None:
            return SentRows(rows)
        if kept is None:
            raise TypeError("inputs are CachedRows, but this device keeps no rows")
        return SentRows(rows, kept, arrived[self.parcel.add(self._places)])

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
        kept: RowTensors | None = None,
        inputs_of: InputsOf = lambda rows, block: rows.numbers(),
    ) -> Delivery:
        """What `parcel.send` brought, as a mini-batch, with the device's own kernels and kept rows.

        `inputs_of` makes the first layer's inputs of its rows and its block.
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
        rows = self._unpack_rows(arrived, kept)
        inputs: torch.Tensor | Aggregated | TypedInput | None = None
        if self._typed is not None:
            inputs = self._unpack_typed(self._typed, arrived)
        elif rows is not None:
            inputs = inputs_of(rows, blocks[0])
        return Delivery(
            blocks=blocks,
            labels=arrived[self._labels],
            target_weights=at(self._target_weights),
            inputs=inputs,
            target_rows=at(self._target_rows),
        )


@dataclass(slots=True)
class Delivery:
    """A mini-batch on the device."""

    blocks: list[TensorBlock]
    """L blocks, the input's first."""
    labels: torch.Tensor
    """[n] int64."""
    target_weights: torch.Tensor | None
    """[n] float32 or None."""
    inputs: torch.Tensor | Aggregated | TypedInput | None
    """[num_src, f] rows of the first block's sources, or their aggregate; None until the device has gathered
    them."""
    target_rows: torch.Tensor | None = None
    """[n] the targets' rows of the scores; None where all are, in order."""
