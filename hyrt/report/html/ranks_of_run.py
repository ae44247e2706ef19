"""What each rank of a run took and sent, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hyrt_perfmodel.assignment import STAGES

from hyrt.quantities import counted, duration, size
from hyrt.report.records.run_record import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """One rank."""

    name: str
    """`rank 0`."""
    where: str
    """The machine, and its devices."""
    stages: Sequence[str]
    """Seconds a step, for each of `STAGES`."""
    longest: int
    """Which of the stages before the synchronization is the longest, by its place."""
    memory: str
    """The most resident memory."""
    sent: str
    received: str
    """`sent` and `received`: bytes of the whole run."""


def rank_rows(run: RunRecord) -> list[RankRow]:
    """Every rank of a run on several; none of others, and before it has ended."""
    rows = []
    for rank, record in enumerate(_records(run)):
        if record is None:
            rows.append(_lost(rank))
            continue
        stages: Mapping[str, float] = record["stage_s"]
        work = [stages.get(stage, 0.0) for stage in STAGES]
        rows.append(
            RankRow(
                name=f"rank {rank}",
                where=f"{record['host']}: {', '.join(map(run.labelled, record['devices']))}",
                stages=[duration(seconds) if stages else "" for seconds in work],
                longest=work.index(max(work[:-1])) if stages else -1,
                memory=size(record["memory_bytes"]) if record["memory_bytes"] is not None else "",
                sent=size(sum(record["bytes_sent"].values())),
                received=size(sum(record["bytes_received"].values())),
            )
        )
    return rows


def _lost(rank: int) -> RankRow:
    """A rank of a run that failed, of which nothing is known."""
    return RankRow(
        name=f"rank {rank}",
        where="lost, or too late to tell",
        stages=[""] * len(STAGES),
        longest=-1,
        memory="",
        sent="",
        received="",
    )


def purpose_rows(run: RunRecord) -> list[tuple[str, list[str], str]]:
    """What the ranks sent, by purpose: its name, the bytes of each rank, and of all."""
    sent = [{} if record is None else record["bytes_sent"] for record in _records(run)]
    purposes = dict.fromkeys(purpose for each in sent for purpose in each)
    rows = [(purpose, [each.get(purpose, 0) for each in sent]) for purpose in purposes]
    rows.sort(key=lambda row: -sum(row[1]))
    return [(name, list(map(size, counts)), size(sum(counts))) for name, counts in rows if sum(counts)]


def ranks_text(run: RunRecord) -> str:
    """How many ranks there were, how they shared the work, and which of them bounds it."""
    figures = run.summary.get("distributed") or {}
    if not figures:
        return ""
    text = (
        f"{counted(figures['ranks'], 'rank')} trained together (distributed.strategy={figures['strategy']})."
    )
    bounded = figures.get("bounded_by")
    return f"{text} Their steps are bounded by {bounded}." if bounded else text


def _records(run: RunRecord) -> Sequence[Mapping[str, Any] | None]:
    # Of a run that was made by one process there are none; of one that failed, some ranks' may be missing.
    found: Sequence[Mapping[str, Any] | None] = (run.summary.get("distributed") or {}).get("by_rank") or []
    return found
