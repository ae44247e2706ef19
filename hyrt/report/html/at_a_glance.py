"""What is slow in a run, and why: its stages, channels and trainers in the middle of its steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hyrt_perfmodel.assignment import STAGES

from hyrt.report.html.simulated import labelled
from hyrt.report.html.units import percent, seconds
from hyrt.report.records.run_record import Line, RunRecord

# The channel that a stage puts its work into.
_CHANNELS = {"sample": "sampled", "load": "loaded", "transfer": "staged", "propagate": "done"}
# Shorter waits are hand-overs.
_LEAST_WAIT = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One stage; times as medians over the run's steps, in words.

    Parameters
    ----------
    name, threads
        `threads` is empty where it has none of its own.
    share
        Of its work in that of the slowest stage: 0 to 1.
    work
        Seconds a step.
    bounds
        Part of the steps in which it was the slowest stage; empty for `synchronize`.
    waits
        For its input, and for room for its output.
    queue_share, queue
        How full the channel behind it is, 0 to 1, and as items of how many fit; empty where there is none.
    is_bottleneck
        Whether it bounds most steps.
    """

    name: str
    threads: str
    share: float
    work: str
    bounds: str
    waits: str
    queue_share: float
    queue: str
    is_bottleneck: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRow:
    """One trainer.

    Parameters
    ----------
    name
        Of its device, labelled where it is simulated.
    units
        Of its last step.
    share
        Of them in the step: 0 to 1.
    busy
        How long it propagates in a step.
    busy_share
        Of that in the step's time: 0 to 1.
    queues
        Its channels: what waits for its transfer, for it, and for the other trainers.
    """

    name: str
    units: str
    share: float
    busy: str
    busy_share: float
    queues: str


def stage_rows(run: RunRecord) -> list[StageRow]:
    """Every stage, in their order; empty for a run without steps."""
    lines = run.of("steps")
    if not lines:
        return []
    work = {stage: median(lines, lambda line, stage=stage: line["stage_s"].get(stage)) for stage in STAGES}  # type: ignore[misc]
    step_s = median(lines, lambda line: line["step_s"])
    slowest = max(work.values()) or 1.0
    bounds, bottleneck = _bounds(lines)
    rows = []
    for stage in STAGES:
        waits = {
            what: median(lines, lambda line, end=end: line["blocked_s"].get(end))  # type: ignore[misc]
            for what, end in (("for input", f"{stage}.input"), ("for room", f"{stage}.output"))
        }
        fill, depth = _queue(lines, lambda name, stage=stage: name.split(".")[0] == _CHANNELS.get(stage))  # type: ignore[misc]
        threads = lines[-1]["threads"].get(stage)
        rows.append(
            StageRow(
                name=stage,
                threads="" if threads is None else str(threads),
                share=work[stage] / slowest,
                work=seconds(work[stage]),
                bounds="" if stage == STAGES[-1] else percent(bounds[stage]),
                waits=", ".join(
                    f"{seconds(wait_s)} {what}"
                    for what, wait_s in waits.items()
                    if wait_s > _LEAST_WAIT * step_s
                ),
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
    step_s = median(lines, lambda line: line["step_s"])
    split: Mapping[str, int] = lines[-1]["split"]
    total = sum(split.values()) or 1
    rows = []
    for name, units in split.items():
        busy_s = median(lines, lambda line, name=name: line.get("busy_s", {}).get(name))  # type: ignore[misc]
        queues = [
            f"{channel} {text}"
            for channel in _CHANNELS.values()
            if (text := _of_depth(*_queue(lines, lambda key, at=f"{channel}.{name}": key == at)))  # type: ignore[misc]
        ]
        rows.append(
            TrainerRow(
                name=labelled(run, name),
                units=f"{units:,}",
                share=units / total,
                busy=seconds(busy_s),
                busy_share=min(1.0, busy_s / step_s) if step_s else 0.0,
                queues=", ".join(queues),
            )
        )
    return rows


def bottleneck_text(run: RunRecord) -> str:
    """What bounds the steps, in a few sentences of figures; empty for a run without steps."""
    lines = run.of("steps")
    if not lines:
        return ""
    work = {stage: median(lines, lambda line, stage=stage: line["stage_s"].get(stage)) for stage in STAGES}  # type: ignore[misc]
    step_s = median(lines, lambda line: line["step_s"])
    bounds, slowest = _bounds(lines)
    second = max((stage for stage in STAGES[:-1] if stage != slowest), key=lambda stage: work[stage])
    said = [
        f"{slowest.capitalize()} is the slowest stage in {percent(bounds[slowest])} of the steps: "
        f"{seconds(work[slowest])} of work per step, followed by {second} with {seconds(work[second])}."
    ]
    busy = [f"{row.name} {row.busy}" for row in trainer_rows(run) if row.busy_share]
    if slowest == "propagate" and len(busy) > 1:
        said.append(f"The times of the trainers in it: {', '.join(busy)}.")
    if not run.settings.get("runtime", {}).get("pipelined", True):
        said.append(
            "The stages ran one after the other (runtime.pipelined=false), so a step takes their sum, "
            f"{seconds(step_s)}."
        )
    elif step_s > 0:
        said.append(
            f"A step takes {seconds(step_s)}; the slowest stage works for "
            f"{percent(min(1.0, work[slowest] / step_s))} of that."
        )
    return " ".join(said)


def _bounds(lines: Sequence[Line]) -> tuple[dict[str, float], str]:
    """Of each stage the part of the steps that it bounds; and which bounds most."""
    steps = dict.fromkeys(STAGES, 0)
    for line in lines:
        steps[str(line["bottleneck"])] += len(line["losses"])
    total = sum(steps.values()) or 1
    return {stage: count / total for stage, count in steps.items()}, max(steps, key=lambda s: steps[s])


def _queue(lines: Sequence[Line], is_meant: Callable[[str], bool]) -> tuple[float, int]:
    """Items in some channels together, and how many fit."""
    depth: Mapping[str, int] = lines[-1].get("queue_depth", {})
    names = [name for name in depth if is_meant(name)]

    def fill(line: Line) -> float | None:
        queued = line.get("queued", {})
        return sum(queued.get(name, 0.0) for name in names) if queued else None

    return (median(lines, fill) if names else 0.0), sum(depth[name] for name in names)


def _of_depth(fill: float, depth: int) -> str:
    return f"{fill:.1f} of {depth}" if depth else ""


def median(lines: Sequence[Line], value: Callable[[Line], object]) -> float:
    """Of a value over the steps, of which each line has some; 0 where none has one."""
    found = sorted(
        (float(y), len(line["losses"]))
        for line in lines
        if isinstance(y := value(line), int | float) and math.isfinite(y)
    )
    half = sum(count for _, count in found) / 2
    passed = 0
    for y, count in found:
        passed += count
        if passed >= half:
            return y
    return 0.0
