"""Blocks (the layers of a mini-batch), and the edges of a block sorted by relation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hyrt.checks import check_array, check_int, check_offsets, check_range
from hyrt.errors import ArgumentError
from hyrt.formatting import short_repr
from hyrt.sampling.kernels import count_runs, split_runs, transpose

if TYPE_CHECKING:
    import torch


Ids = NDArray[np.signedinteger[Any]]
"""Vertex ids: int32 if all ids of the graph fit, otherwise int64."""


@dataclass(slots=True, eq=False)
class Transposed:
    """Edges of a block sorted by source, for the backward pass."""

    indptr: Ids
    """Index of the first edge of each source, [num_src + 1], with the dtype of the block's `indptr`."""
    rows: NDArray[np.int32]
    """Destination of each edge, [E] int32."""
    edges: Ids
    """Position of each edge in the block, [E] int32, or int64 if the `indptr` of the block is int64."""

    __repr__ = short_repr


class EdgeFormatCache(Protocol):
    """Cache of the edges of a block in other formats, which many blocks share."""

    @property
    def transposed(self) -> Transposed:
        """Return the result of `Block.transposed`."""
        ...

    @property
    def edge_index(self) -> torch.Tensor:
        """Return the result of `Block.edge_index`."""
        ...

    relations: Any
    """Cached value of `Block.relations`."""


@dataclass(slots=True, eq=False)
class Block:
    """Layer of a mini-batch: a bipartite graph from sources to destinations, as CSR over destinations.

    Destinations are the first sources. If a block is read in place (`in_place`), its columns are vertices of
    the graph, and its sources are the rows of the whole feature matrix, without relabelling or copies.
    """

    indptr: Ids
    """Index of the first edge of each destination, [num_dst + 1] int32 (int64 only in inference)."""
    columns: Ids
    """Source of each edge, [E] int32 or int64."""
    destinations: Ids
    """Vertex id of each destination, [num_dst]."""
    sources: Ids | None
    """Vertex id of each source, [num_src]; None in place."""
    num_src: int
    """Number of sources; in place, the number of vertices of the graph."""
    degrees: NDArray[np.int32]
    """In-degree of each destination in the full graph, [num_dst] int32."""
    source_degrees: NDArray[np.int32]
    """In-degree of each source in the full graph, [num_src] int32."""
    layer: int
    """Layer number from 1 to L, counted from the input."""
    step: int = 0
    """Step of the run; with `seed`, it is the key of the dropout masks."""
    seed: int = 0
    source_scale: Callable[[], NDArray[np.float32]] | None = None
    """Function that returns 1 / sqrt(source degree + 1), [num_src] float32; None if it is not cached."""
    weights: NDArray[np.float32] | None = None
    """Edge factors [E] float32 that compensate for sampling (GraphSAINT's aggregator normalization); None if
    all are 1.
    """
    edge_types: NDArray[Any] | None = None
    """Type of each edge, [E] integers; None if edges have no types."""
    edge_weights: NDArray[np.float32] | None = None
    """Edge weights that layers multiply by, [E] float32; None if edges have no weights."""
    edge_features: NDArray[np.float32] | None = None
    """Edge features, [E, d] float32; None if edges have no features."""
    run_weights: NDArray[np.float32] | None = None
    """Total weight of all edges of the full graph that have the relation and destination of each edge, [E]
    float32; only in heterogeneous graphs with edge weights.
    """
    weighted_degrees: NDArray[np.float32] | None = None
    """Total weight of all in-edges of each destination in the full graph, [num_dst] float32; None if edges
    have no weights, so that the totals would equal `degrees`.
    """
    source_weighted_degrees: NDArray[np.float32] | None = None
    """Total in-edge weight of each source, [num_src] float32; see `weighted_degrees`."""
    resident: Any = None
    """Copy of the block on the device that sampled it, if any."""
    format_cache: EdgeFormatCache | None = None
    """Cache of other edge formats; None for no cache."""
    _transposed: Transposed | None = field(default=None, repr=False)
    relations: Any = field(default=None, repr=False)
    """Edges by relation (`RelationSplit`); see `hyrt.nn.hetero.relation_sums.get_relation_split`."""
    _is_checked: bool = field(default=False, init=False, repr=False)

    __repr__ = short_repr

    @property
    def checked(self) -> Block:
        """Return the block after validating its arrays, because compiled loops do not check bounds.

        Arrays are validated once. Call `distrusted` after changing an array.

        Raises
        ------
        ArgumentError
            If an array is invalid; the message gives the block's layer, the array and the first invalid
            position.
        """
        if not self._is_checked:
            _check(self)
            self._is_checked = True
        return self

    def trusted(self) -> Block:
        """Return the block and mark it as valid. Only code that builds valid arrays may call this."""
        self._is_checked = True
        return self

    def distrusted(self) -> Block:
        """Return the block and mark it for validation before its next use."""
        self._is_checked = False
        return self

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
        """Return the edge data that layers read [E, d]; see `Topology.edge_rows`."""
        if self.edge_features is not None or self.edge_weights is None:
            return self.edge_features
        return self.edge_weights[:, None]

    @property
    def edge_factors(self) -> NDArray[np.float32] | None:
        """Return edge factors in sums [E] float32: edge weights times `weights`; None if all are 1."""
        if self.weights is None or self.edge_weights is None:
            return self.edge_weights if self.weights is None else self.weights
        factors: NDArray[np.float32] = self.weights * self.edge_weights
        return factors

    def transposed(self) -> Transposed:
        """Return the edges by source, which the first call computes. The block must not be read in place."""
        if self._transposed is None:
            block = self.checked
            if block.in_place:
                raise ArgumentError(
                    "a block that is read in place has no transpose, because its sources take no gradient: "
                    "sample without in_place"
                )
            if self.format_cache is not None:
                self._transposed = self.format_cache.transposed
                return self._transposed
            indptr = np.empty(self.num_src + 1, self.indptr.dtype)
            rows = np.empty(self.num_edges, np.int32)
            edges = np.empty(self.num_edges, self.indptr.dtype)
            transpose(self.indptr, self.columns, self.num_src, indptr, rows, edges)
            self._transposed = Transposed(indptr, rows, edges)
        return self._transposed

    def edge_index(self) -> torch.Tensor:
        """Return (source, destination) positions as a [2, E] int64 tensor, as in PyG."""
        import torch

        if self.format_cache is not None:
            return self.format_cache.edge_index
        if self.in_place:
            raise ArgumentError(
                "a block that is read in place has no source positions: sample without in_place"
            )
        _ = self.checked
        rows = np.repeat(np.arange(self.num_dst, dtype=np.int64), np.diff(self.indptr))
        return torch.from_numpy(np.stack([self.columns.astype(np.int64), rows]))


_ID_DTYPES = (np.int32, np.int64)
_REAL_DTYPES = (np.float32, np.float64)
_OF_BLOCK = (
    ("degrees", "iu", "num_dst"),
    ("source_degrees", "iu", "num_src"),
    ("weights", _REAL_DTYPES, "num_edges"),
    ("edge_types", "iu", "num_edges"),
    ("edge_weights", _REAL_DTYPES, "num_edges"),
    ("run_weights", _REAL_DTYPES, "num_edges"),
    ("weighted_degrees", _REAL_DTYPES, "num_dst"),
    ("source_weighted_degrees", _REAL_DTYPES, "num_src"),
)
"""Arrays with one number per element: allowed dtypes, and the attribute with the number of elements."""


def _check(block: Block) -> None:
    layer = check_int("layer of a block", block.layer)
    at = f"in the block of layer {layer}, "
    check_int(f"{at}step", block.step, -(2**63))
    check_int(f"{at}seed", block.seed, -(2**63), 2**64 - 1)
    num_src = check_int(f"{at}num_src", block.num_src)
    columns = check_array(
        f"{at}columns", block.columns, _ID_DTYPES, (None,), "the source of each edge (int32 or int64)"
    )
    destinations = check_array(
        f"{at}destinations", block.destinations, _ID_DTYPES, (None,), "vertices (int32 or int64)"
    )
    num_dst, num_edges = len(destinations), len(columns)
    check_offsets(f"{at}indptr", block.indptr, num_dst, num_edges, _ID_DTYPES)
    check_range(f"{at}columns", columns, num_src, "sources")
    if block.sources is None:
        check_range(f"{at}destinations", destinations, num_src, "vertices")
    else:
        sources = check_array(
            f"{at}sources", block.sources, _ID_DTYPES, (num_src,), "vertices (int32 or int64)"
        )
        if num_dst > num_src or not np.array_equal(sources[:num_dst], destinations):
            raise ArgumentError(
                f"{at}sources does not begin with the destinations: put the destinations first, in order"
            )
    for name, kinds, count in _OF_BLOCK:
        values = getattr(block, name)
        if values is not None or name in ("degrees", "source_degrees"):
            kind = "integers" if kinds == "iu" else "float32 or float64 numbers"
            check_array(f"{at}{name}", values, kinds, (getattr(block, count),), kind)
    if block.edge_features is not None:
        check_array(
            f"{at}edge_features",
            block.edge_features,
            _REAL_DTYPES,
            (num_edges, None),
            "one row per edge (float32 or float64)",
        )
    if block.edge_types is not None and num_edges and block.edge_types.min() < 0:
        raise ArgumentError(f"{at}edge_types has values below 0: number the types from 0")
    if block.edge_weights is not None and (
        block.weighted_degrees is None or block.source_weighted_degrees is None
    ):
        raise ArgumentError(
            f"{at}edge_weights is set without weighted_degrees or source_weighted_degrees: set all three"
        )


@dataclass(slots=True)
class RelationSplit:
    """Edges of a block sorted by relation, and within each relation by destination.

    A run has the edges of one relation into one destination. Runs are numbered by relation, then by
    destination. Layers compute one row per run: `runs` aggregates from sources to runs, and `sums` from runs
    to destinations. Arrays are numpy arrays, or torch tensors if the block has torch tensors.
    """

    runs: Any
    """Block (`Block` or `TensorBlock`) from the sources to the P runs."""
    sums: Any
    """Block from the runs to the destinations."""
    rows: Any
    """Destination of each run, [P]."""
    edges: Any
    """Position in the original block of each edge of `runs`, [E]."""
    starts: Sequence[int]
    """Index of the first run of each relation, [R + 1]."""
    edge_starts: Sequence[int]
    """Index of the first edge of each relation in `runs`, [R + 1]."""
    _of: dict[int, Any] = field(default_factory=dict, repr=False)

    __repr__ = short_repr

    @property
    def sizes(self) -> list[int]:
        """Return the number of runs per relation, [R]."""
        return [stop - start for start, stop in zip(self.starts[:-1], self.starts[1:], strict=True)]

    @property
    def present_relations(self) -> list[int]:
        """Return the relations that have edges in the block."""
        return [relation for relation, size in enumerate(self.sizes) if size]

    def relation_block(self, relation: int) -> Any:
        """Return the block from the sources to the runs of one relation."""
        if relation not in self._of:
            runs, edges = self.runs, slice(*self.edge_starts[relation : relation + 2])
            first, last = self.starts[relation : relation + 2]
            fields = {
                "indptr": runs.indptr[first : last + 1] - runs.indptr[first],
                "columns": runs.columns[edges],
                "degrees": runs.degrees[first:last],
            }
            if runs.weighted_degrees is not None:
                fields |= {
                    "weights": None if runs.weights is None else runs.weights[edges],
                    "edge_weights": runs.edge_weights[edges],
                    "weighted_degrees": runs.weighted_degrees[first:last],
                }
            if isinstance(runs, Block):
                fields |= {"destinations": runs.destinations[first:last], "_transposed": None}
                self._of[relation] = replace(runs, **fields).trusted()
            else:
                self._of[relation] = runs.with_edges(last - first, **fields)
        return self._of[relation]


def split_block(block: Block, num_relations: int) -> RelationSplit:
    """Sort the edges of a block by relation, in one pass that counts and one that moves edges.

    The edges of each destination must be sorted by relation, which `edge_types` gives.
    """
    types = block.checked.edge_types
    if types is None:
        raise ArgumentError(
            f"the block of layer {block.layer} has no edge_types: set the relation of each edge"
        )
    check_range(f"in the block of layer {block.layer}, edge_types", types, num_relations, "relations")
    of_runs, of_edges = np.zeros(num_relations, np.int64), np.zeros(num_relations, np.int64)
    count_runs(block.indptr, types, of_runs, of_edges)
    starts, edge_starts = (np.concatenate([[0], np.cumsum(each)]) for each in (of_runs, of_edges))
    num, ids = int(starts[-1]), block.indptr.dtype
    run_indptr, run_rows = np.empty(num + 1, ids), np.empty(num, np.int32)
    edges = np.empty(block.num_edges, ids)
    row_indptr, runs_of_row = np.empty(block.num_dst + 1, ids), np.empty(num, np.int32)
    split_runs(
        *(block.indptr, types, starts[:-1].copy(), edge_starts[:-1].copy()),
        *(run_indptr, run_rows, edges, row_indptr, runs_of_row),
    )
    runs = Block(
        indptr=run_indptr,
        columns=block.columns[edges],
        destinations=run_rows,
        sources=block.sources,
        num_src=block.num_src,
        # An unweighted mean divides by the number of sampled edges in the run.
        degrees=np.diff(run_indptr).astype(np.int32),
        source_degrees=block.source_degrees,
        layer=block.layer,
        step=block.step,
        seed=block.seed,
    ).trusted()
    if block.run_weights is not None and block.edge_weights is not None:
        # A weighted mean needs the edge weights and the total weight of all edges of a run.
        runs.weights = None if block.weights is None else block.weights[edges]
        runs.edge_weights = block.edge_weights[edges]
        runs.weighted_degrees = block.run_weights[edges[run_indptr[:-1]]]
        runs.source_weighted_degrees = block.source_weighted_degrees
    sums = Block(
        indptr=row_indptr,
        columns=runs_of_row,
        destinations=block.destinations,
        sources=run_rows,
        num_src=num,
        degrees=np.diff(row_indptr).astype(np.int32),
        source_degrees=runs.degrees,
        layer=block.layer,
        step=block.step,
        seed=block.seed,
    ).trusted()
    return RelationSplit(runs, sums, run_rows, edges, starts.tolist(), edge_starts.tolist())
