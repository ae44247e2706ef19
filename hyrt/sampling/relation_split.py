"""Edges of a block, sorted by relation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hyrt.checks import check_range
from hyrt.errors import ArgumentError
from hyrt.formatting import short_repr
from hyrt.sampling.block import Block
from hyrt.sampling.relation_kernels import count_runs, split_runs


@dataclass(slots=True)
class RelationSplit:
    """Edges of a block by relation, and within a relation by destination.

    A run consists of the edges of one relation into one destination. Runs are numbered by relation, then by
    destination. Layers compute one row per run: `runs` aggregates from sources to runs, and `sums` from runs
    to destinations. Arrays are numpy arrays, or torch tensors if the block has torch tensors.
    """

    runs: Any
    """Block (`Block` or `TensorBlock`) from the sources to the P runs."""
    sums: Any
    """Block from the runs to the destinations."""
    rows: Any
    """[P] destination of each run."""
    edges: Any
    """[E] position in the original block of each edge of `runs`."""
    starts: Sequence[int]
    """[R + 1] offset of the runs of each relation."""
    edge_starts: Sequence[int]
    """[R + 1] offset of the edges of each relation in `runs`."""
    _of: dict[int, Any] = field(default_factory=dict, repr=False)

    __repr__ = short_repr

    @property
    def sizes(self) -> list[int]:
        """Return the [R] numbers of runs per relation."""
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
    """Sort a block's edges by relation, in one counting pass and one placing pass.

    Within each destination, the block's edges must be sorted by relation, given by `edge_types`.
    """
    types = block.checked.edge_types
    if types is None:
        raise ArgumentError(f"block of layer {block.layer} has no edge_types: give the relation of each edge")
    check_range(f"block of layer {block.layer}: edge_types", types, num_relations, "relations")
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
        # The divisor of an unweighted mean: the number of sampled edges in the run.
        degrees=np.diff(run_indptr).astype(np.int32),
        source_degrees=block.source_degrees,
        layer=block.layer,
        step=block.step,
        seed=block.seed,
    ).trusted()
    if block.run_weights is not None and block.edge_weights is not None:
        # For weighted means: the edge weights, and the total weight of all edges of a run.
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
