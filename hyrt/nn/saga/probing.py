"""A method tried on a few made-up rows: what shapes values have, and that rows are computed by themselves."""

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
"""The shapes of tensors without their first dimension where that is the rows, and with it elsewhere."""

# Two numbers of rows that no dimension of a layer is likely to have by chance, and none can have both.
# The few are among the more at other places, with others before, between and after them.
_FEW, _MORE = 5, 7
_PLACES = (5, 3, 0, 6, 4, 1, 2)
"""Which row stands where among the more."""
_FEW_AMONG_MORE = [_PLACES.index(row) for row in range(_FEW)]
_COUNTED = ("view", "reshape", "expand", "unflatten", "view_as")


def probe(layer: nn.Module, graph: Graph, arguments: Mapping[str, tuple[int, ...]], label: str) -> Shapes:
    """Do the operations of a method on some rows, and on some more.

    Numbers that the method reads of shapes become constants of its operations. The dtype of each result is
    kept with its operation.

    Parameters
    ----------
    layer
        The layer.
    graph
        The operations; changed in place.
    arguments
        The shape of a row of each argument; () for a degree or a type, of which there is a column.
    label
        The method, for messages.

    Returns
    -------
    The shapes of all tensors.

    Raises
    ------
    UnsupportedModel
        Naming the user's line, if the operations fail, if a row depends on other rows, or if something else
        is done with the number of rows than to give it to `view`.
    """
    few, more = (_values(layer, graph, arguments, rows, label) for rows in (range(_FEW), _PLACES))
    _inline_sizes(graph, few, more, label)
    shapes = {}
    from_rows: set[Node] = set()
    for node in graph.nodes:
        if node.op == "output":
            continue
        a, b = few[node], more[node]
        if node.op == "placeholder" or any(each in from_rows for each in node.all_input_nodes):
            from_rows.add(node)
        if not isinstance(a, torch.Tensor):
            continue
        node.meta["dtype"] = a.dtype
        if node not in from_rows:
            shapes[node] = tuple(a.shape)
            continue
        if a.ndim == 0 or len(a) != _FEW or len(b) != _MORE or not _close(a, b[_FEW_AMONG_MORE]):
            raise UnsupportedModel(
                f"{label}: {where(node)} combines rows: a row may depend on nothing but itself, since rows "
                "are computed in parts. The accumulator combines edges"
            )
        shapes[node] = tuple(a.shape[1:])
    return shapes


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
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
                told = " ".join(str(error).split())
                raise UnsupportedModel(f"{label}: {where(node)} fails: {told}") from error
    return values


def _rows(rows: Sequence[int], shape: tuple[int, ...], like: torch.Tensor, name: str) -> torch.Tensor:
    numbers = torch.tensor(rows)
    if not shape:
        # There are at least two types where any are told apart.
        return (numbers % 2 if name == "type" else numbers + 1).to(like)[:, None]
    # Numbers without a pattern, the same in each process, of either sign. They differ between arguments.
    steps = torch.arange(_MORE * math.prod(shape), dtype=torch.float64).view(_MORE, *shape)[numbers]
    return torch.sin(steps * 12.9898 + len(name)).to(like)


def _inline_sizes(graph: Graph, few: Mapping[Node, Any], more: Mapping[Node, Any], label: str) -> None:
    for node in graph.nodes:
        reads = [each for each in node.all_input_nodes if not _has_tensors(few[each])]
        if node.op == "output" or not reads or not _has_tensors(few[node]):
            continue
        constants = {each: _constant(few[each], more[each]) for each in reads}
        counts = [each for each in reads if _has_count(constants[each])]
        if counts and name_of(node) not in _COUNTED:
            raise UnsupportedModel(
                f"{label}: {where(node)} computes with the number of rows, but only some of the rows are "
                "there at a time: use -1 for this number in view"
            )
        if counts and name_of(node) in ("view", "reshape") and len(few[node]) == _FEW:
            # Torch finds out one dimension, and that is now the first.
            node.args = (node.args[0], -1, *few[node].shape[1:])
            node.kwargs = {}
            continue
        for each, constant in constants.items():
            _put(node, each, constant)


def _has_tensors(value: Any) -> bool:
    """Whether it is a tensor, or several, as torch.sort gives them; else it is a size."""
    if isinstance(value, tuple | list):
        return any(map(_has_tensors, value))
    return isinstance(value, torch.Tensor)


def _put(node: Node, size: Node, constant: Any) -> None:
    """Write a constant in the place of a size."""
    node.args = map_arg(node.args, lambda each: constant if each is size else each)
    node.kwargs = map_arg(node.kwargs, lambda each: constant if each is size else each)


def _constant(few: Any, more: Any) -> Any:
    """A size as a constant; -1 for the number of rows."""
    if isinstance(few, tuple):
        return tuple(_constant(a, b) for a, b in zip(few, more, strict=True))
    return few if few == more else -1


def _has_count(constant: Any) -> bool:
    each: Iterable[Any] = constant if isinstance(constant, tuple) else (constant,)
    return any(isinstance(number, int) and number == -1 for number in each)
