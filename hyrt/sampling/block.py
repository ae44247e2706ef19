"""Blocks: the layers of a mini-batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hyrt.quantities import one_line
from hyrt.sampling.kernels import transpose

if TYPE_CHECKING:
    import torch

Ids = NDArray[np.signedinteger[Any]]
"""Vertex ids: int32 where the graph's vertices fit, else int64."""


@dataclass(slots=True, eq=False)
class Transposed:
    """A block's edges by source: rows are sources, sorted; what the backward pass walks."""

    indptr: Ids
    """[num_src + 1] int32; int64 where the block's is."""
    rows: NDArray[np.int32]
    """[E] int32, the destination of each edge."""
    edges: Ids
    """[E] int32, the edge's number in the block; int64 where the block's indptr is."""

    __repr__ = one_line


class KeptEdges(Protocol):
    """Forms of a block's edges that are made once for many blocks."""

    @property
    def transposed(self) -> Transposed:
        """As `Block.transposed` gives them."""
        ...

    @property
    def edge_index(self) -> torch.Tensor:
        """As `Block.edge_index` gives them."""
        ...

    relations: Any
    """As `Block.relations`."""


@dataclass(slots=True, eq=False)
class Block:
    """One layer of a mini-batch: a bipartite graph from sources to destinations, as CSR over destinations.

    Destinations are the prefix of sources. In a block that is read in place (`in_place`), columns are
    vertices of the graph instead and rows of the whole feature matrix are its sources: nothing was relabelled
    or copied.
    """

    indptr: Ids
    """[num_dst + 1] int32 (int64 where inference takes all edges of many vertices)."""
    columns: Ids
    """[E] int32 or int64, the source of each edge."""
    destinations: Ids
    """[num_dst] vertices of the graph."""
    sources: Ids | None
    """[num_src] vertices of the graph; None in place."""
    num_src: int
    """Number of sources; in place, of all vertices."""
    degrees: NDArray[np.int32]
    """[num_dst] int32, in-degrees of the destinations in the full graph."""
    source_degrees: NDArray[np.int32]
    """[num_src] int32, in-degrees of the sources in the full graph."""
    layer: int
    """1..L, counted from the input."""
    step: int = 0
    """Step of the run, with `seed` the key of the dropout masks."""
    seed: int = 0
    source_scale: Callable[[], NDArray[np.float32]] | None = None
    """Gives [num_src] float32, 1 / sqrt(source degree + 1), where somebody keeps it; else it is computed when
    needed."""
    weights: NDArray[np.float32] | None = None
    """[E] float32 factors on the edges that undo the sampling (GraphSAINT's aggregator normalisation), or
    None for all one."""
    edge_types: NDArray[Any] | None = None
    """[E] integers, the type of each edge; None in a graph whose edges have none."""
    edge_weights: NDArray[np.float32] | None = None
    """[E] float32, the weight of each edge in the graph, by which layers multiply; None in a graph
    without."""
    edge_features: NDArray[np.float32] | None = None
    """[E, d] float32, the features of each edge; None in a graph whose edges have none."""
    run_weights: NDArray[np.float32] | None = None
    """[E] float32, in a typed graph whose edges have weights: for each edge, the sum of the weights of all
    edges of its relation into its destination in the full graph."""
    weighted_degrees: NDArray[np.float32] | None = None
    """[num_dst] float32, the sums of the weights of all edges into the destinations in the full graph; None
    in a graph without weights, where they are `degrees`."""
    source_weighted_degrees: NDArray[np.float32] | None = None
    """[num_src] float32, the same of the sources."""
    resident: Any = None
    """The device's own copy, where a device sampled the block."""
    kept: KeptEdges | None = None
    """Other forms of the edges, where somebody keeps them."""
    _transposed: Transposed | None = field(default=None, repr=False)
    relations: Any = field(default=None, repr=False)
    """The edges by relation, a `RelationSplit`, once `hyrt.nn.typed.by_relation` was asked for them."""

    __repr__ = one_line

    @property
    def num_dst(self) -> int:
        return len(self.destinations)

    @property
    def num_edges(self) -> int:
        return len(self.columns)

    @property
    def in_place(self) -> bool:
        return self.sources is None

    @property
    def edge_rows(self) -> NDArray[np.float32] | None:
        """[E, d] what layers read as the data of edges; as `Topology.edge_rows`."""
        if self.edge_features is not None or self.edge_weights is None:
            return self.edge_features
        return self.edge_weights[:, None]

    @property
    def edge_factors(self) -> NDArray[np.float32] | None:
        """[E] float32 by what sums multiply edges: weights, times what undoes the sampling; None for 1."""
        if self.weights is None or self.edge_weights is None:
            return self.edge_weights if self.weights is None else self.weights
        factors: NDArray[np.float32] = self.weights * self.edge_weights
        return factors

    def transposed(self) -> Transposed:
        """The edges by source, built at the first call. Not for a block that is read in place."""
        if self._transposed is None:
            if self.in_place:
                raise ValueError(
                    "a block that is read in place has no transpose: its sources take no gradient"
                )
            if self.kept is not None:
                self._transposed = self.kept.transposed
                return self._transposed
            indptr = np.empty(self.num_src + 1, self.indptr.dtype)
            rows = np.empty(self.num_edges, np.int32)
            edges = np.empty(self.num_edges, self.indptr.dtype)
            transpose(self.indptr, self.columns, self.num_src, indptr, rows, edges)
            self._transposed = Transposed(indptr, rows, edges)
        return self._transposed

    def edge_index(self) -> torch.Tensor:
        """[2, E] int64 tensor of (source, destination) positions, the form PyG's layers take."""
        import torch

        if self.kept is not None:
            return self.kept.edge_index
        rows = np.repeat(np.arange(self.num_dst, dtype=np.int64), np.diff(self.indptr))
        return torch.from_numpy(np.stack([self.columns.astype(np.int64), rows]))
