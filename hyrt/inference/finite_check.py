"""Warnings about non-finite results, with their count and the likely cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.errors import RunWarning, warn_user

_DIVERGED = "the weights of the model are not finite numbers either: train again with a lower train.lr"
_INPUT = (
    "the weights of the model are finite, so check the features (hyrt data info --check), and whether they "
    "are scaled as in training"
)


def name_cause(model: torch.nn.Module) -> str:
    """Return the likely cause of non-finite results and a fix."""
    tensors = [*model.parameters(), *model.buffers()]
    is_finite = all(bool(torch.isfinite(tensor).all()) for tensor in tensors if tensor.is_floating_point())
    return _INPUT if is_finite else _DIVERGED


class NotFiniteRows:
    """Counter of non-finite rows, for results that are written in pieces.

    `quantity` names the results, such as `the scores`; `nouns` are the plural and singular of the items, such
    as `vertices` and `vertex`.
    """

    def __init__(self, model: torch.nn.Module, quantity: str, nouns: tuple[str, str]) -> None:
        self._model = model
        self._quantity = quantity
        self._nouns = nouns
        self._num_bad = self._total = 0
        self._first: Any = None

    def add(self, rows: NDArray[Any], names: NDArray[Any] | Sequence[Any]) -> None:
        """Count the non-finite rows of further results [n, ...]; `names` has one item per row."""
        bad_rows = np.flatnonzero(~np.isfinite(rows).reshape(len(rows), -1).all(axis=1))
        if len(bad_rows) and not self._num_bad:
            first = names[int(bad_rows[0])]
            self._first = tuple(np.asarray(first).tolist()) if np.ndim(first) else first
        self._num_bad += len(bad_rows)
        self._total += len(rows)

    def warn(self) -> None:
        """Warn once if any row was non-finite."""
        if self._num_bad:
            plural, singular = self._nouns
            warn_user(
                f"{self._quantity} of {self._num_bad:,} of {self._total:,} {plural} are not finite numbers, "
                f"first of {singular} {self._first}: {name_cause(self._model)}",
                RunWarning,
            )
