"""`apply_edge`, read once: what is computed for a vertex, what for an edge, and how messages are gathered."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args

import torch
from torch import nn
from torch.fx import Graph, Node

from hyrt.errors import UnsupportedModel
from hyrt.nn.fused.form import End, Form
from hyrt.nn.fused.fused_gather import FusedGather
from hyrt.nn.operators.sparse import SparseRows
from hyrt.nn.saga.combining import Accumulator
from hyrt.nn.saga.end_products import EndProduct, product_of_end
from hyrt.nn.saga.fusing import FormReader, NotElementWise
from hyrt.nn.saga.probing import Shapes, probe
from hyrt.nn.saga.reading import compute, number_of, read_method, results, where
from hyrt.nn.saga.splitting import split_products

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
_OF_EDGES = ("type", "weight", "data")


@dataclass(frozen=True, slots=True)
class Given:
    """What an edge is given: a value that is computed once for each vertex or once for all, or is its own."""

    node: Node
    end: End
    width: int
    """Columns of its matrix."""
    shape: tuple[int, ...]
    """The shape of a row, as `apply_edge` computes it."""
    is_fixed: bool
    """Whether it depends on degrees or on what edges have alone, so that it has no gradient."""
    heads: tuple[int, int] | None = None
    """Of a form's operand, the heads and columns that it is spread over."""


@dataclass(frozen=True, eq=False)
class EdgeProgram:
    """`apply_edge`, taken apart.

    It is the same for all copies of a layer: their parameters are given with each call.
    """

    graph: Graph
    given: tuple[Given, ...]
    accumulate: Accumulator
    fused: FusedGather | None
    """The loops that gather; None where edges are computed by torch, chunk by chunk."""
    on_edge: tuple[Node, ...]
    """What is computed on an edge, without `fused`."""
    message_shape: tuple[int, ...]
    """The shape of a message."""
    slots: int
    """How many messages stand beside each other in what a vertex gathers; 0 where they become one."""
    sent: Node | None
    """The message, where it is computed of the source alone."""
    unfused: str = ""
    """Why there is no `fused`; empty where there is."""
    edge_numbers: int = 0
    """Numbers that torch computes on an edge, without `fused`."""

    @property
    def gathered_shape(self) -> tuple[int, ...]:
        """The shape of what a vertex gathers."""
        return (self.slots, *self.message_shape) if self.slots else self.message_shape

    @property
    def gathered_width(self) -> int:
        return math.prod(self.gathered_shape)

    @property
    def edge_reads(self) -> tuple[str, ...]:
        """What of edges is looked at, of `type`, `weight` and `data`."""
        return tuple(str(each.node.target) for each in self.given if each.end == "edge")

    @cached_property
    def products(self) -> tuple[EndProduct, ...] | None:
        """What sources give and what destinations give, where each is their rows or a product of these."""
        found = []
        for end in ("source", "destination"):
            for each in self.of_end(end):
                product = product_of_end(each.node, end)
                if product is None or math.prod(each.shape) != each.width:
                    return None
                found.append(product)
        return tuple(found)

    def of_end(self, end: End, *, fixed: bool = False) -> list[Given]:
        """What vertices as one end give, from their rows or from what is `fixed`; or what edges give."""
        return self._of_ends[end, fixed][0]

    @cached_property
    def _of_ends(self) -> dict[tuple[End, bool], tuple[list[Given], list[Node]]]:
        """What each end gives, and the operations that make it: over a small block, to find them is long."""
        found: dict[tuple[End, bool], tuple[list[Given], list[Node]]] = {}
        for end in get_args(End):
            for fixed in (False, True):
                chosen = [each for each in self.given if each.end == end and each.is_fixed == fixed]
                found[end, fixed] = chosen, _needed(self.graph, [each.node for each in chosen])
        return found

    def rows(self, layer: nn.Module, rows: torch.Tensor | SparseRows, end: End) -> list[torch.Tensor]:
        """What vertices as one end give: [n, width] for each of `of_end`, differentiable.

        Parameters
        ----------
        layer
            The layer.
        rows
            [n, in] of the vertices.
        end
            Source or destination.
        """
        return self._values(layer, end, {"src" if end == "source" else "dst": rows}, len(rows))

    def degree_rows(self, layer: nn.Module, degrees: torch.Tensor, end: End) -> list[torch.Tensor]:
        """What vertices as one end give of their degrees [n, 1]."""
        name = "src_degree" if end == "source" else "dst_degree"
        with torch.no_grad():
            return self._values(layer, end, {name: degrees}, len(degrees), fixed=True)

    def edge_rows(self, layer: nn.Module, columns: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """What edges give of each of `edge_reads`, [E, 1] or, of their data, [E, d]."""
        count = len(next(iter(columns.values()))) if columns else 0
        return self._values(layer, "edge", columns, count, fixed=True)

    def shared(self, layer: nn.Module) -> list[torch.Tensor]:
        """[1, width] for each value that all edges share, differentiable."""
        return self._values(layer, "shared", {}, 1)

    def edge_values(self, layer: nn.Module, given: Mapping[Node, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """What `apply_edge` gives for some edges, by torch: the message, or score and message.

        Parameters
        ----------
        layer
            The layer.
        given
            The value of each of `given` for these edges.
        """
        _, nodes = self._of_ends["shared", False]
        found = compute(
            layer, [*nodes, *self.on_edge], {node: _as_it_was(node, each) for node, each in given.items()}
        )
        return tuple(found[each] for each in results(self.graph))

    @cached_property
    def edge_parameters(self) -> list[str]:
        """Names of the parameters that are read for edges, and not for vertices."""
        if self.fused is None:
            nodes = {*self.on_edge, *_needed(self.graph, [each.node for each in self.of_end("shared")])}
            # What vertices give is there before the edges.
            nodes |= {each for node in self.on_edge for each in node.all_input_nodes if each.op == "get_attr"}
        else:
            nodes = set(_needed(self.graph, [each.node for each in self.of_end("shared")]))
        return sorted({
            str(node.target)
            for node in nodes
            if node.op in ("get_attr", "call_module") and "constant" not in node.meta
        })  # fmt: skip

    def _values(
        self, layer: nn.Module, end: End, given: Mapping[str, Any], count: int, *, fixed: bool = False
    ) -> list[torch.Tensor]:
        chosen, nodes = self._of_ends[end, fixed]
        if not chosen:
            return []
        placed = {node: given[str(node.target)] for node in nodes if node.op == "placeholder"}
        found = compute(layer, nodes, placed)
        like = number_of(layer)
        return [_as_matrix(found[each.node], each, count, like) for each in chosen]

    def __deepcopy__(self, memo: dict[int, Any]) -> EdgeProgram:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # Whoever unpickles a layer reads it again.
        return (_nothing, ())


def _nothing() -> None:
    return None


def _as_it_was(node: Node, value: torch.Tensor) -> torch.Tensor:
    """What a vertex or an edge gives, as it is computed: in matrices, comparisons are numbers, too."""
    dtype = node.meta.get("dtype")
    return value if dtype is None or dtype.is_floating_point else value.to(dtype)


def _as_matrix(
    computed: torch.Tensor | SparseRows, given: Given, count: int, like: torch.Tensor
) -> torch.Tensor:
    """[count, width] of what was computed, spread over heads and columns where a form wants it so."""
    value = (computed.dense() if isinstance(computed, SparseRows) else computed).to(like.dtype)
    if given.end == "shared":
        value = value.reshape(1, *value.shape)
        while value.ndim > 2 and value.shape[1] == 1 and value.ndim - 1 > len(given.heads or ()):
            value = value[:, 0]
    if given.heads is not None:
        heads, width = given.heads
        if value.ndim == 1:
            value = value[:, None]
        if math.prod(value.shape[1:]) == heads * width:
            return value.reshape(count, heads * width)
        if value.ndim == 2:
            # A number a head, a number for all, or the columns of each head.
            by_head = value.shape[1] == heads or value.shape[1] == 1
            value = value[:, :, None] if by_head else value[:, None]
        return value.expand(count, heads, width).reshape(count, heads * width)
    return value.reshape(count, -1)


def _needed(graph: Graph, wanted: Iterable[Node]) -> list[Node]:
    """The operations on which values depend, and they, in order."""
    needed = set(wanted)
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    return [node for node in graph.nodes if node in needed]


def read_edge(layer: nn.Module, accumulate: Accumulator, in_features: int, *, loops: bool) -> EdgeProgram:
    """Read `apply_edge` of a layer.

    Parameters
    ----------
    layer
        The layer.
    accumulate
        What becomes of the messages.
    in_features
        Columns of vertices' rows.
    loops
        Whether vertices have an edge from themselves besides their own.

    Raises
    ------
    UnsupportedModel
        If it cannot be read, or does not return what the accumulator takes.
    """
    label = f"{type(layer).__name__}.apply_edge"
    if accumulate not in get_args(Accumulator):
        raise UnsupportedModel(
            f"{type(layer).__name__}.accumulate is {accumulate!r}: give one of "
            + ", ".join(get_args(Accumulator))
        )
    slots = int(getattr(layer, "slots", 0)) if accumulate == "concatenation" else 0
    if accumulate == "concatenation" and slots < 1:
        name = type(layer).__name__
        raise UnsupportedModel(
            f"{name} concatenates messages: say in {name}.slots how many edges a vertex may have"
        )
    graph = read_method(layer, "apply_edge", ("edge",))
    width = int(getattr(layer, "edge_features", 0))
    if width < 1 and any(node.op == "placeholder" and node.target == "data" for node in graph.nodes):
        raise UnsupportedModel(
            f"{label} reads edge.data: say how many columns it has, in {type(layer).__name__}.edge_features"
        )
    row = (in_features,)
    given_shapes: dict[str, tuple[int, ...]] = {name: row if name in ("src", "dst") else () for name in _END}
    given_shapes["data"] = (width,)
    shapes = probe(layer, graph, given_shapes, label)
    split_products(graph, shapes, lambda node: _ends(graph)[node])
    returned = results(graph)
    _check_results(label, accumulate, returned, shapes)
    ends = _ends(graph)
    if not ends[returned[-1]]:
        raise UnsupportedModel(
            f"{label}: {where(returned[-1])} is the same for all edges: compute the message of edge.src or "
            "edge.dst"
        )
    live = _needed(graph, returned)
    parameters = _parametric(live)
    hoisted = {
        node: end for node in live if (end := _end_of(node, ends[node], node in parameters)) is not None
    }
    on_edge = tuple(node for node in live if node not in hoisted)
    asked = {each for node in on_edge for each in node.all_input_nodes} | set(returned)
    frontier = [node for node in live if node in asked and node in hoisted and node in shapes]
    constants = {
        node: float(value)
        for node in frontier
        if hoisted[node] == "shared" and node not in parameters
        if (value := compute(layer, _needed(graph, [node]), {})[node]).numel() == 1
    }
    shape = shapes[returned[-1]]

    def is_fixed(node: Node) -> bool:
        return any(each.endswith("degree") or each in _OF_EDGES for each in ends[node])

    reader, unfused = FormReader(shapes, hoisted, constants), ""
    try:
        if slots:
            raise NotElementWise("concatenation keeps every message, but a loop adds them up to one")
        if loops and any(hoisted[node] == "edge" for node in frontier):
            raise NotElementWise("edges from vertices to themselves have weights or features of their own")
        form = reader.read(on_edge, returned)
        given = tuple(
            Given(
                each.node,
                each.end,
                form.heads * (form.width if each.kind == "row" else 1),
                shapes[each.node],
                is_fixed(each.node),
                (form.heads, form.width if each.kind == "row" else 1),
            )
            for each in reader.operands
        )
        fused = FusedGather(
            _without_gradients(form, [each.is_fixed for each in given]),
            "attention" if accumulate == "attention" else "max" if accumulate == "max" else "sum",
            loops,
        )
        if fused.unfusable:
            raise NotElementWise(fused.unfusable)
    except NotElementWise as reason:
        unfused = str(reason)
        # Of hyrt's own layers it is known.
        level = logging.INFO if type(layer).__module__.startswith("hyrt.") else logging.WARNING
        _LOG.log(level, "%s is not fused, and edges are computed by torch in chunks: %s", label, reason)
        fused = None
        given = tuple(
            Given(node, hoisted[node], math.prod(shapes[node]), shapes[node], is_fixed(node))
            for node in frontier
        )
    (message,) = returned[-1:]
    is_sent = (
        accumulate not in ("attention", "concatenation") and not loops and hoisted.get(message) == "source"
    )
    sent = message if is_sent and not is_fixed(message) else None
    numbers = sum(math.prod(shapes[node]) for node in on_edge if node in shapes) if unfused else 0
    return EdgeProgram(graph, given, accumulate, fused, on_edge, shape, slots, sent, unfused, numbers)


def _without_gradients(form: Form, constant: Sequence[bool]) -> Form:
    operands = tuple(
        replace(each, takes_gradient=not fixed) for each, fixed in zip(form.operands, constant, strict=True)
    )
    return replace(form, operands=operands)


def _check_results(label: str, accumulate: str, returned: Sequence[Node], shapes: Shapes) -> None:
    wanted = 2 if accumulate == "attention" else 1
    if len(returned) != wanted:
        raise UnsupportedModel(
            f"{label} returned {len(returned)} values: accumulate={accumulate!r} takes "
            + ("a pair, the score of an edge and its message" if wanted == 2 else "one value, the message")
        )
    message = shapes.get(returned[-1], ())
    if not 1 <= len(message) <= 2:
        raise UnsupportedModel(
            f"{label}: {where(returned[-1])} gives values of shape {list(message)} for an edge: "
            "give [width], or [heads, width]"
        )
    if accumulate == "attention":
        score, heads = shapes.get(returned[0]), message[0] if len(message) == 2 else 1
        if score not in ((heads,), (heads, 1), *([()] if heads == 1 else [])):
            given = f"scores of shape {list(score or ())} for messages of shape {list(message)}"
            raise UnsupportedModel(f"{label} returned {given}: give one score for each head, [{heads}]")


def _ends(graph: Graph) -> dict[Node, frozenset[str]]:
    """What each value depends on: rows and degrees of the two ends."""
    found: dict[Node, frozenset[str]] = {}
    for node in graph.nodes:
        own = {str(node.target)} if node.op == "placeholder" else set()
        found[node] = frozenset(own.union(*(found[each] for each in node.all_input_nodes)))
    return found


def _parametric(nodes: Iterable[Node]) -> set[Node]:
    """Values that depend on parameters or buffers of the layer."""
    found: set[Node] = set()
    for node in nodes:
        is_own = node.op == "call_module" or (node.op == "get_attr" and "constant" not in node.meta)
        if is_own or any(each in found for each in node.all_input_nodes):
            found.add(node)
    return found


def _end_of(node: Node, ends: frozenset[str], has_parameters: bool) -> End | None:
    """Where a value is computed: once for each vertex, once for all, or, if None, on the edge."""
    if not ends:
        return "shared"
    if len(ends) > 1:
        return None
    (only,) = ends
    if only in _OF_EDGES:
        return "edge" if node.op == "placeholder" else None
    # Values of degrees are computed once for all steps, and parameters change.
    return None if only.endswith("degree") and has_parameters else _END[only]
