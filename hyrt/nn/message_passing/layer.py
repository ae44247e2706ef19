"""Base class of user-defined layers, which consist of an edge function and a vertex function."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import nn
from torch.fx import Graph, Node

from hyrt.checks import check_int
from hyrt.errors import UnsupportedModelError
from hyrt.nn.architecture import Aggregation
from hyrt.nn.fused.loop_backend import is_on_device
from hyrt.nn.layer import Footprint, Layer, LayerParts, Rows, source_rows
from hyrt.nn.message_passing.block_gather import gather_block, relabel_block
from hyrt.nn.message_passing.gather import SagaGather
from hyrt.nn.message_passing.program import Accumulator, EdgeProgram, trace_edge
from hyrt.nn.message_passing.tensor_gather import gather_tensors
from hyrt.nn.message_passing.tracing import (
    infer_shapes,
    reference_tensor,
    returned_nodes,
    run_nodes,
    source_line,
    trace_method,
)
from hyrt.nn.operators.sparse import SparseRows
from hyrt.nn.operators.tensor_ops import TensorBlock
from hyrt.sampling.block import Block


@dataclass(frozen=True, eq=False)
class VertexProgram:
    """Traced `apply_vertex` of a layer, shared by all copies of the layer."""

    graph: Graph
    reads_self: bool
    """Whether `apply_vertex` reads the input row of the vertex."""
    num_computed: int
    """Number of values that are computed per vertex."""

    def __call__(
        self,
        layer: nn.Module,
        self_rows: torch.Tensor | SparseRows | None,
        gathered: torch.Tensor,
        *,
        relu: bool = False,
    ) -> torch.Tensor:
        """Compute [n, out] from gathered rows and, if `reads_self`, input rows [n, in]; end with a ReLU if
        `relu`.
        """
        values: dict[str, Any] = {"vertex": self_rows, "gathered": gathered}
        inputs, nodes, result = self._steps
        known = {node: values[str(node.target)] for node in inputs}
        out: torch.Tensor = run_nodes(layer, nodes, known, result if relu else None)[result]
        # If `apply_vertex` returns an input unchanged, no operation has applied the ReLU.
        return out.relu() if relu and result in known else out

    @cached_property
    def _steps(self) -> tuple[list[Node], list[Node], Node]:
        """Return the inputs, the operations in order, and the operation that computes the result."""
        inputs: list[Node] = []
        nodes: list[Node] = []
        for node in self.graph.nodes:
            (inputs if node.op == "placeholder" else nodes).append(node)
        (result,) = returned_nodes(self.graph)
        return inputs, nodes, result

    def __deepcopy__(self, memo: dict[int, Any]) -> VertexProgram:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # Traced programs are not pickled. An unpickled layer is traced again.
        return (_no_vertex_program, ())


def _no_vertex_program() -> None:
    return None


def trace_vertex(
    layer: nn.Module, in_features: int, out_features: int, gathered_shape: tuple[int, ...]
) -> VertexProgram:
    """Trace `apply_vertex` of a layer for gathered rows of shape `gathered_shape`.

    Raises UnsupportedModelError if tracing fails, or the returned rows do not have the width `out_features`.
    """
    label = f"{type(layer).__name__}.apply_vertex"
    graph = trace_method(layer, "apply_vertex", ("vertex", "gathered"))
    shapes = infer_shapes(layer, graph, {"vertex": (in_features,), "gathered": gathered_shape}, label)
    returned = returned_nodes(graph)
    if len(returned) != 1 or shapes[returned[0]] != (out_features,):
        returned_shapes = [list(shapes[node]) for node in returned]
        raise UnsupportedModelError(
            f"in {label}, {source_line(returned[0])} returns shape "
            f"{returned_shapes[0] if len(returned_shapes) == 1 else returned_shapes} per vertex: return "
            f"{out_features} numbers, the layer's out_features"
        )
    live, reads_self = set(returned), False
    for node in reversed(graph.nodes):
        if node in live:
            live.update(node.all_input_nodes)
            reads_self = reads_self or (node.op == "placeholder" and node.target == "vertex")
    numbers = sum(math.prod(shapes[node]) for node in live if node in shapes and node.op.startswith("call"))
    return VertexProgram(graph, reads_self, numbers)


# Names of the instance attributes of every layer, in addition to class attributes.
_TAKEN = frozenset({*vars(nn.Module()), "in_features", "out_features", "_programs"})


class Edge(Protocol):
    """Argument of `SagaLayer.apply_edge`: all edges at once, with one row per edge."""

    src: torch.Tensor
    """Source row of each edge, [E, in]."""
    dst: torch.Tensor
    """Destination row of each edge, [E, in]."""
    src_degree: torch.Tensor
    """Full-graph in-degree of the source, [E, 1]."""
    dst_degree: torch.Tensor
    """Full-graph in-degree of the destination, [E, 1]."""
    type: torch.Tensor
    """Edge type from 0 to the layer's `edge_types` - 1, as a floating-point number, [E, 1]."""
    weight: torch.Tensor
    """Edge weight, [E, 1]; 1 for self-loops."""
    data: torch.Tensor
    """Edge features [E, d], with d = `edge_features` of the layer, or the weight if edges have no features. A
    self-loop has the mean over the other edges of the vertex.
    """


class SagaLayer(Layer):
    """Layer that is defined by Scatter, ApplyEdge, Gather and ApplyVertex (NeuGraph, section 2.2).

    A user-defined layer derives from this class, creates its parameters in `__init__`, and has two methods.
    `apply_edge` computes the message of an edge. `apply_vertex` computes the new row of a vertex from its old
    row and from its messages, reduced by `accumulate`. Both are torch code that is traced once, without
    concrete rows. Values that depend on one endpoint are computed once per vertex. If all other operations
    are element-wise, they are fused with the gather into one loop, forward and backward, without arrays that
    have one row per edge. Otherwise, torch computes them in chunks of edges.

    Parameters
    ----------
    in_features, out_features
        Widths of vertex rows before and after the layer.
    """

    accumulate: ClassVar[Accumulator] = "sum"
    """Reduction of messages. `sum`: if k of d neighbours are sampled, each message is multiplied by d / k.
    `mean`: mean. `max`: element-wise maximum. `attention`: `apply_edge` returns scores, [E] or [E, heads],
    and messages, [E, width] or [E, heads, width]; the sum weights messages by the softmax of the scores over
    each vertex's edges. `concatenation`: messages are written to `slots` slots in edge order. The result is
    zero for vertices without edges.
    """
    slots: int = 0
    """Maximum edges per vertex for `concatenation`, including its self-loop; unused slots are 0."""
    self_loops: ClassVar[bool] = False
    """Whether each vertex has a self-loop, which replaces self-loops in the data."""
    edge_types: int = 0
    """Number of edge types; 0 if the layer does not read `edge.type`."""
    edge_features: int = 0
    """Number of columns of `edge.data`; 0 if the layer does not read it."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features = check_int("in_features", in_features, 1, 2**31 - 1)
        self.out_features = check_int("out_features", out_features, 1, 2**31 - 1)
        self._programs: dict[bool, tuple[EdgeProgram, VertexProgram] | tuple[None, None]] = {}

    @abstractmethod
    def apply_edge(self, edge: Edge) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Compute messages [E, width] or [E, heads, width]; for `attention`, scores and messages."""

    @abstractmethod
    def apply_vertex(self, vertex: torch.Tensor, gathered: torch.Tensor) -> torch.Tensor:
        """Compute the new rows of vertices, [n, out_features].

        Parameters
        ----------
        vertex
            Old rows of the vertices, [n, in_features].
        gathered
            Reduced messages, [n, width] or [n, heads, width]; for `concatenation`, [n, slots, ...].
        """

    def __setattr__(self, name: str, value: Any) -> None:
        is_taken = hasattr(type(self), name) or name in _TAKEN
        if is_taken and isinstance(value, nn.Module | nn.Parameter):
            raise UnsupportedModelError(
                f"{type(self).__name__}.{name} cannot be a submodule or parameter, because torch.nn.Module, "
                "hyrt.nn.SagaLayer or the class itself already uses this name: use another name"
            )
        super().__setattr__(name, value)

    def forward(self, block: Block | TensorBlock, x: Rows, *, relu: bool = False) -> torch.Tensor:
        """Compute rows [num_dst, out_features] from rows [num_src, in_features]."""
        program, vertex = self._read()
        if isinstance(block, TensorBlock):
            dense = _tensor(x)
            gathered = gather_tensors(program, self, block, dense, loops=self.self_loops)
            head: torch.Tensor | SparseRows = dense[: block.num_dst]
        else:
            block, rows = relabel_block(block, x, reference_tensor(self).dtype)
            gathered, head = gather_block(self._make_gather(program), block, rows)
        return self._updated_rows(vertex, gathered, head, relu=relu)

    def parts(self, *, multiply_first: bool) -> LayerParts:
        program, vertex = self._read()

        def apply(
            gathered: torch.Tensor, self_rows: torch.Tensor | SparseRows | None, *, relu: bool
        ) -> torch.Tensor:
            return self._updated_rows(vertex, gathered, self_rows, relu=relu)

        def part(
            scatter: Callable[[torch.Tensor | SparseRows], tuple[torch.Tensor, ...]] | None,
            widths: tuple[int, ...],
            gather: Aggregation | SagaGather,
        ) -> LayerParts:
            return LayerParts(
                scatter=scatter,
                message_widths=widths,
                gather=gather,
                gathered_width=program.gathered_width,
                apply=apply,
                reads_self=vertex.reads_self,
            )

        if program.source_message is not None and not is_on_device():
            # Messages that only depend on sources are gathered as in the built-in layers.
            assert program.accumulate != "attention"
            assert program.accumulate != "concatenation"
            gather = Aggregation(program.accumulate, "none", weighted=False)
            if program.source_message.op == "placeholder":
                return part(None, (self.in_features,), gather)
            return part(
                lambda rows: tuple(program.vertex_values(self, rows, "source")),
                (program.gathered_width,),
                gather,
            )
        combination = self._make_gather(program)
        return part(
            lambda rows: (
                *program.vertex_values(self, rows, "source"),
                *program.vertex_values(self, rows, "destination"),
            ),
            combination.message_widths,
            combination,
        )

    @property
    def gathers_rows(self) -> bool:
        return True

    @property
    def adds_self_loops(self) -> bool:
        return self.self_loops

    @property
    def edge_fields(self) -> tuple[str, ...]:
        """Return the fields of edges that `apply_edge` reads: a subset of `type`, `weight` and `data`."""
        return self._read()[0].edge_fields

    @property
    def unfused_reason(self) -> str:
        """Return why the edge computation cannot be one fused loop; empty if it is fused."""
        return self._read()[0].unfused_reason

    def footprint(self, *, multiplied: bool = False) -> Footprint:
        program, vertex = self._read()
        sources = sum(each.width for each in program.inputs_from("source"))
        destinations = sum(each.width for each in program.inputs_from("destination"))
        # In the worst case, each edge has a different source, whose row is copied. The values of a source
        # exist twice: as results and in a matrix.
        row = self.in_features + 2 * (sources + destinations) + program.gathered_width + vertex.num_computed
        return Footprint(row + self.out_features, self.in_features + 2 * sources)

    def _make_gather(self, program: EdgeProgram) -> SagaGather:
        return SagaGather(program, self, self.self_loops)

    def _read(self) -> tuple[EdgeProgram, VertexProgram]:
        """Trace the methods of the layer at the first call, separately for training and evaluation."""
        edge, vertex = self._programs.get(self.training, (None, None))
        if edge is None or vertex is None:
            edge = trace_edge(self, self.accumulate, self.in_features, loops=self.self_loops)
            if "type" in edge.edge_fields:
                self._check_types()
            vertex = trace_vertex(self, self.in_features, self.out_features, edge.gathered_shape)
            self._programs[self.training] = (edge, vertex)
        return edge, vertex

    def _check_types(self) -> None:
        name = type(self).__name__
        if self.edge_types < 1:
            raise UnsupportedModelError(
                f"{name}.apply_edge reads edge.type, but {name}.edge_types is not set: set it to the number "
                "of edge types"
            )
        if self.self_loops:
            raise UnsupportedModelError(
                f"{name} sets self_loops and reads edge.type, but a self-loop has no type: remove "
                "self_loops, and add the vertex's message to itself in apply_vertex"
            )

    def _updated_rows(
        self,
        vertex: VertexProgram,
        gathered: torch.Tensor,
        self_rows: torch.Tensor | SparseRows | None,
        *,
        relu: bool,
    ) -> torch.Tensor:
        edge, _ = self._read()
        return vertex(self, self_rows, gathered.view(-1, *edge.gathered_shape), relu=relu)


def _tensor(x: Rows) -> torch.Tensor:
    if isinstance(x, SparseRows):
        return x.to_dense()
    rows = source_rows(x)
    return rows if isinstance(rows, torch.Tensor) else torch.from_numpy(np.asarray(rows))
