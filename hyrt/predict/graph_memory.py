"""What training on a whole open graph keeps in memory, array by array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psutil
from hyrt_perfmodel.prediction.memory import whole_graph_arrays

from hyrt.config.command_line import new_config
from hyrt.graph.graph import Graph
from hyrt.machine.cores import available_cores
from hyrt.predict.workload import sampled_workload
from hyrt.quantities import size


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
        If there is no such kind, it does not say what it costs, or the data has no training vertices.
    """
    config = new_config(None, [f"model.kind={kind}", "sampler.kind=full"])
    work = sampled_workload(config, graph)
    if work.whole is None:
        arrays: Mapping[str, float] = whole_graph_arrays(work.at(work.batch_size), work)
    else:
        arrays = work.whole(float(psutil.virtual_memory().total), available_cores()).arrays
    integers = graph.num_vertices + graph.num_edges
    symmetric = graph.topology.is_symmetric
    integers = integers if symmetric else 2 * integers
    return {
        "model": kind,
        "symmetric": symmetric,
        "topology_integers": integers,
        "edge_tensor_integers": integers + graph.num_edges,
        "at_most": work.whole is None,
        "arrays": {name: round(bytes_) for name, bytes_ in arrays.items()},
    }


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
