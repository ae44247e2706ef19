"""What a section of the settings is: the parent of all of them, and the kinds of numbers they hold."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _refuse_truth(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("give a number, not true or false")
    return value


NoTruth = BeforeValidator(_refuse_truth)
"""Refuses true and false, which Python takes for 1 and 0."""


def as_list(value: Any) -> Any:
    """A list of what `25,10` or `25` says; anything else as it is."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return [value] if isinstance(value, int) and not isinstance(value, bool) else value


Listed = BeforeValidator(as_list)
"""Takes `25,10` and `25` for lists, as nobody likes to quote brackets for a shell."""

Count = Annotated[int, Field(ge=1, lt=2**31), NoTruth]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0), NoTruth]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), NoTruth]
Index = Annotated[int, Field(ge=0, lt=2**31), NoTruth]


class Section(BaseModel):
    """One branch of the tree of settings: unknown keys are errors, and values never change.

    The docstring below a field is its meaning in `docs/configuration.md`.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True
    )
