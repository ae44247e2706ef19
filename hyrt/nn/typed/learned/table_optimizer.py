"""Optimizer of embedding tables, which updates only the rows that a step has read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hyrt.nn.typed.learned.learned_rows import LearnedRows, RowGradients
from hyrt.nn.typed.learned.row_rules import RowRule


class TableOptimizer:
    """Optimizer with one update rule per table, all of the same class.

    Parameters
    ----------
    tables
        The model's tables, in the order of `tables_of`.
    make
        Creates the update rule, given a table's values.
    """

    def __init__(self, tables: Sequence[LearnedRows], make: Callable[[torch.Tensor], RowRule]) -> None:
        self._tables = list(tables)
        self._rules = [make(table.values) for table in tables]

    def step(self, gradients: Sequence[RowGradients], lr: float) -> None:
        """Update the rows that have a gradient.

        Parameters
        ----------
        gradients
            At most one per table, with distinct rows.
        lr
            The learning rate of the step.

        Raises
        ------
        ValueError
            If a gradient does not have one row of the table's width for each of its row ids.
        """
        for gradient in gradients:
            table = self._tables[gradient.table]
            num, shape = len(gradient.rows), tuple(gradient.values.shape)
            if shape != (num, table.width) or num > len(table.values):
                raise ValueError(
                    f"gradients of {num} learned rows have the shape {shape}, "
                    f"but the table is {tuple(table.values.shape)}"
                )
            self._rules[gradient.table].step(gradient.rows, gradient.values.contiguous().numpy(), lr)

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the state of all rules, for a checkpoint."""
        return [rule.state_dict() for rule in self._rules]

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restore the state that `state_dict` returned."""
        for rule, state in zip(self._rules, states, strict=True):
            rule.load_state_dict(dict(state))
