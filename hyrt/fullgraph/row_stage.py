"""What a model does to single rows between two gatherings."""

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
    """The key of a step's dropout masks."""

    seed: int
    step: int


@dataclass(frozen=True)
class RowStage:
    """All that a model computes between the gathering of layer i and that of layer i + 1 (both from 0).

    It applies layer i to what was gathered, with residual, norm, ReLU and dropout, and makes the messages of
    layer i + 1. Stage -1 makes the first messages from the features; the last stage ends with the scores.
    """

    model: GNN
    index: int
    """i."""
    before: LayerParts | None
    """Layer i; None for the stage of the features."""
    after: LayerParts | None
    """Layer i + 1; None for the last stage."""

    @property
    def reads_own(self) -> bool:
        """Whether it reads the rows that layer i was given."""
        return self.before is not None and (self.before.reads_own or self.model.adds_own(self.index))

    @property
    def carries_rows(self) -> bool:
        """Whether the stage after it reads the rows that layer i + 1 is given."""
        if self.before is None or self.after is None:
            return False  # The features are there without being carried.
        return self.after.reads_own or self.model.adds_own(self.index + 1)

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of the matrices that it makes: see `__call__`."""
        rows = self.model.architecture.widths[self.index + 1]
        if self.after is None or self.after.scatter is None:
            return (rows,)
        return (rows, *self.after.message_widths) if self.carries_rows else self.after.message_widths

    @cached_property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters that it reads, of those that take a gradient."""
        model, modules = self.model, []
        if self.before is not None:
            modules.append(model.layers[self.index])
            modules += [each[self.index] for each in (model.norms, model.shortcuts) if self.index < len(each)]
        if self.after is not None and self.after.scatter is not None:
            modules.append(model.layers[self.index + 1])
        each = (p for module in modules for p in module.parameters() if p.requires_grad)
        # Layers may share some, and torch gives all of a gradient as often as it is asked for.
        return list({id(parameter): parameter for parameter in each}.values())

    def __call__(
        self,
        gathered: torch.Tensor | None,
        own: Rows | None,
        vertices: NDArray[Any],
        masks: Masks | None,
    ) -> tuple[torch.Tensor, ...]:
        """Compute some rows.

        Parameters
        ----------
        gathered
            [n, width] what layer i has gathered; None in the stage of the features.
        own
            [n, in] the rows that layer i was given, where they are read, and the features in their stage.
        vertices
            [n] the vertices.
        masks
            The key of dropout; None drops nothing.

        Returns
        -------
        In the last stage the scores. In others the messages of layer i + 1, which are its rows where it sends
        them as they are; where it does not, but the stage after it reads them, the rows and the messages.
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
            rows = _dropped(rows, vertices, a.dropout, masks, self.index + 1)
        assert self.after is not None
        if self.after.scatter is None:
            return (rows.dense() if isinstance(rows, SparseRows) else rows,)
        messages = self.after.scatter(rows)
        if not self.carries_rows:
            return messages
        assert isinstance(rows, torch.Tensor)
        return (rows, *messages)


def dropped_features(model: GNN, rows: Rows, vertices: NDArray[Any], masks: Masks | None) -> Rows:
    """Feature rows as the first layer gets them."""
    return _dropped(rows, vertices, model.architecture.input_dropout, masks, 0)


def _dropped(rows: Rows, vertices: NDArray[Any], rate: float, masks: Masks | None, layer: int) -> Rows:
    if masks is None or rate == 0:
        return rows
    return dropout(rows, vertices, rate=rate, seed=masks.seed, step=masks.step, layer=layer)
