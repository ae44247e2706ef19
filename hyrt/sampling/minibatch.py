"""Mini-batches, which are passed from sampling to loading and training, and blocks of the full graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hyrt.checks import check_array, check_int, check_number, check_range, check_type, show
from hyrt.errors import ArgumentError
from hyrt.formatting import short_repr
from hyrt.graph.topology import Topology
from hyrt.sampling.block import Block, Ids, Transposed

if TYPE_CHECKING:
    import torch


class GatherOps(Protocol):
    """Factory of gather operations along edges, for graphs with sources in other processes."""

    @property
    def num_vertices(self) -> int:
        """Return the number of vertices of the graph over all processes."""
        ...

    @property
    def num_edges(self) -> int:
        """Return the number of edges of the graph over all processes."""
        ...

    @property
    def cache_bytes(self) -> int:
        """Return the bytes that each process may cache between steps, in addition to graph and features."""
        ...

    @property
    def halo_exchange(self) -> Any:
        """Return the halo exchange for chunks, a `hyrt.fullgraph.chunk_kernels.RowExchange`."""
        ...

    def build_gather_op(self, gather: Any, dtype: np.dtype[Any], layer: int) -> Any:
        """Return the `hyrt.fullgraph.gather_ops.GatherOp` of a layer (1..L)."""
        ...


class FullGraph:
    """Builder of blocks with all vertices and edges of a topology. The blocks share one set of arrays.

    The topology is not copied. If a process has only some of the vertices, it has the in-edges of these local
    vertices, which are numbered first, followed by the remote vertices that they read. `vertices` [n] are the
    ids of the local vertices (default: all), and `gather_ops` is None if all vertices are local. In a
    heterogeneous graph (`is_hetero`), edge types are its relations.
    """

    def __init__(
        self,
        topology: Topology,
        vertices: Ids | None = None,
        gather_ops: GatherOps | None = None,
        *,
        is_hetero: bool = False,
    ) -> None:
        self.topology = topology
        self._is_hetero = is_hetero
        num = topology.num_vertices if vertices is None else len(vertices)
        self.rows: Ids = np.arange(num, dtype=np.int32 if num < 2**31 else np.int64)
        """Row numbers 0..n-1, int32 if they fit."""
        self.vertices: Ids = self.rows if vertices is None else vertices
        """Vertex id of each row, [n]."""
        self.gather_ops = gather_ops
        self.relations: Any = None
        """Cached value of `Block.relations`."""

    @property
    def is_distributed(self) -> bool:
        """Return whether other processes have vertices, and may need rows from this one in any step."""
        return self.gather_ops is not None

    @cached_property
    def transposed(self) -> Transposed:
        """Return the edges by source. They share arrays with the topology if the graph is symmetric."""
        transposed = self.topology.transposed
        return Transposed(transposed.indptr, transposed.indices, self.topology.transposed_edges)

    @cached_property
    def edge_index(self) -> torch.Tensor:
        """Return sources and destinations as a [2, E] int64 tensor, as in PyG."""
        import torch

        rows = np.repeat(np.arange(self.topology.num_vertices), self.topology.in_degrees)
        return torch.from_numpy(np.stack([self.topology.indices.astype(np.int64), rows]))

    def block(self, layer: int, *, step: int, seed: int, in_place: bool = False) -> Block:
        """Build a block of all edges for a layer from 1 (input) to L.

        `step` and `seed` are the key of the dropout masks. If `in_place`, sources are vertex ids, and the
        feature matrix is read in place.
        """
        topology, rows = self.topology, self.rows
        sums = None if topology.edge_weights is None else topology.weighted_degrees
        return Block(
            indptr=topology.indptr,
            columns=topology.indices,
            destinations=rows,
            sources=None if in_place else rows,
            num_src=len(rows),
            degrees=topology.in_degrees,
            source_degrees=topology.in_degrees,
            layer=layer,
            step=step,
            seed=seed,
            source_scale=lambda: topology.gcn_scale,
            edge_types=topology.edge_types,
            edge_weights=topology.edge_weights,
            edge_features=topology.edge_features,
            run_weights=topology.relation_weights if self._is_hetero and sums is not None else None,
            weighted_degrees=sums,
            source_weighted_degrees=sums,
            format_cache=self,
        ).trusted()


@dataclass(slots=True, eq=False)
class MiniBatch:
    """Work of one trainer in one step."""

    step: int
    """Step of the run, counted from 0."""
    targets: Ids
    """Vertices whose loss is computed, [n]."""
    blocks: list[Block]
    """Blocks of the L layers, input layer first."""
    labels: NDArray[Any]
    """Labels of the targets: classes [n] int64, flags [n, K] int8 (-1 if unknown), or numbers [n, K] float32
    (NaN if unknown). For links, [m, 1 + K, 2] int64: the score rows of the two endpoints of each of m links,
    and of the endpoints of its K negatives.
    """
    target_weights: NDArray[np.float32] | None
    """Loss weight of each target, [n] float32; None if all are 1."""
    normalizer: float
    """Term of this mini-batch in the divisor of the step's gradient sum: its number of targets or, for
    subgraph samplers, of units.
    """
    inputs: Any = None
    """Input features in the form that the trainer needs, which the load stage sets."""
    target_rows: Ids | None = None
    """Score row of each target, [n]. None if scores have one row per target, in order. Otherwise the last
    block has more destinations than targets, and only the rows of targets enter the loss.
    """
    full_graph: FullGraph | None = None
    """Full graph if each block covers it, otherwise None. Mini-batches with the same object have equal blocks
    (except for the step), targets, labels and inputs, so a device may cache them.
    """
    _on_release: list[Callable[[], None]] = field(default_factory=list, repr=False)

    _is_checked: bool = field(default=False, init=False, repr=False)

    __repr__ = short_repr

    @property
    def checked(self) -> MiniBatch:
        """Return the mini-batch after validating its blocks and arrays; see `Block.checked`.

        Raises
        ------
        ArgumentError
            If an array is invalid; the message gives the array and the position.
        """
        if not self._is_checked:
            _check(self)
            self._is_checked = True
        return self

    def trusted(self) -> MiniBatch:
        """Return the mini-batch and mark it as valid. Only code that builds valid arrays may call this."""
        self._is_checked = True
        return self

    def distrusted(self) -> MiniBatch:
        """Return the mini-batch and mark it and all of its blocks for validation."""
        self._is_checked = False
        for block in self.blocks if isinstance(self.blocks, list | tuple) else ():
            if isinstance(block, Block):
                block.distrusted()
        return self

    @property
    def has_classes(self) -> bool:
        """Return whether the labels are classes."""
        return self.labels.dtype == np.int64 and self.labels.ndim == 1

    @property
    def num_losses(self) -> int:
        """Return the number of losses in the sum: one per target, or one per link."""
        return len(self.labels)

    @property
    def num_edges(self) -> int:
        """Return the number of sampled edges of all layers."""
        return sum(block.num_edges for block in self.blocks)

    def on_release(self, action: Callable[[], None]) -> None:
        """Call `action` when the step that uses this mini-batch is over."""
        self._on_release.append(action)

    def release(self) -> None:
        """Release pooled buffers. The arrays of the mini-batch must not be read afterwards."""
        actions, self._on_release = self._on_release, []
        for action in actions:
            action()


_ID_DTYPES = (np.int32, np.int64)
_REMEDY = "pass a hyrt.sampling.block.Block, as returned by samplers"


def check_blocks(blocks: Any) -> list[Block]:
    """Return the validated blocks of a mini-batch, each of which must read the output of its predecessor."""
    if not isinstance(blocks, list | tuple) or not blocks:
        raise ArgumentError(
            f"blocks is {show(blocks)}: pass a list of blocks, with the input layer's block first"
        )
    checked = [check_type("a block", block, Block, _REMEDY).checked for block in blocks]
    for below, above in pairwise(checked):
        if below.num_dst != above.num_src:
            raise ArgumentError(
                f"the block of layer {below.layer} has {below.num_dst:,} destinations, but the block of "
                f"layer {above.layer} has {above.num_src:,} sources: pass blocks that each read the rows of "
                "the previous block"
            )
    return checked


def _check(batch: MiniBatch) -> None:
    check_int("step of a mini-batch", batch.step, -(2**63))
    targets = check_array("targets", batch.targets, _ID_DTYPES, (None,), "vertices (int32 or int64)")
    check_number("normalizer", batch.normalizer, 0)
    blocks = check_blocks(batch.blocks)
    num_rows = blocks[-1].num_dst
    if batch.target_rows is not None:
        rows = check_array(
            "target_rows",
            batch.target_rows,
            _ID_DTYPES,
            (len(targets),),
            "one score row per target",
        )
        check_range("target_rows", rows, num_rows, "score rows")
    elif num_rows != len(targets):
        raise ArgumentError(
            f"the last block has {num_rows:,} destinations for {len(targets):,} targets: use the targets as "
            "its destinations, or set target_rows"
        )
    labels = check_type("labels", batch.labels, np.ndarray, "pass the labels of the targets as a numpy array")
    is_links = labels.dtype.kind == "i" and labels.ndim == 3
    if is_links:
        check_array(
            "labels", labels, (np.int64,), (None, None, 2), "the score rows of the ends of links (int64)"
        )
        check_range("labels of links", labels.reshape(-1), len(targets), "targets")
    elif labels.ndim not in (1, 2) or len(labels) != len(targets):
        raise ArgumentError(
            f"labels is {show(labels)} for {len(targets):,} targets: pass one row of labels per target"
        )
    elif labels.ndim == 1:
        classes = check_array("labels", labels, (np.int64,), (len(targets),), "classes (int64)")
        check_range("labels", classes, 2**31, "classes")
    if batch.target_weights is not None:
        check_array("target_weights", batch.target_weights, (np.float32,), (len(labels),), "float32 factors")
    inputs = batch.inputs
    shape = getattr(inputs, "shape", None)
    if shape is not None and (not len(shape) or shape[0] != blocks[0].num_src):
        raise ArgumentError(
            f"inputs is {show(inputs)}, but the first block has {blocks[0].num_src:,} sources: pass one row "
            "per source"
        )
