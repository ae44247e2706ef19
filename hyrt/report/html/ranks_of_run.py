"""Statistics of each rank of a run, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hyrt_perfmodel.assignment import STAGES

from hyrt.quantities import counted, duration, size
from hyrt.report.records.run_record import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """Statistics of one rank."""

    name: str
    """Name such as `rank 0`."""
    location: str
    """Host and devices of the rank."""
    stages: Sequence[str]
    """Time per step of each stage in `STAGES`."""
    longest: int
    """Index of the slowest stage, without the synchronization."""
    memory: str
    """Peak resident memory."""
    sent: str
    received: str
    """`sent` and `received`: bytes of the whole run."""


def rank_rows(run: RunRecord) -> list[RankRow]:
    """Return one row per rank; empty for a run with one process, and before the run has ended."""
    rows = []
    for rank, record in enumerate(_rank_records(run)):
        if record is None:
            rows.append(_missing_row(rank))
            continue
        stages: Mapping[str, float] = record["stage_s"]
        work = [stages.get(stage, 0.0) for stage in STAGES]
        rows.append(
            RankRow(
                name=f"rank {rank}",
                location=f"{record['host']}: {', '.join(map(run.labelled, record['devices']))}",
                stages=[duration(seconds) if stages else "" for seconds in work],
                longest=work.index(max(work[:-1])) if stages else -1,
                memory=size(record["memory_bytes"]) if record["memory_bytes"] is not None else "",
                sent=size(sum(record["bytes_sent"].values())),
                received=size(sum(record["bytes_received"].values())),
            )
        )
    return rows


def _missing_row(rank: int) -> RankRow:
    """Create the row of a rank whose statistics are missing because the run failed."""
    return RankRow(
        name=f"rank {rank}",
        location="lost, or no statistics received",
        stages=[""] * len(STAGES),
        longest=-1,
        memory="",
        sent="",
        received="",
    )


def purpose_rows(run: RunRecord) -> list[tuple[str, list[str], str]]:
    """Return the bytes sent by purpose: name, bytes of each rank, and total."""
    sent = [{} if record is None else record["bytes_sent"] for record in _rank_records(run)]
    purposes = dict.fromkeys(purpose for counts in sent for purpose in counts)
    rows = [(purpose, [counts.get(purpose, 0) for counts in sent]) for purpose in purposes]
    rows.sort(key=lambda row: -sum(row[1]))
    return [(name, list(map(size, counts)), size(sum(counts))) for name, counts in rows if sum(counts)]


def ranks_text(run: RunRecord) -> str:
    """Describe the number of ranks, their strategy, and the bottleneck."""
    figures = run.summary.get("distributed") or {}
    if not figures:
        return ""
    text = (
        f"{counted(figures['ranks'], 'rank')} trained together (distributed.strategy={figures['strategy']})."
    )
    bottleneck = figures.get("bounded_by")
    return f"{text} Their steps are bounded by {bottleneck}." if bottleneck else text


def _rank_records(run: RunRecord) -> Sequence[Mapping[str, Any] | None]:
    # Empty for runs of one process; entries may be missing in failed runs.
    records: Sequence[Mapping[str, Any] | None] = (run.summary.get("distributed") or {}).get("by_rank") or []
    return records
