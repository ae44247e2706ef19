"""Parallelism of row chunks: a step with few rows keeps only some of the threads busy."""

from __future__ import annotations

from dataclasses import replace

from hyrt_perfmodel.workloads.workload import Workload


def shared_rows(rows: float, chunk_rows: float, threads: int) -> float:
    """Return the rows that all threads would compute in the time of the busiest thread.

    Parameters
    ----------
    rows
        Number of rows.
    chunk_rows
        Rows that one thread computes at a time.
    threads
        Threads that fetch chunks.
    """
    full, rest = divmod(rows, chunk_rows)
    chunks_per_thread, extra_chunks = divmod(full, threads)
    return threads * (chunks_per_thread * chunk_rows + (chunk_rows if extra_chunks else rest))


def shared_in_chunks(workload: Workload, chunk_rows: float | None, threads: int) -> Workload:
    """Return the workload with its result rows replaced by their `shared_rows`.

    With `chunk_rows` None, any number of rows is divided equally.
    """
    if chunk_rows is None or threads == 1:
        return workload
    inputs, *results = workload.vertices
    return replace(workload, vertices=(inputs, *(shared_rows(rows, chunk_rows, threads) for rows in results)))
