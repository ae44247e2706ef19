"""Shape inference with dummy rows, which also checks that a method computes each row independently."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from hyrt.errors import UnsupportedModel
from hyrt.nn.saga.reading import compute, name_of, number_of, where

Shapes = dict[Node, tuple[int, ...]]
"""Tensor shapes, without the first dimension if it is the row dimension."""

# Two row counts that a layer dimension is unlikely to equal by chance; no dimension can equal both. The
# larger batch has the rows of the smaller batch at other positions, with other rows in between and around.
_FEW, _MORE = 5, 7
_POSITIONS = (5, 3, 0, 6, 4, 1, 2)
"""Row at each position of the larger batch."""
_FEW_AMONG_MORE = [_POSITIONS.index(row) for row in range(_FEW)]
_COUNT_OPS = ("view", "reshape", "expand", "unflatten", "view_as")


def probe(layer: nn.Module, graph: Graph, arguments: Mapping[str, tuple[int, ...]], label: str) -> Shapes:
    """Run the operations of a traced method on two batches of dummy rows.

    Sizes that the method reads from shapes become constants of its operations. The dtype of each result is
    stored in the metadata of its node.

    Parameters
    ----------
    layer
        The layer.
    graph
        The operations; modified in place.
    arguments
        Shape of a row of each argument; () for a column, such as a degree or a type.
    label
        Name of the method, for messages.

    Returns
    -------
    Shapes of all tensors.

    Raises
    ------
    UnsupportedModel
        If an operation fails, a row depends on other rows, or the number of rows is used other than in
        `view`; the message has the line of user code.
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
            raise UnsupportedModel(
                f"{label}: {where(node)} combines rows: a row may depend on nothing but itself, since rows "
                "are computed in parts. The accumulator combines edges"
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
    like = number_of(layer)
    values: dict[Node, Any] = {}
    with torch.no_grad():
        for node in graph.nodes:
            if node.op == "placeholder":
                values[node] = _rows(rows, arguments[node.target], like, str(node.target))
                continue
            try:
                values = compute(layer, [node], values)
            except Exception as error:
                message = " ".join(str(error).split())
                raise UnsupportedModel(f"{label}: {where(node)} fails: {message}") from error
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
        if counts and name_of(node) not in _COUNT_OPS:
            raise UnsupportedModel(
                f"{label}: {where(node)} computes with the number of rows, but only some of the rows are "
                "there at a time: use -1 for this number in view"
            )
        if counts and name_of(node) in ("view", "reshape") and len(few[node]) == _FEW:
            # torch infers one dimension, which is now the first.
            node.args = (node.args[0], -1, *few[node].shape[1:])
            node.kwargs = {}
            continue
        for size, constant in constants.items():
            _replace_size(node, size, constant)


def _has_tensors(value: Any) -> bool:
    """Return whether a value is a tensor, or a tuple with tensors as from torch.sort, and not a size."""
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
