"""How links are split: what is held out, what carries messages, and a file of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphs import adjacency, random_graph
from hypothesis import given
from hypothesis import strategies as st

from hyrt.errors import DataError
from hyrt.graph.graph import Graph
from hyrt.graph.links import edges as message_edges
from hyrt.graph.links import link_split
from hyrt.graph.links.build_split import random_link_split, read_links, write_links
from hyrt.graph.links.edges import list_links, remove_links
from hyrt.graph.links.link_split import LinkEndpoints, LinkGraph, LinkSplit, message_topology
from hyrt.graph.links.negative_sampling import check_negatives, sample_candidates
from hyrt.graph.topology import Topology

UNDIRECTED = random_graph(90, 7, seed=3)
DIRECTED = random_graph(90, 12, seed=4, symmetric=False)
ENDS = LinkEndpoints.all_vertices(90)
GRAPHS = pytest.mark.parametrize("graph", [UNDIRECTED, DIRECTED], ids=["undirected", "directed"])


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces that cut these graphs, too."""
    monkeypatch.setattr(link_split, "_PIECE", 7)
    monkeypatch.setattr(message_edges, "_EDGES_AT_ONCE", 60)


def dense(graph: Graph, topology: Topology) -> np.ndarray:
    return adjacency(replace(graph, topology=topology))


def pairs_of(split: LinkSplit) -> dict[str, set[tuple[int, int]]]:
    parts = {"train": split.train, **{name: part.links for name, part in split.held_out.items()}}
    return {name: {(int(u), int(v)) for u, v in links} for name, links in parts.items()}


@GRAPHS
def test_every_link_is_in_one_part_and_held_out_ones_carry_no_messages(graph: Graph) -> None:
    split = random_link_split("g", graph.topology, 5, val=0.1, test=0.2, ends=ENDS)
    parts, all_edges = pairs_of(split), dense(graph, graph.topology)
    undirected = graph is UNDIRECTED
    edges = [(int(u), int(v)) for v, u in zip(*np.nonzero(all_edges), strict=True)]
    wanted = {(u, v) for u, v in edges if not undirected or u < v}
    assert set.union(*parts.values()) == wanted
    assert sum(map(len, parts.values())) == len(wanted)
    # An edge and its reverse are drawn together, so a part may have one more.
    num_test, num_val = round(0.2 * len(wanted)), round(0.1 * len(wanted))
    assert len(parts["test"]) - num_test in (0, 1)
    assert len(parts["val"]) + len(parts["test"]) - num_val - num_test in (0, 1)
    left = dense(graph, remove_links(graph.topology, *(part.links for part in split.held_out.values())))
    held_out = parts["val"] | parts["test"]
    for u, v in edges:
        is_out = (u, v) in held_out or (undirected and (v, u) in held_out)
        assert left[v, u] == (0 if is_out else all_edges[v, u])
    if not undirected:
        side = {pair: name for name, pairs in parts.items() for pair in pairs}
        both = [pair for pair in side if pair[::-1] in side]
        assert both
        assert all(side[pair] == side[pair[::-1]] for pair in both)
    for part in split.held_out.values():
        u, v = part.negatives.T
        assert (u != v).all()
        assert not all_edges[v, u].any()
        # Both ends are drawn from everywhere.
        assert len(np.unique(u)) > 10
        assert len(np.unique(v)) > 10
    assert random_link_split("g", graph.topology, 5, val=0.1, test=0.2, ends=ENDS).checksum == split.checksum
    assert random_link_split("g", graph.topology, 6, val=0.1, test=0.2, ends=ENDS).checksum != split.checksum


def test_repeated_edges_and_loops_are_no_further_links() -> None:
    # Into 0: 0, 1, 1, 2; into 1: 0, 0; into 2: 0.
    topology = Topology(np.array([0, 4, 6, 7]), np.array([0, 1, 1, 2, 0, 0, 0], np.int32))
    assert topology.is_symmetric
    links, places = list_links(topology)
    assert links.tolist() == [[0, 1], [0, 2]]
    assert places.tolist() == [4, 6]
    left = remove_links(topology, np.array([[0, 1]]))
    assert left.indptr.tolist() == [0, 2, 2, 3]
    assert left.indices.tolist() == [0, 2, 0]


def test_the_latest_links_are_the_test_links() -> None:
    topology = DIRECTED.topology
    times = np.random.default_rng(0).permutation(topology.num_edges)
    split = random_link_split("g", topology, 0, val=0.1, test=0.2, ends=ENDS, times=times)
    rows = np.repeat(np.arange(90), np.diff(topology.indptr))
    when = {(int(u), int(v)): t for u, v, t in zip(topology.indices, rows, times, strict=True)}
    train, val, test = ([when[pair] for pair in pairs_of(split)[name]] for name in ("train", "val", "test"))
    assert max(train) < min(val) <= max(val) < min(test)
    assert (len(val), len(test)) == (round(0.1 * len(when)), round(0.2 * len(when)))


@given(days=st.integers(2, 40), seed=st.integers(0, 50))
def test_links_of_one_time_in_several_parts_are_counted(days: int, seed: int) -> None:
    topology = DIRECTED.topology
    times = np.random.default_rng(seed).integers(0, days, topology.num_edges)
    split = random_link_split("g", topology, 0, val=0.1, test=0.2, ends=ENDS, times=times)
    rows = np.repeat(np.arange(90), np.diff(topology.indptr))
    when = {(int(u), int(v)): t for u, v, t in zip(topology.indices, rows, times, strict=True) if u != v}
    parts = {name: set(pairs) for name, pairs in pairs_of(split).items()}
    parts["train"] = when.keys() - parts["val"] - parts["test"]
    train, val, test = ([when[pair] for pair in parts[name]] for name in ("train", "val", "test"))
    assert max(train) <= min(val) <= max(val) <= min(test)
    wanted = [
        sum(time == min(later) for time in earlier)
        for later, earlier in ((test, [*train, *val]), (val, train))
    ]
    said = [int(line.split()[0].replace(",", "")) for line in split.notes if "have the same time" in line]
    assert said == [ties for ties in wanted if ties]


def test_links_of_one_time_alone_are_refused() -> None:
    topology = UNDIRECTED.topology
    with pytest.raises(
        DataError, match=r"all links have the same time: use different times, or set links\.split"
    ):
        random_link_split(
            "g", topology, 0, val=0.1, test=0.2, ends=ENDS, times=np.full(topology.num_edges, 7)
        )


def test_links_that_are_trained_on_may_carry_no_messages() -> None:
    split = random_link_split("g", UNDIRECTED.topology, 1, val=0.1, test=0.1, ends=ENDS, supervision=0.3)
    trained = remove_links(UNDIRECTED.topology, *(part.links for part in split.held_out.values()))
    links = LinkGraph(split, 8, UNDIRECTED.topology, trained, ENDS)
    assert len(split.train) == round(0.3 * trained.num_edges / 2)
    messages = dense(UNDIRECTED, message_topology(UNDIRECTED.topology, links))
    assert not messages[split.train[:, 1], split.train[:, 0]].any()
    assert messages.sum() == trained.num_edges - 2 * len(split.train)


def test_candidates_make_no_known_edge() -> None:
    edges, links = dense(DIRECTED, DIRECTED.topology), list_links(DIRECTED.topology)[0][:40]
    drawn = sample_candidates(DIRECTED.topology, links, 3, "val", 30, ENDS)
    for (u, v), (sources, destinations) in zip(links, drawn, strict=True):
        assert not edges[v, sources].any()
        assert not edges[destinations, u].any()
        assert v not in sources
        assert u not in destinations
    # Where every pair is an edge there is none to be found.
    full = Topology(np.arange(0, 10, 3), np.tile(np.arange(3, dtype=np.int32), 3))
    assert (
        sample_candidates(full, np.array([[0, 1]]), 0, "test", 4, LinkEndpoints.all_vertices(3)) == -1
    ).all()


def test_a_split_comes_back_from_its_file(tmp_path: Path) -> None:
    split = random_link_split("g", DIRECTED.topology, 5, val=0.1, test=0.2, ends=ENDS, supervision=0.5)
    write_links(tmp_path / "links.npz", split)
    found = read_links(tmp_path / "links.npz", DIRECTED.topology, 9, ENDS)
    assert found.checksum == split.checksum
    assert found.without_messages
    # Without its training links, all others train.
    np.savez(tmp_path / "test.npz", test=split.held_out["test"].links)
    rest = read_links(tmp_path / "test.npz", DIRECTED.topology, 9, ENDS)
    assert len(rest.train) + len(split.held_out["test"].links) == len(list_links(DIRECTED.topology)[0])
    assert len(rest.held_out["test"].negatives) == len(split.held_out["test"].links)


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"val": np.array([[0, 1], [2, 90]])}, "key 'val': vertex 90 in row 1 is not one of the 90 vertices"),
        ({"val": np.array([0, 1])}, r"key 'val' is int64 \[2\]: use integers \[n, 2\]"),
        ({"test_neg": np.array([[0, 1]])}, "has the key 'test_neg', but no links in 'test'"),
        ({"valid": np.array([[0, 1]])}, "unknown key 'valid'"),
    ],
    ids=["range", "shape", "alone", "unknown"],
)
def test_a_wrong_file_is_told(tmp_path: Path, arrays: dict[str, np.ndarray], told: str) -> None:
    np.savez(tmp_path / "links.npz", **arrays)
    with pytest.raises(DataError, match=told):
        read_links(tmp_path / "links.npz", DIRECTED.topology, 0, ENDS)


def test_links_that_are_no_edges_are_told(tmp_path: Path) -> None:
    """Held-out links may have been removed from the edges, but not training links as well."""
    split = random_link_split("g", DIRECTED.topology, 5, val=0.1, test=0.2, ends=ENDS)
    file, arrays = tmp_path / "links.npz", {name: part.links for name, part in split.held_out.items()}
    np.savez(file, **{**arrays, "val": arrays["val"][:, ::-1]})
    assert not read_links(file, DIRECTED.topology, 0, ENDS).warnings
    removed = remove_links(DIRECTED.topology, arrays["test"])
    num, num_all = len(arrays["test"]), len(arrays["test"]) + len(arrays["val"])
    for train in ({}, {"train": split.train}):
        np.savez(file, **arrays, **train)
        (told,) = read_links(file, removed, 0, ENDS, graph="web").warnings
        assert told.startswith(
            f"{num} of {num_all} held-out links in {file} are not edges of web: use a file"
        )
    other = random_graph(90, 0.4, seed=9).topology
    known = dense(DIRECTED, other) > 0
    pairs = np.concatenate([split.train, *arrays.values()])
    num_known = int((known | known.T)[tuple(pairs.T)].sum())
    assert 0 < num_known < 0.01 * len(pairs)
    told = f"{len(pairs) - num_known:,} of {len(pairs):,} links are not edges of web: use a file"
    with pytest.raises(DataError, match=told):
        read_links(file, other, 0, ENDS, graph="web")


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    """zipfile and zlib raise what is no error of numpy's."""
    np.save(tmp_path / "one.npy", np.array([[0, 1]]))
    with pytest.raises(DataError, match="is a single array"):
        read_links(tmp_path / "one.npy", DIRECTED.topology, 0, ENDS)
    file, told = tmp_path / "links.npz", 0
    np.savez_compressed(file, val=np.array([[0, 1], [2, 3]] * 40))
    whole = file.read_bytes()
    for position in range(len(whole)):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 0x41]) + whole[position + 1 :])
        try:
            read_links(file, DIRECTED.topology, 0, ENDS)
        except DataError as error:
            told += str(error).startswith(str(file))
    assert told > len(whole) / 2


def test_a_graph_without_room_for_a_part_is_told() -> None:
    with pytest.raises(DataError, match=r"links\.val=0\.0001 of \d+ links is less than one"):
        random_link_split("g", UNDIRECTED.topology, 0, val=0.0001, test=0.2, ends=ENDS)
    full = Topology(np.arange(0, 10, 3), np.tile(np.arange(3, dtype=np.int32), 3))
    with pytest.raises(DataError, match=r"cannot find 1 vertex pairs without an edge.*, val_neg"):
        random_link_split("full", full, 0, val=0.4, test=0.0, ends=LinkEndpoints.all_vertices(3))


PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8)


@given(st.dictionaries(st.sampled_from(["val", "test"]), PAIRS), st.booleans())
def test_pairs_of_a_file_that_repeat_others_are_counted_over_all_parts(
    parts: dict[str, list[tuple[int, int]]], undirected: bool
) -> None:
    """Of two directions in an undirected graph, one repeats the other."""
    no_edges = Topology(np.zeros(6, np.int64), np.empty(0, np.int32))
    given_pairs = [tuple(sorted(pair)) if undirected else pair for pairs in parts.values() for pair in pairs]
    repeated = len(given_pairs) - len(set(given_pairs))
    arrays = {part: np.array(pairs, np.int64).reshape(-1, 2) for part, pairs in parts.items()}
    lines = check_negatives("f.npz", no_edges, arrays, undirected=undirected)
    keys = " and ".join(f"{part}_neg" for part in parts)
    wanted = f"f.npz: {repeated} pairs of {keys} are duplicates, and each occurrence counts"
    assert lines == ([wanted] if repeated else [])
