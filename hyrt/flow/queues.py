"""What the channels of a pipeline have seen, and its means between two moments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """Sums since the channels were made."""

    at_s: float
    """The time at which they were read, in seconds of `time.perf_counter`."""
    blocked_s: Mapping[str, float]
    """Seconds each stage has waited, keyed `<stage>.input` and `<stage>.output`; the mean over the threads of
    a stage that has several."""
    item_s: Mapping[str, float]
    """The time that items have been in each channel, added up, by its name."""
    depth: Mapping[str, int]
    """How many items fit into each channel, by its name."""

    def mean_items_since(self, before: Queues) -> dict[str, float]:
        """How many items were in each channel, on the average since then."""
        passed_s = self.at_s - before.at_s
        if passed_s <= 0:
            return {}
        return {name: (total - before.item_s[name]) / passed_s for name, total in self.item_s.items()}
