"""Dense stages: row-wise work of a model between two gathers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from numpy.typing import NDArray

from hyrt.nn.layer_parts import LayerParts
from hyrt.nn.model import GNN
from hyrt.nn.operators.dropout import dropout
from hyrt.nn.operators.sparse import SparseRows

Rows = torch.Tensor | SparseRows


@dataclass(frozen=True, slots=True)
class Masks:
    """Key of a step's dropout masks."""

    seed: int
    step: int


@dataclass(frozen=True)
class RowStage:
    """Row-wise work between the gathers of layers i and i + 1 (both from 0).

    It applies layer i to the gathered rows, with residual, norm, ReLU and dropout, and computes the messages
    of layer i + 1. Stage -1 computes the first messages from the features; the last stage computes the
    scores.
    """

    model: GNN
    index: int
    """i."""
    before: LayerParts | None
    """Layer i; None for the feature stage."""
    after: LayerParts | None
    """Layer i + 1; None for the last stage."""

    @property
    def reads_own(self) -> bool:
        """Return whether it reads the input rows of layer i."""
        return self.before is not None and (self.before.reads_own or self.model.adds_own(self.index))

    @property
    def carries_rows(self) -> bool:
        """Return whether the next stage reads the input rows of layer i + 1."""
        if self.before is None or self.after is None:
            return False  # The features are always available.
        return self.after.reads_own or self.model.adds_own(self.index + 1)

    @property
    def widths(self) -> tuple[int, ...]:
        """Return the columns of the output matrices: see `__call__`."""
        rows = self.model.architecture.widths[self.index + 1]
        if self.after is None or self.after.scatter is None:
            return (rows,)
        return (rows, *self.after.message_widths) if self.carries_rows else self.after.message_widths

    @cached_property
    def parameters(self) -> list[torch.nn.Parameter]:
        """Return the trainable parameters that it reads."""
        model, modules = self.model, []
        if self.before is not None:
            modules.append(model.layers[self.index])
            modules += [
                parameters[self.index]
                for parameters in (model.norms, model.shortcuts)
                if self.index < len(parameters)
            ]
        if self.after is not None and self.after.scatter is not None:
            modules.append(model.layers[self.index + 1])
        parameters = (p for module in modules for p in module.parameters() if p.requires_grad)
        # Layers may share parameters, and torch returns the full gradient once per occurrence.
        return list({id(parameter): parameter for parameter in parameters}.values())

    def __call__(
        self,
        gathered: torch.Tensor | None,
        own: Rows | None,
        vertices: NDArray[Any],
        masks: Masks | None,
    ) -> tuple[torch.Tensor, ...]:
        """Compute a range of rows.

        Parameters
        ----------
        gathered
            [n, width] rows that layer i gathered; None in the feature stage.
        own
            [n, in] input rows of layer i, if they are read; the features in the feature stage.
        vertices
            [n] the vertices.
        masks
            The key of the dropout masks; None disables dropout.

        Returns
        -------
        The scores in the last stage, otherwise the messages of layer i + 1. These are its input rows if the
        layer sends rows unchanged. If it does not, but the next stage reads the input rows, the rows come
        first and the messages follow.
        """
        model, a = self.model, self.model.architecture
        if self.before is None:
            assert own is not None
            rows: Rows = own
        else:
            assert gathered is not None
            read = own if self.before.reads_own else None
            out = self.before.apply(gathered, read, relu=model.ends_with_relu(self.index))
            rows = model.finish(self.index, out, own if model.adds_own(self.index) else None)
            if self.after is None:
                return (rows,)
            rows = _dropout_rows(rows, vertices, a.dropout, masks, self.index + 1)
        assert self.after is not None
        if self.after.scatter is None:
            return (rows.dense() if isinstance(rows, SparseRows) else rows,)
        messages = self.after.scatter(rows)
        if not self.carries_rows:
            return messages
        assert isinstance(rows, torch.Tensor)
        return (rows, *messages)


def dropped_features(model: GNN, rows: Rows, vertices: NDArray[Any], masks: Masks | None) -> Rows:
    """Apply input dropout to feature rows."""
    return _dropout_rows(rows, vertices, model.architecture.input_dropout, masks, 0)


def _dropout_rows(rows: Rows, vertices: NDArray[Any], rate: float, masks: Masks | None, layer: int) -> Rows:
    if masks is None or rate == 0:
        return rows
    return dropout(rows, vertices, rate=rate, seed=masks.seed, step=masks.step, layer=layer)
