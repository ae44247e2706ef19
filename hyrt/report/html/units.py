"""Numbers as people read them."""

from __future__ import annotations


def seconds(value: float) -> str:
    """1.5 us, 12.3 ms, 4.56 s, 12 min."""
    size = abs(value)
    if size >= 600:
        return f"{value / 60:.0f} min"
    if size >= 1:
        return f"{value:.3g} s"
    if size >= 1e-3 or not size:
        return f"{1e3 * value:.3g} ms"
    return f"{1e6 * value:.3g} us"


def gibibytes(value: float) -> str:
    return f"{value / 2**30:.2f} GiB"


def percent(value: float) -> str:
    return f"{value:.0%}"


def signed_percent(value: float) -> str:
    return f"{value:+.1%}"
