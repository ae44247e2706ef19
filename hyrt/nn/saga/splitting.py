"""Products of what belongs to both ends, taken apart into products of either end.

A product is linear: W [a, b] = W_a a + W_b b, and W (a - b) = W a - W b. So most products that are written
for an edge need to be done only once a vertex (NeuGraph, section 3.3, moves those that are written for one
end).
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
"""Which ends' rows a value depends on."""


def split_products(graph: Graph, shapes: Shapes, ends: Ends) -> None:
    """Take apart the products of a method, where all of their parts belong to one end.

    Parameters
    ----------
    graph
        The operations; changed in place.
    shapes
        The shapes of their results; those of new operations are added.
    ends
        Which ends a value depends on.
    """
    for node in list(graph.nodes):
        if node.target is not torch.nn.functional.linear or len(ends(node)) < 2:
            continue
        x, weight, bias = _arguments(node)
        if not isinstance(x, Node) or len(shapes[x]) != 1:
            continue
        terms = _terms(graph, x, (0, shapes[x][0]), 1, shapes, ends)
        if terms is None:
            continue
        with graph.inserting_before(node):
            _write(graph, node, weight, bias, terms, shapes)


def _arguments(node: Node) -> tuple[Any, Any, Any]:
    given = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | dict(node.kwargs)
    return given["input"], given["weight"], given.get("bias")


Term = tuple[Node, tuple[int, int], int, frozenset[str]]
"""Rows, the columns of the weight that they are multiplied by, their sign, and their ends."""


def _terms(
    graph: Graph, x: Node, columns: tuple[int, int], sign: int, shapes: Shapes, ends: Ends
) -> list[Term] | None:
    """What rows are a sum of, or lie beside each other, each of one end; None where they are not."""
    if len(ends(x)) < 2:
        return [(x, columns, sign, ends(x))]
    name = name_of(x)
    parts: list[tuple[Node, tuple[int, int], int]] = []
    if name in ("cat", "concat", "concatenate"):
        given: dict[str, Any] = dict(zip(("tensors", "dim"), x.args, strict=False)) | dict(x.kwargs)
        if given.get("dim", 0) not in (1, -1) or "axis" in given:
            return None
        at = columns[0]
        for part in given["tensors"]:
            width = shapes[part][0]
            parts.append((part, (at, at + width), sign))
            at += width
    elif name in ("add", "sub") and not x.kwargs and len(x.args) == 2:
        both: Any = x.args
        if not all(isinstance(each, Node) and shapes[each] == shapes[x] for each in both):
            return None
        first, second = both
        parts = [(first, columns, sign), (second, columns, sign if name == "add" else -sign)]
    else:
        return None
    found: list[Term] = []
    for part, where, its_sign in parts:
        terms = _terms(graph, part, where, its_sign, shapes, ends)
        if terms is None:
            return None
        found += terms
    return found


def _write(graph: Graph, node: Node, weight: Node, bias: Any, terms: list[Term], shapes: Shapes) -> None:
    """Put a sum of products in the place of one, the products of an end beside each other."""
    x, (out,) = _arguments(node)[0], shapes[node]
    whole = (0, shapes[x][0])

    def call(target: Any, *args: Any, shape: tuple[int, ...]) -> Node:
        new = graph.call_function(target, args)
        new.meta["where"] = node.meta.get("where")
        shapes[new] = shape
        return new

    products: dict[frozenset[str], Node] = {}
    for rows, columns, sign, of in terms:
        part = weight
        if columns != whole:
            shape = (out, columns[1] - columns[0])
            part = call(operator.getitem, weight, (slice(None), slice(*columns)), shape=shape)
        if sign < 0:
            part = call(operator.neg, part, shape=(out, columns[1] - columns[0]))
        product = call(torch.nn.functional.linear, rows, part, bias, shape=(out,))
        bias = None
        there = products.get(of)
        products[of] = product if there is None else call(operator.add, there, product, shape=(out,))
    total, *others = products.values()
    for other in others:
        total = call(operator.add, total, other, shape=(out,))
    node.replace_all_uses_with(total)
