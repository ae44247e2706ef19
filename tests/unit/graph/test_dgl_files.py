"""Files of `dgl.save_graphs`: those that DGL 2.1.0 wrote hold what they were made of, and damage is told."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.graph.saved_by_dgl import saved_by_dgl

from hyrt.errors import DataError
from hyrt.graph import open_graph
from hyrt.graph.formats.convert import Conversion, convert
from hyrt.graph.formats.dgl import is_dgl_file, read_dgl_file
from hyrt.graph.hetero.dataset import get_edge_lists

EDGES = {
    "author writes paper": [(0, 1), (1, 0), (1, 2), (2, 2)],
    "paper about field": [(0, 0), (1, 0), (2, 1), (3, 1)],
    "paper cites paper": [(0, 1), (3, 1)],
}


def write(folder: Path, name: str) -> Path:
    file = folder / f"{name}.bin"
    file.write_bytes(saved_by_dgl(name))
    return file


@pytest.mark.parametrize("name", ["coo", "csr", "csc"])
def test_a_saved_heterograph_is_what_it_was_made_of(tmp_path, name):
    graph = open_graph(write(tmp_path, name))
    assert graph.types.vertex_types == ("author", "field", "paper")
    assert np.diff(graph.types.starts).tolist() == [3, 5, 4]
    lists = get_edge_lists(graph)
    found = {str(each): sorted(zip(*map(list, ends), strict=True)) for each, ends in lists.items()}
    assert found == EDGES
    authors, fields, papers = graph.features.tables
    assert fields is None
    assert authors.values.dtype == np.float16
    np.testing.assert_array_equal(authors.values, np.arange(6).reshape(3, 2))
    np.testing.assert_array_equal(papers.values, np.arange(12).reshape(4, 3))
    assert graph.labels[8:].tolist() == [0, 1, 1, 0]
    assert [graph.split(each).tolist() for each in ("train", "val", "test")] == [[8, 11], [9], [10]]


def test_edges_are_in_the_order_of_their_numbers_in_every_form(tmp_path):
    """Values of edges are in this order, however the edges themselves are saved."""
    graphs = [read_dgl_file(write(tmp_path, name), name) for name in ("coo", "csr", "csc")]
    for triple in graphs[0].canonical_etypes:
        first, *others = ([ends.tolist() for ends in graph.edges(triple)] for graph in graphs)
        assert others == [first, first]


def test_a_saved_graph_of_one_type_converts(tmp_path):
    convert(Conversion(str(write(tmp_path, "plain")), tmp_path / "a"))
    graph = open_graph(tmp_path / "a")
    assert graph.types is None
    assert graph.topology.indices.tolist() == [2, 0, 1]
    np.testing.assert_array_equal(graph.features.values, np.ones((3, 2)))
    assert graph.labels.tolist() == [0, 1, 1]
    assert graph.split("val").tolist() == [1]


def test_several_graphs_are_refused_and_weights_of_edges_read(tmp_path):
    with pytest.raises(DataError, match=r"two.bin has 2 graphs, .* dgl.save_graphs\(path, \[g\]\)"):
        open_graph(write(tmp_path, "two"))
    topology = open_graph(write(tmp_path, "weighted")).topology
    assert len(topology.edge_weights) == topology.num_edges


def test_an_older_form_is_named(tmp_path):
    data = bytearray(saved_by_dgl("plain"))
    data[8] = 1
    (tmp_path / "old.bin").write_bytes(data)
    with pytest.raises(
        DataError, match=r"format 2, version 1, but hyrt reads only files of DGL 0.5 and later"
    ):
        open_graph(tmp_path / "old.bin")


def test_other_files_are_not_taken_for_one(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"PK")
    assert not is_dgl_file(tmp_path / "a.bin")
    assert not is_dgl_file(tmp_path / "nothing.bin")


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(["coo", "csc", "plain"]), st.data())
def test_damage_is_told(tmp_path_factory, name, data):
    """A file that ends early, or has another byte somewhere, opens or is an error of the data."""
    whole = bytearray(saved_by_dgl(name))
    file = tmp_path_factory.mktemp("dgl") / "a.bin"
    if data.draw(st.booleans()):
        del whole[data.draw(st.integers(8, len(whole) - 60)) :]
        file.write_bytes(whole)
        with pytest.raises(DataError, match=r"damaged at byte [\d,]+ \(.*\): copy it again, or save it"):
            read_dgl_file(file, "a.bin")
        return
    # Beyond the first page, or in what is read of it.
    at = data.draw(st.integers(4096, len(whole) - 1) | st.integers(8, 31))
    whole[at] = data.draw(st.integers(0, 255))
    file.write_bytes(whole)
    with contextlib.suppress(DataError):
        read_dgl_file(file, "a.bin")
