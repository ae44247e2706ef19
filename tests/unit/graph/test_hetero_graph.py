"""Heterogeneous graphs of lists of edges and tables: what is where, against brute force, and what
is refused.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hetero_cases import small_typed
from hypothesis import given, settings
from hypothesis import strategies as st

from hyrt.errors import DataError, DataWarning
from hyrt.graph.hetero import dataset
from hyrt.graph.hetero.csr import RelationEdges, build_hetero_csr, choose_relation_dtype
from hyrt.graph.hetero.dataset import build_hetero_graph
from hyrt.graph.hetero.graph_types import GraphTypes, Relation
from hyrt.graph.row_source import HeteroRows, SparseFeatures
from hyrt.runtime.workers import current_workers

NAMES = ("paper", "author", "field")
RELATIONS = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("field", "has", "paper"),
    ("paper", "about", "field"),
    ("paper", "revises", "paper"),
)


def no_masks(count: int) -> dict[str, np.ndarray]:
    return {split: np.zeros(count, np.bool_) for split in ("train", "val", "test")}


@st.composite
def edge_lists(draw):
    counts = [draw(st.integers(1, 6)) for _ in NAMES]
    lists = {}
    for names in RELATIONS:
        ends = [counts[NAMES.index(names[0])], counts[NAMES.index(names[2])]]
        pairs = draw(st.lists(st.tuples(*(st.integers(0, n - 1) for n in ends)), max_size=14, unique=True))
        lists[names] = tuple(np.array([pair[i] for pair in pairs], np.int64) for i in (0, 1))
    return counts, lists


class TestBuild:
    @settings(deadline=None, max_examples=60)
    @given(edge_lists(), st.integers(1, 2))
    def test_has_the_edges_that_were_given_sorted_by_relation_and_source(self, given_edges, threads):
        counts, lists = given_edges
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        types = GraphTypes(NAMES, starts, tuple(Relation(*names) for names in RELATIONS), "paper")
        wanted = [[] for _ in range(types.num_vertices)]
        for number, (names, (sources, targets)) in enumerate(lists.items()):
            first, second = starts[NAMES.index(names[0])], starts[NAMES.index(names[2])]
            for u, v in zip(sources, targets, strict=True):
                wanted[second + v].append((number, int(first + u)))
        parts = []
        indptr, given_counts = build_hetero_csr(
            lambda: (RelationEdges(i, *ends) for i, ends in enumerate(lists.values())),
            types,
            emit=lambda found, relations, _: parts.append((found, relations)),
            source="x",
            range_entries=5,
            threads=threads,
        )
        assert given_counts.tolist() == [len(ends[0]) for ends in lists.values()]
        indices, relations = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        assert indices.dtype == np.int32
        assert relations.dtype == np.int8
        rows = [
            list(zip(relations[a:b].tolist(), indices[a:b].tolist(), strict=True))
            for a, b in itertools.pairwise(indptr)
        ]
        assert rows == [sorted(row) for row in wanted]

    def test_equal_edges_of_a_relation_are_one_and_loops_stay(self):
        ends = {
            ("a", "r", "a"): (np.array([1, 1, 0, 1]), np.array([0, 0, 0, 1])),
            ("a", "s", "a"): ([1], [0]),
        }
        with pytest.warns(DataWarning, match="1 duplicate edge was merged"):
            graph = build_hetero_graph(
                "x", {"a": 2}, as_arrays(ends), np.zeros(2, np.int64), no_masks(2), "a"
            )
        assert graph.topology.indptr.tolist() == [0, 3, 4]
        assert graph.topology.indices.tolist() == [0, 1, 1, 1]
        assert graph.topology.edge_types.tolist() == [0, 0, 1, 0]

    @settings(deadline=None, max_examples=40)
    @given(edge_lists(), st.integers(1, 3), st.integers(0, 2**32 - 1), st.integers(1, 2))
    def test_weights_of_equal_edges_are_added_up(self, given_edges, times, seed, threads):
        counts, lists = given_edges
        rng = np.random.default_rng(seed)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        types = GraphTypes(NAMES, starts, tuple(Relation(*names) for names in RELATIONS), "paper")
        pieces, wanted = [], {}
        for number, (names, (sources, targets)) in enumerate(lists.items()):
            order = rng.permutation(np.repeat(np.arange(len(sources)), times))
            # The last relation has no weights: all its edges have 1, also if there are several equal ones.
            weights = None if number == 4 else rng.uniform(0.1, 2, len(order)).astype(np.float32)
            pieces.append(RelationEdges(number, sources[order], targets[order], weights))
            first, second = (starts[NAMES.index(name)] for name in (names[0], names[2]))
            for k, at in enumerate(order):
                key = int(second + targets[at]), number, int(first + sources[at])
                wanted[key] = 1.0 if weights is None else wanted.get(key, 0.0) + float(weights[k])
        parts = []
        indptr, _ = build_hetero_csr(
            lambda: iter(pieces),
            types,
            emit=lambda *arrays: parts.append(arrays),
            source="x",
            weighted=True,
            range_entries=5,
            threads=threads,
        )
        indices, relations, weights = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        rows = np.repeat(np.arange(types.num_vertices), np.diff(indptr))
        keys = list(zip(rows.tolist(), relations.tolist(), indices.tolist(), strict=True))
        assert keys == sorted(wanted)
        np.testing.assert_allclose(weights, [wanted[key] for key in keys], rtol=1e-6)

    def test_a_long_row_is_sorted_with_its_weights(self):
        order = np.random.default_rng(0).permutation(np.repeat(np.arange(50), 2))
        with pytest.warns(
            DataWarning,
            match=r"50 duplicate edges were merged .* \(a r b 50\), and their weights were summed",
        ):
            graph = build_hetero_graph(
                *("x", {"a": 50, "b": 1}, {("a", "r", "b"): (order, np.zeros(100, np.int64))}),
                *(np.zeros(1, np.int64), no_masks(1), "b"),
                weights={("a", "r", "b"): order + 1.0},
            )
        assert graph.topology.indices.tolist() == list(range(50))
        assert graph.topology.edge_weights.tolist() == [2.0 * (u + 1) for u in range(50)]

    def test_many_relations_have_wider_numbers(self):
        assert [choose_relation_dtype(n).name for n in (1, 128, 129, 1 << 15, (1 << 15) + 1)] == [
            "int8",
            "int8",
            "int16",
            "int16",
            "int32",
        ]


def as_arrays(ends):
    return {key: tuple(np.asarray(side, np.int64) for side in pair) for key, pair in ends.items()}


class TestTypedGraph:
    @pytest.fixture
    def graph(self):
        rows = np.arange(12, dtype=np.float32).reshape(4, 3)
        sparse = SparseFeatures(np.array([0, 1, 1]), np.array([4], np.int32), np.array([2.5], np.float32), 5)
        edges = as_arrays(
            {("author", "writes", "paper"): ([0, 1], [3, 0]), ("field", "has", "paper"): ([2], [0])}
        )
        masks = no_masks(4) | {"train": np.array([True, False, True, False])}
        labels = np.array([1, 0, 0, -1])
        return build_hetero_graph(
            "x", {"author": sparse, "paper": rows, "field": 3}, edges, labels, masks, "paper"
        )

    def test_labels_and_splits_are_those_of_the_target_type(self, graph):
        assert graph.labels.tolist() == [-1, -1, 1, 0, 0, -1, -1, -1, -1]
        assert graph.split("train").tolist() == [2, 4]
        assert graph.num_classes == 2
        assert "9 vertices of 3 types, 3 edges of 2 relations, 2 classes" in repr(graph)

    def test_numbers_and_flags_are_not_known_elsewhere(self):
        for labels in (np.array([0.5, 1.5], np.float32), np.array([[True, False], [False, True]])):
            graph = build_hetero_graph("x", {"a": 1, "b": 2}, {}, labels, no_masks(2), "b")
            unknown = np.isnan(graph.labels[:1]) if labels.dtype.kind == "f" else graph.labels[:1] == -1
            assert unknown.all()
            assert np.array_equal(graph.labels[1:], labels)

    def test_rows_are_asked_for_type_by_type(self, graph):
        rows = graph.features
        assert isinstance(rows, HeteroRows)
        assert [rows.table_width(name) for name in graph.types.vertex_types] == [5, 3, 0]
        out = np.empty((2, 3), np.float32)
        rows.table_rows("paper", np.array([5, 3], np.int32), out, current_workers())
        assert out.tolist() == [[9, 10, 11], [3, 4, 5]]
        out = np.empty((2, 5), np.float32)
        rows.table_rows("author", np.array([0, 1], np.int32), out, current_workers())
        assert out.tolist() == [[0, 0, 0, 0, 2.5], [0] * 5]
        assert (rows.width, rows.value_bytes, rows.matrix) == (5, 4, None)
        with pytest.raises(DataError, match="have no features"):
            rows.table_rows("field", np.array([7]), np.empty((1, 0), np.float32), current_workers())
        with pytest.raises(DataError, match="no single feature matrix"):
            rows.rows(np.array([0]), np.empty((1, 5), np.float32), current_workers())

    def test_sums_of_rows_tell_graphs_apart(self, graph):
        other = build_hetero_graph(
            "x",
            {"author": 2, "paper": np.ones((4, 3), np.float32), "field": 3},
            {},
            np.zeros(4, np.int64),
            no_masks(4),
            "paper",
        )
        assert graph.row_sums.shape == (6, 2)
        assert other.row_sums.shape == (4, 2)
        assert not np.allclose(graph.row_sums[2:], other.row_sums)

    def test_types_answer_questions(self, graph):
        types = graph.types
        assert types.vertex_type_indices(np.array([0, 1, 2, 5, 6, 8])).tolist() == [0, 0, 1, 1, 2, 2]
        assert types.interval("paper") == (2, 6)
        assert types.relations_into("paper") == (0, 1)
        assert types.relations_from("field") == (1,)
        assert types.relation_index(Relation("field", "has", "paper")) == 1
        assert types.relation_sources.tolist() == [0, 2]
        assert types.relation_destinations.tolist() == [1, 1]
        with pytest.raises(DataError, match="did you mean 'paper'"):
            types.type_index("papers")
        with pytest.raises(DataError, match="did you mean 'field has paper'"):
            types.relation_index(Relation("field", "have", "paper"))

    @pytest.mark.parametrize(
        ("ends", "message"),
        [
            (
                ([0, 2], [0, 0]),
                "relation author writes paper: edge 1 has the source 2, .* 2 vertices of type",
            ),
            (([0, 1], [0, -1]), "edge 1 has the destination -1"),
            (([0], [0, 1]), "1 sources and 2 destinations"),
        ],
    )
    def test_names_a_wrong_edge(self, ends, message):
        edges = as_arrays({("author", "writes", "paper"): ends})
        with pytest.raises(DataError, match=message):
            build_hetero_graph(
                "x", {"author": 2, "paper": 1}, edges, np.zeros(1, np.int64), no_masks(1), "paper"
            )

    def test_names_what_does_not_fit(self):
        with pytest.raises(DataError, match="'labels' has 3 rows for 1 vertices of type 'paper'"):
            build_hetero_graph(
                "x", {"author": 2, "paper": 1}, {}, np.zeros(3, np.int64), no_masks(1), "paper"
            )
        with pytest.raises(DataError, match="has no mask 'test'"):
            build_hetero_graph(
                "x", {"a": 1}, {}, np.zeros(1, np.int64), {"train": np.zeros(1), "val": np.zeros(1)}, "a"
            )
        edges = as_arrays({("a", "r", "a"): ([0], [0])})
        for weights, message in (
            ({("a", "r", "a"): np.ones(2)}, "relation a r a has 1 edges and 2 weights: use one weight per"),
            ({("a", "s", "a"): np.ones(1)}, "there are weights for a s a, which is not a relation"),
            (
                {("a", "r", "a"): np.zeros(1)},
                "'edge_weight': value 0.0 at position 0 must be a finite number",
            ),
        ):
            with pytest.raises(DataError, match=message):
                build_hetero_graph("x", {"a": 1}, edges, np.zeros(1, np.int64), no_masks(1), "a", weights)
        with pytest.raises(DataError, match="no vertex type 'papr'"):
            build_hetero_graph("x", {"a": 1, "paper": 1}, {}, np.zeros(1, np.int64), no_masks(1), "papr")


def test_weights_stay_with_their_edges_in_every_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = small_typed(weights=True).topology
    monkeypatch.setattr(dataset, "_PIECE", 40)
    pieces = small_typed(weights=True).topology
    assert whole.num_edges > 40
    for name in ("indptr", "indices", "edge_types", "edge_weights"):
        np.testing.assert_array_equal(getattr(pieces, name), getattr(whole, name))
