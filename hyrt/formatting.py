"""Formatting of numbers, sizes, durations and arrays for display."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

_HOUR_S = 3600
_DAY_S = 24 * _HOUR_S
_MILLISECONDS_BELOW_S = 0.0995
_TENTH_FROM_S, _HUNDREDTH_FROM_S = 0.05, 0.005
_MINUTES_FROM_S = 99.95
_MAX_ENTRIES = 4
_MAX_LETTERS = 80


def parse_int(text: str) -> int | None:
    """Parse a whole number; return None unless the text consists of 1 to 18 digits from 0 to 9.

    `int` would also accept digits of other scripts, underscores and blanks, and would fail on more than 4,300
    digits.
    """
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def format_sig3(value: float) -> str:
    """Format a number with three significant digits: 0, 0.0250, 9.10, 14.8, 1,240."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    return f"{value:,.0f}" if 99.95 <= abs(value) < 1e9 else f"{value:#.3g}"


def _brief(value: float) -> str:
    """Format a number with at most three significant digits, without trailing zeros."""
    return f"{value:,.0f}" if 99.95 <= value < 1e9 else f"{value:.3g}"


def pluralize(count: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun: `1 target`, `1,200 targets`. Only irregular nouns need `plural`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def format_bytes(num_bytes: float) -> str:
    """Format bytes in powers of 1024: `512 bytes`, `19.6 MiB`, `1.5 GiB`."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= factor:
            return f"{_brief(num_bytes / factor)} {unit}"
    return "1 byte" if num_bytes == 1 else f"{num_bytes:.0f} bytes"


def format_duration(time_s: float) -> str:
    """Format a duration with at most three digits and a unit: `15 us`, `46.1 ms`, `3.52 s`, `2.1 h`."""
    if 0 < time_s < 1e-3:
        return f"{_brief(time_s * 1e6)} us"
    if time_s < 0.1:
        return f"{_brief(time_s * 1e3)} ms"
    if time_s < 120:
        return f"{_brief(time_s)} s"
    if time_s < 2 * _HOUR_S:
        return f"{time_s / 60:.1f} min"
    if time_s < 2 * _DAY_S:
        return f"{time_s / _HOUR_S:.1f} h"
    days = time_s / _DAY_S
    return f"{days:,.1f} days" if days < 1e6 else f"{days:.3g} days"


def format_milliseconds(time_s: float) -> str:
    """Format milliseconds with three digits and no unit, for a table column: 0, 0.0250, 9.10, 1,240."""
    return format_sig3(time_s * 1e3)


def format_brief_milliseconds(time_s: float) -> str:
    """Format milliseconds without the unit, for lines that are updated often: 0, 0.4, 9.1, 41."""
    value = time_s * 1e3
    if value >= 9.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 0.05 else "0"


def format_brief_duration(time_s: float) -> str:
    """Format a duration for lines that are updated often: `46 ms`, `3.5 s`, `12 min 5 s`, `2 h 3 min`."""
    if time_s < _MILLISECONDS_BELOW_S:
        return f"{format_brief_milliseconds(time_s)} ms"
    if time_s < _MINUTES_FROM_S:
        return f"{time_s:.1f} s"
    minutes, rest = divmod(round(time_s), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_following_duration(time_s: float, other_s: float) -> str:
    """Format the second of two durations, without its unit if the first duration has the same unit."""
    if other_s < _MILLISECONDS_BELOW_S:
        return format_brief_milliseconds(time_s)
    if other_s < _MINUTES_FROM_S and _HUNDREDTH_FROM_S <= time_s < _MINUTES_FROM_S:
        return f"{time_s:.1f}" if time_s >= _TENTH_FROM_S else f"{time_s:.2f}"
    return format_brief_duration(time_s)


def short_repr(value: Any) -> str:
    """Return the `__repr__` of a dataclass, with arrays as dtype and shape, such as `int64[2709]`."""
    shown = [
        f"{field.name}={_short_value(getattr(value, field.name))}"
        for field in fields(value)
        if field.repr and not field.name.startswith("_")
    ]
    return f"{type(value).__name__}({', '.join(shown)})"


def _short_value(value: Any) -> str:
    if getattr(value, "ndim", 0) and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, Mapping | Sequence) and not isinstance(value, str | bytes):
        named = isinstance(value, Mapping)
        items = (
            [f"{key!r}: {_short_value(value[key])}" for key in value] if named else map(_short_value, value)
        )
        first, number = list(items)[:_MAX_ENTRIES], len(value)
        text = ", ".join([*first, *([f"... {number} in all"] if number > len(first) else [])])
        return f"{{{text}}}" if named else f"[{text}]"
    text = f"{value:.4g}" if isinstance(value, float) else repr(value)
    short = len(text) <= _MAX_LETTERS or is_dataclass(value)
    return text if short and "\n" not in text and " at 0x" not in text else f"<{type(value).__name__}>"
