"""Flow of each mini-batch through the stages, from the slices of all threads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hyrt_perfmodel.assignment import STAGES


class Visit(NamedTuple):
    """Slice of one stage: its track, and its start in nanoseconds."""

    track: int
    start: int


class Flows:
    """Flows of the shares of all steps; dropped or missing slices are skipped."""

    def __init__(self) -> None:
        self._visits: defaultdict[tuple[int, int], dict[str, Visit]] = defaultdict(dict)
        self._synchronized: dict[int, Visit] = {}

    def add(self, stage: str, step: int, share: int, visit: Visit) -> None:
        """Add a slice of one of the stages."""
        if stage == STAGES[-1]:
            self._synchronized[step] = visit
        else:
            self._visits[step, share][stage] = visit

    def ways(self) -> Iterator[Sequence[Visit]]:
        """Yield the visits of each share in stage order, if there are at least two."""
        for (step, _), by_stage in sorted(self._visits.items()):
            visits = [by_stage[stage] for stage in STAGES if stage in by_stage]
            if STAGES[-2] in by_stage and step in self._synchronized:
                visits.append(self._synchronized[step])
            if len(visits) > 1:
                yield visits
