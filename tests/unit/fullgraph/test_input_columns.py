"""Columns of features, whatever form they are kept in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from graphs import dense_features, random_graph

from hyrt.fullgraph.input_rows import InputRows
from hyrt.graph.row_source import SparseFeatures
from hyrt.nn.layer import InPlaceFeatures
from hyrt.nn.operators.sparse import SparseRows
from hyrt.runtime.workers import Workers


@pytest.mark.parametrize("form", ["dense", "float16", "sparse", "sparse float16"])
@pytest.mark.parametrize("width", [1, 5, 12])
def test_columns_are_those_of_the_matrix(form: str, width: int) -> None:
    graph = random_graph(80, features=12, sparse="sparse" in form)
    expected = dense_features(graph)
    given: Any
    if isinstance(graph.features, SparseFeatures):
        rows = SparseRows.from_features(graph.features)
        if form.endswith("float16"):
            half = rows.values.astype(np.float16)
            rows = SparseRows(rows.indptr, rows.columns, half.view(np.uint16), rows.width)
        given = rows
    elif form == "float16":
        given = InPlaceFeatures(expected.astype(np.float16).view(np.uint16))
    else:
        given = torch.from_numpy(expected.astype(np.float32))
    found = InputRows(given, np.dtype(np.float32))
    with Workers(1, "test") as workers:
        for first in range(0, 12, width):
            out = np.full((80, width), 7, np.float32)
            found.copy_columns(first, out, workers)
            part = expected[:, first : first + width]
            tolerance = 2**-11 if "16" in form else 1e-7
            np.testing.assert_allclose(out[:, : part.shape[1]], part, rtol=tolerance, atol=tolerance)
