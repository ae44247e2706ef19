"""Warnings of results that are not finite numbers, with their number and the likely cause."""

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
    """Return why results of a model are likely not to be finite numbers, and what to do."""
    tensors = [*model.parameters(), *model.buffers()]
    is_finite = all(bool(torch.isfinite(each).all()) for each in tensors if each.is_floating_point())
    return _INPUT if is_finite else _DIVERGED


class NotFiniteRows:
    """Counts results that are not finite numbers while they are written, a piece at a time.

    Parameters
    ----------
    model
        The model that computes them.
    what
        What they are, such as `the scores`.
    of
        What they are of, such as `vertices` and `vertex`.
    """

    def __init__(self, model: torch.nn.Module, what: str, of: tuple[str, str]) -> None:
        self._model = model
        self._what = what
        self._of = of
        self._wrong = self._total = 0
        self._first: Any = None

    def add(self, rows: NDArray[Any], names: NDArray[Any] | Sequence[Any]) -> None:
        """Look at further results: [n, ...] numbers, and what each is of."""
        wrong = np.flatnonzero(~np.isfinite(rows).reshape(len(rows), -1).all(axis=1))
        if len(wrong) and not self._wrong:
            first = names[int(wrong[0])]
            self._first = tuple(np.asarray(first).tolist()) if np.ndim(first) else first
        self._wrong += len(wrong)
        self._total += len(rows)

    def warn(self) -> None:
        """Warn once if there were some."""
        if self._wrong:
            things, thing = self._of
            warn_user(
                f"{self._what} of {self._wrong:,} of {self._total:,} {things} are not finite numbers, first "
                f"of {thing} {self._first}: {name_cause(self._model)}",
                RunWarning,
            )
