"""Modules that were written for a whole graph's edges, as PyG's are, and what to give hyrt instead."""

from __future__ import annotations

import inspect
import re

from torch import nn

from hyrt.errors import UnsupportedModel

# What PyG's modules call the edges.
_EDGES = ("edge_index", "adj_t")


def check_takes_blocks(module: nn.Module) -> None:
    """Refuse a module that would read feature rows as edges.

    Raises
    ------
    UnsupportedModel
        If its forward takes `edge_index` or `adj_t`, with what to give instead.
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


def from_pyg_instead(module: nn.Module) -> str:
    """How to call `hyrt.from_pyg` for the convolutions in a module."""
    found = [name for name, each in module.named_modules() if name and hasattr(each, "propagate")]
    # A convolution may have others inside.
    outer = [name for name in found if not any(name.startswith(f"{other}.") for other in found)]
    given = ", ".join(re.sub(r"\.(\d+)\b", r"[\1]", f"model.{name}") for name in outer) or "its convolutions"
    return f"give its convolutions in their order, hyrt.from_pyg({given}, activation=torch.relu)"
