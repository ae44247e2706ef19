"""`data.rows=auto`: the format of feature rows that is worth its rounding, by the performance model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hyrt_perfmodel.assignment import Assignment
from hyrt_perfmodel.platforms.platform import Platform
from hyrt_perfmodel.prediction.predict import predict
from hyrt_perfmodel.workloads.workload import TrainingWorkload

from hyrt.config import Config
from hyrt.errors import ConfigError, DataError
from hyrt.graph.narrow.row_format import ROW_FORMATS
from hyrt.predict.workload import terms_of
from hyrt.quantities import duration

if TYPE_CHECKING:
    from hyrt.training.setup import PreparedRun

AUTO, STORED = "auto", "stored"
# From the least rounding to the most.
_NARROW = ("float16", "int8")
# Rounding that saves less is not worth it.
_WORTH = 0.03

Assign = Callable[[TrainingWorkload], Assignment | None]


@dataclass(frozen=True, slots=True)
class RowsChoice:
    """What auto decided."""

    rows: str
    """The setting `data.rows`."""
    training: TrainingWorkload
    """The work with such rows."""
    reason: str
    """Why, in a sentence."""


def choose_rows(
    config: Config, platform: Platform, training: TrainingWorkload, assign: Assign = lambda training: None
) -> RowsChoice:
    """The format that rounds least of those whose epoch is within 3 % of the shortest.

    Parameters
    ----------
    config
        All settings.
    platform
        The machine, with the run's trainers.
    training
        The work with rows as they are stored.
    assign
        Gives the assignment that work starts with; None where the best one is to be found.
    """
    sample = training.at(1.0)
    if sample.sparse is not None or training.resident:
        what = "sparse features" if sample.sparse is not None else "the rows of a whole graph"
        return RowsChoice(STORED, training, f"data.rows=auto leaves {what} as they are")
    works = {STORED: training}
    for name in _NARROW:
        row_bytes = float(ROW_FORMATS[name].row_bytes(sample.features[0]))
        if row_bytes < sample.dense_row_bytes:
            works[name] = training.with_rows_of(row_bytes)
    terms = terms_of(config)
    epochs_s = {
        name: predict(platform, work, assignment=assign(work), terms=terms).epoch_s
        for name, work in works.items()
    }
    least_s = min(epochs_s.values())
    rows = next(name for name, epoch_s in epochs_s.items() if epoch_s <= least_s * (1 + _WORTH))
    others = ", ".join(f"{name} {duration(epoch_s)}" for name, epoch_s in epochs_s.items() if name != rows)
    reason = f"data.rows=auto takes {rows}: {duration(epochs_s[rows])} per epoch predicted ({others})"
    return RowsChoice(rows, works[rows], reason)


def resolve_rows(config: Config, prepared: PreparedRun) -> tuple[Config, PreparedRun, str]:
    """Settings and graph with `data.rows: auto` replaced by what it stands for here; others unchanged.

    Parameters
    ----------
    config
        All settings; `devices` names the trainers.
    prepared
        The run's graph, and its sampler.

    Returns
    -------
    The settings, what goes with them, and a line for the user.
    """
    if config.data.rows != AUTO:
        return config, prepared, ""
    from hyrt.graph.narrow.narrowing import narrowed
    from hyrt.machine.cores import available_cores
    from hyrt.machine.workers import Workers, working
    from hyrt.training.setup import PreparedRun

    rows, reason = _choice_here(config, prepared)
    graph = prepared.graph
    if rows != STORED:
        try:
            with Workers(available_cores(), "rounding") as workers, working(workers):
                graph = narrowed(graph, rows)
        except DataError as error:
            rows, reason = STORED, f"data.rows=auto leaves the rows as they are, since {rows} fails: {error}"
    config = config.model_copy(update={"data": config.data.model_copy(update={"rows": rows})})
    if graph is not prepared.graph:
        prepared = PreparedRun(config, graph, prepared.model if prepared.is_own_model else None)
    return config, prepared, reason


def _choice_here(config: Config, prepared: PreparedRun) -> tuple[str, str]:
    """The format for a run on this machine, and why."""
    from hyrt.predict.calibrate.store import usable
    from hyrt.predict.choose_devices import known_work
    from hyrt.predict.this_run import devices_of, first_assignment

    calibration, why_not = usable()
    if calibration is None:
        why_not = why_not or "this machine is not calibrated: run `hyrt calibrate`"
        return STORED, f"data.rows=auto leaves the rows as they are: {why_not}"
    try:
        platform = devices_of(config, calibration.platform)
        work = known_work(config, prepared)
        choice = choose_rows(config, platform, work, lambda work: first_assignment(config, platform, work))
    except ConfigError as error:
        return STORED, f"data.rows=auto leaves the rows as they are: {error}"
    return choice.rows, choice.reason
