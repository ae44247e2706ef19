"""Messages that are rows of an edge's ends as they are, or products of them with a matrix of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import Node


@dataclass(frozen=True, slots=True)
class EndProduct:
    """What vertices as one end give: their rows, or a product of these."""

    end: Literal["source", "destination"]
    weight: str | None
    """The name of the parameter [width, in]; None for the rows themselves."""
    bias: str | None
    """The name of the parameter [width]; None where there is none."""


def product_of_end(node: Node, end: Literal["source", "destination"]) -> EndProduct | None:
    """What was read for an end as a product; None where more is computed."""
    if node.op == "placeholder":
        return EndProduct(end, None, None)
    if node.target is not torch.nn.functional.linear:
        return None
    given: Mapping[str, Any] = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | node.kwargs
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    if x.op != "placeholder" or not _is_parameter(weight) or not (bias is None or _is_parameter(bias)):
        return None
    return EndProduct(end, str(weight.target), None if bias is None else str(bias.target))


def _is_parameter(node: Any) -> bool:
    return isinstance(node, Node) and node.op == "get_attr" and "constant" not in node.meta
