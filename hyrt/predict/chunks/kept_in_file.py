"""What is kept in a file because it exceeds the budget of host memory, and what that takes."""

from __future__ import annotations

import math

from hyrt_perfmodel.platforms.platform import Host
from hyrt_perfmodel.prediction.file_pages import missed_s
from hyrt_perfmodel.workloads.workload import TrainingWorkload

from hyrt.config import Config
from hyrt.quantities import duration, size

_GIB, _GB = 2**30, 1e9
# A matrix is written forward; backward it is read, and its gradient takes its place.
_PASSES = 3


def file_bytes(config: Config, kept_bytes: float) -> float:
    """Bytes of a file, where matrices of so many bytes exceed `fullgraph.host_memory`."""
    limit = config.fullgraph.host_memory
    return 0.0 if limit is None else max(0.0, kept_bytes - limit)


def file_s(config: Config, host: Host, work: TrainingWorkload, kept_bytes: float) -> float:
    """Seconds of an epoch in which the disk reads and writes what no memory keeps of that file.

    Parameters
    ----------
    config, host, work
        The run's settings, machine and work.
    kept_bytes
        Bytes of all matrices, in memory and in the file.
    """
    limit, in_file = config.fullgraph.host_memory, file_bytes(config, kept_bytes)
    if limit is None or host.memory_gib is None or host.file_gb_s is None:
        return 0.0
    data = [work.feature_bytes, work.graph_bytes, work.transpose_bytes]
    held = sum(each for each in data if math.isfinite(each)) + limit
    cached = max(0.0, host.memory_gib * _GIB - held)
    return missed_s(in_file, _PASSES * in_file, cached, host.file_gb_s * _GB)


def file_sentence(config: Config, host: Host, work: TrainingWorkload) -> str:
    """What is said of the file of a CPU that trains without chunks; empty where there is none."""
    if config.fullgraph.host_memory is None or work.whole is None:
        return ""
    memory = math.inf if host.memory_gib is None else host.memory_gib * _GIB
    kept = sum(work.whole(memory, host.cores or 1).matrices.values())
    in_file = file_bytes(config, kept)
    if not in_file:
        return ""
    more_s = file_s(config, host, work, kept)
    cost = f"the disk takes {duration(more_s)} more an epoch" if more_s else "memory keeps its pages"
    return (
        f"{size(in_file)} of the {size(kept)} of matrices are in a file, beyond fullgraph.host_memory="
        f"{size(config.fullgraph.host_memory)}; {cost}"
    )
