"""No held-out link is visible in training: counted by brute force over sets of pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import random_graph

from hyrt.config import build_config
from hyrt.errors import DataError
from hyrt.graph.graph import Graph
from hyrt.graph.hetero.dataset import build_hetero_graph
from hyrt.graph.links.link_split import LinkEndpoints, LinkGraph
from hyrt.graph.links.negative_sampling import sample_candidates, sample_negatives
from hyrt.graph.topology import Topology
from hyrt.training.build_run import build_run
from hyrt.training.open_graph import link_graph

Pair = tuple[int, int]
CONFIGURATIONS = 200


def pairs_of(links: Any) -> list[Pair]:
    return [(int(u), int(v)) for u, v in links]


def edges_of(graph: Graph) -> list[Pair]:
    topology = graph.topology
    rows = np.repeat(np.arange(topology.num_vertices), np.diff(topology.indptr))
    return list(zip(topology.indices.tolist(), rows.tolist(), strict=True))


def topology_of(edges: set[Pair], num: int) -> Topology:
    ordered = np.array(sorted((v, u) for u, v in edges)).reshape(-1, 2)
    indptr = np.searchsorted(ordered[:, 0], np.arange(num + 1)).astype(np.int64)
    return Topology(indptr, ordered[:, 1].astype(np.int32))


def plain(rng: np.random.Generator) -> Graph:
    """A directed or an undirected graph, or one that lacks a few reverse edges."""
    num = int(rng.integers(12, 40))
    edges = {(int(u), int(v)) for u, v in rng.integers(0, num, (int(rng.integers(20, 4 * num)), 2))}
    kind = rng.choice(["directed", "undirected", "nearly"])
    if kind != "directed":
        edges |= {(v, u) for u, v in edges}
    if kind == "nearly":
        edges -= set(sorted((u, v) for u, v in edges if u != v)[: int(rng.integers(1, 4))])
    graph = random_graph(num, 2, seed=1)
    return replace(graph, topology=topology_of(edges, num))


def typed(rng: np.random.Generator) -> Graph:
    """Links under several names, with relations that lead back and lack some edges, or have others."""
    counts = {"a": int(rng.integers(8, 20)), "b": int(rng.integers(8, 20))}
    within = bool(rng.integers(2))
    target = "a" if within else "b"
    links = rng.integers(0, (counts["a"], counts[target]), (int(rng.integers(20, 50)), 2))
    if within and rng.integers(2):
        links = np.concatenate([links, links[:, ::-1]])
    lacks = int(rng.integers(0, 3))
    back = links[rng.permutation(len(links))[lacks:], ::-1]
    noise = rng.integers(0, (counts[target], counts["a"]), (5, 2))
    relations = {("a", "links", target): links}
    for name in ("rev_links", "linked by")[: int(rng.integers(0, 3))]:
        relations[target, name, "a"] = np.concatenate([back, noise]) if rng.integers(2) else back
    if rng.integers(2):
        relations["a", "likes", target] = links[rng.permutation(len(links))[:10]]
    relations["b", "other", "b"] = rng.integers(0, counts["b"], (10, 2))
    edges = {triple: tuple(np.unique(pairs, axis=0).T) for triple, pairs in relations.items()}
    masks = dict.fromkeys(("train", "val", "test"), np.zeros(counts["b"], np.bool_))
    tables = {name: np.ones((count, 2), np.float32) for name, count in counts.items()}
    return build_hetero_graph("typed", tables, edges, np.zeros(counts["b"], np.int64), masks, "b")


def split_of(rng: np.random.Generator, graph: Graph, folder: Path) -> dict[str, Any]:
    """Settings of a split: at random, by time, or from a file with links in one orientation."""
    settings: dict[str, Any] = {"candidates": 5}
    if graph.types is not None:
        settings["relation"] = "links"
    kind = rng.choice(["random", "time", "file"])
    if kind != "file":
        settings |= {"split": str(kind)}
        settings |= {"val": float(rng.uniform(0.05, 0.3)), "test": float(rng.uniform(0.05, 0.3))}
        settings["supervision"] = float(rng.choice([0, 0.5]))
        return settings
    known = set(edges_of(graph))
    if graph.types is not None:
        number = [each.name for each in graph.types.relations].index("links")
        marked = graph.topology.edge_types == number
        known = {pair for pair, is_link in zip(edges_of(graph), marked, strict=True) if is_link}
    one = sorted({(u, v) for u, v in known if u != v and (u < v or (v, u) not in known)})
    drawn = [one[i] for i in rng.permutation(len(one))]
    drawn = [pair if rng.integers(2) or pair[::-1] not in known else pair[::-1] for pair in drawn]
    third = len(drawn) // 3
    arrays = {"val": drawn[: third // 2], "test": drawn[third // 2 : third]}
    if rng.integers(2):
        # All links train, as a user may write them: the held-out ones and their reverses among them.
        arrays["train"] = sorted(pair for pair in known if pair[0] != pair[1])
    np.savez(
        folder / "links.npz",
        **{key: np.array(value).reshape(-1, 2) for key, value in arrays.items() if value},
    )
    return settings | {"split": str(folder / "links.npz")}


def count_leaks(graph: Graph, before: Graph) -> int:
    """How often a held-out link, or its reverse, can be seen."""
    links = graph.links
    assert links is not None
    split = links.split
    held_out = {pair for part in split.held_out.values() for pair in pairs_of(part.links)}
    either = held_out | {(v, u) for u, v in held_out}
    assert held_out
    seen = [edges_of(graph), pairs_of(split.train), edges_of(replace(graph, topology=links.train_edges))]
    # Everything else is left as it was.
    kept = [pair for pair in edges_of(before) if pair not in either]
    if not split.without_messages:
        assert seen[0] == kept
    return sum(pair in either for pairs in seen for pair in pairs)


def check_negatives(links: LinkGraph, positives: set[Pair]) -> None:
    """Pairs that are not links differ, also between the parts, and are no links."""
    undirected = links.known_edges.is_symmetric
    drawn = [pair for part in links.split.held_out.values() for pair in pairs_of(part.negatives)]
    assert len({tuple(sorted(pair)) if undirected else pair for pair in drawn}) == len(drawn)
    assert not positives & set(drawn)
    (a, b), (c, d) = links.ends.sources, links.ends.destinations
    assert all(u != v and a <= u < b and c <= v < d for u, v in drawn)


def test_no_split_shows_a_held_out_link(tmp_path: Path) -> None:
    leaks, noted = 0, 0
    for seed in range(CONFIGURATIONS):
        rng = np.random.default_rng(seed)
        before = typed(rng) if seed % 2 else plain(rng)
        times = rng.integers(0, 50, before.num_edges)
        before = replace(before, topology=replace(before.topology, edge_times=times))
        links = split_of(rng, before, tmp_path)
        model = {"kind": "rgcn"} if before.types is not None else {}
        given = {"train": {"objective": "links"}, "links": links, "model": model, "seed": seed}
        graph = link_graph(build_config(given), before)
        leaks += count_leaks(graph, before)
        assert graph.links is not None
        noted += bool(graph.links.notes)
        positives = set(edges_of(replace(before, topology=graph.links.known_edges)))
        check_negatives(graph.links, positives)
    assert leaks == 0
    assert noted > CONFIGURATIONS / 5


def test_a_graph_that_shows_held_out_links_is_refused() -> None:
    before = random_graph(60, 5, seed=2)
    config = build_config({"train": {"objective": "links", "epochs": 1}, "devices": ["cpu:0"]})
    graph = link_graph(config, before)
    with pytest.raises(
        DataError, match=r"random: \d+ edges that carry messages connect the endpoints of held-out"
    ):
        build_run(config, replace(graph, topology=before.topology))
    assert graph.links is not None
    split = graph.links.split
    reverses = split.held_out["val"].links[:2, ::-1]
    shown = replace(graph.links, split=replace(split, train=np.concatenate([split.train, reverses])))
    with pytest.raises(
        DataError, match="random: 2 links to train on connect the endpoints of held-out links"
    ):
        build_run(config, replace(graph, links=shown))


FILES: dict[str, tuple[dict[str, list[Pair]], str]] = {
    "in both parts": ({"val": [(0, 1), (2, 3)], "test": [(2, 3)]}, "'val': row 1 is also a link of 'test'"),
    "in both, turned": ({"val": [(0, 1)], "test": [(1, 0)]}, "'val': row 0 is also a link of 'test'"),
    "an edge": ({"test": [(0, 1)], "test_neg": [(0, 5), (4, 3)]}, "'test_neg': row 1 is a link of the graph"),
    "a new link": ({"test": [(0, 9)], "test_neg": [(9, 0)]}, "'test_neg': row 0 is a link of the graph"),
}


@pytest.mark.parametrize(("arrays", "told"), FILES.values(), ids=FILES)
def test_a_file_that_contradicts_itself_is_refused(
    tmp_path: Path, arrays: dict[str, list[Pair]], told: str
) -> None:
    """The graph is a ring, in both directions."""
    ring = {(i, (i + way) % 12) for i in range(12) for way in (1, -1)}
    graph = replace(random_graph(12, 2), topology=topology_of(ring, 12))
    np.savez(tmp_path / "links.npz", **{key: np.array(value) for key, value in arrays.items()})
    links = {"split": str(tmp_path / "links.npz")}
    with pytest.raises(DataError, match=told):
        link_graph(build_config({"train": {"objective": "links"}, "links": links}), graph)
    if "test_neg" in arrays:
        # Repeated pairs are said, and links that are no edges are no pairs that are drawn.
        np.savez(tmp_path / "links.npz", test=[(0, 9), (4, 1)], test_neg=[(0, 5), (5, 0)], val=[(3, 8)] * 40)
        found = link_graph(build_config({"train": {"objective": "links"}, "links": links}), graph)
        assert found.links is not None
        assert "1 pairs of test_neg are duplicates, and each occurrence counts" in found.links.notes[0]
        val = pairs_of(found.links.split.held_out["val"].negatives)
        assert len({tuple(sorted(pair)) for pair in val}) == len(val) == 40
        assert not {(0, 9), (1, 4), (3, 8), (0, 5)} & {tuple(sorted(pair)) for pair in val}


@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize("num", [12, 60])
def test_pairs_that_are_no_links_are_drawn_evenly(undirected: bool, num: int) -> None:
    """Each free pair is as likely as another one, whether pairs are drawn or listed."""
    rng = np.random.default_rng(3)
    edges = {(int(u), int(v)) for u, v in rng.integers(0, num, (40, 2))}
    edges |= {(v, u) for u, v in edges} if undirected else set()
    topology = topology_of(edges, num)
    free = {(u, v) for u in range(num) for v in range(num) if u != v} - edges
    free = {(min(pair), max(pair)) for pair in free} if undirected else free
    counts = dict.fromkeys(free, 0)
    wanted = {"val": 10, "test": 20}
    rounds = 300
    for seed in range(rounds):
        drawn, lines = sample_negatives("g", topology, seed, wanted, LinkEndpoints.all_vertices(num))
        assert not lines
        pairs = [pair for part in ("val", "test") for pair in pairs_of(drawn[part])]
        pairs = [(min(pair), max(pair)) for pair in pairs] if undirected else pairs
        assert len(set(pairs)) == 30
        for pair in pairs:
            counts[pair] += 1
    expected = 30 * rounds / len(free)
    deviation = np.array([*counts.values()]) - expected
    chi_squared, degrees = float((deviation**2).sum() / expected), len(free) - 1
    assert abs(chi_squared - degrees * (1 - 30 / len(free))) < 5 * np.sqrt(2 * degrees)
    # Another number of validation links leaves the test pairs as they are.
    more, _ = sample_negatives("g", topology, seed, {"val": 5, "test": 20}, LinkEndpoints.all_vertices(num))
    assert (more["test"] == drawn["test"]).all()


def test_pairs_of_a_file_are_not_drawn_again() -> None:
    ring, ends = topology_of({(i, (i + 1) % 90) for i in range(90)}, 90), LinkEndpoints.all_vertices(90)
    first, _ = sample_negatives("g", ring, 0, {"val": 300}, ends)
    again, _ = sample_negatives("g", ring, 0, {"val": 300}, ends, first["val"])
    assert not set(pairs_of(first["val"])) & set(pairs_of(again["val"]))


def test_too_few_pairs_are_shared_out() -> None:
    every = {(u, v) for u in range(6) for v in range(6)}
    free = [(0, 1), (1, 0), (2, 5), (4, 3)]
    topology, ends = topology_of(every - set(free), 6), LinkEndpoints.all_vertices(6)
    drawn, lines = sample_negatives("g", topology, 0, {"val": 6, "test": 2}, ends)
    assert sorted(pairs_of(drawn["val"]) + pairs_of(drawn["test"])) == free
    assert len(drawn["test"]) == 1
    assert lines == [
        "g: test has 2 links but only 1 pairs that are not links, because the graph has no more such pairs",
        "g: val has 6 links but only 3 pairs that are not links, because the graph has no more such pairs",
    ]
    with pytest.raises(DataError, match=r"only 1 exist .*: list pairs in a file"):
        sample_negatives("g", topology_of(every - {(0, 1)}, 6), 0, {"val": 3, "test": 3}, ends)


def test_candidates_are_drawn_once_and_evenly() -> None:
    """Also next to a vertex that has most edges, and where more are asked for than there are."""
    num = 30
    edges = {(0, v) for v in range(1, 26)} | {(u, 29) for u in range(5)} | {(3, 4)}
    links = np.array([[0, 3], [3, 4], [3, 29]])
    ends = LinkEndpoints((0, 20), (3, 30))
    possible = [
        [
            {u for u in range(20) if u != v and (u, v) not in edges},
            {w for w in range(3, 30) if w != u and (u, w) not in edges},
        ]
        for u, v in links.tolist()
    ]
    counts = np.zeros((3, 2, num))
    for seed in range(400):
        drawn = sample_candidates(topology_of(edges, num), links, seed, "test", 5, ends)
        assert drawn.shape == (3, 2, 5)
        for (i, end), chosen in ((at, drawn[at]) for at in np.ndindex(3, 2)):
            wanted = min(5, len(possible[i][end]))
            assert len(set(chosen[chosen >= 0])) == (chosen >= 0).sum() == wanted
            assert set(chosen[chosen >= 0].tolist()) <= possible[i][end]
            counts[i, end][chosen[chosen >= 0]] += 1
    for (i, end), some in ((at, counts[at]) for at in np.ndindex(3, 2)):
        expected = 400 * min(5, len(possible[i][end])) / len(possible[i][end])
        of_possible = some[sorted(possible[i][end])]
        assert ((of_possible - expected) ** 2 / expected).sum() < 3 * len(of_possible) + 10
    every = sample_candidates(topology_of(edges, num), links, 0, "val", 10**6, ends)
    assert every.shape == (3, 2, 27)
    for (i, end), chosen in ((at, every[at]) for at in np.ndindex(3, 2)):
        assert set(chosen.tolist()) - {-1} == possible[i][end]
