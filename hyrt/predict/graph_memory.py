"""What training on a whole open graph keeps in memory, array by array."""

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
    """The memory of full-graph training with a kind of model at its default size, ready for JSON.

    Parameters
    ----------
    graph
        An open graph.
    kind
        The kind of the model, such as gcn.

    Returns
    -------
    `model`; `symmetric`; `topology_integers`, as GraphPy counts them (6.1): V + E, and as many for the
    transpose of a graph that is not symmetric; `edge_tensor_integers`, with the E more by which the transpose
    finds the values of edges, where a module of one's own has such; `arrays`, the bytes of each array on the
    CPU; `at_most`, whether they are the most that it may take.

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
    known = can_take_apart(model)
    if known:
        memory, cores = float(psutil.virtual_memory().total), available_cores()
        arrays = whole_graph_step(model, sizes, memory_bytes=memory, threads=cores).arrays
    else:
        arrays = _arrays_of_layers(model, sizes)
    integers = graph.num_vertices + graph.num_edges
    symmetric = graph.topology.is_symmetric
    integers = integers if symmetric else 2 * integers
    return {
        "model": kind,
        "symmetric": symmetric,
        "topology_integers": integers,
        "edge_tensor_integers": integers + graph.num_edges,
        "at_most": not known,
        "arrays": {name: round(bytes_) for name, bytes_ in arrays.items()},
    }


def _arrays_of_layers(model: GNN, sizes: WholeGraphSizes) -> dict[str, float]:
    """The bytes of each array, at most, where a model takes the whole graph as one block.

    Torch keeps all that a layer computes for the backward pass, and the gradient of the largest besides.
    """
    arrays = dict(sizes.held)
    rows = []
    for i, layer in enumerate(model.layers, 1):
        assert isinstance(layer, Layer)
        footprint = layer.footprint()
        rows.append(_FLOAT_BYTES * (footprint.row * sizes.vertices + footprint.edge * sizes.edges))
        arrays[f"what layer {i} computes"] = rows[-1]
    arrays["gradient of the largest"] = max(rows)
    numbers = sum(each.numel() for each in model.parameters())
    arrays["parameters, gradients, optimizer"] = 6 * _FLOAT_BYTES * numbers
    return {name: bytes_ for name, bytes_ in arrays.items() if bytes_}


def memory_lines(facts: dict[str, Any]) -> list[str]:
    """The facts of `memory_facts` as lines for a terminal."""
    arrays = facts["arrays"]
    why = "it is symmetric: its own transpose" if facts["symmetric"] else "with its transpose: it is directed"
    width = max(map(len, arrays))
    most = "at most " if facts["at_most"] else ""
    return [
        f"full-graph training with {facts['model']} keeps {most}{size(sum(arrays.values()))} on the CPU:",
        *(f"  {name:<{width}}  {size(bytes_):>10}" for name, bytes_ in arrays.items()),
        f"  the topology is {facts['topology_integers']:,} integers ({why})",
        f"  with edge tensors (hyrt.ops) it is {facts['edge_tensor_integers']:,}: one more for each edge",
    ]
