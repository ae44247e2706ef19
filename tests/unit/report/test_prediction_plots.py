"""Figures of what a run has learned, against scikit-learn."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from hyrt.errors import ConfigError
from hyrt.objective.metrics import confusion_matrix
from hyrt.report.plots import RocCurve, plot_roc, principal_components, project_umap, roc_curves

RANDOM = np.random.default_rng(5)


def test_the_plane_is_that_of_scikit_learn() -> None:
    decomposition = pytest.importorskip("sklearn.decomposition")
    rows = (RANDOM.normal(size=(80, 6)) @ RANDOM.normal(size=(6, 6)) + 7).astype(np.float32)
    places, parts = principal_components(rows)
    theirs = decomposition.PCA(2)
    expected = theirs.fit_transform(rows.astype(np.float64))
    signs = np.sign((places * expected).sum(0))
    np.testing.assert_allclose(places * signs, expected, atol=1e-8)
    np.testing.assert_allclose(parts, theirs.explained_variance_ratio_, rtol=1e-9)
    # Equal but for a sign of all rows: the same picture, turned over.
    np.testing.assert_allclose(principal_components(-rows)[0], -places, atol=1e-8)


@pytest.mark.parametrize("rows", [np.ones((4, 3)), np.array([[1.0], [3.0], [5.0]])])
def test_rows_of_less_than_two_directions(rows: np.ndarray) -> None:
    places, parts = principal_components(rows)
    assert np.isfinite(places).all()
    assert not places[:, 1].any()
    assert parts in ((0.0, 0.0), (1.0, 0.0))


def test_confusions_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    scores, labels = RANDOM.normal(size=(200, 5)), RANDOM.integers(-1, 4, 200)
    known = labels >= 0
    expected = metrics.confusion_matrix(labels[known], scores[known].argmax(1), labels=range(5))
    np.testing.assert_array_equal(confusion_matrix(scores, labels), expected)


def test_umap_keeps_near_rows_near_and_says_what_it_needs() -> None:
    pytest.importorskip("umap")
    groups = np.repeat(np.arange(4), 40)
    rows = (RANDOM.normal(size=(4, 8))[groups] * 9 + RANDOM.normal(size=(160, 8))).astype(np.float32)
    places = project_umap(rows, seed=3).positions
    centres = np.stack([places[groups == each].mean(0) for each in range(4)])
    nearest = np.linalg.norm(places[:, None] - centres, axis=2).argmin(1)
    assert np.mean(nearest == groups) > 0.95
    np.testing.assert_array_equal(project_umap(rows, seed=3).positions, places)
    with pytest.raises(ConfigError, match="there are only 15 vertices: use --method pca"):
        project_umap(rows[:15], seed=3)


def check_curves(found: list[RocCurve], expected: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """`expected` has by name scores and labels of 0 and 1."""
    metrics = pytest.importorskip("sklearn.metrics")
    assert [curve.name for curve in found] == list(expected)
    for curve, (scores, labels) in zip(found, expected.values(), strict=True):
        wrong, right, _ = metrics.roc_curve(labels, scores, drop_intermediate=False)
        np.testing.assert_allclose(curve.false_positive_rates, wrong, atol=1e-12)
        np.testing.assert_allclose(curve.true_positive_rates, right, atol=1e-12)
        assert curve.area == pytest.approx(metrics.roc_auc_score(labels, scores), abs=1e-12)
        assert curve.num_positive == np.count_nonzero(labels)


def test_curves_of_two_classes_are_those_of_scikit_learn() -> None:
    # Rounded, so that scores are equal.
    scores, labels = RANDOM.normal(size=(300, 2)).round(1), RANDOM.integers(-1, 2, 300)
    known = labels >= 0
    margins = (scores[:, 1] - scores[:, 0])[known]
    check_curves(roc_curves(scores, labels), {"class 1": (margins, labels[known])})


def test_curves_of_several_classes_are_each_against_the_rest() -> None:
    """Also of scores so far apart that the softmax rounds them all to 0 and 1."""
    scores, labels = RANDOM.normal(size=(200, 5)), RANDOM.integers(0, 4, 200)
    parts = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    # No row has class 4.
    check_curves(
        roc_curves(scores.astype(np.float32), labels),
        {f"class {each}": (parts[:, each], labels == each) for each in range(4)},
    )
    apart = np.array([[300.0, 0, 0], [200, 0, 0], [100, 0, 0], [0, 50, 0], [0, 0, 40]], np.float32)
    labels = np.array([0, 0, 1, 1, 2])
    # Class 1: margins 50 and -100 against -300, -200 and -40, five of the six pairs in order.
    assert [curve.area for curve in roc_curves(apart, labels)] == pytest.approx([1, 5 / 6, 1])


def test_curves_of_labels_leave_out_what_is_not_known() -> None:
    scores, labels = RANDOM.normal(size=(150, 3)), RANDOM.integers(-1, 2, (150, 3)).astype(np.int8)
    labels[:, 1] = 1
    expected = {f"label {each}": (scores[:, each], labels[:, each]) for each in (0, 2)}
    check_curves(
        roc_curves(scores, labels), {name: (z[y >= 0], y[y >= 0]) for name, (z, y) in expected.items()}
    )


def test_of_many_curves_those_of_most_rows_are_drawn_with_few_points(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    labels = np.repeat(np.arange(12), np.arange(1, 13) * 400)
    curves = roc_curves(RANDOM.normal(size=(len(labels), 12)), labels)
    plot_roc(curves, "test", tmp_path / "roc.svg")
    text = (tmp_path / "roc.svg").read_text()
    named = re.findall(r">class (\d+), area ([\d.]+)<", text)
    assert named == [(str(each), f"{curves[each].area:.3f}") for each in range(2, 12)]
    mean = np.mean([curve.area for curve in curves])
    assert f"test: mean area {mean:.3f} of 12 curves" in text
    assert len(text) < 500_000
