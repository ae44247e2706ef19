"""Passes over traced operations: shape inference, splitting of linear maps, and detection of endpoint
messages.

A linear map over both ends of an edge splits: W [a, b] = W_a a + W_b b, and W (a - b) = W a - W b. Most
products that are written for an edge therefore need one product per vertex (NeuGraph, section 3.3, moves the
products that are written for one end).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from hyrt.errors import UnsupportedModelError
from hyrt.nn.message_passing.tracing import operation_name, reference_tensor, run_nodes, source_line

Shapes = dict[Node, tuple[int, ...]]
"""Tensor shapes, without the first dimension if it is the row dimension."""

# Two row counts that a layer dimension is unlikely to equal by chance; no dimension can equal both. The
# larger batch has the rows of the smaller batch at other positions, with other rows in between and around.
_FEW, _MORE = 5, 7
_POSITIONS = (5, 3, 0, 6, 4, 1, 2)
"""Row at each position of the larger batch."""
_FEW_AMONG_MORE = [_POSITIONS.index(row) for row in range(_FEW)]
_COUNT_OPS = ("view", "reshape", "expand", "unflatten", "view_as")


def infer_shapes(
    layer: nn.Module, graph: Graph, arguments: Mapping[str, tuple[int, ...]], label: str
) -> Shapes:
    """Run the operations of a traced method on two batches of dummy rows; return the shapes of all tensors.

    Sizes that the method reads from shapes become constants in `graph`, and node metadata gets the dtypes.
    `arguments` has the shape of a row of each argument; () for a column, such as a degree or a type.

    Raises UnsupportedModelError with the line of user code if an operation fails, a row depends on other
    rows, or the number of rows is used other than in `view`.
    """
    few, more = (_values(layer, graph, arguments, rows, label) for rows in (range(_FEW), _POSITIONS))
    _inline_sizes(graph, few, more, label)
    shapes = {}
    from_rows: set[Node] = set()
    for node in graph.nodes:
        if node.op == "output":
            continue
        a, b = few[node], more[node]
        if node.op == "placeholder" or any(source in from_rows for source in node.all_input_nodes):
            from_rows.add(node)
        if not isinstance(a, torch.Tensor):
            continue
        node.meta["dtype"] = a.dtype
        if node not in from_rows:
            shapes[node] = tuple(a.shape)
            continue
        if a.ndim == 0 or len(a) != _FEW or len(b) != _MORE or not _is_close(a, b[_FEW_AMONG_MORE]):
            raise UnsupportedModelError(
                f"{label}: {source_line(node)} combines rows: a row may depend on nothing but itself, since "
                "rows are computed in parts. The accumulator combines edges"
            )
        shapes[node] = tuple(a.shape[1:])
    return shapes


def _is_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not a.is_floating_point():
        return bool(torch.equal(a, b))
    return bool(torch.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True))


def _values(
    layer: nn.Module, graph: Graph, arguments: Mapping[str, tuple[int, ...]], rows: Sequence[int], label: str
) -> dict[Node, Any]:
    like = reference_tensor(layer)
    values: dict[Node, Any] = {}
    with torch.no_grad():
        for node in graph.nodes:
            if node.op == "placeholder":
                values[node] = _rows(rows, arguments[node.target], like, str(node.target))
                continue
            try:
                values = run_nodes(layer, [node], values)
            except Exception as error:
                message = " ".join(str(error).split())
                raise UnsupportedModelError(f"{label}: {source_line(node)} fails: {message}") from error
    return values


def _rows(rows: Sequence[int], shape: tuple[int, ...], like: torch.Tensor, name: str) -> torch.Tensor:
    numbers = torch.tensor(rows)
    if not shape:
        # Layers that distinguish edge types have at least two.
        return (numbers % 2 if name == "type" else numbers + 1).to(like)[:, None]
    # Deterministic irregular numbers of both signs that differ between arguments.
    steps = torch.arange(_MORE * math.prod(shape), dtype=torch.float64).view(_MORE, *shape)[numbers]
    return torch.sin(steps * 12.9898 + len(name)).to(like)


def _inline_sizes(graph: Graph, few: Mapping[Node, Any], more: Mapping[Node, Any], label: str) -> None:
    for node in graph.nodes:
        sizes = [source for source in node.all_input_nodes if not _has_tensors(few[source])]
        if node.op == "output" or not sizes or not _has_tensors(few[node]):
            continue
        constants = {size: _constant(few[size], more[size]) for size in sizes}
        counts = [size for size in sizes if _has_count(constants[size])]
        if counts and operation_name(node) not in _COUNT_OPS:
            raise UnsupportedModelError(
                f"{label}: {source_line(node)} computes with the number of rows, but only some of the rows "
                "are there at a time: use -1 for this number in view"
            )
        if counts and operation_name(node) in ("view", "reshape") and len(few[node]) == _FEW:
            # torch infers one dimension, which is now the first.
            node.args = (node.args[0], -1, *few[node].shape[1:])
            node.kwargs = {}
            continue
        for size, constant in constants.items():
            _replace_size(node, size, constant)


def _has_tensors(value: Any) -> bool:
    """Return whether a value is a tensor or a tuple with tensors, as from torch.sort, but not a size."""
    if isinstance(value, tuple | list):
        return any(map(_has_tensors, value))
    return isinstance(value, torch.Tensor)


def _replace_size(node: Node, size: Node, constant: Any) -> None:
    """Replace a size in the arguments of an operation by a constant."""
    node.args = map_arg(node.args, lambda argument: constant if argument is size else argument)
    node.kwargs = map_arg(node.kwargs, lambda argument: constant if argument is size else argument)


def _constant(few: Any, more: Any) -> Any:
    """Return a size as a constant; -1 for the number of rows."""
    if isinstance(few, tuple):
        return tuple(_constant(a, b) for a, b in zip(few, more, strict=True))
    return few if few == more else -1


def _has_count(constant: Any) -> bool:
    numbers: Iterable[Any] = constant if isinstance(constant, tuple) else (constant,)
    return any(isinstance(number, int) and number == -1 for number in numbers)


@dataclass(frozen=True, slots=True)
class EndpointLinear:
    """Message of vertices as one end of edges: their rows, or a linear map of their rows."""

    end: Literal["source", "destination"]
    weight: str | None
    """Name of the parameter [width, in]; None for the rows themselves."""
    bias: str | None
    """Name of the parameter [width]; None for no bias."""


def find_endpoint_linear(node: Node, end: Literal["source", "destination"]) -> EndpointLinear | None:
    """Return a traced value as a linear map of an end's rows; None if it is another computation."""
    if node.op == "placeholder":
        return EndpointLinear(end, None, None)
    if node.target is not torch.nn.functional.linear:
        return None
    arguments: Mapping[str, Any] = (
        dict(zip(("input", "weight", "bias"), node.args, strict=False)) | node.kwargs
    )
    x, weight, bias = arguments["input"], arguments["weight"], arguments.get("bias")
    if x.op != "placeholder" or not _is_parameter(weight) or not (bias is None or _is_parameter(bias)):
        return None
    return EndpointLinear(end, str(weight.target), None if bias is None else str(bias.target))


def _is_parameter(node: Any) -> bool:
    return isinstance(node, Node) and node.op == "get_attr" and "constant" not in node.meta


Ends = Callable[[Node], frozenset[str]]
"""Function that returns the edge inputs that a value depends on."""


def split_linear(graph: Graph, shapes: Shapes, ends: Ends) -> None:
    """Split the linear maps of `graph` whose terms each depend on one end; add new shapes to `shapes`."""
    for node in list(graph.nodes):
        if node.target is not torch.nn.functional.linear or len(ends(node)) < 2:
            continue
        x, weight, bias = _linear_arguments(node)
        if not isinstance(x, Node) or len(shapes[x]) != 1:
            continue
        terms = _terms(graph, x, (0, shapes[x][0]), 1, shapes, ends)
        if terms is None:
            continue
        with graph.inserting_before(node):
            _replace(graph, node, weight, bias, terms, shapes)


def _linear_arguments(node: Node) -> tuple[Any, Any, Any]:
    arguments = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | dict(node.kwargs)
    return arguments["input"], arguments["weight"], arguments.get("bias")


Term = tuple[Node, tuple[int, int], int, frozenset[str]]
"""Rows, the columns of the weight that multiply the rows, their sign, and their edge inputs."""


def _terms(
    graph: Graph, x: Node, columns: tuple[int, int], sign: int, shapes: Shapes, ends: Ends
) -> list[Term] | None:
    """Split rows (a sum or concatenation) into terms that each depend on one end; None if impossible."""
    if len(ends(x)) < 2:
        return [(x, columns, sign, ends(x))]
    name = operation_name(x)
    parts: list[tuple[Node, tuple[int, int], int]] = []
    if name in ("cat", "concat", "concatenate"):
        arguments: dict[str, Any] = dict(zip(("tensors", "dim"), x.args, strict=False)) | dict(x.kwargs)
        if arguments.get("dim", 0) not in (1, -1) or "axis" in arguments:
            return None
        start = columns[0]
        for part in arguments["tensors"]:
            width = shapes[part][0]
            parts.append((part, (start, start + width), sign))
            start += width
    elif name in ("add", "sub") and not x.kwargs and len(x.args) == 2:
        both: Any = x.args
        if not all(isinstance(each, Node) and shapes[each] == shapes[x] for each in both):
            return None
        first, second = both
        parts = [(first, columns, sign), (second, columns, sign if name == "add" else -sign)]
    else:
        return None
    all_terms: list[Term] = []
    for part, part_columns, part_sign in parts:
        terms = _terms(graph, part, part_columns, part_sign, shapes, ends)
        if terms is None:
            return None
        all_terms += terms
    return all_terms


def _replace(graph: Graph, node: Node, weight: Node, bias: Any, terms: list[Term], shapes: Shapes) -> None:
    """Replace a linear map by a sum of linear maps, grouped by end."""
    x, (out,) = _linear_arguments(node)[0], shapes[node]
    whole = (0, shapes[x][0])

    def call(target: Any, *args: Any, shape: tuple[int, ...]) -> Node:
        new = graph.call_function(target, args)
        new.meta["where"] = node.meta.get("where")
        shapes[new] = shape
        return new

    products: dict[frozenset[str], Node] = {}
    for rows, columns, sign, inputs in terms:
        part = weight
        if columns != whole:
            shape = (out, columns[1] - columns[0])
            part = call(operator.getitem, weight, (slice(None), slice(*columns)), shape=shape)
        if sign < 0:
            part = call(operator.neg, part, shape=(out, columns[1] - columns[0]))
        product = call(torch.nn.functional.linear, rows, part, bias, shape=(out,))
        bias = None
        previous = products.get(inputs)
        products[inputs] = (
            product if previous is None else call(operator.add, previous, product, shape=(out,))
        )
    total, *others = products.values()
    for other in others:
        total = call(operator.add, total, other, shape=(out,))
    node.replace_all_uses_with(total)
