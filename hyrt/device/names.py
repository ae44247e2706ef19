"""Parsing of `--devices`: device names, and each device's share of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

AUTO = "auto"
NO_NAME = "is not the name of a device"
NAME_FORM = "write kind or kind:number, such as cpu or cuda:0"


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """One entry of `devices`."""

    name: str
    """`kind` or `kind:index`."""
    share: float | None
    """Relative weight of the device's part of a step; None for equal parts."""


def parse_request(entry: str) -> DeviceRequest:
    """Parse `name` or `name=share`.

    Raises ValueError for an entry without a name, or a share that is not a number of at least 0.
    """
    name, equals, text = entry.partition("=")
    if not name.strip():
        raise ValueError(f"{entry!r} {NO_NAME}: {NAME_FORM}")
    name = AUTO if name.strip().lower() == AUTO else name.strip()
    if not equals:
        return DeviceRequest(name, None)
    try:
        # float() also accepts digits of other scripts and underscores; reject both.
        share = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        share = math.nan
    if not (math.isfinite(share) and share >= 0):
        raise ValueError(
            f"the share in {entry!r} is not a number of at least 0: write shares like cpu=1,cuda:0=3"
        )
    return DeviceRequest(name, share)


def parse_requests(entries: Sequence[str]) -> list[DeviceRequest]:
    """Parse all entries of `devices`.

    Raises ValueError if only some have a share, all shares are zero, or `auto` is combined with other
    entries.
    """
    requests = [parse_request(entry) for entry in entries]
    if len(requests) > 1 and any(request.name == AUTO for request in requests):
        raise ValueError("auto chooses all devices itself: give auto alone, or name devices")
    if requests[0].name == AUTO and requests[0].share is not None:
        raise ValueError("auto chooses shares itself: write auto without a share")
    shares = [request.share for request in requests]
    explicit = [share for share in shares if share is not None]
    if explicit and len(explicit) < len(shares):
        raise ValueError("give every device a share, or none of them: cpu=1,cuda:0=3")
    if explicit and not any(explicit):
        raise ValueError("give at least one device a share above 0")
    return requests


def split_by_shares(total: int, shares: Sequence[float]) -> list[int]:
    """Divide a step's units in proportion to shares, exactly and deterministically (largest remainders).

    A device with a share above 0 gets at least one unit if there are enough units.
    """
    # Divide by the largest share first, so that the sum of any finite shares is finite.
    largest = max(shares)
    parts = [share / largest for share in shares]
    whole = math.fsum(parts)
    exact = [total * part / whole for part in parts]
    split = [math.floor(part) for part in exact]
    order = sorted(range(len(shares)), key=lambda i: (split[i] - exact[i], i))
    for i in order[: total - sum(split)]:
        split[i] += 1
    for i, share in enumerate(shares):
        largest_part = max(range(len(split)), key=lambda j: split[j])
        if share > 0 and split[i] == 0 and split[largest_part] > 1:
            split[largest_part] -= 1
            split[i] = 1
    return split
