"""Memory of training on an open graph, homogeneous or heterogeneous, by array."""

from __future__ import annotations

from typing import Any

import psutil

from hyrt.config.command_line import new_config
from hyrt.errors import ConfigError
from hyrt.formatting import format_bytes
from hyrt.fullgraph.plan import is_decomposable
from hyrt.graph.graph import Graph
from hyrt.graph.hetero.rows import HeteroRows
from hyrt.nn.layer import Layer
from hyrt.nn.model import GNN
from hyrt.nn.models.model_kind import find_model
from hyrt.predict.dataset_sizes import FullGraphSizes, counted_full_graph_sizes, graph_sizes, with_transpose
from hyrt.predict.meta_model import model_for_widths
from hyrt.predict.step_dry_run import full_graph_step
from hyrt.predict.workload import training_vertices
from hyrt.runtime.hardware import available_cores

_VALUE_BYTES = 4
_WITH_MOMENTS = 3


def hetero_memory_facts(graph: Graph, kind: str) -> dict[str, Any]:
    """Return the memory of a heterogeneous graph, its rows and its learned embeddings as JSON values.

    Keys: `model`, and `arrays`, the bytes of each array. Embeddings have the default width of the model
    `kind` and include the two moments of Adam. The memory of a step is unknown before a run and not included.
    Raises ConfigError if the kind does not exist, or does not support heterogeneous graphs.
    """
    if not find_model(kind).hetero:
        raise ConfigError(
            f"{graph.name} has types of vertices, but the model {kind} is not for typed graphs: give "
            "another kind, such as rgcn"
        )
    types, rows = graph.types, graph.features
    assert types is not None
    assert isinstance(rows, HeteroRows)
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


def hetero_memory_lines(facts: dict[str, Any]) -> list[str]:
    """Format the result of `hetero_memory_facts` as lines."""
    arrays = facts["arrays"]
    width = max(map(len, arrays))
    return [
        f"training with {facts['model']} keeps {format_bytes(sum(arrays.values()))} "
        "besides what a step computes:",
        *(f"  {name:<{width}}  {format_bytes(bytes_):>10}" for name, bytes_ in arrays.items()),
        "  what lies in a folder is mapped: its pages need not stay in memory",
    ]


_FLOAT_BYTES = 4


def memory_facts(graph: Graph, kind: str) -> dict[str, Any]:
    """Return the memory of full-graph training of a model `kind` of default size, as JSON values.

    Keys: `model`; `symmetric`; `topology_integers`, counted as in GraphPy (6.1): V + E, doubled by the
    transpose of a graph that is not symmetric; `edge_tensor_integers`, plus E integers by which the transpose
    finds edge values, for user modules with edge tensors; `arrays`, bytes of each array on the CPU;
    `at_most`, whether these are upper bounds. Raises ConfigError if there is no such kind or no training
    vertex, and UnsupportedModelError if a layer of the kind cannot be read.
    """
    config = new_config(None, [f"model.kind={kind}", "sampler.kind=full"])
    targets = training_vertices(config, graph)
    dataset = with_transpose(graph_sizes(graph, targets), graph)
    sizes = counted_full_graph_sizes(config, graph, dataset, targets)
    model = model_for_widths(config, dataset.features, dataset.classes)
    is_exact = is_decomposable(model)
    if is_exact:
        memory, cores = float(psutil.virtual_memory().total), available_cores()
        arrays = full_graph_step(model, sizes, memory_bytes=memory, threads=cores).arrays
    else:
        arrays = _layer_arrays(model, sizes)
    integers = graph.num_vertices + graph.num_edges
    symmetric = graph.topology.is_symmetric
    integers = integers if symmetric else 2 * integers
    return {
        "model": kind,
        "symmetric": symmetric,
        "topology_integers": integers,
        "edge_tensor_integers": integers + graph.num_edges,
        "at_most": not is_exact,
        "arrays": {name: round(bytes_) for name, bytes_ in arrays.items()},
    }


def _layer_arrays(model: GNN, sizes: FullGraphSizes) -> dict[str, float]:
    """Return upper bounds of the bytes by array for a model that takes the full graph as one block.

    Torch saves all results of a layer for the backward pass; the gradient of the largest comes on top.
    """
    arrays = dict(sizes.data_bytes)
    rows = []
    for i, layer in enumerate(model.layers, 1):
        assert isinstance(layer, Layer)
        footprint = layer.footprint()
        rows.append(_FLOAT_BYTES * (footprint.row * sizes.vertices + footprint.edge * sizes.edges))
        arrays[f"what layer {i} computes"] = rows[-1]
    arrays["gradient of the largest"] = max(rows)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    arrays["parameters, gradients, optimizer"] = 6 * _FLOAT_BYTES * numbers
    return {name: bytes_ for name, bytes_ in arrays.items() if bytes_}


def memory_lines(facts: dict[str, Any]) -> list[str]:
    """Format the result of `memory_facts` as lines."""
    arrays = facts["arrays"]
    explanation = (
        "it is symmetric: its own transpose" if facts["symmetric"] else "with its transpose: it is directed"
    )
    width = max(map(len, arrays))
    prefix = "at most " if facts["at_most"] else ""
    return [
        f"full-graph training with {facts['model']} keeps "
        f"{prefix}{format_bytes(sum(arrays.values()))} on the CPU:",
        *(f"  {name:<{width}}  {format_bytes(bytes_):>10}" for name, bytes_ in arrays.items()),
        f"  the topology is {facts['topology_integers']:,} integers ({explanation})",
        f"  with edge tensors (hyrt.ops) it is {facts['edge_tensor_integers']:,}: one more for each edge",
    ]
