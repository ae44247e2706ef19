"""The steps of learned rows: those that a step has read, and no others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hyrt.nn.typed.learned.learned_rows import LearnedRows, RowGradients
from hyrt.nn.typed.learned.row_rules import RowRule


class TableOptimizer:
    """A rule a table, all of the same kind.

    Parameters
    ----------
    tables
        Those of the model, in the order of `tables_of`.
    make
        Makes the rule of a table's values.
    """

    def __init__(self, tables: Sequence[LearnedRows], make: Callable[[torch.Tensor], RowRule]) -> None:
        self._tables = list(tables)
        self._rules = [make(table.values) for table in tables]

    def step(self, gradients: Sequence[RowGradients], lr: float) -> None:
        """Change the rows that have a gradient.

        Parameters
        ----------
        gradients
            At most one a table, each row once.
        lr
            The learning rate of the step.

        Raises
        ------
        ValueError
            If gradients have not a row of the table's width for each of its rows that they are of.
        """
        for each in gradients:
            table = self._tables[each.table]
            if each.values.shape != (len(each.rows), table.width) or len(each.rows) > len(table.values):
                raise ValueError(
                    f"gradients of {len(each.rows)} learned rows have the shape {tuple(each.values.shape)}, "
                    f"but the table is {tuple(table.values.shape)}"
                )
            self._rules[each.table].step(each.rows, each.values.contiguous().numpy(), lr)

    def state_dict(self) -> list[dict[str, Any]]:
        """The state of all rules, for a checkpoint."""
        return [rule.state_dict() for rule in self._rules]

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go on from what `state_dict` gave."""
        for rule, state in zip(self._rules, states, strict=True):
            rule.load_state_dict(dict(state))
