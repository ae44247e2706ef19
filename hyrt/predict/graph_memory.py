"""Memory of full-graph training on an open graph, per array."""

from __future__ import annotations

from typing import Any

import psutil

from hyrt.config.command_line import new_config
from hyrt.fullgraph.plan import can_take_apart
from hyrt.graph.graph import Graph
from hyrt.machine.cores import available_cores
from hyrt.nn.layer import Layer
from hyrt.nn.model import GNN
from hyrt.predict.bare_model import small_model
from hyrt.predict.dataset_sizes import graph_sizes
from hyrt.predict.whole_graphs.whole_graph_sizes import WholeGraphSizes, counted_sizes, with_transpose
from hyrt.predict.whole_graphs.whole_graph_work import whole_graph_step
from hyrt.predict.workload import training_vertices
from hyrt.quantities import size

_FLOAT_BYTES = 4


def memory_facts(graph: Graph, kind: str) -> dict[str, Any]:
    """Return the memory of full-graph training with a kind of model at its default size, ready for JSON.

    Parameters
    ----------
    graph
        An open graph.
    kind
        Kind of the model, such as gcn.

    Returns
    -------
    `model`; `symmetric`; `topology_integers`, counted like GraphPy (6.1): V + E, doubled by the transpose of
    a graph that is not symmetric; `edge_tensor_integers`, plus E integers by which the transpose finds edge
    values, for user modules with edge tensors; `arrays`, bytes per array on the CPU; `at_most`, whether they
    are upper bounds.

    Raises
    ------
    ConfigError
        If there is no such kind, or the data has no training vertices.
    UnsupportedModel
        If a layer of the kind cannot be read.
    """
    config = new_config(None, [f"model.kind={kind}", "sampler.kind=full"])
    targets = training_vertices(config, graph)
    dataset = with_transpose(graph_sizes(graph, targets), graph)
    sizes = counted_sizes(config, graph, dataset, targets)
    model = small_model(config, dataset.features, dataset.classes)
    is_exact = can_take_apart(model)
    if is_exact:
        memory, cores = float(psutil.virtual_memory().total), available_cores()
        arrays = whole_graph_step(model, sizes, memory_bytes=memory, threads=cores).arrays
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


def _layer_arrays(model: GNN, sizes: WholeGraphSizes) -> dict[str, float]:
    """Return an upper bound of the bytes per array for a model that takes the full graph as one block.

    Torch saves all results of a layer for the backward pass, plus the gradient of the largest.
    """
    arrays = dict(sizes.held)
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
    """Format the result of `memory_facts` as terminal lines."""
    arrays = facts["arrays"]
    explanation = (
        "it is symmetric: its own transpose" if facts["symmetric"] else "with its transpose: it is directed"
    )
    width = max(map(len, arrays))
    prefix = "at most " if facts["at_most"] else ""
    return [
        f"full-graph training with {facts['model']} keeps {prefix}{size(sum(arrays.values()))} on the CPU:",
        *(f"  {name:<{width}}  {size(bytes_):>10}" for name, bytes_ in arrays.items()),
        f"  the topology is {facts['topology_integers']:,} integers ({explanation})",
        f"  with edge tensors (hyrt.ops) it is {facts['edge_tensor_integers']:,}: one more for each edge",
    ]
