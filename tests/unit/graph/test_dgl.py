"""Graphs of DGL: a stand-in has what hyrt looks at."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import hyrt
from hyrt.errors import DataError, DataWarning
from hyrt.graph import open_graph

# Of 6 vertices. One edge is there twice, and one is a self loop.
SOURCES = torch.tensor([4, 2, 2, 5, 3, 0, 2])
DESTINATIONS = torch.tensor([1, 1, 3, 3, 3, 5, 1])


def graph_of(**changes: Any) -> SimpleNamespace:
    ndata = {
        "feat": torch.arange(12.0).reshape(6, 2),
        "label": torch.tensor([0, 1, 2, 0, 1, 2]),
        "train_mask": torch.tensor([1, 1, 1, 0, 0, 0], dtype=torch.bool),
        "val_mask": torch.tensor([0, 0, 0, 1, 1, 0], dtype=torch.bool),
        "test_mask": torch.tensor([0, 0, 0, 0, 0, 1], dtype=torch.bool),
    }
    given = {"ndata": ndata, "edata": {}, "edges": lambda: (SOURCES, DESTINATIONS)}
    return SimpleNamespace(**(given | {"ntypes": ["_N"], "etypes": ["_E"], "is_block": False} | changes))


def test_a_graph_of_dgl_is_its_edges_features_labels_and_masks() -> None:
    given = graph_of()
    given.ndata["_ID"] = given.edata["_ID"] = torch.arange(6)
    with pytest.warns(DataWarning, match="1 of 7 edges are duplicates and were merged") as told:
        graph = hyrt.load(given)
    assert told[0].filename == __file__
    rows = np.repeat(np.arange(6), np.diff(graph.topology.indptr)).tolist()
    edges = list(zip(graph.topology.indices.tolist(), rows, strict=True))
    assert edges == [(2, 1), (4, 1), (2, 3), (3, 3), (5, 3), (0, 5)]
    np.testing.assert_array_equal(graph.features.values, given.ndata["feat"])  # type: ignore[attr-defined]
    np.testing.assert_array_equal(graph.labels, given.ndata["label"])
    for name in ("train", "val", "test"):
        np.testing.assert_array_equal(graph.masks[name], given.ndata[f"{name}_mask"])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"is_block": True}, "a block of a mini-batch: use the whole graph"),
        ({"edata": {"h": torch.ones(7)}}, r"hyrt cannot use edata\['h'\], .*`g.edata.pop\('h'\)`"),
        (
            {"edata": {"w": torch.ones(7), "weight": torch.ones(7)}},
            r"hyrt cannot use edata\['w'\]",
        ),
        (
            {"edata": {"w": torch.ones(7)}},
            r"edata\['w'\]' has values for parallel edges.*to_simple",
        ),
        ({"edges": lambda: (torch.tensor([0]), torch.tensor([6]))}, r"edge 0 \(0 → 6\) has an endpoint that"),
    ],
)
def test_what_hyrt_would_drop_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        open_graph(graph_of(**changes))


@pytest.mark.parametrize("key", ["weight", "w", "edge_weight"])
def test_weights_and_features_are_those_of_the_edges(key: str) -> None:
    ends = SOURCES[:-1], DESTINATIONS[:-1]
    edata = {key: torch.arange(1.0, 7), "feat": torch.arange(12.0).reshape(6, 2)}
    topology = hyrt.load(graph_of(edges=lambda: ends, edata=edata)).topology
    assert topology.edge_weights is not None
    assert topology.edge_features is not None
    rows = np.repeat(np.arange(6), np.diff(topology.indptr)).tolist()
    given_edges = list(zip(*(side.tolist() for side in ends), strict=True))
    for k, edge in enumerate(zip(topology.indices.tolist(), rows, strict=True)):
        given = given_edges.index(edge)
        assert topology.edge_weights[k] == edata[key][given]
        assert topology.edge_features[k].tolist() == edata["feat"][given].tolist()


def test_wrong_weights_and_features_are_refused() -> None:
    ends = SOURCES[:4], DESTINATIONS[:4]
    for wrong, says in (
        ({"w": torch.zeros(4)}, r"edata\['w'\]: value 0.0 at position 0 is not a valid weight"),
        (
            {"w": torch.ones(4, 2)},
            r"edata\['w'\] is float32 of shape \[4, 2\], expected one weight for each",
        ),
        ({"feat": torch.ones(5)}, r"edata\['feat'\] is float32 of shape \[5\], expected numbers \[4, d\]"),
    ):
        with pytest.raises(DataError, match=says):
            hyrt.load(graph_of(edges=lambda: ends, edata=wrong))


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("feat", None, r"ndata\['feat'\] is missing: set g.ndata\['feat'\] = ..."),
        ("val_mask", None, r"ndata\['val_mask'\] is missing: did you mean"),
        ("feat", torch.zeros(6), r"ndata\['feat'\] has shape \[6\], expected \[V, F\]"),
        ("label", torch.zeros(6, 2, 2), r"ndata\['label'\] has shape \[6, 2, 2\]"),
    ],
)
def test_wrong_data_is_named(key: str, value: Any, says: str) -> None:
    given = graph_of()
    if value is None:
        del given.ndata[key]
    else:
        given.ndata[key] = value
    with pytest.raises(DataError, match=says):
        open_graph(given)


def test_what_is_not_read_is_told() -> None:
    given = graph_of(edges=lambda: (torch.tensor([0]), torch.tensor([1])))
    given.ndata["labels"] = given.ndata["label"]
    with pytest.warns(DataWarning, match=r"ndata\['labels'\] is not read: did you mean 'label'"):
        open_graph(given)


def test_what_the_page_writes_is_the_same_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs/from-dgl.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", page, re.S)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"g": graph_of(edges=lambda: (SOURCES[:4], DESTINATIONS[:4]))}
    exec("\n".join(each for each in code if "hyrt.load(g)\n" in each or "hyrt.save(g" in each), names)
    written = open_graph("mine.npz")
    np.testing.assert_array_equal(written.topology.indices, names["graph"].topology.indices)
    np.testing.assert_array_equal(written.labels, names["graph"].labels)


@pytest.mark.parametrize("kept", [(), ("feat",), ("feat", "label")], ids=" ".join)
def test_graphs_without_masks_open_for_links(kept: tuple[str, ...]) -> None:
    given = graph_of(num_nodes=lambda kind: 6)
    given.ndata = {key: given.ndata[key] for key in kept}
    with pytest.warns(DataWarning) as told:
        graph = open_graph(given)
    says = "\n".join(str(each.message) for each in told)
    assert ("has no masks, so vertices are in no split" in says) == ("label" in kept)
    assert ("has no ndata['feat']: using the logarithm" in says) == ("feat" not in kept)
    assert graph.labels.tolist() == ([0, 1, 2, 0, 1, 2] if "label" in kept else [-1] * 6)
    degrees = np.array([0, 2, 0, 3, 0, 1])
    rows = np.arange(12.0).reshape(6, 2) if kept else np.log1p(degrees)[:, None]
    np.testing.assert_allclose(graph.features.values, rows, rtol=1e-6)  # type: ignore[union-attr]
    assert not any(mask.any() for mask in graph.masks.values())


def test_masks_and_features_of_other_types() -> None:
    """Masks of 0 and 1, and bfloat16, which numpy does not have."""
    given = graph_of()
    given.ndata["train_mask"] = given.ndata["train_mask"].long()
    given.ndata["feat"] = given.ndata["feat"].bfloat16()
    with pytest.warns(DataWarning):
        graph = open_graph(given)
    assert graph.masks["train"].tolist() == [True, True, True, False, False, False]
    np.testing.assert_array_equal(graph.features.values, np.arange(12.0).reshape(6, 2))  # type: ignore[union-attr]
    given.ndata["feat"] = given.ndata["feat"] * 1j
    with pytest.raises(DataError, match=r"ndata\['feat'\] is complex, but hyrt reads only real numbers"):
        open_graph(given)
