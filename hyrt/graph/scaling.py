"""Feature scaling with fitted statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from hyrt.formatting import short_repr

Array = NDArray[Any]
ScalingKind = Literal["row", "length", "standard"]

# Relative tolerance: sums of the same rows in another order differ by rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Scaling:
    """One scaling step of feature rows, with statistics that also apply to later data."""

    kind: ScalingKind
    """`row` divides by the row sum, `length` by the Euclidean length of the row; `standard` scales columns.
    """
    mean: NDArray[np.float64] | None = None
    """[F] values that `standard` subtracts from the columns."""
    deviation: NDArray[np.float64] | None = None
    """[F] values that `standard` divides the columns by; infinite for constant columns."""

    __repr__ = short_repr

    @property
    def is_known(self) -> bool:
        """Whether rows can be scaled: earlier versions did not store the statistics of `standard`."""
        return self.kind != "standard" or self.mean is not None

    @property
    def squared(self) -> bool:
        """Whether rows are divided by the root of a sum of squares."""
        return self.kind == "length"

    def apply(self, block: Array) -> Array:
        """Scale dense rows [n, F], keeping their dtype."""
        assert self.is_known, "the numbers of the scaling are not known"
        if self.mean is not None and self.deviation is not None:
            scaled: Array = (block - self.mean) / self.deviation
        else:
            values = np.square(block, dtype=np.float64) if self.squared else block
            sums = values.sum(axis=1, dtype=np.float64, keepdims=True)
            scaled = block / divisors(sums, squared=self.squared)
        return scaled.astype(block.dtype)

    def take(self, columns: NDArray[np.int64]) -> Self:
        """Return the scaling of some columns, in the given order."""
        if self.mean is None or self.deviation is None:
            return self
        return type(self)(self.kind, self.mean[columns], self.deviation[columns])

    def equals(self, other: Scaling) -> bool:
        """Return whether two scalings agree up to rounding of their statistics."""
        if self.kind != other.kind or (self.mean is None) != (other.mean is None):
            return False
        if self.mean is None or other.mean is None:
            return True
        assert self.deviation is not None
        assert other.deviation is not None
        if self.mean.shape != other.mean.shape:
            return False
        spread = np.where(np.isfinite(self.deviation), self.deviation, 0) + np.abs(self.mean)
        moved = np.abs(self.mean - other.mean) > _ROUNDING * spread
        same = np.isclose(self.deviation, other.deviation, rtol=_ROUNDING, atol=0)
        return not moved.any() and bool(same.all())

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data; an infinite deviation becomes null."""
        if self.mean is None or self.deviation is None:
            return {"kind": self.kind}
        deviation = [value if math.isfinite(value) else None for value in self.deviation.tolist()]
        return {"kind": self.kind, "mean": self.mean.tolist(), "deviation": deviation}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        if "mean" not in saved:
            return cls(saved["kind"])
        deviation = [math.inf if value is None else value for value in saved["deviation"]]
        return cls(saved["kind"], np.array(saved["mean"], np.float64), np.array(deviation, np.float64))


def divisors(sums: Array, *, squared: bool) -> Array:
    """Return each row's divisor: its sum, or the root of its sum of squares; 1 instead of 0."""
    found = np.sqrt(sums) if squared else sums
    return np.where(found == 0, 1.0, found)


def remaining_steps(applied: Sequence[Scaling], required: Sequence[Scaling]) -> tuple[Scaling, ...] | None:
    """Return the scalings still to be applied; None if different scalings were already applied."""
    if len(applied) > len(required):
        return None
    if not all(done.equals(step) for done, step in zip(applied, required, strict=False)):
        return None
    return tuple(required[len(applied) :])


def describe_scaling(steps: Sequence[Scaling]) -> str:
    """Return the names of scalings in the order of application."""
    return " then ".join(f"'{step.kind}'" for step in steps) or "'none'"
