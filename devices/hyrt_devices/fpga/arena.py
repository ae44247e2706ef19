"""Places of a task's matrices in the on-chip arena."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hyrt_hls.parts.resources import KernelDesign
from hyrt_hls.task.layout import LayerRecord, Region, regions, row_base


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a task does not fit: words that it takes in each bank, and how many there are."""

    memory: str
    """`sums` or `rows`, the two parts of a bank."""
    needed: int
    available: int


# In which order matrices take their places: no order is best for all tasks, and each costs some microseconds.
_ORDERS: tuple[Callable[[Region], tuple[int, ...]], ...] = (
    lambda region: (-region.words,),
    lambda region: (region.born, -region.words),
    lambda region: (region.born - region.dies, -region.words),
)


def lay_out(records: Sequence[LayerRecord], limits: KernelDesign) -> list[LayerRecord] | Shortage:
    """Give every matrix of a task its place; those that never hold data at the same time may share it.

    Parameters
    ----------
    records
        The layers; their offsets are not read.
    limits
        The design whose arena it is.

    Returns
    -------
    The records with their offsets, or what is missing.
    """
    base = row_base(limits.arena_words)
    kept = regions(records, limits.pes)
    offsets: list[dict[str, Any]] = [{} for _ in records]
    for of_rows, first, end in ((False, 0, base), (True, base, limits.arena_words)):
        mine = [region for region in kept if region.of_rows == of_rows]
        places, height = min(
            (_stack(sorted(mine, key=order)) for order in _ORDERS), key=lambda stacked: stacked[1]
        )
        if height > end - first:
            return Shortage("rows" if of_rows else "sums", height, end - first)
        for (layer, matrix), offset in places.items():
            offsets[layer][matrix] = first + offset
    return [replace(record, **where) for record, where in zip(records, offsets, strict=True)]


def _stack(kept: Sequence[Region]) -> tuple[dict[tuple[int, str], int], int]:
    """Each matrix's offset, the lowest that is free through its life, and the words they take together."""
    places: dict[tuple[int, str], int] = {}
    height = 0
    for number, region in enumerate(kept):
        offset = 0
        beside = [r for r in kept[:number] if r.born <= region.dies and region.born <= r.dies]
        for other in sorted(beside, key=lambda r: places[r.layer, r.matrix]):
            if offset + region.words <= places[other.layer, other.matrix]:
                break
            offset = max(offset, places[other.layer, other.matrix] + other.words)
        places[region.layer, region.matrix] = offset
        height = max(height, offset + region.words)
    return places, height
