"""Messages that are the rows of an edge's ends, or linear maps of these rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import Node


@dataclass(frozen=True, slots=True)
class EndProduct:
    """Message of vertices as one end of edges: their rows, or a linear map of their rows."""

    end: Literal["source", "destination"]
    weight: str | None
    """Name of the parameter [width, in]; None for the rows themselves."""
    bias: str | None
    """Name of the parameter [width]; None for no bias."""


def product_of_end(node: Node, end: Literal["source", "destination"]) -> EndProduct | None:
    """Return a traced value as a linear map of an end's rows; None if it is another computation."""
    if node.op == "placeholder":
        return EndProduct(end, None, None)
    if node.target is not torch.nn.functional.linear:
        return None
    arguments: Mapping[str, Any] = (
        dict(zip(("input", "weight", "bias"), node.args, strict=False)) | node.kwargs
    )
    x, weight, bias = arguments["input"], arguments["weight"], arguments.get("bias")
    if x.op != "placeholder" or not _is_parameter(weight) or not (bias is None or _is_parameter(bias)):
        return None
    return EndProduct(end, str(weight.target), None if bias is None else str(bias.target))


def _is_parameter(node: Any) -> bool:
    return isinstance(node, Node) and node.op == "get_attr" and "constant" not in node.meta
