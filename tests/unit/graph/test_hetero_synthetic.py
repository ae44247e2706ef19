"""The generated typed graph: what was asked for, classes that say who is joined, the same everywhere."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq

from hyrt.errors import DataError
from hyrt.graph import csr, open_graph
from hyrt.graph.formats.convert import Conversion, convert
from hyrt.graph.hetero import csr as typed_csr
from hyrt.graph.hetero import dataset as typed_dataset
from hyrt.graph.hetero.dataset import get_edge_lists
from hyrt.graph.synthetic import parse_spec
from hyrt.graph.synthetic import planted_partition as population
from hyrt.graph.synthetic import planted_partition as typed_planted
from hyrt.graph.synthetic.degree_distribution import build_weight_classes, compute_hetero_degrees
from hyrt.graph.synthetic.planted_partition import CLASS_OFFSETS, LABEL, RELATION_SHARES, RELATIONS, WEIGHT

SPEC = "synthetic:hetero,vertices=20k,edges=300k"
# These change only with a change that changes every generated typed graph: say so in the changelog.
SMALL = "synthetic:hetero,vertices=2k"
DIGEST = [2450968137, 1635406992, 336030888, 2852635394]


@pytest.fixture(scope="module")
def graph() -> Any:
    return open_graph(SPEC)


def _digest(graph: Any) -> list[int]:
    tables = [table.values for table in graph.features.tables if table is not None]
    arrays = (graph.topology.indptr, graph.topology.indices, graph.topology.edge_types, graph.labels, *tables)
    return [zlib.crc32(np.ascontiguousarray(array).tobytes()) for array in (*arrays, *graph.masks.values())]


def _classes(name: str, spec: Any) -> np.ndarray[Any, Any]:
    """The planted classes of one type, also of those that have no labels."""
    number = list(spec.type_counts).index(name)
    keys = [typed_planted._key(spec, purpose, number) for purpose in (LABEL, WEIGHT)]
    return population.draw_population(*keys, spec.type_counts[name], spec.classes).labels


def test_has_what_was_asked_for(graph):
    types = graph.types
    assert [types.count(name) for name in types.vertex_types] == [10_000, 8_000, 2_000]
    assert types.relations == RELATIONS
    assert types.target == "paper"
    assert graph.num_edges == pytest.approx(300_000, rel=0.01)
    counts = np.bincount(graph.topology.edge_types)
    assert counts[:3] == pytest.approx([300_000 * share for share in RELATION_SHARES], rel=0.01)
    assert [graph.features.table_width(name) for name in types.vertex_types] == [64, 32, 0]
    assert [int(graph.masks[split].sum()) for split in ("train", "val", "test")] == [5_000, 1_000, 4_000]
    assert graph.num_classes == 16
    assert (graph.labels[10_000:] == -1).all()
    lists = get_edge_lists(graph)
    for forward, back in ((1, 3), (2, 4)):
        sources, targets = lists[RELATIONS[forward]]
        turned = lists[RELATIONS[back]]
        assert set(zip(sources, targets, strict=True)) == set(zip(turned[1], turned[0], strict=True))
    sources, targets = lists[RELATIONS[0]]
    assert not (sources == targets).any()


@pytest.mark.parametrize("homophily", [0.0, 0.8])
def test_classes_say_who_is_joined(homophily):
    spec = parse_spec(f"{SPEC},classes=8,homophily={homophily}")
    graph = open_graph(spec.name)
    np.testing.assert_array_equal(graph.labels[:10_000], _classes("paper", spec))
    for relation, offset in zip(RELATIONS[:3], CLASS_OFFSETS, strict=True):
        sources, targets = get_edge_lists(graph)[relation]
        first = _classes(relation.source, spec)[sources]
        second = _classes(relation.destination, spec)[targets]
        joined = ((first + offset) % 8 == second).mean()
        shares = [np.bincount(ends, minlength=8) / len(ends) for ends in (first, second)]
        chance = float((np.roll(shares[0], offset) * shares[1]).sum())
        # A little less: equal draws fall away, and most of them join classes.
        assert joined == pytest.approx(homophily + (1 - homophily) * chance, abs=0.03)


def _expected_edges(draws: float, odds: Any, homophily: float, offset: int) -> Any:
    """[W, W] edges between two vertices of any of 4 classes, of those odds."""
    shares = 1 / np.sqrt(np.arange(1, 5))
    shares /= shares.sum()
    table = np.zeros_like(odds)
    for a, b in np.ndindex(4, 4):
        chance = 1 - homophily + homophily * (b == (a + offset) % 4) / shares[b]
        table += shares[a] * shares[b] * -np.expm1(-draws * chance * odds)
    return table


@pytest.mark.parametrize("homophily", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("number", range(3))
def test_expected_degrees_are_sums_over_all_pairs_of_classes(number, homophily):
    """Many pairs of classes that go together are drawn several times, and count once."""
    spec = parse_spec(f"synthetic:hetero,vertices=300,edges=4k,classes=4,homophily={homophily}")
    relation = RELATIONS[number]
    ends = [build_weight_classes(spec.type_counts[end]) for end in (relation.source, relation.destination)]
    (first, first_counts), (second, second_counts) = ends
    odds = np.outer(first, second) / ((first @ first_counts) * (second @ second_counts))
    wanted = odds, homophily, CLASS_OFFSETS[number]

    def missing(draws: float) -> float:
        drawn = first_counts @ _expected_edges(draws, *wanted) @ second_counts
        return drawn - int(spec.edges * RELATION_SHARES[number])

    table = _expected_edges(brentq(missing, 1, 1e8), *wanted)
    found = compute_hetero_degrees(spec).relations[number]
    assert found.out_degrees == pytest.approx(table @ second_counts, rel=1e-4)
    assert found.in_degrees == pytest.approx(first_counts @ table, rel=1e-4)


def test_degrees_have_a_heavy_tail(graph):
    for relation in RELATIONS:
        degrees = np.bincount(get_edge_lists(graph)[relation][1])
        assert degrees.max() > 8 * degrees.mean()


def test_features_are_class_mean_plus_unit_noise(graph):
    spec = parse_spec(SPEC)
    for name in ("paper", "author"):
        values, labels = graph.features.table(name).values, _classes(name, spec)
        means = np.stack([values[labels == c].mean(0) for c in range(16)])
        noise = values - means[labels]
        assert noise.std() == pytest.approx(1, abs=0.02)
        assert means.std() == pytest.approx(spec.signal, rel=0.3)


def test_same_graph_for_any_number_of_threads_and_as_ever(monkeypatch):
    wanted = _digest(open_graph(SMALL))
    assert wanted[:4] == DIGEST
    for cpus in (1, 3):
        for module in (csr, typed_csr, population, typed_planted):
            monkeypatch.setattr(module, "available_cores", lambda cpus=cpus: cpus)
        assert _digest(open_graph(SMALL)) == wanted
    assert _digest(open_graph(f"{SMALL},seed=1")) != wanted


def test_folder_equals_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(typed_dataset, "BUILD_ENTRIES", 3_000)
    convert(Conversion(f"{SMALL},dtype=float16", tmp_path / "a"))
    monkeypatch.undo()
    assert _digest(open_graph(tmp_path / "a")) == _digest(open_graph(f"{SMALL},dtype=float16"))


def test_small_graphs_have_fewer_classes():
    graph = open_graph("synthetic:hetero,vertices=60")
    assert graph.num_classes == 6
    assert graph.types.count("field") == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "vertices=200,classes=30",
            "classes=30 is out of range: use a number from 1 to 20, because each class needs a vertex of "
            "each type",
        ),
        ("vertices=1k,train=499,val=10,test=0", "train . val . test exceed the 500 papers"),
        ("vertices=60,edges=1760,classes=2,homophily=1", "edges=1,760 is too many for 60 vertices"),
    ],
)
def test_impossible_graphs_are_refused(text, message):
    with pytest.raises(DataError, match=message):
        open_graph(f"synthetic:hetero,{text}")
