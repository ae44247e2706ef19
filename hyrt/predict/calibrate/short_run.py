"""Short training runs for measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hyrt.config import Config
from hyrt.graph.graph import Graph
from hyrt.predict.predict_run import predict_run
from hyrt.telemetry.events import Event, StepMetrics
from hyrt.training.build_run import build_run
from hyrt.training.train import Training


@dataclass(frozen=True, slots=True)
class ShortRun:
    """Times of the full steps of a run; the last step of an epoch may be smaller and does not count."""

    iteration_s: float
    """Median wall time per step, over groups of steps."""
    gap_s: float
    """Median time per step outside propagation and synchronization, over groups of steps."""
    stage_s: Mapping[str, float]
    """Mean work time by stage."""
    split: Mapping[str, int]
    threads: Mapping[str, int]
    """Host threads by stage; `split` is the assignment of the targets."""


def short_run(config: Config, graph: Graph, *, warm: int, steps: int, balance: bool = False) -> ShortRun:
    """Train `warm` and then at least `steps` measured steps, without evaluation and output.

    With `balance`, the run starts as predicted and its policy may move work; otherwise the configured
    assignment is kept. Raises HyrtError if the run fails.
    """
    groups: list[StepMetrics] = []

    def record(event: Event) -> None:
        if isinstance(event, StepMetrics):
            groups.append(event)

    def is_complete() -> bool:
        return bool(groups) and groups[-1].step >= warm + steps

    # More epochs than necessary: the run is stopped early.
    train = config.train.model_copy(update={"epochs": warm + steps})
    evaluate = config.evaluate.model_copy(update={"every": 0})
    # The measurement must not depend on an older calibration.
    fixed = config.balance.model_copy(update={"policy": "static", "predict": False})
    Training(
        build_run(
            config.model_copy(
                update={"train": train, "evaluate": evaluate, "balance": config.balance if balance else fixed}
            ),
            graph,
            emit=record,
            should_stop=is_complete,
            predict=predict_run,
        )
    ).run()
    measured = _full_step_groups([group for group in groups if group.step - len(group.losses) >= warm])
    gaps = [group.step_s - group.stage_s["propagate"] - group.stage_s["synchronize"] for group in measured]
    return ShortRun(
        _median([group.step_s for group in measured], measured),
        _median(gaps, measured),
        {
            stage: sum(group.stage_s[stage] * len(group.losses) for group in measured)
            / sum(len(group.losses) for group in measured)
            for stage in measured[0].stage_s
        },
        measured[-1].split,
        measured[-1].threads,
    )


def _full_step_groups(groups: list[StepMetrics]) -> list[StepMetrics]:
    """Return the groups without the last step of an epoch, or all groups if each has such a step."""
    return [group for group in groups if group.steps_done < group.steps_per_epoch] or groups


def _median(values: Sequence[float], groups: Sequence[StepMetrics]) -> float:
    """Return the median of values per group, weighted by steps."""
    ordered = sorted(zip(values, (len(group.losses) for group in groups), strict=True))
    half, seen = sum(count for _, count in ordered) / 2, 0
    for value, count in ordered:
        seen += count
        if seen >= half:
            return value
    raise ValueError("no group of steps was counted")
