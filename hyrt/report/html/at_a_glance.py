"""What is slow in a run, and why: its stages, channels and trainers in the middle of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hyrt_perfmodel.assignment import STAGES

from hyrt.quantities import duration
from hyrt.report.channels import CHANNELS, THREADS, fill_and_depth
from hyrt.report.records.run_record import Line, RunRecord, median, weighted_median

# Shorter waits are hand-overs.
_LEAST_WAIT = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One stage; times as medians over the run's steps, in words."""

    name: str
    threads: str
    """`name` and `threads`: `threads` is empty where it has none of its own."""
    share: float
    """Its work as a part of that of the slowest stage: 0 to 1."""
    work: str
    """Seconds a step."""
    bounds: str
    """Part of the steps in which it was the slowest stage; empty for `synchronize`."""
    waits: str
    """The times that it waits for its input, and for room for its output."""
    queue_share: float
    queue: str
    """`queue_share` and `queue`: how full the channel behind it is, 0 to 1, and as items of how many fit;
    empty where there is none."""
    is_bottleneck: bool
    """Whether it bounds most steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRow:
    """One trainer."""

    name: str
    """The name of its device, labelled where it is simulated."""
    units: str
    """The units of its last step."""
    share: float
    """The part of the units of a step that these are: 0 to 1."""
    busy: str
    """How long it propagates in a step."""
    busy_share: float
    """The part of the step's time in which it is busy: 0 to 1."""
    queues: str
    """The fill of its channels: what waits for its transfer, for it, and for the other trainers."""


def stage_rows(run: RunRecord) -> list[StageRow]:
    """Every stage, in their order; empty for a run without steps."""
    lines = run.of("steps")
    if not lines:
        return []
    work = {stage: median(lines, "stage_s", stage) for stage in STAGES}
    slowest = max(work.values()) or 1.0
    least_wait_s = _LEAST_WAIT * median(lines, "step_s")
    bounds, bottleneck = _bounds(lines)
    rows = []
    for stage in STAGES:
        waits = {
            "for input": median(lines, "blocked_s", f"{stage}.input"),
            "for room": median(lines, "blocked_s", f"{stage}.output"),
        }
        fill, depth = _queue(lines, CHANNELS.get(stage, ""))
        rows.append(
            StageRow(
                name=stage,
                threads=str(lines[-1]["threads"].get(THREADS.get(stage), "")),
                share=work[stage] / slowest,
                work=duration(work[stage]),
                bounds="" if stage == STAGES[-1] else f"{bounds[stage]:.0%}",
                waits=", ".join(f"{duration(s)} {what}" for what, s in waits.items() if s > least_wait_s),
                queue_share=fill / depth if depth else 0.0,
                queue=_of_depth(fill, depth),
                is_bottleneck=stage == bottleneck,
            )
        )
    return rows


def trainer_rows(run: RunRecord) -> list[TrainerRow]:
    """Every trainer, in the order of the devices; empty for a run without steps."""
    lines = run.of("steps")
    if not lines:
        return []
    step_s = median(lines, "step_s")
    split: Mapping[str, int] = lines[-1]["split"]
    total = sum(split.values()) or 1
    rows = []
    for name, units in split.items():
        busy_s = median(lines, "busy_s", name)
        queues = {channel: _of_depth(*_queue(lines, f"{channel}.{name}")) for channel in CHANNELS.values()}
        rows.append(
            TrainerRow(
                name=run.labelled(name),
                units=f"{units:,}",
                share=units / total,
                busy=duration(busy_s),
                busy_share=min(1.0, busy_s / step_s) if step_s else 0.0,
                queues=", ".join(f"{channel} {text}" for channel, text in queues.items() if text),
            )
        )
    return rows


def bottleneck_text(run: RunRecord) -> str:
    """What bounds the steps, in a few sentences of figures; empty for a run without steps."""
    lines = run.of("steps")
    if not lines:
        return ""
    work = {stage: median(lines, "stage_s", stage) for stage in STAGES}
    step_s = median(lines, "step_s")
    bounds, slowest = _bounds(lines)
    second = max((stage for stage in STAGES[:-1] if stage != slowest), key=lambda stage: work[stage])
    said = [
        f"{slowest.capitalize()} is the slowest stage in {bounds[slowest]:.0%} of the steps: "
        f"{duration(work[slowest])} of work per step, followed by {second} with {duration(work[second])}."
    ]
    busy = [f"{row.name} {row.busy}" for row in trainer_rows(run) if row.busy_share]
    if slowest == "propagate" and len(busy) > 1:
        said.append(f"The times of the trainers in it: {', '.join(busy)}.")
    if not run.settings.get("runtime", {}).get("pipelined", True):
        said.append(
            "The stages ran one after the other (runtime.pipelined=false), so a step takes their sum, "
            f"{duration(step_s)}."
        )
    elif step_s > 0:
        said.append(
            f"A step takes {duration(step_s)}; the slowest stage works for "
            f"{min(1.0, work[slowest] / step_s):.0%} of that."
        )
    return " ".join(said)


def _bounds(lines: Sequence[Line]) -> tuple[dict[str, float], str]:
    """Of each stage the part of the steps that it bounds; and which bounds most."""
    steps = dict.fromkeys(STAGES, 0)
    for line in lines:
        steps[str(line["bottleneck"])] += len(line["losses"])
    total = sum(steps.values()) or 1
    return {stage: count / total for stage, count in steps.items()}, max(steps, key=lambda s: steps[s])


def _queue(lines: Sequence[Line], channel: str) -> tuple[float, int]:
    """Items in a channel in the middle of the steps, and how many fit."""
    depths = lines[-1].get("queue_depth", {})
    known = [line for line in lines if line.get("queued")]
    fills = [fill_and_depth(channel, line["queued"], depths)[0] for line in known]
    return weighted_median(known, fills), fill_and_depth(channel, {}, depths)[1]


def _of_depth(fill: float, depth: int) -> str:
    return f"{fill:.1f} of {depth}" if depth else ""
