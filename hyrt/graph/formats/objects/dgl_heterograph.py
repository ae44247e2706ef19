"""Heterogeneous DGL graphs, read by their attributes without importing dgl."""

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
# Keys that DGL adds to subgraphs: vertex and edge numbers in the parent graph.
_SUBGRAPH_KEYS = ("_ID", "_TYPE")
WEIGHTS = ("weight", "w", "edge_weight")
"""Common names of edge weights."""
_FEATURES = "feat"


def read_heterograph(graph: Any, name: str) -> Dataset:
    """Build a dataset from a DGL graph with several types of vertices or edges.

    Per vertex type, `feat` is read if it exists (a model learns embeddings for the other types), and for one
    type `label` and the three masks. Per relation, `weight` (or `w`, or `edge_weight`) is the edge weight,
    `feat` are the edge features, and `edge_time` (or `time`, or `timestamp`) is the edge time. Edges stay
    directed. Equal edges are merged: their weights are summed, and the earliest time is kept.

    Parameters
    ----------
    graph
        The graph.
    name
        Name of the graph in messages.

    Raises
    ------
    DataError
        If something is missing or malformed, or if other edge values would be ignored.
    """
    counts: dict[str, int] = {}
    features: dict[str, Array] = {}
    labels: dict[str, Array] = {}
    masks: dict[str, dict[str, Array]] = {}
    for vertex_type in graph.ntypes:
        data = graph.nodes[vertex_type].data
        location = f"g.nodes['{vertex_type}'].data"
        for key in data:
            if key not in _READ and key not in _SUBGRAPH_KEYS:
                hint = nearest(key, _READ, cutoff=0.75)
                warn_user(f"{name}: {location}[{key!r}] is not read{hint}", DataWarning)
        counts[vertex_type] = int(graph.num_nodes(vertex_type))
        if "feat" in data:
            features[vertex_type] = as_array(data["feat"], f"{name}: {location}['feat']")
        if "label" in data:
            labels[vertex_type] = as_array(data["label"], f"{name}: {location}['label']")
        masks[vertex_type] = {
            split: as_mask(as_array(data[f"{split}_mask"], label), label)
            for split in SPLITS
            for label in (f"{name}: {location}['{split}_mask']",)
            if f"{split}_mask" in data
        }
    edges: dict[tuple[str, str, str], tuple[Array, Array]] = {}
    weights: dict[tuple[str, str, str], Array] = {}
    of_relations: dict[tuple[str, str, str], Array] = {}
    times: dict[tuple[str, str, str], Array] = {}
    for triple in graph.canonical_etypes:
        data = graph.edges[triple].data
        location = f"g.edges[{', '.join(map(repr, triple))}].data"
        time = [key for key in NAMES if key in data][:1]
        of_edges = sorted(
            (key for key in data if key not in (*_SUBGRAPH_KEYS, *time)), key=lambda key: key not in WEIGHTS
        )
        # Only the first weight is read; further weights would be dropped.
        read = [key for i, key in enumerate(of_edges) if key == _FEATURES or (not i and key in WEIGHTS)]
        dropped = [key for key in of_edges if key not in read]
        if dropped:
            raise DataError(
                f"{name}: {location}[{dropped[0]!r}]: hyrt would leave this out, because it reads only one "
                "weight of edges (weight, w or edge_weight), feat and one time: to train without it, "
                f"`{location}.pop({dropped[0]!r})`"
            )
        sources, destinations = (as_array(ends, f"{name}: {location}") for ends in graph.edges(etype=triple))
        edges[tuple(triple)] = (sources, destinations)
        for key in read:
            target, made = (of_relations, as_edge_features) if key == _FEATURES else (weights, as_weights)
            remedy = f"`{location}.pop({key!r})`"
            label = f"{name}: {location}[{key!r}]"
            target[tuple(triple)] = made(as_array(data[key], label), len(sources), label, remedy)
        for key in time:
            label, remedy = f"{name}: {location}[{key!r}]", f"`{location}.pop({key!r})`"
            times[tuple(triple)] = as_times(as_array(data[key], label), len(sources), label, remedy)
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
