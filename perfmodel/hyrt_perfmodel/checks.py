"""What a number of the model may be: said by its field's annotation, and checked where its owner is made."""

from __future__ import annotations

import math
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

Positive = Annotated[float, "above 0"]
"""Infinity is one; a file may not say so."""

Unbounded = Annotated[float, "above 0", "a file may say .inf"]
"""Above 0, and infinite where it bounds nothing."""

NotNegative = Annotated[float, "of at least 0"]
Count = Annotated[int, "above 0"]


def check_numbers(owner: str, value: Any) -> None:
    """Refuse a field that is not such a number as its annotation says; None stands for what is not known.

    Raises
    ------
    ValueError
        Naming the owner, the field and its value.
    """
    for name, rule in _rules(type(value)):  # type: ignore[arg-type]
        number = getattr(value, name)
        if number is not None and not _is_number(number, rule):
            raise ValueError(f"{owner}: {name} is {number!r}: give a number {rule}")


@cache
def _rules(kind: type) -> list[tuple[str, str]]:
    """The fields of a dataclass that have a rule."""
    found = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for part in (hint, *get_args(hint)):
            found += [(name, rule) for rule in getattr(part, "__metadata__", ())[:1]]
    return found


def _is_number(value: object, rule: str) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return False
    return value > 0 or (value == 0 and rule == "of at least 0")
