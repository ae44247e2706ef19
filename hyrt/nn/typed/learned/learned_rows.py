"""Node embeddings of vertices without features: a table of which a step reads and updates few rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hyrt.nn.typed.permuted_rows import take_rows
from hyrt.quantities import one_line


@dataclass(frozen=True, slots=True, eq=False)
class RowGradients:
    """Gradient of some rows of a table; the gradient of all other rows is zero."""

    table: int
    """Index of the table in the order of `tables_of`."""
    rows: NDArray[np.int64]
    """[n] distinct rows."""
    values: torch.Tensor
    """[n, width] on the host."""

    __repr__ = one_line

    def divided(self, by: float) -> RowGradients:
        """Divide the values by a number."""
        return RowGradients(self.table, self.rows, self.values / by)


def added_rows(parts: Sequence[RowGradients]) -> list[RowGradients]:
    """Sum gradients per table, with ascending rows, in the order of the parts."""
    table_parts: dict[int, list[RowGradients]] = {}
    for part in parts:
        table_parts.setdefault(part.table, []).append(part)
    return [_sum_parts(table_parts[table]) for table in sorted(table_parts)]


def _sum_parts(parts: Sequence[RowGradients]) -> RowGradients:
    rows, positions = np.unique(np.concatenate([part.rows for part in parts]), return_inverse=True)
    values = parts[0].values.new_zeros((len(rows), parts[0].values.shape[1]))
    start = 0
    for part in parts:
        # Rows within a part are distinct, so the indexed addition is exact.
        values.numpy()[positions[start : start + len(part.rows)]] += part.values.numpy()
        start += len(part.rows)
    return RowGradients(parts[0].table, rows, values)


class LearnedRows(nn.Module):
    """Table of node embeddings in host memory, shared by the replicas on all devices.

    The table is a buffer, not a parameter: a step's gradient has only the rows that the step has read, and
    the optimizer updates only these rows. Copies of the module share the memory, so they see updates at once.
    A step reads rows when it propagates, after the previous step is complete.

    Parameters
    ----------
    num_rows, width
        The shape of the table.
    """

    values: torch.Tensor

    def __init__(self, num_rows: int, width: int) -> None:
        super().__init__()
        self.register_buffer("values", torch.randn(num_rows, width) / width**0.5)
        self._read: tuple[NDArray[Any], torch.Tensor] | None = None

    @property
    def width(self) -> int:
        """Number of columns."""
        return int(self.values.shape[1])

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = type(self).__new__(type(self))
        nn.Module.__init__(copied)
        copied.register_buffer("values", self.values)
        copied._read = None
        copied.training = self.training
        memo[id(self)] = copied
        return copied

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Keep the table in host memory when the model is moved to a device."""
        return self

    def forward(self, rows: NDArray[Any], device: torch.device | None = None) -> torch.Tensor:
        """Look up rows, [n, width]; with gradients during training.

        Parameters
        ----------
        rows
            [n] distinct rows.
        device
            Device of the result; the host by default.
        """
        taken = take_rows(self.values, rows)
        if device is not None:
            taken = taken.to(device)
        if self.training and torch.is_grad_enabled():
            taken.requires_grad_()
            self._read = (rows, taken)
        return taken

    def take_gradient(self, table: int) -> RowGradients | None:
        """Return the gradient of the rows that were last read, and clear it; None if there is none."""
        read, self._read = self._read, None
        if read is None or read[1].grad is None:
            return None
        return RowGradients(table, read[0].astype(np.int64), read[1].grad.to("cpu"))


def tables_of(model: nn.Module) -> list[LearnedRows]:
    """Return a model's tables, in the order of its modules."""
    return [module for module in model.modules() if isinstance(module, LearnedRows)]


def take_row_gradients(model: nn.Module) -> list[RowGradients]:
    """Return and clear the gradients of the table rows that a model has read in a step."""
    gradients_per_table = (
        table_module.take_gradient(number) for number, table_module in enumerate(tables_of(model))
    )
    return [gradients for gradients in gradients_per_table if gradients is not None]
