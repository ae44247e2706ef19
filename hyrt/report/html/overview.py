"""Overview tables of a run: bottleneck, stages, channels, trainers, confusion matrix, and ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hyrt_perfmodel.policy import STAGES

from hyrt.formatting import format_bytes, format_duration, pluralize, short_repr
from hyrt.report.records.run_record import Line, RunRecord, median, weighted_median
from hyrt.report.step_summary import CHANNELS, THREADS, fill_and_depth

# Waits for a smaller fraction of a step are mere hand-overs, and are not displayed.
_MIN_WAIT_FRACTION = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """A stage with its median times over the steps, as text."""

    name: str
    threads: str
    """Number of threads; empty if the stage has no separate threads."""
    share: float
    """Work relative to that of the slowest stage, 0 to 1."""
    work: str
    """Working time per step."""
    bounds: str
    """Fraction of steps in which the stage was the slowest; empty for `synchronize`."""
    waits: str
    """Waiting times for input, and for space in the output channel."""
    queue_share: float
    queue: str
    """Fill of the output channel as items and capacity (`queue_share`: as a fraction); empty without one."""
    is_bottleneck: bool
    """Whether the stage is the bottleneck of most steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRow:
    """One trainer."""

    name: str
    """Name, with a label if the device is simulated."""
    units: str
    """Number of units in the newest step."""
    share: float
    """Fraction of the step's units, 0 to 1."""
    busy: str
    """Propagation time per step."""
    busy_share: float
    """Fraction of the step that the trainer spends in propagation, 0 to 1."""
    queues: str
    """Fill of the trainer's channels."""


def stage_rows(run: RunRecord) -> list[StageRow]:
    """Return one row per stage, in order; empty without steps."""
    lines = run.select("steps")
    if not lines:
        return []
    work = {stage: median(lines, "stage_s", stage) for stage in STAGES}
    slowest = max(work.values()) or 1.0
    min_wait_s = _MIN_WAIT_FRACTION * median(lines, "step_s")
    bounds, bottleneck = _bottleneck_fractions(lines)
    rows = []
    for stage in STAGES:
        waits = {
            "for input": median(lines, "blocked_s", f"{stage}.input"),
            "for room": median(lines, "blocked_s", f"{stage}.output"),
        }
        fill, depth = _channel_fill(lines, CHANNELS.get(stage, ""))
        rows.append(
            StageRow(
                name=stage,
                threads=str(lines[-1]["threads"].get(THREADS.get(stage), "")),
                share=work[stage] / slowest,
                work=format_duration(work[stage]),
                bounds="" if stage == STAGES[-1] else f"{bounds[stage]:.0%}",
                waits=", ".join(
                    f"{format_duration(s)} {reason}" for reason, s in waits.items() if s > min_wait_s
                ),
                queue_share=fill / depth if depth else 0.0,
                queue=_fill_text(fill, depth),
                is_bottleneck=stage == bottleneck,
            )
        )
    return rows


def trainer_rows(run: RunRecord) -> list[TrainerRow]:
    """Return one row per trainer, in order of the devices; empty without steps."""
    lines = run.select("steps")
    if not lines:
        return []
    step_s = median(lines, "step_s")
    split: Mapping[str, int] = lines[-1]["split"]
    total = sum(split.values()) or 1
    rows = []
    for name, units in split.items():
        busy_s = median(lines, "busy_s", name)
        queues = {
            channel: _fill_text(*_channel_fill(lines, f"{channel}.{name}")) for channel in CHANNELS.values()
        }
        rows.append(
            TrainerRow(
                name=run.label_device(name),
                units=f"{units:,}",
                share=units / total,
                busy=format_duration(busy_s),
                busy_share=min(1.0, busy_s / step_s) if step_s else 0.0,
                queues=", ".join(f"{channel} {text}" for channel, text in queues.items() if text),
            )
        )
    return rows


def bottleneck_text(run: RunRecord) -> str:
    """Describe the bottleneck of the steps in a few sentences; empty without steps."""
    lines = run.select("steps")
    if not lines:
        return ""
    work = {stage: median(lines, "stage_s", stage) for stage in STAGES}
    step_s = median(lines, "step_s")
    bounds, slowest = _bottleneck_fractions(lines)
    second = max((stage for stage in STAGES[:-1] if stage != slowest), key=lambda stage: work[stage])
    sentences = [
        f"{slowest.capitalize()} is the slowest stage in {bounds[slowest]:.0%} of the steps: "
        f"{format_duration(work[slowest])} of work per step, followed by {second} with "
        f"{format_duration(work[second])}."
    ]
    busy = [f"{row.name} {row.busy}" for row in trainer_rows(run) if row.busy_share]
    if slowest == "propagate" and len(busy) > 1:
        sentences.append(f"The times of the trainers in it: {', '.join(busy)}.")
    if not run.settings.get("runtime", {}).get("pipelined", True):
        sentences.append(
            "The stages ran one after the other (runtime.pipelined=false), so a step takes their sum, "
            f"{format_duration(step_s)}."
        )
    elif step_s > 0:
        sentences.append(
            f"A step takes {format_duration(step_s)}; the slowest stage works for "
            f"{min(1.0, work[slowest] / step_s):.0%} of that."
        )
    return " ".join(sentences)


def _bottleneck_fractions(lines: Sequence[Line]) -> tuple[dict[str, float], str]:
    """Return the fraction of steps in which each stage was the bottleneck, and the most frequent one."""
    steps = dict.fromkeys(STAGES, 0)
    for line in lines:
        steps[str(line["bottleneck"])] += len(line["losses"])
    total = sum(steps.values()) or 1
    return {stage: count / total for stage, count in steps.items()}, max(steps, key=lambda s: steps[s])


def _channel_fill(lines: Sequence[Line], channel: str) -> tuple[float, int]:
    """Return the median number of items in a channel, and its capacity."""
    depths = lines[-1].get("queue_depth", {})
    known = [line for line in lines if line.get("queued")]
    fills = [fill_and_depth(channel, line["queued"], depths)[0] for line in known]
    return weighted_median(known, fills), fill_and_depth(channel, {}, depths)[1]


def _fill_text(fill: float, depth: int) -> str:
    return f"{fill:.1f} of {depth}" if depth else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfusionRow:
    """Test vertices of one class."""

    number: int
    cells: Sequence[tuple[str, int]]
    """For each predicted class: number of vertices as text, and percentage of the true class."""
    right: str
    """Fraction of correct predictions; empty if the class has no vertices."""

    __repr__ = short_repr


def confusion_rows(run: RunRecord) -> list[ConfusionRow]:
    """Return one row per class for the best evaluation; empty without a confusion matrix."""
    best = [
        line["confusion"] for line in run.select("evaluated") if line["is_best"] and line.get("confusion")
    ]
    rows = []
    for number, counts in enumerate(best[-1] if best else []):
        total = sum(counts)
        rows.append(
            ConfusionRow(
                number=number,
                cells=[(f"{count:,}", round(100 * count / (total or 1))) for count in counts],
                right=f"{counts[number] / total:.0%}" if total else "",
            )
        )
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """Statistics of one rank."""

    name: str
    """Name, such as `rank 0`."""
    location: str
    """Host and devices."""
    stages: Sequence[str]
    """Time per step of each stage in `STAGES`."""
    longest: int
    """Index of the slowest stage, except `synchronize`."""
    memory: str
    """Peak resident memory."""
    sent: str
    received: str
    """Bytes that the rank has received in the whole run, like `sent`."""


def rank_rows(run: RunRecord) -> list[RankRow]:
    """Return one row per rank; empty with one process, or before the end of the run."""
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
                location=f"{record['host']}: {', '.join(map(run.label_device, record['devices']))}",
                stages=[format_duration(seconds) if stages else "" for seconds in work],
                longest=work.index(max(work[:-1])) if stages else -1,
                memory=format_bytes(record["memory_bytes"]) if record["memory_bytes"] is not None else "",
                sent=format_bytes(sum(record["bytes_sent"].values())),
                received=format_bytes(sum(record["bytes_received"].values())),
            )
        )
    return rows


def _missing_row(rank: int) -> RankRow:
    """Create the row of a rank that has no statistics because the run failed."""
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
    """Return the bytes sent by purpose, as (name, bytes of each rank, total)."""
    sent = [{} if record is None else record["bytes_sent"] for record in _rank_records(run)]
    purposes = dict.fromkeys(purpose for counts in sent for purpose in counts)
    rows = [(purpose, [counts.get(purpose, 0) for counts in sent]) for purpose in purposes]
    rows.sort(key=lambda row: -sum(row[1]))
    return [
        (name, list(map(format_bytes, counts)), format_bytes(sum(counts)))
        for name, counts in rows
        if sum(counts)
    ]


def ranks_text(run: RunRecord) -> str:
    """Describe the ranks: number, strategy, and bottleneck."""
    figures = run.summary.get("distributed") or {}
    if not figures:
        return ""
    text = (
        f"{pluralize(figures['ranks'], 'rank')} trained together "
        f"(distributed.strategy={figures['strategy']})."
    )
    bottleneck = figures.get("bounded_by")
    return f"{text} Their steps are bounded by {bottleneck}." if bottleneck else text


def _rank_records(run: RunRecord) -> Sequence[Mapping[str, Any] | None]:
    # Empty with one process; some entries are missing after a failure.
    records: Sequence[Mapping[str, Any] | None] = (run.summary.get("distributed") or {}).get("by_rank") or []
    return records
