"""Checks of vertex labels. Errors name the position of the first violation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.check import CHUNK, any_column, first_bad, reject
from hyrt.graph.labels.label_kind import label_kind

Array = NDArray[Any]

MAX_CLASSES = 1 << 20
BoolArray = NDArray[np.bool_]


def check_labels(source: str, labels: Array) -> None:
    """Check that labels are classes from 0 or -1; flags 0, 1 or -1; or numbers or nan."""
    kind = label_kind(labels)
    if labels.ndim == 2 and labels.shape[1] == 0:
        raise reject(source, "labels", f"shape {list(labels.shape)} has no label: give at least one column")
    if kind == "classes":
        _check_classes(source, labels)
        return
    is_wrong = np.isinf if kind == "numbers" else _is_no_flag
    at = first_bad(lambda a, b: any_column(is_wrong(labels[a:b])), len(labels))
    if at is None:
        return
    if labels.ndim == 1:
        raise reject(
            source,
            "labels",
            f"value {labels[at]} at position {at} is not finite: replace it (nan means no label)",
        )
    column = int(is_wrong(labels[at]).argmax())
    wanted = "finite (nan means not known)" if kind == "numbers" else "0 or 1 (-1 means not known)"
    raise reject(
        source,
        "labels",
        f"value {labels[at, column]} at row {at}, column {column} is not {wanted}: replace it",
    )


def _is_no_flag(part: Array) -> BoolArray:
    # Damaged files can contain any byte as a bool.
    values = part.view(np.uint8) if part.dtype == np.bool_ else part
    wrong: BoolArray = (values != 0) & (values != 1)
    return wrong if values.dtype.kind == "u" else wrong & (values != -1)


def _check_classes(source: str, labels: Array) -> None:
    at = first_bad(lambda a, b: labels[a:b] < -1, len(labels))
    if at is not None:
        raise reject(
            source,
            "labels",
            f"value {labels[at]} at position {at} is below -1: number classes from 0, "
            "and give -1 for no label",
        )
    at = first_bad(lambda a, b: labels[a:b] >= MAX_CLASSES, len(labels))
    if at is not None:
        raise reject(
            source,
            "labels",
            f"value {labels[at]} at position {at} is no number of a class: number the classes from 0; "
            f"there can be {MAX_CLASSES:,}",
        )


def check_all_classes(source: str, labels: Array) -> None:
    """Check that every class up to the highest has a vertex, as training requires; other labels are not
    checked.

    Raises
    ------
    DataError
        Naming the first class without a vertex.
    """
    if label_kind(labels) != "classes" or not len(labels):
        return
    highest = int(labels.max())
    # With fewer labels than classes some class is missing; never allocate by a value read from a file.
    size = min(highest, len(labels)) + 1
    seen = np.zeros(size + 1, np.bool_)
    for start in range(0, len(labels), CHUNK):
        part = labels[start : start + CHUNK]
        # `size` may lie just beyond the labels' own dtype.
        seen[np.minimum(part[part >= 0].astype(np.int64), size)] = True
    missing = int(np.argmin(seen[:size])) if not seen[:size].all() else size
    if missing <= highest:
        at = first_bad(lambda a, b: labels[a:b] > missing, len(labels))
        assert at is not None
        raise reject(
            source,
            "labels",
            f"value {labels[at]} at position {at} is out of range: no vertex has class {missing}: "
            "number the classes from 0 to C-1 without gaps",
        )
