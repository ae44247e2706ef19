"""Memory of training on a heterogeneous graph, as far as it is known before a run."""

from __future__ import annotations

from typing import Any

from hyrt.config.command_line import new_config
from hyrt.errors import ConfigError
from hyrt.graph.graph import Graph
from hyrt.graph.typed.typed_rows import TypedRows
from hyrt.nn.models.model_kind import find_model
from hyrt.quantities import size

_VALUE_BYTES = 4
_WITH_MOMENTS = 3


def typed_memory_facts(graph: Graph, kind: str) -> dict[str, Any]:
    """Return the memory of graph, rows and learned embeddings for a kind of model, ready for JSON.

    Parameters
    ----------
    graph
        An open heterogeneous graph.
    kind
        Kind of the model, such as rgcn.

    Returns
    -------
    `model`, and `arrays`, the bytes of each array: learned embeddings include Adam's two moments, at the
    kind's default width. The memory of a step's computation is unknown before a run and not included.

    Raises
    ------
    ConfigError
        If there is no such kind, or it does not support heterogeneous graphs.
    """
    if not find_model(kind).typed:
        raise ConfigError(
            f"{graph.name} has types of vertices, but the model {kind} is not for typed graphs: give "
            "another kind, such as rgcn"
        )
    types, rows = graph.types, graph.features
    assert types is not None
    assert isinstance(rows, TypedRows)
    hidden = new_config(None, [f"model.kind={kind}"]).model.hidden
    arrays = {"topology": graph.topology.nbytes}
    if graph.topology.edge_weights is not None:
        arrays["sums of weights"] = _VALUE_BYTES * graph.num_edges
    for name, table in zip(types.vertex_types, rows.tables, strict=True):
        if table is not None:
            arrays[f"feature rows of {name}"] = table.nbytes
        else:
            learned = _WITH_MOMENTS * _VALUE_BYTES * types.count(name) * hidden
            arrays[f"learned rows of {name}, moments"] = learned
    return {"model": kind, "arrays": arrays}


def typed_memory_lines(facts: dict[str, Any]) -> list[str]:
    """Format the result of `typed_memory_facts` as terminal lines."""
    arrays = facts["arrays"]
    width = max(map(len, arrays))
    return [
        f"training with {facts['model']} keeps {size(sum(arrays.values()))} besides what a step computes:",
        *(f"  {name:<{width}}  {size(bytes_):>10}" for name, bytes_ in arrays.items()),
        "  what lies in a folder is mapped: its pages need not stay in memory",
    ]
