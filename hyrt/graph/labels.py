"""Kinds of vertex labels (classes, flags or numbers), which their dtype and shape determine."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hyrt.formatting import pluralize

Array = NDArray[Any]

# Labels with more distinct values are probably counts instead of classes.
_MAX_CLASSES = 1000

LabelKind = Literal["classes", "flags", "numbers"]
"""Kind of labels. `classes`: integers [V], -1 if unknown. `flags`: 0 or 1 for each of K labels [V, K], -1 if
unknown. `numbers`: floats [V] or [V, K], NaN if unknown.
"""

TargetKind = LabelKind | Literal["links"]
"""Kind of the targets of a mini-batch: a kind of vertex labels, or pairs of vertices (`links`)."""

LABEL_SHAPES: dict[LabelKind, str] = {
    "classes": "integers [V], one class per vertex",
    "flags": "integers [V, K] of 0 and 1, K labels per vertex",
    "numbers": "float32 [V] or [V, K], numbers per vertex",
}
"""Description of the array for each kind of labels."""


def get_label_kind(labels: Array) -> LabelKind:
    """Return the kind of labels according to their dtype and shape."""
    if labels.dtype.kind == "f":
        return "numbers"
    return "flags" if labels.ndim == 2 else "classes"


def count_outputs(labels: Array) -> int:
    """Return the number of model outputs per vertex: one per class, flag or number."""
    if labels.ndim == 2:
        return int(labels.shape[1])
    if get_label_kind(labels) == "numbers":
        return 1
    return int(labels.max()) + 1 if len(labels) else 0


def is_labelled(labels: Array) -> NDArray[np.bool_]:
    """Return for each of n rows whether the label is known."""
    known: NDArray[np.bool_] = ~np.isnan(labels) if labels.dtype.kind == "f" else labels >= 0
    return np.logical_or.reduce(known, axis=1) if known.ndim == 2 else known


def convert_for_training(labels: Array) -> Array:
    """Convert label rows to those of a mini-batch: int64 [n], int8 [n, K], or float32 [n, K]."""
    kind = get_label_kind(labels)
    if kind == "classes":
        return labels.astype(np.int64)
    if kind == "flags":
        return labels.astype(np.int8)
    return labels.reshape(len(labels), count_outputs(labels)).astype(np.float32)


def placeholder_labels(kind: TargetKind, num: int, outputs: int) -> Array:
    """Return placeholder labels for `num` targets as in a mini-batch: all classes, both flags, numbers in
    -1..1, or links from the first target to itself.
    """
    if kind == "links":
        return np.zeros((num, 2, 2), np.int64)
    if kind == "classes":
        return np.arange(num, dtype=np.int64) % outputs
    if kind == "flags":
        return ((np.arange(num)[:, None] + np.arange(outputs)) % 2).astype(np.int8)
    return np.sin(np.arange(num * outputs, dtype=np.float32)).reshape(num, outputs)


def describe_labels(kind: LabelKind, outputs: int) -> str:
    """Return a description of labels such as `7 classes`, `112 labels of 0 and 1` or `1 number`."""
    if kind == "classes":
        return pluralize(outputs, "class", "classes")
    if kind == "flags":
        return f"{pluralize(outputs, 'label')} of 0 and 1"
    return pluralize(outputs, "number")


def label_warning(labels: Array) -> str:
    """Return a warning with a remedy if the labels are probably wrong; otherwise an empty string."""
    kind = get_label_kind(labels)
    if not len(labels):
        return ""
    if kind == "classes":
        # A loss of 0 and an accuracy of 1 would look like success.
        one = labels.max() == 0
        return "all labels are of class 0, so there is nothing to learn: check the labels" if one else ""
    if kind == "flags":
        if labels.shape[1] > 1 and (labels >= 0).all() and (labels.sum(axis=1, dtype=np.int64) == 1).all():
            return (
                "every vertex has exactly one of the labels, so they may be classes: to train on classes, "
                "write labels.argmax(1)"
            )
        return ""
    known = labels[~np.isnan(labels)]
    if len(known) and ((known == 0) | (known == 1)).all():
        return (
            "all labels are the floats 0 and 1, so they are trained as numbers: to train on labels of "
            "0 and 1, write them as int8 [V, K]"
        )
    if labels.ndim == 1 and _are_consecutive(known):
        return (
            f"all labels are whole floats from 0 to {int(known.max())}, so they are trained as numbers: to "
            "train on classes, write integers (-1 for an unknown class)"
        )
    return ""


def _are_consecutive(known: Array) -> bool:
    """Return whether the distinct values are exactly 0, 1, ..., max, like class indices."""
    if not len(known) or not (known == np.floor(known)).all():
        return False
    values = np.unique(known)
    return len(values) <= _MAX_CLASSES and values[0] == 0 and values[-1] == len(values) - 1
