"""Labels of three kinds: what files may hold, what is refused, and what other libraries call them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import random_graph

from hyrt.errors import DataError
from hyrt.graph.formats.convert import Conversion, convert
from hyrt.graph.formats.pyg import convert_targets
from hyrt.graph.formats.schema import from_graph
from hyrt.graph.graph import Graph
from hyrt.graph.info import format_summary, summarize_graph
from hyrt.graph.labels import label_warning
from hyrt.graph.source import open_graph

GRAPH = random_graph(40)
RNG = np.random.default_rng(2)
FLAGS = RNG.integers(0, 2, (40, 3)).astype(np.int8)
FLAGS[4] = [1, -1, 0]


def with_labels(labels: np.ndarray) -> Graph:
    return replace(GRAPH, vertices=replace(GRAPH.vertices, labels=labels))


def written(graph: Graph, path: Path, **more: Any) -> Path:
    data = from_graph(graph)
    assert data.rows is not None
    np.savez(path, features=data.rows.whole(), **{**data.arrays, **more})
    return path


@pytest.mark.parametrize(
    ("labels", "kind", "outputs", "words", "trained"),
    [
        (FLAGS, "flags", 3, "3 labels of 0 and 1", np.int8),
        (FLAGS == 1, "flags", 3, "3 labels of 0 and 1", np.int8),
        (RNG.normal(size=40), "numbers", 1, "1 number", np.float32),
        (RNG.normal(size=(40, 2)).astype(np.float32), "numbers", 2, "2 numbers", np.float32),
    ],
    ids=["flags", "bools", "a number", "numbers"],
)
def test_files_and_folders_hold_every_kind(
    tmp_path: Path, labels: np.ndarray, kind: str, outputs: int, words: str, trained: Any
) -> None:
    file = written(with_labels(labels), tmp_path / "one.npz")
    convert(Conversion(str(file), tmp_path / "folder"), lambda text: None)
    for source in (file, tmp_path / "folder"):
        graph = open_graph(str(source))
        np.testing.assert_array_equal(graph.labels, labels)
        assert (graph.vertices.label_kind, graph.num_outputs) == (kind, outputs)
        assert words in repr(graph)
        rows = graph.vertices.select_labels(np.array([7, 2]))
        assert (rows.dtype, rows.shape) == (trained, (2, outputs))
        np.testing.assert_array_equal(rows.reshape(2, -1), labels[[7, 2]].astype(trained).reshape(2, -1))
        assert any(words in line for line in format_summary(summarize_graph(graph)))


def test_what_no_kind_allows_is_named_with_its_place(tmp_path: Path) -> None:
    def refusal(labels: np.ndarray, **more: Any) -> str:
        with pytest.raises(DataError) as caught:
            open_graph(str(written(GRAPH, tmp_path / "bad.npz", labels=labels, **more)))
        return str(caught.value)

    wrong = FLAGS.copy()
    wrong[9, 1] = 2
    assert "value 2 at row 9, column 1 is not 0 or 1 (-1 means unknown)" in refusal(wrong)
    endless = np.zeros(40, np.float32)
    endless[11] = np.inf
    assert "value inf at position 11 is not finite: replace it (nan means no label)" in refusal(endless)
    unknown = np.full((40, 2), np.nan, np.float32)
    unknown[:, 0] = 1.5
    at = int(GRAPH.split("train")[1])
    unknown[at] = np.nan
    assert f"vertex {at} is in the split but has no label" in refusal(unknown)
    assert "has shape [40, 0] and thus no label" in refusal(np.zeros((40, 0), np.int8))
    assert "dtype uint16, expected" in refusal(np.zeros(40, np.uint16))


def test_labels_that_are_probably_meant_otherwise_are_told() -> None:
    assert "exactly one of the labels" in label_warning(np.eye(3, dtype=np.int8)[[0, 1, 2, 1]])
    assert not label_warning(FLAGS)
    assert "write them as int8 [V, K]" in label_warning(np.array([0, 1, np.nan, 1], np.float32))
    assert not label_warning(np.array([0.5, 1.0]))
    assert "whole floats from 0 to 2, so they are trained as numbers" in label_warning(
        np.array([2, 0, np.nan, 1], np.float32)
    )
    assert not label_warning(np.array([1, 2, 3], np.float32))
    assert not label_warning(np.array([0, 1, 5], np.float32))
    assert "nothing to learn" in label_warning(np.zeros(3, np.int16))


def test_labels_of_other_libraries_are_read_as_what_they_are() -> None:
    many = np.array([[0.0, 1.0], [np.nan, 1.0]])
    np.testing.assert_array_equal(convert_targets(many, "x", "y"), [[0, 1], [-1, 1]])
    assert convert_targets(many, "x", "y").dtype == np.int8
    assert convert_targets(np.array([[0.5, 1.0]]), "x", "y").dtype == np.float32
    assert convert_targets(np.array([0.5, np.nan]), "x", "y").dtype == np.float32
    whole = convert_targets(np.array([2.0, np.nan, 0.0]), "x", "y")
    assert whole.dtype == np.float32
    np.testing.assert_array_equal(whole, [2, np.nan, 0])
    with pytest.raises(DataError, match="convert them to floats"):
        convert_targets(np.array([[3, 1]]), "x", "y")
