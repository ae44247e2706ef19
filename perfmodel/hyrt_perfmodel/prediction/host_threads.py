"""What the host's trainer takes with several threads, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hyrt_perfmodel.platforms.platform import TrainerRates
from hyrt_perfmodel.prediction.shared_rows import shared_in_chunks
from hyrt_perfmodel.workloads.workload import Workload


def layers_apart(work: Workload) -> list[Workload]:
    """The work of each layer: the same layers, of which all others have no rows and no edges."""
    inputs, *results = work.vertices
    return [
        replace(
            work,
            vertices=(inputs, *(rows if at == layer else 0.0 for at, rows in enumerate(results))),
            edges=tuple(edges if at == layer else 0.0 for at, edges in enumerate(work.edges)),
        )
        for layer in range(work.layers)
    ]


def layers_shared_s(
    layers: Sequence[Workload],
    alone: TrainerRates,
    together: TrainerRates,
    threads: int,
    cores: int,
    seconds: Callable[[TrainerRates, Workload], float],
) -> float:
    """The time of layers that some threads share wherever that is faster than one of them alone.

    Parameters
    ----------
    layers
        Each layer's work, as `layers_apart` gives it.
    alone, together
        Rates with one thread, and with one on each core.
    threads, cores
        How many there are; threads beyond the cores change nothing.
    seconds
        What work takes that threads share, without launches.
    """
    count, total = min(threads, cores), 0.0
    for work in layers:
        alone_s = seconds(alone, work)
        if count == 1:
            total += alone_s
            continue
        shared = shared_in_chunks(work, together.chunk_rows, cores)
        # Between one thread and all, Amdahl's law joins the two.
        serial_s = max(0.0, (seconds(together, shared) - alone_s / cores) / (1 - 1 / cores))
        total += min(alone_s, serial_s + (alone_s - serial_s) / count + together.waking_s)
    return total
