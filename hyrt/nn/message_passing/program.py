"""Traced `apply_edge`, divided into work per vertex and per edge, and reduction with torch."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.fx import Graph, Node

from hyrt.errors import UnsupportedModelError
from hyrt.nn.fused.edge_loop import EdgeExpr, End
from hyrt.nn.fused.fused_gather import FusedGather
from hyrt.nn.message_passing.lowering import ExprLowering, NotElementwiseError
from hyrt.nn.message_passing.tracing import (
    EndpointLinear,
    Shapes,
    find_endpoint_linear,
    infer_shapes,
    reference_tensor,
    returned_nodes,
    run_nodes,
    source_line,
    split_linear,
    trace_method,
)
from hyrt.nn.operators.sparse import SparseRows
from hyrt.nn.operators.tensor_ops import (
    TensorBlock,
    gather_destinations,
    scatter_to_destinations,
    segment_max,
)

Accumulator = Literal["sum", "mean", "max", "attention", "concatenation"]
"""Reduction of the messages that a vertex receives."""


def combine(
    accumulate: Accumulator,
    values: Sequence[torch.Tensor],
    block: TensorBlock,
    factors: torch.Tensor | None,
    slots: int = 0,
) -> torch.Tensor:
    """Reduce the messages of edges to [num_dst, width], or to [num_dst, slots * width] for `concatenation`.

    `values` are the messages [E, ...], or scores [E, heads] and messages. `factors` [E, 1] multiply the
    messages of sums (a mean is a sum with factors); None if all are 1. No destination has more than `slots`
    edges. The result is differentiable, computed without float atomics, and zero without edges.
    """
    message = values[-1]
    flat = message.flatten(1)
    if accumulate == "concatenation":
        within = torch.arange(len(flat), device=flat.device) - block.indptr[:-1].index_select(0, block.rows())
        # Every edge has its own slot, so no rows overwrite each other.
        slot_rows = flat.new_zeros(block.num_dst * slots, flat.shape[1])
        return slot_rows.index_copy(0, block.rows() * slots + within, flat).view(block.num_dst, -1)
    if accumulate == "max":
        _, winners = segment_max(flat.detach(), block.indptr)
        if not len(flat):
            return flat.new_zeros(winners.shape)
        # Destinations share no edges, so an element of an edge gets at most one gradient.
        return torch.where(winners >= 0, flat.gather(0, winners.clamp(min=0)), 0)
    if accumulate == "attention":
        heads = message.shape[1] if message.ndim == 3 else 1
        score = values[0].reshape(-1, heads)
        top, _ = segment_max(score.detach(), block.indptr)
        weight = (score - top.index_select(0, block.rows())).exp()
        total = scatter_to_destinations(block, weight)
        weight = weight / gather_destinations(block, total)
        return scatter_to_destinations(
            block, (weight[:, :, None] * message.reshape(len(message), heads, -1)).flatten(1)
        )
    return scatter_to_destinations(block, flat if factors is None else flat * factors)


def check_slots(layer: nn.Module, slots: int, counts: NDArray[Any], vertices: NDArray[Any]) -> None:
    """Check that a layer that concatenates messages has a slot for each edge of a vertex.

    `counts` [n] is the number of edges per vertex. Raises UnsupportedModelError; the message gives the vertex
    with the largest number.
    """
    max_count = int(counts.max(initial=0))
    if max_count > slots:
        name = type(layer).__name__
        raise UnsupportedModelError(
            f"{name} has {slots} message slots, but vertex {int(vertices[int(np.argmax(counts))])} has "
            f"{max_count} edges: set {name}.slots={max_count}, or sample fewer neighbours"
        )


_LOG = logging.getLogger("hyrt")
_END: dict[str, End] = {
    "src": "source",
    "src_degree": "source",
    "dst": "destination",
    "dst_degree": "destination",
    "type": "edge",
    "weight": "edge",
    "data": "edge",
}
_EDGE_FIELDS = ("type", "weight", "data")


@dataclass(frozen=True, slots=True)
class EdgeInput:
    """Input of the edge computation: values per vertex, per edge, or shared by all edges."""

    node: Node
    end: End
    width: int
    """Number of columns of the input's matrix."""
    shape: tuple[int, ...]
    """Shape of one value as `apply_edge` computes it."""
    is_fixed: bool
    """Whether the input depends only on degrees or edge values, so that it has no gradient."""
    heads: tuple[int, int] | None = None
    """Heads and columns to which the input is broadcast, if it is an operand of an edge expression."""


@dataclass(frozen=True, eq=False)
class EdgeProgram:
    """Traced `apply_edge`, whose operations are grouped by whether they are computed per vertex or per edge.

    All copies of a layer share it, since each call has the layer with its parameters as an argument.
    """

    graph: Graph
    inputs: tuple[EdgeInput, ...]
    accumulate: Accumulator
    fused: FusedGather | None
    """Fused gather loops; None if torch computes the edges in chunks."""
    on_edge: tuple[Node, ...]
    """Operations per edge, for computation in chunks with torch."""
    message_shape: tuple[int, ...]
    slots: int
    """Maximum number of messages to concatenate per vertex; 0 if messages are not concatenated."""
    source_message: Node | None
    """Node of the message if the message only depends on the source; otherwise None."""
    unfused_reason: str = ""
    """Reason why `fused` is None; otherwise empty."""
    edge_numbers: int = 0
    """Number of values that torch computes per edge if the loop is not fused."""

    @property
    def gathered_shape(self) -> tuple[int, ...]:
        """Return the shape of a gathered row."""
        return (self.slots, *self.message_shape) if self.slots else self.message_shape

    @property
    def gathered_width(self) -> int:
        return math.prod(self.gathered_shape)

    @property
    def edge_fields(self) -> tuple[str, ...]:
        """Return the fields of edges that `apply_edge` reads: a subset of `type`, `weight` and `data`."""
        return tuple(str(value.node.target) for value in self.inputs if value.end == "edge")

    @cached_property
    def products(self) -> tuple[EndpointLinear, ...] | None:
        """Return the inputs from vertices if all are rows or linear maps of rows; otherwise None."""
        products = []
        for end in ("source", "destination"):
            for value in self.inputs_from(end):
                product = find_endpoint_linear(value.node, end)
                if product is None or math.prod(value.shape) != value.width:
                    return None
                products.append(product)
        return tuple(products)

    def inputs_from(self, end: End, *, fixed: bool = False) -> list[EdgeInput]:
        """Return an endpoint's inputs: computed from rows or, if `fixed`, from degrees or edge values."""
        return self._inputs_by_end[end, fixed][0]

    @cached_property
    def _inputs_by_end(self) -> dict[tuple[End, bool], tuple[list[EdgeInput], list[Node]]]:
        """Return the inputs of each endpoint and their operations; cached for the sake of small blocks."""
        inputs_by_end: dict[tuple[End, bool], tuple[list[EdgeInput], list[Node]]] = {}
        for end in get_args(End):
            for fixed in (False, True):
                chosen = [value for value in self.inputs if value.end == end and value.is_fixed == fixed]
                nodes = _dependencies(self.graph, [value.node for value in chosen])
                inputs_by_end[end, fixed] = chosen, nodes
        return inputs_by_end

    def vertex_values(
        self, layer: nn.Module, rows: torch.Tensor | SparseRows, end: End
    ) -> list[torch.Tensor]:
        """Compute the inputs from one endpoint, [n, width] for each of `inputs_from`; differentiable.

        `rows` are the vertex rows [n, in].
        """
        return self._values(layer, end, {"src" if end == "source" else "dst": rows}, len(rows))

    def degree_values(self, layer: nn.Module, degrees: torch.Tensor, end: End) -> list[torch.Tensor]:
        """Compute the inputs from one endpoint that depend on its degrees [n, 1]."""
        name = "src_degree" if end == "source" else "dst_degree"
        with torch.no_grad():
            return self._values(layer, end, {name: degrees}, len(degrees), fixed=True)

    def edge_input_values(self, layer: nn.Module, columns: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Compute the input for each of `edge_fields`: [E, 1], or [E, d] for edge data."""
        count = len(next(iter(columns.values()))) if columns else 0
        return self._values(layer, "edge", columns, count, fixed=True)

    def shared_values(self, layer: nn.Module) -> list[torch.Tensor]:
        """Compute the inputs [1, width] that all edges share; differentiable."""
        return self._values(layer, "shared", {}, 1)

    def edge_values(self, layer: nn.Module, inputs: Mapping[Node, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Compute `apply_edge` with torch for some edges: messages, or scores and messages.

        `inputs` has the values of the program's `inputs` for these edges.
        """
        _, nodes = self._inputs_by_end["shared", False]
        inputs = {node: _restore_dtype(node, value) for node, value in inputs.items()}
        values = run_nodes(layer, [*nodes, *self.on_edge], inputs)
        return tuple(values[node] for node in returned_nodes(self.graph))

    @cached_property
    def edge_parameters(self) -> list[str]:
        """Return the names of the parameters that are read per edge instead of per vertex."""
        if self.fused is None:
            shared = [value.node for value in self.inputs_from("shared")]
            nodes = {*self.on_edge, *_dependencies(self.graph, shared)}
            # Exclude the operands from vertices, which have been computed before the edges.
            nodes |= {
                operand
                for node in self.on_edge
                for operand in node.all_input_nodes
                if operand.op == "get_attr"
            }
        else:
            nodes = set(_dependencies(self.graph, [value.node for value in self.inputs_from("shared")]))
        return sorted({
            str(node.target)
            for node in nodes
            if node.op in ("get_attr", "call_module") and "constant" not in node.meta
        })  # fmt: skip

    def _values(
        self, layer: nn.Module, end: End, arguments: Mapping[str, Any], count: int, *, fixed: bool = False
    ) -> list[torch.Tensor]:
        chosen, nodes = self._inputs_by_end[end, fixed]
        if not chosen:
            return []
        known = {node: arguments[str(node.target)] for node in nodes if node.op == "placeholder"}
        values = run_nodes(layer, nodes, known)
        like = reference_tensor(layer)
        return [_as_matrix(values[item.node], item, count, like) for item in chosen]

    def __deepcopy__(self, memo: dict[int, Any]) -> EdgeProgram:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # Traced programs are not pickled. An unpickled layer is traced again.
        return (_no_edge_program, ())


def _no_edge_program() -> None:
    return None


def _restore_dtype(node: Node, value: torch.Tensor) -> torch.Tensor:
    """Convert an input back to its traced dtype, because matrices store booleans as numbers."""
    dtype = node.meta.get("dtype")
    return value if dtype is None or dtype.is_floating_point else value.to(dtype)


def _as_matrix(
    computed: torch.Tensor | SparseRows, edge_input: EdgeInput, count: int, like: torch.Tensor
) -> torch.Tensor:
    """Convert a value to a matrix [count, width]; broadcast it if `edge_input.heads` is set."""
    value = (computed.to_dense() if isinstance(computed, SparseRows) else computed).to(like.dtype)
    if edge_input.end == "shared":
        value = value.reshape(1, *value.shape)
        while value.ndim > 2 and value.shape[1] == 1 and value.ndim - 1 > len(edge_input.heads or ()):
            value = value[:, 0]
    if edge_input.heads is not None:
        heads, width = edge_input.heads
        if value.ndim == 1:
            value = value[:, None]
        if math.prod(value.shape[1:]) == heads * width:
            return value.reshape(count, heads * width)
        if value.ndim == 2:
            # The value has one number per head, one number for all heads, or one number per column of a head.
            by_head = value.shape[1] == heads or value.shape[1] == 1
            value = value[:, :, None] if by_head else value[:, None]
        return value.expand(count, heads, width).reshape(count, heads * width)
    return value.reshape(count, -1)


def _dependencies(graph: Graph, nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes and all nodes that they depend on, in order."""
    needed = set(nodes)
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    return [node for node in graph.nodes if node in needed]


def trace_edge(layer: nn.Module, accumulate: Accumulator, in_features: int, *, loops: bool) -> EdgeProgram:
    """Trace `apply_edge` of a layer. `loops` is whether vertices have a self-loop.

    Raises UnsupportedModelError if tracing fails, or the result does not fit the accumulator.
    """
    label = f"{type(layer).__name__}.apply_edge"
    if accumulate not in get_args(Accumulator):
        raise UnsupportedModelError(
            f"{type(layer).__name__}.accumulate is {accumulate!r}: choose one of "
            + ", ".join(get_args(Accumulator))
        )
    slots = int(getattr(layer, "slots", 0)) if accumulate == "concatenation" else 0
    if accumulate == "concatenation" and slots < 1:
        name = type(layer).__name__
        raise UnsupportedModelError(
            f"{name} concatenates messages, but {name}.slots is not set: set it to the maximum number of "
            "edges per vertex"
        )
    graph = trace_method(layer, "apply_edge", ("edge",))
    width = int(getattr(layer, "edge_features", 0))
    if width < 1 and any(node.op == "placeholder" and node.target == "data" for node in graph.nodes):
        raise UnsupportedModelError(
            f"{label} reads edge.data, but {type(layer).__name__}.edge_features is not set: set it to the "
            "number of edge features"
        )
    row = (in_features,)
    argument_shapes: dict[str, tuple[int, ...]] = {
        name: row if name in ("src", "dst") else () for name in _END
    }
    argument_shapes["data"] = (width,)
    shapes = infer_shapes(layer, graph, argument_shapes, label)
    split_linear(graph, shapes, lambda node: _ends(graph)[node])
    returned = returned_nodes(graph)
    _check_results(label, accumulate, returned, shapes)
    ends = _ends(graph)
    if not ends[returned[-1]]:
        raise UnsupportedModelError(
            f"in {label}, {source_line(returned[-1])} is the same for all edges: compute the message from "
            "edge.src or edge.dst"
        )
    live = _dependencies(graph, returned)
    parameters = _parametric(live)
    hoisted = {
        node: end for node in live if (end := _end_of(node, ends[node], node in parameters)) is not None
    }
    on_edge = tuple(node for node in live if node not in hoisted)
    edge_operands = {operand for node in on_edge for operand in node.all_input_nodes} | set(returned)
    frontier = [node for node in live if node in edge_operands and node in hoisted and node in shapes]
    constants = {
        node: float(value)
        for node in frontier
        if hoisted[node] == "shared" and node not in parameters
        if (value := run_nodes(layer, _dependencies(graph, [node]), {})[node]).numel() == 1
    }
    shape = shapes[returned[-1]]

    def is_fixed(node: Node) -> bool:
        return any(name.endswith("degree") or name in _EDGE_FIELDS for name in ends[node])

    reader, unfused = ExprLowering(shapes, hoisted, constants), ""
    try:
        if slots:
            raise NotElementwiseError("concatenation keeps every message, but fused loops reduce them to one")
        if loops and any(hoisted[node] == "edge" for node in frontier):
            raise NotElementwiseError("self-loops have separate weights or features")
        form = reader.lower(on_edge, returned)
        inputs = tuple(
            EdgeInput(
                operand.node,
                operand.end,
                form.heads * (form.width if operand.kind == "row" else 1),
                shapes[operand.node],
                is_fixed(operand.node),
                (form.heads, form.width if operand.kind == "row" else 1),
            )
            for operand in reader.operands
        )
        fused = FusedGather(
            _without_gradients(form, [value.is_fixed for value in inputs]),
            "attention" if accumulate == "attention" else "max" if accumulate == "max" else "sum",
            loops,
        )
        if fused.unfused_reason:
            raise NotElementwiseError(fused.unfused_reason)
    except NotElementwiseError as reason:
        unfused = str(reason)
        # Built-in layers are unfused on purpose, so they cause no warning.
        level = logging.INFO if type(layer).__module__.startswith("hyrt.") else logging.WARNING
        _LOG.log(level, "%s is not fused (%s), so torch computes its edges in chunks", label, reason)
        fused = None
        inputs = tuple(
            EdgeInput(node, hoisted[node], math.prod(shapes[node]), shapes[node], is_fixed(node))
            for node in frontier
        )
    (message,) = returned[-1:]
    is_sent = (
        accumulate not in ("attention", "concatenation") and not loops and hoisted.get(message) == "source"
    )
    sent = message if is_sent and not is_fixed(message) else None
    numbers = sum(math.prod(shapes[node]) for node in on_edge if node in shapes) if unfused else 0
    return EdgeProgram(graph, inputs, accumulate, fused, on_edge, shape, slots, sent, unfused, numbers)


def _without_gradients(form: EdgeExpr, constant: Sequence[bool]) -> EdgeExpr:
    operands = tuple(
        replace(operand, takes_gradient=not fixed)
        for operand, fixed in zip(form.operands, constant, strict=True)
    )
    return replace(form, operands=operands)


def _check_results(label: str, accumulate: str, returned: Sequence[Node], shapes: Shapes) -> None:
    expected = 2 if accumulate == "attention" else 1
    if len(returned) != expected:
        raise UnsupportedModelError(
            f"{label} returned {len(returned)} values, but accumulate={accumulate!r} expects "
            + (
                "a pair: return the score of an edge and its message"
                if expected == 2
                else "one: return the message"
            )
        )
    message = shapes.get(returned[-1], ())
    if not 1 <= len(message) <= 2:
        raise UnsupportedModelError(
            f"in {label}, {source_line(returned[-1])} returns shape {list(message)} per edge: return "
            "[width] or [heads, width]"
        )
    if accumulate == "attention":
        score, heads = shapes.get(returned[0]), message[0] if len(message) == 2 else 1
        if score not in ((heads,), (heads, 1), *([()] if heads == 1 else [])):
            actual = f"scores of shape {list(score or ())} for messages of shape {list(message)}"
            raise UnsupportedModelError(f"{label} returned {actual}: return one score per head, [{heads}]")


def _ends(graph: Graph) -> dict[Node, frozenset[str]]:
    """Return the arguments of `apply_edge` on which each value depends."""
    dependencies: dict[Node, frozenset[str]] = {}
    for node in graph.nodes:
        arguments = {str(node.target)} if node.op == "placeholder" else set()
        operands = (dependencies[operand] for operand in node.all_input_nodes)
        dependencies[node] = frozenset(arguments.union(*operands))
    return dependencies


def _parametric(nodes: Iterable[Node]) -> set[Node]:
    """Return the values that depend on parameters or buffers of the layer."""
    parametric: set[Node] = set()
    for node in nodes:
        is_parameter = node.op == "call_module" or (node.op == "get_attr" and "constant" not in node.meta)
        if is_parameter or any(operand in parametric for operand in node.all_input_nodes):
            parametric.add(node)
    return parametric


def _end_of(node: Node, ends: frozenset[str], has_parameters: bool) -> End | None:
    """Return where a value is computed: at an endpoint (per vertex), "shared", "edge", or None (per edge)."""
    if not ends:
        return "shared"
    if len(ends) > 1:
        return None
    (only,) = ends
    if only in _EDGE_FIELDS:
        return "edge" if node.op == "placeholder" else None
    # Values that depend on degrees are computed once for all steps, so they must not depend on parameters.
    return None if only.endswith("degree") and has_parameters else _END[only]
