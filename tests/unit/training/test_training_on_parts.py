"""A graph in parts that is opened as one graph trains as its source does, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import dense_features, random_graph

import hyrt
from hyrt.graph.graph import Graph
from hyrt.graph.partition.write_parts import PartitionJob, write_parts
from hyrt.graph.row_source import SparseFeatures

SETTINGS: dict[str, Any] = {
    "train": {"epochs": 2},
    "data": {"batch_size": 40},
    "sampler": {"fanout": [4, 3]},
    "runtime": {"sample_threads": 1, "load_threads": 1, "train_threads": 1},
    "balance": {"policy": "static", "predict": False},
    "devices": ["cpu:0"],
}
KINDS: dict[str, tuple[dict[str, Any], str]] = {
    "float32": ({"kind": "gcn"}, "replicated"),
    "float16": ({"kind": "gcn"}, "split"),
    "sparse": ({"kind": "gcn"}, "split"),
    "types": ({"kind": "ggnn", "options": {"edge_types": 3}}, "split"),
}


def saved(graph: Graph, kind: str, file: Path) -> Path:
    """The graph as a dataset file, with features of a kind, or with types of edges."""
    topology, features = graph.topology, graph.features
    arrays = {"indptr": topology.indptr, "indices": topology.indices, "labels": graph.labels}
    arrays |= {f"{name}_mask": mask for name, mask in graph.masks.items()}
    if isinstance(features, SparseFeatures):
        arrays |= {"feat_indptr": features.indptr, "feat_indices": features.columns}
        shape = np.array([graph.num_vertices, features.width], np.int64)
        arrays |= {"feat_values": features.values, "feat_shape": shape}
    else:
        arrays["features"] = dense_features(graph).astype(np.float16 if kind == "float16" else np.float32)
    if kind == "types":
        arrays["edge_type"] = np.random.default_rng(1).integers(0, 3, graph.num_edges).astype(np.int8)
        arrays["edge_type"][:3] = range(3)
    np.savez(file, **arrays)
    return file


@pytest.mark.parametrize("kind", KINDS)
def test_parts_train_as_their_source(kind: str, tmp_path: Path) -> None:
    model, topology = KINDS[kind]
    source = saved(random_graph(150, sparse=kind == "sparse"), kind, tmp_path / "source.npz")
    write_parts(PartitionJob(str(source), tmp_path / "parts", 3, "random", topology=topology))
    for full_graph in (False, True):
        settings = {**SETTINGS, "model": {"hidden": 8, **model}}
        if full_graph:
            settings = {key: each for key, each in settings.items() if key not in ("sampler", "data")}
        given = settings.pop("model")
        one, other = (
            hyrt.train(hyrt.load(path), given, full_graph=full_graph, **settings)
            for path in (source, tmp_path / "parts")
        )
        for mine, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
            assert torch.equal(mine, theirs)
        assert one.metrics == other.metrics
        assert set(one.metrics["test"]) >= {"accuracy"}
