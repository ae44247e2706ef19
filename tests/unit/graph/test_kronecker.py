"""The tool that writes Kronecker graphs: what it draws does not depend on threads, and is a legal dataset."""

from __future__ import annotations

import kronecker
import numpy as np

from hyrt.graph import open_graph
from hyrt.graph.formats.dataset_files import write_folder


def _write(folder, threads):
    scratch = folder.with_name(f"{folder.name}-scratch")
    scratch.mkdir()
    folder.mkdir()
    write_folder(kronecker.kronecker(7, 4.0, 20, 3, threads, scratch), folder)
    return folder


def test_equal_bytes_for_any_number_of_threads(tmp_path, monkeypatch) -> None:
    one = _write(tmp_path / "one", 1)
    monkeypatch.setattr(kronecker, "ENTRIES_AT_ONCE", 100)
    monkeypatch.setattr(kronecker, "EDGES_OF_A_PIECE", 37)
    monkeypatch.setattr(kronecker, "ROWS_OF_A_PIECE", 11)
    three = _write(tmp_path / "three", 3)
    names = sorted(file.name for file in one.iterdir())
    assert "meta.json" in names
    for name in names:
        assert (one / name).read_bytes() == (three / name).read_bytes(), name
    graph = open_graph(one, check=True)
    assert graph.topology.is_symmetric
    # Drawn edges are kept but for self loops and duplicates: no more than both directions of each.
    assert 2 * 4 * 128 > graph.num_edges > 4 * 128
    assert graph.num_classes == 7
    own = graph.labels[:, None] == np.arange(20) % 7
    x = graph.features.values.astype(np.float64)
    assert abs(x[own].mean() - 1) < 0.1
    assert abs(x[~own].mean()) < 0.1


def test_scrambled_numbers_are_those_of_all_vertices() -> None:
    for scale in (1, 2, 5, 8):
        key = np.uint64(12345)
        numbers = [kronecker.scramble_vertex(np.uint64(v), scale, key) for v in range(1 << scale)]
        assert sorted(numbers) == list(range(1 << scale))
