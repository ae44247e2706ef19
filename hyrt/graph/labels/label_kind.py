"""What the labels of vertices are: a class of each, flags, or numbers. Their dtype and shape tell."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hyrt.quantities import counted

Array = NDArray[Any]

# Labels with more values are rather counts than classes.
_MAX_CLASSES = 1000

LabelKind = Literal["classes", "flags", "numbers"]
"""`classes`: integers [V], one of several classes for each vertex, -1 for none. `flags`: [V, K] of 0 and 1,
any number of K labels for each vertex, -1 where one is not known. `numbers`: floats [V] or [V, K], nan where
one is not known."""

TargetKind = LabelKind | Literal["links"]
"""What a mini-batch has in place of labels: one of these, or the pairs of vertices of links."""

SHAPES: dict[LabelKind, str] = {
    "classes": "integers [V], a class for each vertex",
    "flags": "integers [V, K] of 0 and 1, K labels for each vertex",
    "numbers": "float32 [V] or [V, K], numbers for each vertex",
}
"""How each kind is stored, in words."""


def label_kind(labels: Array) -> LabelKind:
    """The kind of labels of this dtype and shape."""
    if labels.dtype.kind == "f":
        return "numbers"
    return "flags" if labels.ndim == 2 else "classes"


def num_outputs(labels: Array) -> int:
    """How many scores a model gives a vertex: one a class, one a flag, or one a number."""
    if labels.ndim == 2:
        return int(labels.shape[1])
    if label_kind(labels) == "numbers":
        return 1
    return int(labels.max()) + 1 if len(labels) else 0


def is_labelled(labels: Array) -> NDArray[np.bool_]:
    """[n] whether anything is known of each row."""
    known: NDArray[np.bool_] = ~np.isnan(labels) if labels.dtype.kind == "f" else labels >= 0
    return np.logical_or.reduce(known, axis=1) if known.ndim == 2 else known


def training_labels(labels: Array) -> Array:
    """Rows of labels as mini-batches have them: int64 [n], int8 [n, K], or float32 [n, K]."""
    kind = label_kind(labels)
    if kind == "classes":
        return labels.astype(np.int64)
    if kind == "flags":
        return labels.astype(np.int8)
    return labels.reshape(len(labels), num_outputs(labels)).astype(np.float32)


def made_up_labels(kind: TargetKind, num: int, outputs: int) -> Array:
    """Labels as mini-batches have them, of so many targets: every class, both flags, numbers in -1..1, or
    links that all lie between the first target and itself.
    """
    if kind == "links":
        return np.zeros((num, 2, 2), np.int64)
    if kind == "classes":
        return np.arange(num, dtype=np.int64) % outputs
    if kind == "flags":
        return ((np.arange(num)[:, None] + np.arange(outputs)) % 2).astype(np.int8)
    return np.sin(np.arange(num * outputs, dtype=np.float32)).reshape(num, outputs)


def labels_in_words(kind: LabelKind, outputs: int) -> str:
    """`7 classes`, `112 labels of 0 and 1`, `1 number`."""
    if kind == "classes":
        return counted(outputs, "class", "classes")
    if kind == "flags":
        return f"{counted(outputs, 'label')} of 0 and 1"
    return counted(outputs, "number")


def why_odd(labels: Array) -> str:
    """Why labels are probably not what was meant, with the remedy; empty where nothing is odd."""
    kind = label_kind(labels)
    if not len(labels):
        return ""
    if kind == "classes":
        # Its loss of 0 and its accuracy of 1 would look like a success.
        one = labels.max() == 0
        return "all labels are of class 0, so there is nothing to learn: check the labels" if one else ""
    if kind == "flags":
        if labels.shape[1] > 1 and (labels >= 0).all() and (labels.sum(axis=1, dtype=np.int64) == 1).all():
            return (
                "every vertex has exactly one of the labels: to train for one class of several, write "
                "labels.argmax(1)"
            )
        return ""
    known = labels[~np.isnan(labels)]
    if len(known) and ((known == 0) | (known == 1)).all():
        return "all labels are the numbers 0 and 1: to train for labels of 0 and 1, write them as int8 [V, K]"
    if labels.ndim == 1 and _are_consecutive(known):
        return (
            f"all labels are whole numbers from 0 to {int(known.max())}, trained as numbers because they are "
            "floats: to train for classes, write integers, with -1 for an unknown class"
        )
    return ""


def _are_consecutive(known: Array) -> bool:
    """Return whether floats are the numbers of classes: all whole numbers from 0 to the largest one."""
    if not len(known) or not (known == np.floor(known)).all():
        return False
    values = np.unique(known)
    return len(values) <= _MAX_CLASSES and values[0] == 0 and values[-1] == len(values) - 1
