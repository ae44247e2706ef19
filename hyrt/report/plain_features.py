"""Preprocessing of feature rows in plain PyTorch, which `hyrt export` copies into the exported module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class PlainFeatures(nn.Module):
    """Module that scales and rounds feature rows as in training.

    `scaling` lists the scalings in order: `row`, `length`, or `standard` with the mean and deviation of each
    column (null for a constant column). `rows` is the format to which rows are rounded: `float16`,
    `bfloat16`, `int8`, `int8-columns` (with `column_scales`) or `stored`. `columns` is None if the columns of
    the training data have no names.
    """

    def __init__(
        self,
        width: int,
        columns: Sequence[str] | None = None,
        scaling: Sequence[Mapping[str, Any]] = (),
        rows: str = "stored",
        column_scales: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.width = width
        self.columns = None if columns is None else list(columns)
        self.kinds = [str(step["kind"]) for step in scaling]
        self.rows = rows
        for number, step in enumerate(scaling):
            if step["kind"] == "standard":
                deviation = [float("inf") if value is None else value for value in step["deviation"]]
                self._register(f"mean_{number}", step["mean"])
                self._register(f"deviation_{number}", deviation)
        if column_scales is not None:
            self._register("column_scales", column_scales)

    def _register(self, name: str, values: Sequence[float]) -> None:
        # Scale in float64 as in training. The buffer is not persistent: weights.safetensors has only
        # parameters.
        self.register_buffer(name, torch.tensor(values, dtype=torch.float64), persistent=False)

    def ordered(self, x: Tensor, columns: Sequence[str]) -> Tensor:
        """Return the model's columns, in the model's order, of rows with the given column names.

        Raises ValueError if a column is missing, or if the model's columns have no names.
        """
        if self.columns is None:
            raise ValueError("the training data had no column names: pass columns in the same order")
        names = list(columns)
        missing = [name for name in self.columns if name not in names]
        if missing:
            raise ValueError(f"columns {', '.join(missing)} are missing: pass {', '.join(self.columns)}")
        return x[:, [names.index(name) for name in self.columns]]

    def forward(self, x: Tensor) -> Tensor:
        """Transform raw rows into the input of the first layer, [n, width]."""
        if x.shape[1] != self.width:
            raise ValueError(f"x has {x.shape[1]} columns, but the model was trained with {self.width}")
        for number, kind in enumerate(self.kinds):
            wide = x.to(torch.float64)
            if kind == "standard":
                scaled = (wide - self.get_buffer(f"mean_{number}")) / self.get_buffer(f"deviation_{number}")
            else:
                sums = (wide * wide if kind == "length" else wide).sum(1, keepdim=True)
                divisors = sums.sqrt() if kind == "length" else sums
                scaled = wide / torch.where(divisors == 0, 1.0, divisors)
            x = scaled.to(x.dtype)
        if x.dtype in (torch.float16, torch.bfloat16):
            x = x.float()
        if self.rows in ("float16", "bfloat16"):
            return x.to(getattr(torch, self.rows)).to(x.dtype)
        if self.rows.startswith("int8"):
            smallest = torch.finfo(torch.float32).tiny
            if self.rows == "int8":
                scales = (x.abs().amax(1, keepdim=True) / 127).clamp_min(smallest)
            else:
                scales = self.get_buffer("column_scales").to(x.dtype)
            return (x / scales).round() * scales
        return x
