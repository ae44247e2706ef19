"""`apply_vertex`, read once: whether it looks at a vertex's own row, and what it costs."""

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
    """`apply_vertex`, taken apart; the same for all copies of a layer."""

    graph: Graph
    reads_own: bool
    """Whether it looks at the vertex's own row."""
    numbers: int
    """Numbers that it computes for a vertex."""

    def __call__(
        self,
        layer: nn.Module,
        own: torch.Tensor | SparseRows | None,
        gathered: torch.Tensor,
        *,
        relu: bool = False,
    ) -> torch.Tensor:
        """[n, out] from the vertices' rows [n, in], where it looks at them, and what they gathered; then,
        where asked for, a ReLU.
        """
        values: dict[str, Any] = {"vertex": own, "gathered": gathered}
        given, nodes, result = self._steps
        named = {node: values[str(node.target)] for node in given}
        found: torch.Tensor = compute(layer, nodes, named, result if relu else None)[result]
        # What is returned as it came was not computed.
        return found.relu() if relu and result in named else found

    @cached_property
    def _steps(self) -> tuple[list[Node], list[Node], Node]:
        """What is given, the operations in order, and which of them makes the result."""
        given: list[Node] = []
        nodes: list[Node] = []
        for node in self.graph.nodes:
            (given if node.op == "placeholder" else nodes).append(node)
        (result,) = results(self.graph)
        return given, nodes, result

    def __deepcopy__(self, memo: dict[int, Any]) -> VertexProgram:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # Whoever unpickles a layer reads it again.
        return (_nothing, ())


def _nothing() -> None:
    return None


def read_vertex(
    layer: nn.Module, in_features: int, out_features: int, gathered_shape: tuple[int, ...]
) -> VertexProgram:
    """Read `apply_vertex` of a layer.

    Parameters
    ----------
    layer
        The layer.
    in_features, out_features
        Columns of vertices' rows before and after it.
    gathered_shape
        The shape of what a vertex has gathered.

    Raises
    ------
    UnsupportedModel
        If it cannot be read, or does not return rows of `out_features`.
    """
    label = f"{type(layer).__name__}.apply_vertex"
    graph = read_method(layer, "apply_vertex", ("vertex", "gathered"))
    shapes = probe(layer, graph, {"vertex": (in_features,), "gathered": gathered_shape}, label)
    returned = results(graph)
    if len(returned) != 1 or shapes[returned[0]] != (out_features,):
        given = [list(shapes[each]) for each in returned]
        raise UnsupportedModel(
            f"{label}: {where(returned[0])} gives {given[0] if len(given) == 1 else given} for a vertex: "
            f"return {out_features} numbers, the layer's out_features"
        )
    live, reads_own = set(returned), False
    for node in reversed(graph.nodes):
        if node in live:
            live.update(node.all_input_nodes)
            reads_own = reads_own or (node.op == "placeholder" and node.target == "vertex")
    numbers = sum(math.prod(shapes[node]) for node in live if node in shapes and node.op.startswith("call"))
    return VertexProgram(graph, reads_own, numbers)
