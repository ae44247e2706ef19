"""Block with torch tensors on any device, as devices that run torch pass it to a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hyrt.formatting import short_repr
from hyrt.nn.architecture import Aggregation
from hyrt.nn.fused.c_codegen import TensorLoops


@dataclass(slots=True)
class TensorTransposed:
    """A block's edges by source; see `hyrt.sampling.block.Transposed`."""

    indptr: torch.Tensor
    """[num_src + 1] int64."""
    rows: torch.Tensor
    """[E] int64, the destination of each edge."""
    edges: torch.Tensor
    """[E] int64, the edge's index in the block."""

    __repr__ = short_repr


@dataclass(slots=True)
class DerivedEdges:
    """Data that is derived from a block's edges at its first use."""

    rows: torch.Tensor | None = None
    transposed: TensorTransposed | None = None
    with_self_loops: TensorBlock | None = None
    relations: Any = None

    __repr__ = short_repr


@dataclass(slots=True, eq=False)
class TensorBlock:
    """One layer of a mini-batch on a torch device: the fields of `Block` as tensors, always relabelled."""

    indptr: torch.Tensor
    """[num_dst + 1] int32 or int64."""
    columns: torch.Tensor
    """[E] int32 or int64, the source of each edge."""
    sources: torch.Tensor
    """[num_src] vertices of the graph; the destinations are their prefix."""
    num_dst: int
    """Number of destinations."""
    degrees: torch.Tensor
    """[num_dst] int32, in-degrees of the destinations in the full graph."""
    source_degrees: torch.Tensor
    """[num_src] int32, in-degrees of the sources in the full graph."""
    layer: int
    step: int = 0
    seed: int = 0
    """`layer`, `step` and `seed`: as in `Block`."""
    weights: torch.Tensor | None = None
    """[E] float32 factors on the edges, or None."""
    edge_types: torch.Tensor | None = None
    """[E] integers, the type of each edge, or None."""
    edge_weights: torch.Tensor | None = None
    edge_features: torch.Tensor | None = None
    run_weights: torch.Tensor | None = None
    weighted_degrees: torch.Tensor | None = None
    source_weighted_degrees: torch.Tensor | None = None
    """`edge_weights`, `edge_features` and the sums of weights: as in `Block`."""
    aggregate: Callable[[TensorBlock, torch.Tensor, Aggregation], torch.Tensor] | None = None
    """The device's aggregation kernel; None uses torch's operators."""
    loops: TensorLoops | None = None
    """The device's edge loops; None uses torch's operators."""
    derived: DerivedEdges = field(default_factory=DerivedEdges, repr=False)
    """Cache of `rows` and `transposed`; blocks with the same edges may share it."""

    __repr__ = short_repr

    @property
    def num_src(self) -> int:
        return len(self.sources)

    @property
    def num_edges(self) -> int:
        return len(self.columns)

    @property
    def in_place(self) -> bool:
        return False

    @property
    def destinations(self) -> torch.Tensor:
        """Vertices of the destinations, [num_dst]."""
        return self.sources[: self.num_dst]

    @property
    def edge_rows(self) -> torch.Tensor | None:
        """Edge features [E, columns], or edge weights as a column; see `Block.edge_rows`."""
        if self.edge_features is not None or self.edge_weights is None:
            return self.edge_features
        return self.edge_weights[:, None]

    @property
    def edge_factors(self) -> torch.Tensor | None:
        """Products of weights and edge weights [E]; see `Block.edge_factors`."""
        if self.weights is None or self.edge_weights is None:
            return self.edge_weights if self.weights is None else self.weights
        return self.weights * self.edge_weights

    def rows(self) -> torch.Tensor:
        """Return the destination of each edge, [E] int64; built at the first call."""
        if self.derived.rows is None:
            numbers = torch.arange(self.num_dst, device=self.columns.device)
            counts = self.indptr[1:] - self.indptr[:-1]
            # Without output_size, the host waits for the device to compute the size.
            self.derived.rows = numbers.repeat_interleave(counts, output_size=self.num_edges)
        return self.derived.rows

    def transposed(self) -> TensorTransposed:
        """Return the edges by source, cached; a stable sort gives the same order as on the host."""
        if self.derived.transposed is None:
            columns, edges = torch.sort(self.columns, stable=True)
            borders = torch.arange(self.num_src + 1, device=columns.device, dtype=columns.dtype)
            self.derived.transposed = TensorTransposed(
                torch.searchsorted(columns, borders), self.rows()[edges], edges
            )
        return self.derived.transposed

    def with_edges(self, num_dst: int, **fields: torch.Tensor) -> TensorBlock:
        """Return a block with the same sources and other edges, without cached derived data."""
        return replace(self, num_dst=num_dst, derived=DerivedEdges(), **fields)  # type: ignore[arg-type]

    def edge_index(self) -> torch.Tensor:
        """Return the [2, E] int64 tensor of (source, destination) positions for PyG layers."""
        return torch.stack([self.columns.long(), self.rows()])
