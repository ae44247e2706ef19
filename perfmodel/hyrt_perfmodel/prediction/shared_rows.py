"""Rows that threads share in chunks: a step of few rows keeps only some of the threads busy."""

from __future__ import annotations

from dataclasses import replace

from hyrt_perfmodel.workloads.workload import Workload


def shared_rows(rows: float, chunk_rows: float, threads: int) -> float:
    """As many rows as all threads would compute in the time that the busiest of them takes.

    Parameters
    ----------
    rows
        How many there are.
    chunk_rows
        How many one thread computes at a time.
    threads
        How many threads draw chunks.
    """
    full, rest = divmod(rows, chunk_rows)
    each, beyond = divmod(full, threads)
    return threads * (each * chunk_rows + (chunk_rows if beyond else rest))


def shared_in_chunks(workload: Workload, chunk_rows: float | None, threads: int) -> Workload:
    """The work with the rows of its layers' results counted as `shared_rows` counts them.

    With None, any number of rows is shared equally.
    """
    if chunk_rows is None or threads == 1:
        return workload
    inputs, *results = workload.vertices
    return replace(workload, vertices=(inputs, *(shared_rows(rows, chunk_rows, threads) for rows in results)))
