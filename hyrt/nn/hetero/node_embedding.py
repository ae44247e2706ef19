"""Node embeddings of vertices without features, and optimizers that update only the rows read in a step."""

# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hyrt.formatting import short_repr
from hyrt.nn.hetero.type_order import take_rows
from hyrt.runtime.numba_cache import nb


@dataclass(frozen=True, slots=True, eq=False)
class SparseGradient:
    """Gradient of some rows of a table; the gradient of all other rows is zero."""

    table: int
    """Index of the table in the order of `find_embeddings`."""
    rows: NDArray[np.int64]
    """[n] distinct rows."""
    values: torch.Tensor
    """[n, width] on the host."""

    __repr__ = short_repr

    def divide(self, divisor: float) -> SparseGradient:
        """Divide the values by a number."""
        return SparseGradient(self.table, self.rows, self.values / divisor)


def add_sparse_gradients(parts: Sequence[SparseGradient]) -> list[SparseGradient]:
    """Sum gradients per table, in the order of the parts, with ascending rows."""
    table_parts: dict[int, list[SparseGradient]] = {}
    for part in parts:
        table_parts.setdefault(part.table, []).append(part)
    return [_sum_parts(table_parts[table]) for table in sorted(table_parts)]


def _sum_parts(parts: Sequence[SparseGradient]) -> SparseGradient:
    rows, positions = np.unique(np.concatenate([part.rows for part in parts]), return_inverse=True)
    values = parts[0].values.new_zeros((len(rows), parts[0].values.shape[1]))
    start = 0
    for part in parts:
        # Rows within a part are distinct, so the indexed addition is exact.
        values.numpy()[positions[start : start + len(part.rows)]] += part.values.numpy()
        start += len(part.rows)
    return SparseGradient(parts[0].table, rows, values)


class NodeEmbedding(nn.Module):
    """Table of node embeddings in host memory, shared by the replicas on all devices.

    The table is a buffer, not a parameter: a step's gradient has only the rows that the step has read, and
    the optimizer updates only these rows. Copies of the module share the memory, so they see updates at once.
    A step reads rows when it propagates, after the previous step is complete.
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
        """Look up distinct rows [n] as [n, width] on `device`; with gradients during training."""
        taken = take_rows(self.values, rows)
        if device is not None:
            taken = taken.to(device)
        if self.training and torch.is_grad_enabled():
            taken.requires_grad_()
            self._read = (rows, taken)
        return taken

    def take_gradient(self, table: int) -> SparseGradient | None:
        """Return the gradient of the rows that were last read, and clear it; None if there is none."""
        read, self._read = self._read, None
        if read is None or read[1].grad is None:
            return None
        return SparseGradient(table, read[0].astype(np.int64), read[1].grad.to("cpu"))


def find_embeddings(model: nn.Module) -> list[NodeEmbedding]:
    """Return a model's tables, in the order of its modules."""
    return [module for module in model.modules() if isinstance(module, NodeEmbedding)]


def take_sparse_gradients(model: nn.Module) -> list[SparseGradient]:
    """Return and clear the gradients of the table rows that a model has read in a step."""
    gradients_per_table = (
        table_module.take_gradient(number) for number, table_module in enumerate(find_embeddings(model))
    )
    return [gradients for gradients in gradients_per_table if gradients is not None]


_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


class SparseUpdateRule(Protocol):
    """Update rule of one table."""

    def step(self, rows: Any, gradients: Any, lr: float) -> None:
        """Update distinct rows [n] of the table by their gradients [n, width]."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer state, for a checkpoint."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        ...


@_compile
def _step_sgd(values, rows, gradients, lr):
    for i in range(len(rows)):
        row = values[rows[i]]
        for k in range(len(row)):
            row[k] -= lr * gradients[i, k]


@_compile
def _step_adagrad(values, squares, rows, gradients, lr, eps):
    for i in range(len(rows)):
        row, square = values[rows[i]], squares[rows[i]]
        for k in range(len(row)):
            g = gradients[i, k]
            square[k] += g * g
            row[k] -= lr * g / (np.sqrt(square[k]) + eps)


@_compile
def _step_adam(values, first, second, rows, gradients, size, beta1, beta2, eps):
    for i in range(len(rows)):
        r = rows[i]
        for k in range(values.shape[1]):
            g = gradients[i, k]
            first[r, k] += (1 - beta1) * (g - first[r, k])
            second[r, k] += (1 - beta2) * (g * g - second[r, k])
            values[r, k] -= size * first[r, k] / (np.sqrt(second[r, k]) + eps)


class SparseSGD:
    """SGD without momentum."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values.numpy()

    def step(self, rows: Any, gradients: Any, lr: float) -> None:
        _step_sgd(self._values, rows, gradients, np.float32(lr))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class SparseAdagrad:
    """Adagrad, which never changes rows without a gradient."""

    def __init__(self, values: torch.Tensor, eps: float = 1e-10) -> None:
        self._values, self._eps = values.numpy(), eps
        self._squares = torch.zeros_like(values)

    def step(self, rows: Any, gradients: Any, lr: float) -> None:
        squares = self._squares.numpy()
        _step_adagrad(self._values, squares, rows, gradients, np.float32(lr), np.float32(self._eps))

    def state_dict(self) -> dict[str, Any]:
        return {"squares": self._squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._squares.copy_(state["squares"])


class SparseAdam:
    """SparseAdam: moments of rows without a gradient stay unchanged; bias correction counts all steps."""

    def __init__(
        self, values: torch.Tensor, betas: Sequence[float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        self._values, self._betas, self._eps = values.numpy(), tuple(betas), eps
        self._first, self._second = torch.zeros_like(values), torch.zeros_like(values)
        self._steps = 0

    def step(self, rows: Any, gradients: Any, lr: float) -> None:
        self._steps += 1
        beta1, beta2 = self._betas
        size = lr * (1 - beta2**self._steps) ** 0.5 / (1 - beta1**self._steps)
        factors = (np.float32(factor) for factor in (size, beta1, beta2, self._eps))
        _step_adam(self._values, self._first.numpy(), self._second.numpy(), rows, gradients, *factors)

    def state_dict(self) -> dict[str, Any]:
        return {"first": self._first, "second": self._second, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._first.copy_(state["first"])
        self._second.copy_(state["second"])
        self._steps = int(state["steps"])


SPARSE_UPDATE_RULES: dict[str, Callable[..., SparseUpdateRule]] = {
    "Adam": SparseAdam,
    "AdamW": SparseAdam,
    "SGD": SparseSGD,
    "Adagrad": SparseAdagrad,
}
"""Update rule of tables, by the name of the optimizer of all other weights. No rule has weight decay."""


class EmbeddingOptimizer:
    """Optimizer of the tables from `find_embeddings`, with one update rule per table.

    `make_rule` creates a rule, given a table's values.
    """

    def __init__(
        self, tables: Sequence[NodeEmbedding], make_rule: Callable[[torch.Tensor], SparseUpdateRule]
    ) -> None:
        self._tables = list(tables)
        self._rules = [make_rule(table.values) for table in tables]

    def step(self, gradients: Sequence[SparseGradient], lr: float) -> None:
        """Update the rows that have a gradient; `gradients` has at most one per table, with distinct rows.

        Raises ValueError if a gradient does not have one row of the table's width for each of its row ids.
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
