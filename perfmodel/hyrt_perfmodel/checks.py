"""What a number of the model may be: said by its field's annotation, and checked where its owner is made."""

from __future__ import annotations

import math
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from pydantic import AllowInfNan, BeforeValidator, Strict
from pydantic_core import PydanticCustomError

Kind = TypeVar("Kind")


def _refuse_truth(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("float_type", "true and false are not numbers")
    return value


Number = Annotated[float, BeforeValidator(_refuse_truth)]
"""A number as files have it: true and false, which Python takes for 1 and 0, are none."""

Positive = Annotated[Number, "a number above 0"]
"""Infinity is one; a file may not say so."""

Unbounded = Annotated[float, AllowInfNan(True), BeforeValidator(_refuse_truth), "a number above 0"]
"""Above 0, and infinite where it bounds nothing."""

NotNegative = Annotated[Number, "a number of at least 0"]
Whole = Annotated[int, BeforeValidator(_refuse_truth)]
Count = Annotated[Whole, "a whole number of at least 1"]
Index = Annotated[Whole, "a whole number of at least 0"]
Truth = Annotated[bool, Strict()]


def check_numbers(owner: str, value: Any) -> None:
    """Refuse a field that is not such a number as its annotation says.

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
    """Return a value that is of a class.

    Raises
    ------
    ValueError
        Naming what it is instead, and what to do.
    """
    if not isinstance(value, kind):
        raise ValueError(f"{owner} is of type {type(value).__name__}: {remedy}")
    return value


def check_size(owner: str, value: Any) -> None:
    """Refuse what is not a number of at least 0."""
    if not _is_number(value, "a number of at least 0"):
        raise ValueError(f"{owner} is {value!r:.60}: give a number of at least 0")


def check_sizes(owner: str, values: Any, count: int | None = None, reason: str = "") -> None:
    """Refuse what is not a tuple of so many numbers of at least 0; the reason is that of the count."""
    fits = isinstance(values, tuple | list) and count in (None, len(values))
    if not fits or not all(_is_number(value, "a number of at least 0") for value in values):
        many = "numbers" if count is None else f"{count} number{'s' * (count != 1)}"
        because = f", because {reason}" if reason else ""
        raise ValueError(f"{owner} is {values!r:.60}: give {many} of at least 0{because}")


@cache
def _rules(kind: type) -> list[tuple[str, str, bool]]:
    """The fields of a dataclass that have a rule, and whether they may be None."""
    found = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        parts = (hint, *get_args(hint))
        rules = [
            rule for part in parts for rule in getattr(part, "__metadata__", ()) if isinstance(rule, str)
        ]
        found += [(name, rule, type(None) in parts) for rule in rules]
    return found


def _is_number(value: object, rule: str) -> bool:
    kinds = int if "whole" in rule else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or math.isnan(value):
        return False
    return value > 0 or (value == 0 and rule.endswith("at least 0"))
