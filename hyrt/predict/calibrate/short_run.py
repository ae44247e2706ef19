"""A short training run, for its times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hyrt.config import Config
from hyrt.graph.graph import Graph
from hyrt.observe.events import Event, StepGroup
from hyrt.predict.this_run import predict_run
from hyrt.training.compose import compose_run
from hyrt.training.train import Training


@dataclass(frozen=True, slots=True)
class ShortRun:
    """What the whole steps of a run took: all but the last of an epoch, which may be smaller."""

    iteration_s: float
    """Median over groups of steps of the wall time of a step."""
    gap_s: float
    """Median over groups of what a step took besides propagation and synchronization."""
    stage_s: Mapping[str, float]
    """Means of the stages' work."""
    split: Mapping[str, int]
    threads: Mapping[str, int]
    """`split` and `threads`: what it ran under."""


def short_run(config: Config, graph: Graph, *, warm: int, steps: int, balance: bool = False) -> ShortRun:
    """Train `warm` steps and then at least `steps` that count; evaluates nothing and writes nothing.

    Parameters
    ----------
    config, graph
        The run.
    warm, steps
        Steps before those that count, and those.
    balance
        Whether the run starts from its prediction and its policy may move work; else it stays as the settings
        say.

    Raises
    ------
    HyrtError
        As a run does.
    """
    groups: list[StepGroup] = []

    def hear(event: Event) -> None:
        if isinstance(event, StepGroup):
            groups.append(event)

    def is_enough() -> bool:
        return bool(groups) and groups[-1].step >= warm + steps

    # More epochs than are needed: the run is stopped.
    train = config.train.model_copy(update={"epochs": warm + steps})
    evaluate = config.evaluate.model_copy(update={"every": 0})
    # What is measured stays as it is, whatever an older calibration says.
    fixed = config.balance.model_copy(update={"policy": "static", "predict": False})
    Training(
        compose_run(
            config.model_copy(
                update={"train": train, "evaluate": evaluate, "balance": config.balance if balance else fixed}
            ),
            graph,
            emit=hear,
            should_stop=is_enough,
            predict=predict_run,
        )
    ).run()
    counted = _of_whole_steps([group for group in groups if group.step - len(group.losses) >= warm])
    gaps = [group.step_s - group.stage_s["propagate"] - group.stage_s["synchronize"] for group in counted]
    return ShortRun(
        _median([group.step_s for group in counted], counted),
        _median(gaps, counted),
        {
            stage: sum(group.stage_s[stage] * len(group.losses) for group in counted)
            / sum(len(group.losses) for group in counted)
            for stage in counted[0].stage_s
        },
        counted[-1].split,
        counted[-1].threads,
    )


def _of_whole_steps(groups: list[StepGroup]) -> list[StepGroup]:
    """Groups without the last step of an epoch, which is smaller where the targets do not divide; all groups
    where every one has such a step.
    """
    return [group for group in groups if group.steps_done < group.steps_per_epoch] or groups


def _median(values: Sequence[float], groups: Sequence[StepGroup]) -> float:
    """The middle one where every group counts as often as it has steps."""
    ordered = sorted(zip(values, (len(group.losses) for group in groups), strict=True))
    half, seen = sum(count for _, count in ordered) / 2, 0
    for value, count in ordered:
        seen += count
        if seen >= half:
            return value
    raise ValueError("no group of steps was counted")
