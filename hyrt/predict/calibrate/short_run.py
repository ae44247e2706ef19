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
    """Times of the full steps of a run: all but the last of an epoch, which may be smaller."""

    iteration_s: float
    """Median wall time of a step, over groups of steps."""
    gap_s: float
    """Median step time outside propagation and synchronization, over groups of steps."""
    stage_s: Mapping[str, float]
    """Mean work time per stage."""
    split: Mapping[str, int]
    threads: Mapping[str, int]
    """`split` and `threads`: assignment of the run."""


def short_run(config: Config, graph: Graph, *, warm: int, steps: int, balance: bool = False) -> ShortRun:
    """Train `warm` steps and then at least `steps` measured steps, without evaluation and output.

    Parameters
    ----------
    config, graph
        The run.
    warm, steps
        Warm-up steps and measured steps.
    balance
        Whether the run starts from its prediction and its policy may move work; otherwise the configured
        assignment is kept.

    Raises
    ------
    HyrtError
        If the run fails.
    """
    groups: list[StepMetrics] = []

    def record(event: Event) -> None:
        if isinstance(event, StepMetrics):
            groups.append(event)

    def is_complete() -> bool:
        return bool(groups) and groups[-1].step >= warm + steps

    # More epochs than needed: the run is stopped early.
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
    """Return the groups without the last step of an epoch, which may be smaller; all groups if each has such
    a step.
    """
    return [group for group in groups if group.steps_done < group.steps_per_epoch] or groups


def _median(values: Sequence[float], groups: Sequence[StepMetrics]) -> float:
    """Return the median, with each group weighted by its number of steps."""
    ordered = sorted(zip(values, (len(group.losses) for group in groups), strict=True))
    half, seen = sum(count for _, count in ordered) / 2, 0
    for value, count in ordered:
        seen += count
        if seen >= half:
            return value
    raise ValueError("no group of steps was counted")
