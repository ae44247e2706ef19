"""The channels between a run's stages and the threads of the stages, as its events name them."""

from __future__ import annotations

from collections.abc import Mapping

CHANNELS = {"sample": "sampled", "load": "loaded", "transfer": "staged", "propagate": "done"}
"""The channel that each stage puts its work into."""
THREADS = {"sample": "sample", "load": "load", "propagate": "train"}
"""The threads that work for a stage on the host."""


def fill_and_depth(
    channel: str, queued: Mapping[str, float], queue_depth: Mapping[str, int]
) -> tuple[float, int]:
    """Mini-batches in a channel, and how many fit: of all trainers (`loaded`) or of one (`loaded.cpu:0`)."""
    names = [name for name in queue_depth if f"{name}.".startswith(f"{channel}.")]
    return sum(queued.get(name, 0.0) for name in names), sum(queue_depth[name] for name in names)
