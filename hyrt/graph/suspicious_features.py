"""Warning about feature columns that are row numbers or reveal the label, based on a sample of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataWarning, warn_user
from hyrt.graph.formats.schema import VERTEX_IDS, Dataset, row_source_of
from hyrt.graph.labels.label_kind import is_labelled
from hyrt.graph.row_source import DenseFeatures, RowSource, SparseFeatures
from hyrt.graph.tables.suspicious_columns import SuspiciousColumns, named_reasons
from hyrt.graph.typed.typed_keys import types_of_arrays
from hyrt.machine.workers import current_workers

Array = NDArray[Any]

_BLOCKS, _BLOCK_ROWS = 16, 64
"""Rows are sampled in blocks, because large features may be on disk."""
_MAX_LABELLED = 512
_MAX_VALUES = 1 << 22
"""Maximum number of values in a sample; wider bags of words are not sampled."""


def warn_of_suspicious_features(data: Dataset) -> None:
    """Warn about feature columns that are probably not features.

    Table imports check all rows. For features that were not imported from tables, a sample is checked.

    Parameters
    ----------
    data
        A checked dataset whose features are not scaled yet.
    """
    labels, ids = data.arrays["labels"], data.arrays.get(VERTEX_IDS)
    types = types_of_arrays(data.arrays)
    if types is None:
        tables = {"": (data, 0, len(labels))}
    else:
        tables = {name: (table, *types.interval(name)) for name, table in (data.tables or {}).items()}
    for vertex_type, (table, start, stop) in tables.items():
        if vertex_type in data.names.columns:
            continue
        features = row_source_of(table)
        numbers = np.arange(stop - start) if ids is None else ids[start:stop] - start
        reasons = _suspicious_columns(features, labels[start:stop], numbers)
        if reasons:
            warn_user(
                f"{table.name}: feature columns that seem to be numbers of rows or copies of the label: "
                f"{named_reasons(reasons)}: remove these columns if they are not known of new vertices",
                DataWarning,
            )


def _suspicious_columns(features: RowSource, labels: Array, numbers: Array) -> dict[int, str]:
    """Return the reason for each suspicious column, by column index.

    Parameters
    ----------
    features
        The rows of n vertices.
    labels
        [n, ...] labels.
    numbers
        [n] original row numbers, before vertices were reordered.
    """
    count = len(numbers)
    if (_BLOCKS * _BLOCK_ROWS + _MAX_LABELLED) * features.width > _MAX_VALUES or not count:
        return {}
    found = SuspiciousColumns(features.width)
    starts = np.linspace(0, max(count - _BLOCK_ROWS, 0), _BLOCKS).astype(np.int64)
    rows = np.unique(np.minimum(starts[:, None] + np.arange(_BLOCK_ROWS), count - 1))
    found.add(_rows(features, rows), None, numbers[rows])
    labelled = np.flatnonzero(is_labelled(labels)) if labels.ndim == 1 else np.empty(0, np.int64)
    if len(labelled):
        places = np.linspace(0, len(labelled) - 1, min(_MAX_LABELLED, len(labelled))).astype(np.int64)
        rows = labelled[places]
        found.add_labelled(_rows(features, rows), labels[rows])
    return found.found()


def _rows(features: RowSource, rows: Array) -> Array:
    """Return rows [n, width] as a dense array, without compiling a kernel for dense and sparse features."""
    if isinstance(features, DenseFeatures):
        return np.asarray(features.values[rows])
    if isinstance(features, SparseFeatures):
        values = np.zeros((len(rows), features.width), np.float32)
        for place, row in enumerate(rows.tolist()):
            entries = slice(features.indptr[row], features.indptr[row + 1])
            values[place, features.columns[entries]] = features.values[entries]
        return values
    values = np.empty((len(rows), features.width), np.float32)
    features.rows(rows, values, current_workers())
    return values
