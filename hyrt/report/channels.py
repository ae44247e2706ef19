"""Names of the channels and threads of the pipeline stages, as used in events."""

from __future__ import annotations

from collections.abc import Mapping

CHANNELS = {"sample": "sampled", "load": "loaded", "transfer": "staged", "propagate": "done"}
"""Output channel of each stage."""
THREADS = {"sample": "sample", "load": "load", "propagate": "train"}
"""Host threads of each stage."""


def fill_and_depth(
    channel: str, queued: Mapping[str, float], queue_depth: Mapping[str, int]
) -> tuple[float, int]:
    """Return the number of mini-batches in a channel and its capacity.

    `loaded` sums over all trainers, `loaded.cpu:0` is the channel of one trainer.
    """
    names = [name for name in queue_depth if f"{name}.".startswith(f"{channel}.")]
    return sum(queued.get(name, 0.0) for name in names), sum(queue_depth[name] for name in names)
