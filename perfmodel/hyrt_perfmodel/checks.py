"""Validation of the performance model's numbers: annotations of dataclass fields, checked on construction."""

from __future__ import annotations

import math
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from pydantic import AllowInfNan, BeforeValidator, Strict
from pydantic_core import PydanticCustomError

Kind = TypeVar("Kind")


def _reject_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("float_type", "true and false are not numbers")
    return value


Number = Annotated[float, BeforeValidator(_reject_bool)]
"""A number from a file; `true` and `false`, which Python treats as 1 and 0, are rejected."""

Positive = Annotated[Number, "a number above 0"]
"""May be infinite; a file may not contain an infinite value."""

Unbounded = Annotated[float, AllowInfNan(True), BeforeValidator(_reject_bool), "a number above 0"]
"""Above 0; infinite if there is no limit."""

NotNegative = Annotated[Number, "a number of at least 0"]
Whole = Annotated[int, BeforeValidator(_reject_bool)]
Count = Annotated[Whole, "a whole number of at least 1"]
Index = Annotated[Whole, "a whole number of at least 0"]
Truth = Annotated[bool, Strict()]


def check_numbers(owner: str, value: Any) -> None:
    """Check that the fields of a dataclass instance satisfy their annotations.

    Raises
    ------
    ValueError
        Naming the owner, the field and its value.
    """
    for name, rule, may_be_none in _rules(type(value)):  # type: ignore[arg-type]
        number = getattr(value, name)
        if not (_is_number(number, rule) or (number is None and may_be_none)):
            raise ValueError(f"{owner}: {name} is {number!r}: give {rule}")


def check_kind(owner: str, value: Any, kind: type[Kind], remedy: str) -> Kind:
    """Return a value after checking its class.

    Raises
    ------
    ValueError
        Naming the value's type and the remedy.
    """
    if not isinstance(value, kind):
        raise ValueError(f"{owner} is of type {type(value).__name__}: {remedy}")
    return value


def check_size(owner: str, value: Any) -> None:
    """Check that a value is a number of at least 0."""
    if not _is_number(value, "a number of at least 0"):
        raise ValueError(f"{owner} is {value!r:.60}: give a number of at least 0")


def check_sizes(owner: str, values: Any, count: int | None = None, reason: str = "") -> None:
    """Check that a value is a tuple or list of `count` numbers of at least 0; `reason` explains the count."""
    fits = isinstance(values, tuple | list) and count in (None, len(values))
    if not fits or not all(_is_number(value, "a number of at least 0") for value in values):
        many = "numbers" if count is None else f"{count} number{'s' * (count != 1)}"
        because = f", because {reason}" if reason else ""
        raise ValueError(f"{owner} is {values!r:.60}: give {many} of at least 0{because}")


@cache
def _rules(kind: type) -> list[tuple[str, str, bool]]:
    """Return (name, rule, whether None is allowed) for each field of a dataclass that has a rule."""
    rules_by_field = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        parts = (hint, *get_args(hint))
        texts = [
            rule for part in parts for rule in getattr(part, "__metadata__", ()) if isinstance(rule, str)
        ]
        rules_by_field += [(name, rule, type(None) in parts) for rule in texts]
    return rules_by_field


def _is_number(value: object, rule: str) -> bool:
    kinds = int if "whole" in rule else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or math.isnan(value):
        return False
    return value > 0 or (value == 0 and rule.endswith("at least 0"))
