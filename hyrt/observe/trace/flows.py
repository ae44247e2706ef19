"""The way of each mini-batch through the stages, from the slices of all threads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hyrt_perfmodel.assignment import STAGES


class Visit(NamedTuple):
    """One stage's slice: the track it is in, and its start in nanoseconds."""

    track: int
    start: int


class Flows:
    """Joins the slices of each share of a step; a slice that was left out or never came is not joined."""

    def __init__(self) -> None:
        self._visits: defaultdict[tuple[int, int], dict[str, Visit]] = defaultdict(dict)
        self._synchronized: dict[int, Visit] = {}

    def add(self, stage: str, step: int, share: int, visit: Visit) -> None:
        """Take a slice of one of the stages."""
        if stage == STAGES[-1]:
            self._synchronized[step] = visit
        else:
            self._visits[step, share][stage] = visit

    def ways(self) -> Iterator[Sequence[Visit]]:
        """Of each share its visits in the order of the stages; two or more."""
        for (step, _), by_stage in sorted(self._visits.items()):
            way = [by_stage[stage] for stage in STAGES if stage in by_stage]
            if STAGES[-2] in by_stage and step in self._synchronized:
                way.append(self._synchronized[step])
            if len(way) > 1:
                yield way
