"""Graph storage: formats, checks and generators. Names are imported on first use, to keep imports fast."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hyrt.graph.graph import Graph
    from hyrt.graph.row_source import DenseFeatures, SparseFeatures
    from hyrt.graph.source import open_graph

__all__ = ["DenseFeatures", "Graph", "SparseFeatures", "open_graph"]

_HOMES = {
    "DenseFeatures": "hyrt.graph.row_source",
    "Graph": "hyrt.graph.graph",
    "SparseFeatures": "hyrt.graph.row_source",
    "open_graph": "hyrt.graph.source",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
