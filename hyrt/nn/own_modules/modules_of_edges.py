"""Detection of modules that were written for PyG or DGL graphs, with suggestions for hyrt."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

from torch import nn

from hyrt.errors import UnsupportedModel

# Argument names of edges in PyG modules.
_EDGES = ("edge_index", "adj_t")
GRAPHS = ("g", "graph")
"""Argument names of a graph or a block in DGL modules."""
BLOCKS = ("blocks", "mfgs")
"""Argument names of the blocks of a mini-batch in DGL modules."""


def check_takes_blocks(module: nn.Module) -> None:
    """Reject a module that would interpret feature rows as edges.

    Raises
    ------
    UnsupportedModel
        If its forward has an argument `edge_index` or `adj_t`, or a graph for DGL convolutions; the message
        suggests a replacement.
    """
    try:
        names = list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        # The signature of a compiled forward is unknown.
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
    """Return a message with the `hyrt.from_pyg` call for the convolutions in a module."""
    return _suggest_call("from_pyg", module, lambda conv: hasattr(conv, "propagate"))


def from_dgl_instead(module: nn.Module) -> str:
    """Return a message with the `hyrt.from_dgl` call for the convolutions in a module."""
    return _suggest_call("from_dgl", module, is_of_dgl)


def is_of_dgl(module: nn.Module) -> bool:
    """Return whether a module's class is from DGL, without importing dgl."""
    return any(base.__module__.split(".")[0] == "dgl" for base in type(module).__mro__)


def _suggest_call(factory: str, module: nn.Module, is_conv: Callable[[nn.Module], bool]) -> str:
    convs = [name for name, child in module.named_modules() if name and is_conv(child)]
    # A convolution may contain other convolutions.
    outer = [name for name in convs if not any(name.startswith(f"{other}.") for other in convs)]
    arguments = (
        ", ".join(re.sub(r"\.(\d+)\b", r"[\1]", f"model.{name}") for name in outer) or "its convolutions"
    )
    return f"give its convolutions in their order, hyrt.{factory}({arguments}, activation=torch.relu)"
