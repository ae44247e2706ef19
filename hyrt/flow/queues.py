"""Queue counters of a pipeline's channels, and mean occupancy between two snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """Snapshot of channel counters, summed since the channels were created."""

    at_s: float
    """Time of the snapshot, in seconds of `time.perf_counter`."""
    blocked_s: Mapping[str, float]
    """Blocked seconds of each stage, keyed `<stage>.input` and `<stage>.output`; averaged over a stage's
    threads.
    """
    item_s: Mapping[str, float]
    """Total residence time of items in each channel, keyed by channel name."""
    depth: Mapping[str, int]
    """Capacity of each channel, keyed by channel name."""

    def mean_items_since(self, before: Queues) -> dict[str, float]:
        """Return the mean number of items in each channel since the snapshot `before`."""
        elapsed_s = self.at_s - before.at_s
        if elapsed_s <= 0:
            return {}
        return {name: (total - before.item_s[name]) / elapsed_s for name, total in self.item_s.items()}
