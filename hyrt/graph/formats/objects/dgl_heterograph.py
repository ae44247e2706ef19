"""DGL graphs of several types, read by their attributes: dgl itself is not imported."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from hyrt.errors import DataError, DataWarning, warn_user
from hyrt.graph.check import nearest
from hyrt.graph.formats.objects.edge_weights import as_edge_features, as_weights
from hyrt.graph.formats.objects.hetero_parts import HeteroParts, hetero_dataset
from hyrt.graph.formats.objects.tensors import as_array, as_mask
from hyrt.graph.formats.schema import Dataset
from hyrt.graph.links.edge_times import NAMES, as_times
from hyrt.graph.vertex_table import SPLITS

Array = NDArray[Any]

_READ = ("feat", "label", *(f"{split}_mask" for split in SPLITS))
# What DGL itself keeps of subgraphs: the numbers of vertices and edges in the graph that they are of.
_OWN = ("_ID", "_TYPE")
WEIGHTS = ("weight", "w", "edge_weight")
"""What weights of edges are called."""
_FEATURES = "feat"


def read_heterograph(graph: Any, name: str) -> Dataset:
    """Make a dataset of a DGL graph with several types of vertices or edges.

    Of each type of vertices, `feat` is read where there is one (a model learns rows for the others), and of
    one type `label` and the three masks; of each relation `weight` (or `w`, or `edge_weight`), which is the
    weight of its edges, `feat`, their features, and `edge_time` (or `time`, or `timestamp`). Edges stay
    directed; equal ones are one, with the sum of their weights and the earliest time.

    Parameters
    ----------
    graph
        The graph.
    name
        What it is called in messages.

    Raises
    ------
    DataError
        Names what is missing or malformed, or what would be dropped: other values of edges.
    """
    counts: dict[str, int] = {}
    features: dict[str, Array] = {}
    labels: dict[str, Array] = {}
    masks: dict[str, dict[str, Array]] = {}
    for vertex_type in graph.ntypes:
        held = graph.nodes[vertex_type].data
        where = f"g.nodes['{vertex_type}'].data"
        for key in held:
            if key not in _READ and key not in _OWN:
                hint = nearest(key, _READ, cutoff=0.75)
                warn_user(f"{name}: {where}[{key!r}] is not read{hint}", DataWarning)
        counts[vertex_type] = int(graph.num_nodes(vertex_type))
        if "feat" in held:
            features[vertex_type] = as_array(held["feat"], f"{name}: {where}['feat']")
        if "label" in held:
            labels[vertex_type] = as_array(held["label"], f"{name}: {where}['label']")
        masks[vertex_type] = {
            split: as_mask(as_array(held[f"{split}_mask"], at), at)
            for split in SPLITS
            for at in (f"{name}: {where}['{split}_mask']",)
            if f"{split}_mask" in held
        }
    edges: dict[tuple[str, str, str], tuple[Array, Array]] = {}
    weights: dict[tuple[str, str, str], Array] = {}
    of_relations: dict[tuple[str, str, str], Array] = {}
    times: dict[tuple[str, str, str], Array] = {}
    for triple in graph.canonical_etypes:
        held = graph.edges[triple].data
        where = f"g.edges[{', '.join(map(repr, triple))}].data"
        time = [key for key in NAMES if key in held][:1]
        of_edges = sorted(
            (key for key in held if key not in (*_OWN, *time)), key=lambda key: key not in WEIGHTS
        )
        # The first is read where it is a weight; another weight after it would be dropped.
        read = [key for at, key in enumerate(of_edges) if key == _FEATURES or (not at and key in WEIGHTS)]
        dropped = [key for key in of_edges if key not in read]
        if dropped:
            raise DataError(
                f"{name}: {where}[{dropped[0]!r}]: hyrt would leave this out, because it reads only one "
                "weight of edges (weight, w or edge_weight), feat and one time: to train without it, "
                f"`{where}.pop({dropped[0]!r})`"
            )
        sources, destinations = (as_array(ends, f"{name}: {where}") for ends in graph.edges(etype=triple))
        edges[tuple(triple)] = (sources, destinations)
        for key in read:
            into, made = (of_relations, as_edge_features) if key == _FEATURES else (weights, as_weights)
            remedy = f"`{where}.pop({key!r})`"
            at = f"{name}: {where}[{key!r}]"
            into[tuple(triple)] = made(as_array(held[key], at), len(sources), at, remedy)
        for key in time:
            at, remedy = f"{name}: {where}[{key!r}]", f"`{where}.pop({key!r})`"
            times[tuple(triple)] = as_times(as_array(held[key], at), len(sources), at, remedy)
    return hetero_dataset(
        HeteroParts(
            name,
            counts,
            features,
            labels,
            masks,
            edges,
            weights,
            of_relations,
            "g.nodes['{}'].data['label']",
            "g.nodes['{}'].data['{}_mask']",
            times,
        )
    )
