"""Figures of what a run has learned, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest

from hyrt.report.plots.learned_plot import confusion_matrix, principal_plane

RANDOM = np.random.default_rng(5)


def test_the_plane_is_that_of_scikit_learn() -> None:
    decomposition = pytest.importorskip("sklearn.decomposition")
    rows = (RANDOM.normal(size=(80, 6)) @ RANDOM.normal(size=(6, 6)) + 7).astype(np.float32)
    places, parts = principal_plane(rows)
    theirs = decomposition.PCA(2)
    expected = theirs.fit_transform(rows.astype(np.float64))
    signs = np.sign((places * expected).sum(0))
    np.testing.assert_allclose(places * signs, expected, atol=1e-8)
    np.testing.assert_allclose(parts, theirs.explained_variance_ratio_, rtol=1e-9)
    # Equal but for a sign of all rows: the same picture, turned over.
    np.testing.assert_allclose(principal_plane(-rows)[0], -places, atol=1e-8)


@pytest.mark.parametrize("rows", [np.ones((4, 3)), np.array([[1.0], [3.0], [5.0]])])
def test_rows_of_less_than_two_directions(rows: np.ndarray) -> None:
    places, parts = principal_plane(rows)
    assert np.isfinite(places).all()
    assert not places[:, 1].any()
    assert parts in ((0.0, 0.0), (1.0, 0.0))


def test_confusions_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    scores, labels = RANDOM.normal(size=(200, 5)), RANDOM.integers(-1, 4, 200)
    known = labels >= 0
    expected = metrics.confusion_matrix(labels[known], scores[known].argmax(1), labels=range(5))
    np.testing.assert_array_equal(confusion_matrix(scores, labels), expected)
