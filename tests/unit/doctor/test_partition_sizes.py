"""`hyrt doctor` reads the sizes of a graph in parts without opening it, and names what is missing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hyrt.doctor.dataset_sizes import read_dataset_sizes
from hyrt.errors import DataError
from hyrt.graph import open_graph
from hyrt.graph.partition.write_parts import PartitionJob, write_parts
from hyrt.graph.row_source import SparseFeatures


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """A graph with sparse rows and two splits."""
    graph = open_graph("synthetic:tiny")
    count = graph.num_vertices
    masks = {
        f"{name}_mask": np.stack([mask, mask & (np.arange(count) % 2 == 0)], 1)
        for name, mask in graph.masks.items()
    }
    path = tmp_path / "bags.npz"
    arrays: dict[str, Any] = {
        "indptr": graph.topology.indptr,
        "indices": graph.topology.indices,
        "labels": graph.labels,
        "feat_indptr": np.arange(0, 3 * count + 1, 3),
        "feat_indices": np.tile(np.array([1, 5, 9], np.int32), count),
        "feat_values": np.ones(3 * count, np.float32),
        "feat_shape": np.array([count, 50]),
    }
    np.savez(path, **arrays, **masks)
    return path


@pytest.mark.parametrize("topology", ["replicated", "split"])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_sizes_are_those_of_the_opened_graph(
    tmp_path: Path, sparse: Path, topology: Any, is_sparse: bool
) -> None:
    parts = tmp_path / "parts"
    source = str(sparse) if is_sparse else "synthetic:tiny"
    write_parts(PartitionJob(source, parts, 3, "random", topology=topology))
    graph = open_graph(parts)
    split = 1 if is_sparse else 0
    found = read_dataset_sizes(str(parts), split, "auto")
    assert found.location == f"{parts}, {graph.num_vertices:,} vertices, {graph.num_edges:,} edges in 3 parts"
    assert (found.features, found.classes) == (graph.num_features, graph.num_classes)
    assert found.targets == len(graph.split("train", split))
    edges = graph.topology.indptr.nbytes + graph.topology.indices.nbytes
    if topology == "replicated":
        assert found.graph_bytes == 0
    else:
        # Each part has a pointer more than it has vertices.
        assert found.graph_bytes == edges + 2 * 8
    if is_sparse:
        assert isinstance(graph.features, SparseFeatures)
        assert found.row_entries == 3
        assert found.feature_bytes == pytest.approx(graph.features.nbytes, abs=200)
        assert found.mapped_bytes == (edges if topology == "replicated" else 0)
    else:
        rows = graph.num_vertices * graph.num_features * graph.features.value_bytes
        assert found.mapped_bytes == rows + (edges if topology == "replicated" else 0)
        assert found.feature_bytes == 0
        assert (
            read_dataset_sizes(str(parts), 0, "row").feature_bytes
            == 4.0 * graph.num_vertices * graph.num_features
        )


def test_a_missing_or_shortened_file_and_a_split_that_is_not_there_are_named(
    tmp_path: Path, sparse: Path
) -> None:
    parts = tmp_path / "parts"
    write_parts(PartitionJob(str(sparse), parts, 2, "block"))
    with pytest.raises(DataError, match=r"has no split 2, only 2 splits: set data\.split from 0 to 1"):
        read_dataset_sizes(str(parts), 2, "auto")
    rows = parts / "part-0001" / "feat_values.npy"
    os.truncate(rows, rows.stat().st_size - 4)
    with pytest.raises(DataError, match=r"part-0001/feat_values\.npy"):
        read_dataset_sizes(str(parts), 0, "auto")
    rows.unlink()
    with pytest.raises(DataError, match=r"part-0001/feat_values\.npy"):
        read_dataset_sizes(str(parts), 0, "auto")
