"""Time of the host trainer with several threads, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hyrt_perfmodel.platforms.platform import TrainerRates
from hyrt_perfmodel.prediction.shared_rows import shared_in_chunks
from hyrt_perfmodel.workloads.workload import Workload


def layers_apart(work: Workload) -> list[Workload]:
    """Return one workload per layer, in which all other layers have no rows and no edges."""
    inputs, *results = work.vertices
    return [
        replace(
            work,
            vertices=(inputs, *(rows if index == layer else 0.0 for index, rows in enumerate(results))),
            edges=tuple(edges if index == layer else 0.0 for index, edges in enumerate(work.edges)),
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
    """Return the time of layers if each is shared by threads whenever that is faster than one thread.

    Parameters
    ----------
    layers
        Work per layer, as returned by `layers_apart`.
    alone, together
        Rates with one thread, and with one thread per core.
    threads, cores
        Threads of the trainer, and cores of the host.
    seconds
        Time of a layer at given rates.
    """
    count, total = min(threads, cores), 0.0
    for work in layers:
        alone_s = seconds(alone, work)
        if count == 1:
            total += alone_s
            continue
        shared = shared_in_chunks(work, together.chunk_rows, cores)
        # Interpolate between one thread and all cores by Amdahl's law.
        serial_s = max(0.0, (seconds(together, shared) - alone_s / cores) / (1 - 1 / cores))
        total += min(alone_s, serial_s + (alone_s - serial_s) / count + together.waking_s)
    return total
