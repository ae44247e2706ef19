"""Division of a model into gathers and dense stages, and the destinations and context of a gather."""

# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.fullgraph.matrix_pool import MatrixPool
from hyrt.graph.topology import Topology
from hyrt.nn.description import overrides_only
from hyrt.nn.layer import Layer, LayerParts
from hyrt.nn.model import GNN
from hyrt.nn.operators.dropout import dropout
from hyrt.nn.operators.sparse import SparseRows
from hyrt.runtime.numba_cache import nb
from hyrt.runtime.workers import Workers

Rows = torch.Tensor | SparseRows


@dataclass(frozen=True, slots=True)
class DropoutKey:
    """Key of a step's dropout masks."""

    seed: int
    step: int


@dataclass(frozen=True)
class DenseStage:
    """Row-wise work between the gathers of layers i and i + 1, counted from 0.

    It applies layer i to the gathered rows, including residual, norm, ReLU and dropout, and computes the
    messages of layer i + 1. Stage -1 computes the first messages from the features; the last stage computes
    the scores.
    """

    model: GNN
    index: int
    """Index i of the stage."""
    before: LayerParts | None
    """Parts of layer i; None for the feature stage."""
    after: LayerParts | None
    """Parts of layer i + 1; None for the last stage."""

    @property
    def reads_self(self) -> bool:
        """Whether the stage reads the input rows of layer i."""
        return self.before is not None and (self.before.reads_self or self.model.adds_residual(self.index))

    @property
    def carries_rows(self) -> bool:
        """Whether the next stage reads the input rows of layer i + 1."""
        if self.before is None or self.after is None:
            return False  # The inputs of the first layer are the features, which are always available.
        return self.after.reads_self or self.model.adds_residual(self.index + 1)

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of each output matrix: see `__call__`."""
        rows = self.model.architecture.widths[self.index + 1]
        if self.after is None or self.after.scatter is None:
            return (rows,)
        return (rows, *self.after.message_widths) if self.carries_rows else self.after.message_widths

    @cached_property
    def parameters(self) -> list[torch.nn.Parameter]:
        """Trainable parameters of the stage."""
        model, modules = self.model, []
        if self.before is not None:
            modules.append(model.layers[self.index])
            modules += [
                parameters[self.index]
                for parameters in (model.norms, model.shortcuts)
                if self.index < len(parameters)
            ]
        if self.after is not None and self.after.scatter is not None:
            modules.append(model.layers[self.index + 1])
        parameters = (p for module in modules for p in module.parameters() if p.requires_grad)
        # Remove duplicates: torch would return the full gradient once per occurrence of a shared parameter.
        return list({id(parameter): parameter for parameter in parameters}.values())

    def __call__(
        self,
        gathered: torch.Tensor | None,
        self_rows: Rows | None,
        vertices: NDArray[Any],
        masks: DropoutKey | None,
    ) -> tuple[torch.Tensor, ...]:
        """Compute a range of rows.

        `gathered` [n, width] are the rows that layer i gathered (None in the feature stage). `self_rows` [n,
        in] are the input rows of layer i, if they are read, or the features in the feature stage. `vertices`
        [n] and `masks` key the dropout masks; without `masks`, there is no dropout.

        Returns the scores in the last stage, otherwise the messages of layer i + 1, which are its input rows
        if the layer sends rows unchanged. If it does not, but the next stage reads the input rows, the result
        is the rows followed by the messages.
        """
        model, a = self.model, self.model.architecture
        if self.before is None:
            assert self_rows is not None
            rows: Rows = self_rows
        else:
            assert gathered is not None
            read = self_rows if self.before.reads_self else None
            out = self.before.apply(gathered, read, relu=model.ends_with_relu(self.index))
            rows = model.finish(self.index, out, self_rows if model.adds_residual(self.index) else None)
            if self.after is None:
                return (rows,)
            rows = _dropout_rows(rows, vertices, a.dropout, masks, self.index + 1)
        assert self.after is not None
        if self.after.scatter is None:
            return (rows.to_dense() if isinstance(rows, SparseRows) else rows,)
        messages = self.after.scatter(rows)
        if not self.carries_rows:
            return messages
        assert isinstance(rows, torch.Tensor)
        return (rows, *messages)


def dropout_features(model: GNN, rows: Rows, vertices: NDArray[Any], masks: DropoutKey | None) -> Rows:
    """Apply input dropout to feature rows."""
    return _dropout_rows(rows, vertices, model.architecture.input_dropout, masks, 0)


def _dropout_rows(
    rows: Rows, vertices: NDArray[Any], rate: float, masks: DropoutKey | None, layer: int
) -> Rows:
    if masks is None or rate == 0:
        return rows
    return dropout(rows, vertices, rate=rate, seed=masks.seed, step=masks.step, layer=layer)


# Rows per chunk: enough to amortize the overhead of torch calls, and few enough to limit memory.
_ROWS = 1 << 14
_NUMBERS = 1 << 22
# A layer saves each row about this many times; activations are saved only up to _NUMBERS values in total.
_STEPS = 4

CACHE_DIVISOR = 4
"""Divisor of the machine's memory; the quotient is the limit for the cached gather of the first layer."""


@dataclass(frozen=True, slots=True)
class FullGraphPlan:
    """Computation plan of a model over a full graph."""

    model: GNN
    parts: tuple[LayerParts, ...]
    """Parts of each layer."""
    stages: tuple[DenseStage, ...]
    """One stage before each layer's gather, and one after the last gather."""
    caches_first_gather: bool
    """Whether the first layer's gather of features is cached because every step would repeat it."""
    reads_in_place: bool
    """Whether the first layer gathers directly from the feature matrix in every step."""
    chunk_rows: int
    """Rows per chunk; depends only on layer widths, so that sums do not depend on the number of threads."""
    saves_activations: bool
    """Whether activations of the forward pass are saved, if they are small, instead of being recomputed."""
    torch_dtype: torch.dtype
    dtype: np.dtype[Any]
    """Numpy dtype that corresponds to `torch_dtype`."""


def is_decomposable(model: torch.nn.Module) -> TypeGuard[GNN]:
    """Return whether a model is a plain chain of layers with known parts, over rows of one width."""
    if not isinstance(model, GNN) or overrides_only(type(model), "forward", "layer"):
        return False
    if model.architecture.shape is not None:
        return False
    return all(
        isinstance(layer, Layer)
        and not overrides_only(type(layer), "forward", "parts")
        and layer.parts(multiply_first=False) is not None
        for layer in model.layers
    )


def plan_full_graph(
    model: GNN,
    num_vertices: int,
    num_edges: int,
    *,
    is_sparse: bool,
    memory_bytes: int,
    has_memory_limit: bool = False,
    is_distributed: bool = False,
) -> FullGraphPlan:
    """Choose how to compute a decomposable model over a graph.

    If possible, a layer with fewer output than input columns multiplies before the gather. The first layer
    gathers raw features if one gather suffices for the run: if the features are dense and not dropped out,
    and the result fits into `memory_bytes` and has no more numbers than one gather of products reads.

    With `has_memory_limit`, activations are not saved, because they would not count towards the host memory
    budget. With `is_distributed`, gathers exchange rows with other processes, so it is worth gathering raw
    features once.
    """
    architecture = model.architecture
    dtype = next(model.parameters()).dtype
    parts = []
    keeps_first = reads_in_place = False
    for i, layer in enumerate(model.layers):
        assert isinstance(layer, Layer)
        raw = layer.parts(multiply_first=False)
        assert raw is not None
        products = layer.source_weight()
        made = architecture.widths[i + 1] if products is None else len(products)
        narrower = made < architecture.widths[i]
        if i == 0:
            gathers_raw = raw.scatter is None and architecture.input_dropout == 0
            must = layer.source_weight() is None
            numbers = num_vertices * raw.gathered_width
            pays = is_distributed or not narrower or numbers <= num_edges * made
            fits = numbers * dtype.itemsize <= memory_bytes
            keeps_first = gathers_raw and (must or (fits and pays and not is_sparse))
            narrower = not keeps_first and (narrower or is_sparse)
        chosen = layer.parts(multiply_first=narrower)
        assert chosen is not None
        if i == 0:
            reads_in_place = chosen.scatter is None and gathers_raw and not keeps_first
        parts.append(chosen)
    padded: list[LayerParts | None] = [None, *parts, None]
    stages = tuple(
        DenseStage(model, i - 1, before, after) for i, (before, after) in enumerate(pairwise(padded))
    )
    widest = max(architecture.widths[1:] if is_sparse else architecture.widths)
    chunk_rows = max(1, min(_ROWS, _NUMBERS // widest))
    few = num_vertices * _STEPS * sum(architecture.widths[1:]) <= _NUMBERS
    return FullGraphPlan(
        model=model,
        parts=tuple(parts),
        stages=stages,
        caches_first_gather=keeps_first,
        reads_in_place=reads_in_place,
        chunk_rows=chunk_rows,
        saves_activations=not has_memory_limit and (few or num_vertices <= chunk_rows),
        torch_dtype=dtype,
        dtype=np.dtype(str(dtype).removeprefix("torch.")),
    )


Array = NDArray[Any]

MAX_TRANSPOSED_FRACTION = 0.25
"""Maximum fraction of all edges for which a subset of destinations gets a separate transpose."""


@dataclass(frozen=True, slots=True)
class DestinationSubset:
    """Subset of the vertices, with the transpose of the edges into it."""

    vertices: Array
    """Distinct vertices, [n]."""
    positions: Array
    """Position of each vertex in `vertices`, -1 if it is not in the subset, [V] int32."""
    transposed: tuple[Array, Array] | None
    """Edges into the subset as CSR by source; None if they are a large part of all edges.

    The arrays are each source's first edge [V + 1], and each edge's destination as a position in `vertices`.
    """

    @classmethod
    def from_vertices(
        cls, vertices: Array, topology: Topology, *, transpose: bool
    ) -> DestinationSubset | None:
        """Build the subset of distinct `vertices` [n]; return None if they are all vertices, in order.

        Set `transpose` if backward passes will use the subset repeatedly.
        """
        if len(vertices) == topology.num_vertices and (np.diff(vertices) == 1).all():
            return None
        positions = np.full(topology.num_vertices, -1, np.int32)
        positions[vertices] = np.arange(len(vertices), dtype=np.int32)
        # Do not use in-degrees, which may include edges of other processes.
        edges = int((topology.indptr[vertices + 1] - topology.indptr[vertices]).sum(dtype=np.int64))
        if not transpose or edges > MAX_TRANSPOSED_FRACTION * topology.num_edges:
            return cls(vertices, positions, None)
        starts = np.zeros(topology.num_vertices + 1, np.int32 if edges < 2**31 else np.int64)
        rows = np.empty(edges, np.int32)
        _transpose_rows(topology.indptr, topology.indices, vertices, starts, rows)
        return cls(vertices, positions, (starts, rows))


@dataclass(frozen=True, slots=True)
class GatherContext:
    """Context of one gather call: its destinations and resources."""

    workers: Workers
    destinations: DestinationSubset | None = None
    """Destinations of the gather; None for all vertices."""
    masks: DropoutKey | None = None
    """Key of the step's dropout masks; None disables dropout."""
    memory: MatrixPool | None = None
    """Pool for the matrices that the backward pass needs; None in a gather without backward pass."""
    overwrite: bool = False
    """Whether a forward gather may overwrite the messages; nothing reads them later except `backward`."""
    accumulate: bool = False
    """Whether a backward gather adds to its output instead of overwriting it."""


@nb.njit(nogil=True, cache=True, boundscheck=False)
def _transpose_rows(indptr, columns, chosen, starts, rows):
    """Transpose the chosen rows of a CSR matrix. The edges of a column are in row order."""
    num = len(starts) - 1
    for k in range(len(chosen)):
        for e in range(indptr[chosen[k]], indptr[chosen[k] + 1]):
            starts[columns[e] + 1] += 1
    for j in range(num):
        starts[j + 1] += starts[j]
    for k in range(len(chosen)):
        for e in range(indptr[chosen[k]], indptr[chosen[k] + 1]):
            j = columns[e]
            rows[starts[j]] = k
            starts[j] += 1
    for j in range(num, 0, -1):
        starts[j] = starts[j - 1]
    starts[0] = 0
