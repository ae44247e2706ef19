"""Traced `apply_vertex`: whether it reads the input row of a vertex, and its memory use."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node

from hyrt.errors import UnsupportedModel
from hyrt.nn.operators.sparse import SparseRows
from hyrt.nn.saga.probing import probe
from hyrt.nn.saga.reading import compute, read_method, results, where


@dataclass(frozen=True, eq=False)
class VertexProgram:
    """Traced `apply_vertex`, shared by all copies of a layer."""

    graph: Graph
    reads_own: bool
    """Whether it reads the input row of the vertex."""
    numbers: int
    """Count of numbers that it computes per vertex."""

    def __call__(
        self,
        layer: nn.Module,
        own: torch.Tensor | SparseRows | None,
        gathered: torch.Tensor,
        *,
        relu: bool = False,
    ) -> torch.Tensor:
        """Compute [n, out] from the input rows [n, in], if it reads them, and the gathered rows.

        The result goes through a ReLU if `relu`.
        """
        values: dict[str, Any] = {"vertex": own, "gathered": gathered}
        inputs, nodes, result = self._steps
        known = {node: values[str(node.target)] for node in inputs}
        out: torch.Tensor = compute(layer, nodes, known, result if relu else None)[result]
        # An input that is returned unchanged is not computed, so its ReLU is still missing.
        return out.relu() if relu and result in known else out

    @cached_property
    def _steps(self) -> tuple[list[Node], list[Node], Node]:
        """Return the inputs, the operations in order, and the operation of the result."""
        inputs: list[Node] = []
        nodes: list[Node] = []
        for node in self.graph.nodes:
            (inputs if node.op == "placeholder" else nodes).append(node)
        (result,) = results(self.graph)
        return inputs, nodes, result

    def __deepcopy__(self, memo: dict[int, Any]) -> VertexProgram:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # An unpickled layer is traced again.
        return (_no_vertex_program, ())


def _no_vertex_program() -> None:
    return None


def read_vertex(
    layer: nn.Module, in_features: int, out_features: int, gathered_shape: tuple[int, ...]
) -> VertexProgram:
    """Trace `apply_vertex` of a layer.

    Parameters
    ----------
    layer
        The layer.
    in_features, out_features
        Widths of vertex rows before and after the layer.
    gathered_shape
        Shape of a gathered row.

    Raises
    ------
    UnsupportedModel
        If it cannot be traced, or does not return rows of width `out_features`.
    """
    label = f"{type(layer).__name__}.apply_vertex"
    graph = read_method(layer, "apply_vertex", ("vertex", "gathered"))
    shapes = probe(layer, graph, {"vertex": (in_features,), "gathered": gathered_shape}, label)
    returned = results(graph)
    if len(returned) != 1 or shapes[returned[0]] != (out_features,):
        returned_shapes = [list(shapes[node]) for node in returned]
        raise UnsupportedModel(
            f"{label}: {where(returned[0])} gives "
            f"{returned_shapes[0] if len(returned_shapes) == 1 else returned_shapes} for a vertex: "
            f"return {out_features} numbers, the layer's out_features"
        )
    live, reads_own = set(returned), False
    for node in reversed(graph.nodes):
        if node in live:
            live.update(node.all_input_nodes)
            reads_own = reads_own or (node.op == "placeholder" and node.target == "vertex")
    numbers = sum(math.prod(shapes[node]) for node in live if node in shapes and node.op.startswith("call"))
    return VertexProgram(graph, reads_own, numbers)
