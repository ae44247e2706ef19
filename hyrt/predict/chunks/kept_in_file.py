"""File storage of matrices beyond the host memory budget, and its cost."""

from __future__ import annotations

import math

from hyrt_perfmodel.platforms.platform import Host
from hyrt_perfmodel.prediction.file_pages import missed_s
from hyrt_perfmodel.workloads.workload import TrainingWorkload

from hyrt.config import Config
from hyrt.quantities import duration, size

_GIB, _GB = 2**30, 1e9
# A matrix is written in the forward pass; in the backward pass it is read, and overwritten by its gradient.
_PASSES = 3


def file_bytes(config: Config, kept_bytes: float) -> float:
    """Return the bytes stored in a file, if the matrices exceed `fullgraph.host_memory`."""
    limit = config.fullgraph.host_memory
    return 0.0 if limit is None else max(0.0, kept_bytes - limit)


def file_s(config: Config, host: Host, work: TrainingWorkload, kept_bytes: float) -> float:
    """Return the seconds of disk I/O per epoch for the part of the file that does not fit the page cache.

    Parameters
    ----------
    config, host, work
        Settings, machine and work of the run.
    kept_bytes
        Bytes of all matrices, in memory and in the file.
    """
    limit, in_file = config.fullgraph.host_memory, file_bytes(config, kept_bytes)
    if limit is None or host.memory_gib is None or host.file_gb_s is None:
        return 0.0
    data = [work.feature_bytes, work.graph_bytes, work.transpose_bytes]
    resident = sum(size for size in data if math.isfinite(size)) + limit
    cached = max(0.0, host.memory_gib * _GIB - resident)
    return missed_s(in_file, _PASSES * in_file, cached, host.file_gb_s * _GB)


def file_sentence(config: Config, host: Host, work: TrainingWorkload) -> str:
    """Describe the file of a CPU that trains without chunks; empty if there is no file."""
    if config.fullgraph.host_memory is None or work.whole is None:
        return ""
    memory = math.inf if host.memory_gib is None else host.memory_gib * _GIB
    matrix_bytes = sum(work.whole(memory, host.cores or 1).matrices.values())
    in_file = file_bytes(config, matrix_bytes)
    if not in_file:
        return ""
    more_s = file_s(config, host, work, matrix_bytes)
    cost = f"the disk takes {duration(more_s)} more an epoch" if more_s else "memory keeps its pages"
    return (
        f"{size(in_file)} of the {size(matrix_bytes)} of matrices are in a file, beyond "
        f"fullgraph.host_memory={size(config.fullgraph.host_memory)}; {cost}"
    )
