"""Implementation of `data.feature_dtype=auto`: the feature format whose speedup justifies its rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hyrt_perfmodel.platforms.platform import Platform
from hyrt_perfmodel.policy import Assignment
from hyrt_perfmodel.prediction.predict import predict
from hyrt_perfmodel.workload import TrainingWorkload

from hyrt.config import Config
from hyrt.errors import ConfigError, DataError
from hyrt.formatting import format_duration
from hyrt.graph.quantized.row_format import ROW_FORMATS
from hyrt.predict.workload import configured_terms

if TYPE_CHECKING:
    from hyrt.training.setup import PreparedRun

AUTO, STORED = "auto", "stored"
# In order of rounding errors, the smallest first.
_QUANTIZED = ("float16", "int8")
# Minimum relative gain for which more rounding is worthwhile.
_MIN_GAIN = 0.03

Assign = Callable[[TrainingWorkload], Assignment | None]


@dataclass(frozen=True, slots=True)
class RowsChoice:
    """Format selected by auto."""

    rows: str
    """Value of the setting `data.feature_dtype`."""
    training: TrainingWorkload
    """Work with rows in that format."""
    reason: str
    """Reason, as a sentence."""


def choose_rows(
    config: Config, platform: Platform, training: TrainingWorkload, assign: Assign = lambda training: None
) -> RowsChoice:
    """Choose the most precise format whose epoch is within 3 % of the shortest.

    `platform` has the run's trainers. `training` has rows in their stored format. `assign` returns the
    initial assignment of a workload, or None to search for the best one.
    """
    sample = training.at(1.0)
    if sample.sparse is not None or training.resident:
        data = "sparse features" if sample.sparse is not None else "the rows of a whole graph"
        return RowsChoice(STORED, training, f"data.feature_dtype=auto leaves {data} as they are")
    works = {STORED: training}
    for name in _QUANTIZED:
        row_bytes = float(ROW_FORMATS[name].row_bytes(sample.features[0]))
        if row_bytes < sample.dense_row_bytes:
            works[name] = training.with_row_bytes(row_bytes)
    terms = configured_terms(config)
    epochs_s = {
        name: predict(platform, work, assignment=assign(work), terms=terms).epoch_s
        for name, work in works.items()
    }
    min_epoch_s = min(epochs_s.values())
    rows = next(name for name, epoch_s in epochs_s.items() if epoch_s <= min_epoch_s * (1 + _MIN_GAIN))
    alternatives = ", ".join(
        f"{name} {format_duration(epoch_s)}" for name, epoch_s in epochs_s.items() if name != rows
    )
    reason = (
        f"data.feature_dtype=auto takes {rows}: {format_duration(epochs_s[rows])} per "
        f"epoch predicted ({alternatives})"
    )
    return RowsChoice(rows, works[rows], reason)


def resolve_rows(config: Config, prepared: PreparedRun) -> tuple[Config, PreparedRun, str]:
    """Replace `data.feature_dtype: auto` in settings and graph by the selected format.

    Returns the settings, the matching graph and sampler, and a line for the user.
    """
    if config.data.feature_dtype != AUTO:
        return config, prepared, ""
    from hyrt.graph.quantized.features import quantize_graph
    from hyrt.runtime.hardware import available_cores
    from hyrt.runtime.workers import Workers, use_workers
    from hyrt.training.setup import PreparedRun

    rows, reason = _choice_here(config, prepared)
    graph = prepared.graph
    if rows != STORED:
        try:
            with Workers(available_cores(), "rounding") as workers, use_workers(workers):
                graph = quantize_graph(graph, rows)
        except DataError as error:
            rows, reason = (
                STORED,
                f"data.feature_dtype=auto leaves the rows as they are, since {rows} fails: {error}",
            )
    config = config.model_copy(update={"data": config.data.model_copy(update={"feature_dtype": rows})})
    if graph is not prepared.graph:
        prepared = PreparedRun(config, graph, prepared.model if prepared.is_own_model else None)
    return config, prepared, reason


def _choice_here(config: Config, prepared: PreparedRun) -> tuple[str, str]:
    """Return the format for a run on this machine, and why it was selected."""
    from hyrt.predict.calibrate.store import usable_calibration
    from hyrt.predict.choose_devices import known_work
    from hyrt.predict.predict_run import first_assignment, run_platform

    calibration, reason = usable_calibration()
    if calibration is None:
        reason = reason or "this machine is not calibrated: run `hyrt calibrate`"
        return STORED, f"data.feature_dtype=auto leaves the rows as they are: {reason}"
    try:
        platform = run_platform(config, calibration.platform)
        work = known_work(config, prepared)
        choice = choose_rows(config, platform, work, lambda work: first_assignment(config, platform, work))
    except ConfigError as error:
        return STORED, f"data.feature_dtype=auto leaves the rows as they are: {error}"
    return choice.rows, choice.reason
