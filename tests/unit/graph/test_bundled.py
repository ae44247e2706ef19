"""Datasets that come with hyrt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hyrt.doctor.dataset_sizes import read_dataset_sizes
from hyrt.graph import open_graph
from hyrt.graph.bundled import resolve_source
from hyrt.graph.formats.convert import memory_bound


def test_cora_is_the_published_graph(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sizes of Sen et al. 2008 and of the split of Yang et al. 2016."""
    monkeypatch.chdir(tmp_path)
    graph = open_graph("cora", check=True)
    assert (graph.num_vertices, graph.num_edges) == (2708, 2 * 5278)
    assert (graph.num_features, graph.num_classes) == (1433, 7)
    ends = np.repeat(np.arange(2708), np.diff(graph.topology.indptr))
    assert set(zip(ends, graph.topology.indices, strict=True)) == set(
        zip(graph.topology.indices, ends, strict=True)
    )
    assert read_dataset_sizes("cora", 0, "none").targets == 140
    assert memory_bound("cora") is not None


def test_a_file_of_the_name_goes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_source("cora").is_file()
    (tmp_path / "cora").mkdir()
    assert resolve_source("cora") == Path("cora")
    assert resolve_source("coras") == Path("coras")
