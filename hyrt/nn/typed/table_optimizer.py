"""The steps of learned rows: those that a step has read, and no others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hyrt.nn.typed.learned_rows import LearnedRows, RowGradients

TABLE_RULES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "Adam": torch.optim.SparseAdam,
    "AdamW": torch.optim.SparseAdam,
    "SGD": torch.optim.SGD,
    "Adagrad": torch.optim.Adagrad,
}
"""By the optimizer of all other weights, the one of tables. Adam's moments of a row change where the row has
a gradient, and their bias is corrected for the steps that have read the table, as torch.optim.SparseAdam does
it; none of them decays weights."""


class TableOptimizer:
    """An optimizer a table, all of the same rule.

    Parameters
    ----------
    tables
        Those of the model, in the order of `tables_of`.
    make
        Makes the optimizer of a table's values; it takes gradients of some rows.
    """

    def __init__(
        self, tables: Sequence[LearnedRows], make: Callable[[torch.Tensor], torch.optim.Optimizer]
    ) -> None:
        self._values = [table.values for table in tables]
        self._optimizers = [make(values) for values in self._values]

    @property
    def nbytes(self) -> int:
        """Bytes of the tables, and of what the rules keep of them when they have made a step."""
        kept = {torch.optim.SparseAdam: 2, torch.optim.Adagrad: 1}
        return sum(
            values.nbytes * (1 + kept.get(type(rule), 0))
            for values, rule in zip(self._values, self._optimizers, strict=True)
        )

    def step(self, gradients: Sequence[RowGradients], lr: float) -> None:
        """Change the rows that have a gradient.

        Parameters
        ----------
        gradients
            At most one a table, each row once, ascending.
        lr
            The learning rate of the step.
        """
        found = {each.table: each for each in gradients}
        for number, (values, optimizer) in enumerate(zip(self._values, self._optimizers, strict=True)):
            rows = found.get(number)
            if rows is None:
                continue
            at = torch.from_numpy(rows.rows)[None]
            values.grad = torch.sparse_coo_tensor(
                at, rows.values, values.shape, is_coalesced=True, check_invariants=False
            )
            for group in optimizer.param_groups:
                group["lr"] = lr
            with torch.sparse.check_sparse_tensor_invariants(False):  # type: ignore[no-untyped-call]
                optimizer.step()
            values.grad = None

    def state_dict(self) -> list[dict[str, Any]]:
        """The state of all optimizers, for a checkpoint."""
        return [optimizer.state_dict() for optimizer in self._optimizers]

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go on from what `state_dict` gave."""
        for optimizer, state in zip(self._optimizers, states, strict=True):
            optimizer.load_state_dict(dict(state))
