"""Inputs of heterogeneous models: rows of several vertex types, their projections to one width, and node
embeddings of types without features, whose optimizers only update rows that a step has read.
"""

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
from hyrt.nn.architecture import GraphMetadata
from hyrt.nn.hetero.type_order import TensorOrder, TypeOrder, permute_rows, take_rows
from hyrt.nn.operators.linear import grouped_linear, linear
from hyrt.runtime.numba_cache import nb


@dataclass(frozen=True, slots=True, eq=False)
class SparseGradient:
    """Gradient of some rows of a table. The gradient of all other rows is zero."""

    table: int
    """Index of the table in the result of `find_embeddings`."""
    rows: NDArray[np.int64]
    """Distinct row ids [n]."""
    values: torch.Tensor
    """Gradients [n, width] on the host."""

    __repr__ = short_repr

    def divide(self, divisor: float) -> SparseGradient:
        """Return the gradient divided by a number."""
        return SparseGradient(self.table, self.rows, self.values / divisor)


def add_sparse_gradients(parts: Sequence[SparseGradient]) -> list[SparseGradient]:
    """Sum the gradients of each table in the order of `parts`; the resulting row ids are ascending."""
    table_parts: dict[int, list[SparseGradient]] = {}
    for part in parts:
        table_parts.setdefault(part.table, []).append(part)
    return [_sum_parts(table_parts[table]) for table in sorted(table_parts)]


def _sum_parts(parts: Sequence[SparseGradient]) -> SparseGradient:
    rows, positions = np.unique(np.concatenate([part.rows for part in parts]), return_inverse=True)
    values = parts[0].values.new_zeros((len(rows), parts[0].values.shape[1]))
    start = 0
    for part in parts:
        # The row ids of a part are distinct. With duplicates, an indexed addition would lose terms.
        values.numpy()[positions[start : start + len(part.rows)]] += part.values.numpy()
        start += len(part.rows)
    return SparseGradient(parts[0].table, rows, values)


class NodeEmbedding(nn.Module):
    """Table of node embeddings in host memory, shared by the replicas on all devices.

    The table is a buffer, not a parameter. The gradient of a step has only the rows that the step has read,
    and the optimizer updates only these rows. Copies of the module share the memory, so they see updates at
    once. A step reads rows in its forward pass, after the previous step has completed.
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
        """Leave the table in host memory if the model is moved to a device."""
        return self

    def forward(self, rows: NDArray[Any], device: torch.device | None = None) -> torch.Tensor:
        """Look up distinct rows [n] as a tensor [n, width] on `device`, with a gradient in training."""
        taken = take_rows(self.values, rows)
        if device is not None:
            taken = taken.to(device)
        if self.training and torch.is_grad_enabled():
            taken.requires_grad_()
            self._read = (rows, taken)
        return taken

    def take_gradient(self, table: int) -> SparseGradient | None:
        """Return and clear the gradient of the rows that were read last; None if there is none."""
        read, self._read = self._read, None
        if read is None or read[1].grad is None:
            return None
        return SparseGradient(table, read[0].astype(np.int64), read[1].grad.to("cpu"))


def find_embeddings(model: nn.Module) -> list[NodeEmbedding]:
    """Return the embedding tables of a model, in the order of its modules."""
    return [module for module in model.modules() if isinstance(module, NodeEmbedding)]


def take_sparse_gradients(model: nn.Module) -> list[SparseGradient]:
    """Return and clear the gradients of the table rows that the model has read in this step."""
    gradients_per_table = (
        table_module.take_gradient(number) for number, table_module in enumerate(find_embeddings(model))
    )
    return [gradients for gradients in gradients_per_table if gradients is not None]


_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


class SparseUpdateRule(Protocol):
    """Optimizer of one table that updates only some rows."""

    def step(self, rows: Any, gradients: Any, lr: float) -> None:
        """Update distinct rows [n] of the table with their gradients [n, width]."""
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
    """Adagrad for some rows; a zero gradient would not change the other rows anyway."""

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
    """SparseAdam: moments of rows without a gradient stay unchanged, and bias correction counts all steps."""

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
"""Update rule of embedding tables for each optimizer of the other weights. No rule has weight decay."""


class EmbeddingOptimizer:
    """Optimizer of the tables from `find_embeddings`, which applies an update rule to each table.

    `make_rule` creates the rule for the values of a table.
    """

    def __init__(
        self, tables: Sequence[NodeEmbedding], make_rule: Callable[[torch.Tensor], SparseUpdateRule]
    ) -> None:
        self._tables = list(tables)
        self._rules = [make_rule(table.values) for table in tables]

    def step(self, gradients: Sequence[SparseGradient], lr: float) -> None:
        """Update the rows that have gradients; `gradients` has at most one per table, with distinct rows.

        Raises ValueError if a gradient does not have one row per row id, with the width of the table.
        """
        for gradient in gradients:
            table = self._tables[gradient.table]
            num, shape = len(gradient.rows), tuple(gradient.values.shape)
            if shape != (num, table.width) or num > len(table.values):
                raise ValueError(
                    f"gradients of {num} learned rows have shape {shape}, but the table has shape "
                    f"{tuple(table.values.shape)}"
                )
            self._rules[gradient.table].step(gradient.rows, gradient.values.contiguous().numpy(), lr)

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the state of all rules for a checkpoint."""
        return [rule.state_dict() for rule in self._rules]

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restore the state that `state_dict` returned."""
        for rule, state in zip(self._rules, states, strict=True):
            rule.load_state_dict(dict(state))


@dataclass(slots=True)
class HeteroInput:
    """Source rows of a block, which the load stage has gathered."""

    order: TypeOrder | TensorOrder
    """Order of the sources by type."""
    matrices: list[torch.Tensor | None]
    """Feature rows [n, f] float32 of each type's sources, in their order; None for types with embeddings."""
    tables: list[NDArray[Any] | None]
    """Embedding row ids [n] of each type's sources; None for types with features."""
    device: torch.device | None = None
    """Device of the matrices; None for the host. Row ids of tables are always on the host."""

    __repr__ = short_repr

    @property
    def num_src(self) -> int:
        return len(self.order.order)


@dataclass(slots=True)
class HeteroInPlaceInput:
    """Feature tables of all types, which the edges of a block read in place by vertex id."""

    order: TypeOrder
    """Order of the destinations by type."""
    starts: NDArray[np.int64]
    """First vertex of each type, [T + 1]."""
    matrices: list[NDArray[Any] | None]
    """All rows [count, f] of each type, float32 or float16 as uint16 bits; None for types with embeddings."""
    destination_rows: list[torch.Tensor | None]
    """Feature rows [n, f] float32 of each type's destinations; None for types with embeddings."""
    tables: list[NDArray[Any] | None]
    """Distinct embedding row ids [n] of each type, destinations first; None for types with features."""

    __repr__ = short_repr


def append_sources(destinations: NDArray[Any], ids: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
    """Append the distinct sources of a vertex type to its distinct `destinations`, in ascending order.

    `ids` [E] are source ids of all types, with repetitions. The vertices of the type are `start` to `stop` -
    1, but destinations and results are numbered from 0 within the type.
    """
    of_type = np.unique(ids[(ids >= start) & (ids < stop)]) - ids.dtype.type(start)
    return np.concatenate([destinations, np.setdiff1d(of_type, destinations, assume_unique=True)])


@dataclass(slots=True)
class TypeSources:
    """Sources of one type, and the projection of their rows to the hidden width."""

    rows: Any
    """Features [n, f] without gradient (an array if read in place), or embeddings [n, hidden]."""
    weight: torch.Tensor | None
    """Projection [hidden, f] of the type; None for embeddings, which have the hidden width."""
    bias: torch.Tensor | None
    destination_rows: torch.Tensor | None = None
    """Destination rows [m, f]; None if they are the first of `rows`."""
    positions: tuple[NDArray[Any], NDArray[Any]] | None = None
    """Ascending vertex ids and their indices in `rows`, for embeddings that are read by vertex id."""

    __repr__ = short_repr


@dataclass(slots=True)
class HeteroSources:
    """Source rows of a block by type, with projections that have not been applied."""

    order: TypeOrder | TensorOrder
    """Order of the sources by type, or of the destinations if tables are read in place."""
    parts: list[TypeSources]
    """Sources of each type."""
    starts: NDArray[np.int64] | None = None
    """First vertex of each type [T + 1] if tables are read in place by vertex id; otherwise None."""

    __repr__ = short_repr

    @property
    def num_src(self) -> int:
        return len(self.order.order)

    def __len__(self) -> int:
        return self.num_src


class HeteroInputProjection(nn.Module):
    """Projection W_t x + b_t to `width` columns for each vertex type t that has features.

    Types without features have embeddings of the same width.
    """

    def __init__(self, shape: GraphMetadata, width: int) -> None:
        super().__init__()
        self.width = width
        self.maps = nn.ModuleDict()
        self.learned = nn.ModuleDict()
        for number, columns in enumerate(shape.widths):
            if columns is None:
                self.learned[str(number)] = NodeEmbedding(shape.counts[number], width)
                continue
            linear_layer = nn.Linear(columns, width)
            nn.init.xavier_uniform_(linear_layer.weight)
            nn.init.zeros_(linear_layer.bias)
            self.maps[str(number)] = linear_layer

    def forward(self, x: HeteroInput) -> HeteroSources:
        """Return the sources with their projections, which are not applied yet."""
        parts = []
        for number, (matrix, rows) in enumerate(zip(x.matrices, x.tables, strict=True)):
            if rows is not None:
                table = self.learned[str(number)]
                parts.append(TypeSources(table(rows, x.device), None, None))
                continue
            assert matrix is not None
            projection = self.maps[str(number)]
            assert isinstance(projection, nn.Linear)
            parts.append(TypeSources(matrix, projection.weight, projection.bias))
        return HeteroSources(x.order, parts)

    def forward_in_place(self, x: HeteroInPlaceInput) -> HeteroSources:
        """Return the tables with their projections, which are not applied yet."""
        parts = []
        for number, (matrix, destination_rows, rows) in enumerate(
            zip(x.matrices, x.destination_rows, x.tables, strict=True)
        ):
            if rows is not None:
                ascending = np.argsort(rows)
                places = rows[ascending], ascending.astype(np.int32)
                parts.append(TypeSources(self.learned[str(number)](rows), None, None, positions=places))
                continue
            projection = self.maps[str(number)]
            assert isinstance(projection, nn.Linear)
            parts.append(TypeSources(matrix, projection.weight, projection.bias, destination_rows))
        return HeteroSources(x.order, parts, x.starts)


def project_sources(x: HeteroSources, *, low_precision: bool = False) -> torch.Tensor:
    """Project the rows of all sources to [num_src, width], in the order of the sources."""
    projected_parts = []
    for part in x.parts:
        if part.weight is None:
            projected_parts.append(part.rows)
        else:
            projected_parts.append(linear(part.rows, part.weight, part.bias, low_precision=low_precision))
    return permute_rows(torch.cat(projected_parts), x.order.inverse, x.order.order)


def hetero_linear(
    x: torch.Tensor,
    sizes: list[int],
    weights: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    low_precision: bool,
) -> torch.Tensor:
    """Multiply rows [n, in], which are sorted by type, by the matrix of their type; return [n, out].

    `sizes` [T] is the number of rows per type, `weights` is [T, out, in], and `bias` is [T, out] or None. If
    `low_precision`, products are computed in bfloat16.
    """
    type_weights, type_biases = weights.unbind(), None if bias is None else bias.unbind()
    parts = [
        (rows, type_weights[number], None if type_biases is None else type_biases[number])
        for number, rows in enumerate(torch.split(x, sizes))
        if len(rows)
    ]
    return grouped_linear(parts, low_precision=low_precision) if parts else x.new_empty((0, weights.shape[1]))
