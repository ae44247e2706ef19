"""Modules that were written for the graphs of PyG and DGL, and what to give hyrt instead."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

from torch import nn

from hyrt.errors import UnsupportedModel

# What PyG's modules call the edges.
_EDGES = ("edge_index", "adj_t")
GRAPHS = ("g", "graph")
"""What DGL's modules call a graph or a block."""
BLOCKS = ("blocks", "mfgs")
"""What modules over the blocks of a mini-batch call these."""


def check_takes_blocks(module: nn.Module) -> None:
    """Refuse a module that would read feature rows as edges.

    Raises
    ------
    UnsupportedModel
        If its forward takes `edge_index` or `adj_t`, or a graph for convolutions of DGL, with what to give
        instead.
    """
    try:
        names = list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        # Of a compiled forward nothing is known.
        return
    if any(name in _EDGES for name in names) and "blocks" not in names:
        raise UnsupportedModel(
            f"{type(module).__name__}.forward takes ({', '.join(names)}), but hyrt gives it (blocks, x): "
            f"{from_pyg_instead(module)}, or let forward take blocks (see the page Coming from PyG)"
        )
    if names and names[0] in GRAPHS and any(map(is_of_dgl, module.modules())):
        raise UnsupportedModel(
            f"{type(module).__name__}.forward takes ({', '.join(names)}), but hyrt gives it (blocks, x): "
            f"{from_dgl_instead(module)} (see the page Coming from DGL)"
        )


def from_pyg_instead(module: nn.Module) -> str:
    """How to call `hyrt.from_pyg` for the convolutions in a module."""
    return _in_order("from_pyg", module, lambda each: hasattr(each, "propagate"))


def from_dgl_instead(module: nn.Module) -> str:
    """How to call `hyrt.from_dgl` for the convolutions in a module."""
    return _in_order("from_dgl", module, is_of_dgl)


def is_of_dgl(module: nn.Module) -> bool:
    """Whether a module is of a class that DGL has, told without dgl."""
    return any(each.__module__.split(".")[0] == "dgl" for each in type(module).__mro__)


def _in_order(maker: str, module: nn.Module, is_conv: Callable[[nn.Module], bool]) -> str:
    found = [name for name, each in module.named_modules() if name and is_conv(each)]
    # A convolution may have others inside.
    outer = [name for name in found if not any(name.startswith(f"{other}.") for other in found)]
    given = ", ".join(re.sub(r"\.(\d+)\b", r"[\1]", f"model.{name}") for name in outer) or "its convolutions"
    return f"give its convolutions in their order, hyrt.{maker}({given}, activation=torch.relu)"
