"""Checks that the values of the model share."""

from __future__ import annotations

import math


def check_positive(owner: str, **values: float | None) -> None:
    """Refuse what is not a number above 0 (infinity is one); None stands for what is not known.

    Raises
    ------
    ValueError
        Naming the owner, the value and its name.
    """
    for name, value in values.items():
        if value is not None and not _is_number(value, above=0.0):
            raise ValueError(f"{owner}: {name} is {value!r}: give a number above 0")


def check_not_negative(owner: str, **values: float | None) -> None:
    """Refuse what is not a number of at least 0; None stands for what is not known.

    Raises
    ------
    ValueError
        Naming the owner, the value and its name.
    """
    for name, value in values.items():
        if value is not None and not (_is_number(value, above=-1.0) and value >= 0):
            raise ValueError(f"{owner}: {name} is {value!r}: give a number of at least 0")


def _is_number(value: object, above: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return not math.isnan(value) and value > above
