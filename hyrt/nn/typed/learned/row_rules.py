"""Update rules of embedding tables: only rows with a gradient change.

Each is the rule of the torch.optim class of the same name. Torch's own optimizers use sparse tensors, which
takes several times as long as the update itself.
"""

# mypy: disable-error-code="no-untyped-def,call-arg"
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from hyrt.machine.kernels.kept_kernels import nb

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


class RowRule(Protocol):
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


class PlainSteps:
    """SGD without momentum."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values.numpy()

    def step(self, rows: Any, gradients: Any, lr: float) -> None:
        _step_sgd(self._values, rows, gradients, np.float32(lr))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class AdagradSteps:
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


class AdamSteps:
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


ROW_RULES: dict[str, Callable[..., RowRule]] = {
    "Adam": AdamSteps,
    "AdamW": AdamSteps,
    "SGD": PlainSteps,
    "Adagrad": AdagradSteps,
}
"""Update rule of tables, by the name of the optimizer of all other weights. No rule has weight decay."""
