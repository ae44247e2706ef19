"""Steps over whole graphs whose matrices are counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hyrt.fullgraph import gather_ops
from hyrt.fullgraph.matrix_pool import MatrixPool
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import SparseFeatures
from hyrt.nn.architecture import Architecture
from hyrt.nn.fused import fused_gather
from hyrt.nn.model import GNN
from hyrt.predict.dataset_sizes import FullGraphSizes
from hyrt.runtime.workers import Workers

ALONE = Workers(1, "test")
LARGE = 1 << 30


_LOOPS = (
    *("spmm_into", "attend_into", "attend_backward_destinations_into", "attend_backward_sources_into"),
    *("max_aggregate_into", "max_aggregate_backward_into"),
)


def without_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let loops over edges do nothing: which matrices are taken does not depend on what they compute.

    Each of many widths and factors would be compiled.
    """
    for name in _LOOPS:
        assert hasattr(gather_ops, name)
        monkeypatch.setattr(gather_ops, name, lambda *_, **__: None)
    # This one writes to memory of its own.
    monkeypatch.setattr(gather_ops, "max_aggregate_backward_into", lambda *given, **_: given[4].fill(0))
    monkeypatch.setattr(fused_gather, "run_loop", _no_loop)
    new = MatrixPool._new

    def zeroed(self: MatrixPool, size: int) -> Any:
        memory = new(self, size)
        memory.fill(0)
        return memory

    monkeypatch.setattr(MatrixPool, "_new", zeroed)


def _no_loop(loop: Any, edges: Any, operands: Any, outs: Any, winners: Any, workers: Any) -> list[Any]:
    shared = [operand for operand in loop.form.operands if operand.end == "shared"]
    return (
        [np.zeros(loop.form.num_columns(each), np.float32) for each in shared] if any(loop.by_chunk) else []
    )


def model_of(graph: Graph, **settings: Any) -> GNN:
    chosen = {"hidden": 16, "layers": 2, **settings}
    return GNN(Architecture(in_features=graph.num_features, num_classes=graph.num_classes, **chosen))


def scored(graph: Graph) -> np.ndarray:
    return np.concatenate([graph.split("val"), graph.split("test")]).astype(np.int32)


def sizes_of(graph: Graph, targets: np.ndarray, *, mapped: bool = False) -> FullGraphSizes:
    features = graph.features
    is_sparse = isinstance(features, SparseFeatures)
    return FullGraphSizes(
        vertices=graph.num_vertices,
        edges=graph.num_edges,
        targets=len(targets),
        target_edges=float(graph.topology.in_degrees[targets].sum()),
        scored=len(scored(graph)),
        data_bytes={},
        row_entries=len(features.columns) / graph.num_vertices if is_sparse else None,
        is_mapped=mapped,
    )


class Recorded:
    """Matrices as the engine takes them and gives them back."""

    def __init__(self, matrices: MatrixPool) -> None:
        self.matrices = matrices
        self.events: list[tuple[str, int]] = []

    @property
    def allocated_bytes(self) -> int:
        return self.matrices.allocated_bytes

    def take(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        self.events.append(("take", int(np.prod(shape)) * np.dtype(dtype).itemsize))
        return self.matrices.take(shape, dtype)

    def release(self, matrix: np.ndarray | None) -> None:
        if matrix is not None:
            memory = matrix
            while isinstance(memory.base, np.ndarray):
                memory = memory.base
            assert memory.dtype == np.uint8, "a matrix that was not taken"
            self.events.append(("give", memory.nbytes))
        self.matrices.release(matrix)
