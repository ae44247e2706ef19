"""Splitting of linear maps over both ends of an edge into linear maps of each end.

Since W [a, b] = W_a a + W_b b and W (a - b) = W a - W b, most linear maps that are written for an edge can be
computed once per vertex. (NeuGraph, section 3.3, moves the linear maps that are written for one end.)
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from hyrt.nn.saga.probing import Shapes
from hyrt.nn.saga.reading import name_of

Ends = Callable[[Node], frozenset[str]]
"""Function that returns the edge inputs that a value depends on."""


def split_products(graph: Graph, shapes: Shapes, ends: Ends) -> None:
    """Split the linear maps of a method whose terms each depend on one end.

    Parameters
    ----------
    graph
        The operations; modified in place.
    shapes
        Shapes of the results; shapes of new operations are added.
    ends
        Edge inputs that a value depends on.
    """
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
"""Rows, the columns of the weight that multiply them, their sign, and their edge inputs."""


def _terms(
    graph: Graph, x: Node, columns: tuple[int, int], sign: int, shapes: Shapes, ends: Ends
) -> list[Term] | None:
    """Split rows (a sum or concatenation) into terms that each depend on one end; None if impossible."""
    if len(ends(x)) < 2:
        return [(x, columns, sign, ends(x))]
    name = name_of(x)
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
