"""Prediction of work on a built-in platform, on one from a file or on this machine, and resolution of
`data.feature_dtype=auto`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hyrt_perfmodel.model_workload import HETERO_KINDS, KINDS
from hyrt_perfmodel.platform import Platform
from hyrt_perfmodel.platform_file import THIS_MACHINE, CalibrationError, load_platform, platform_names
from hyrt_perfmodel.policy import Assignment
from hyrt_perfmodel.prediction.initial_assignment import free_cache_fraction, initial_assignment
from hyrt_perfmodel.prediction.predict import Advice, Prediction, advise, predict, with_accelerators
from hyrt_perfmodel.prediction.stage_times import has_single_products
from hyrt_perfmodel.workload import TrainingWorkload

from hyrt.config import Config
from hyrt.device.discovery import split_by_shares
from hyrt.errors import ConfigError, DataError
from hyrt.formatting import format_duration
from hyrt.graph.quantized.row_format import ROW_FORMATS
from hyrt.nn.models.model_kind import find_model
from hyrt.predict.predict_run import first_assignment
from hyrt.predict.workload import (
    configured_terms,
    dense_row_notes,
    other_samplers,
    other_schedules,
    workload_assumptions,
)

if TYPE_CHECKING:
    from hyrt_perfmodel.platform import Accelerator

    from hyrt.predict.chunk_prediction import ChunkPrediction
    from hyrt.training.setup import PreparedRun


AUTO, STORED = "auto", "stored"
# Formats in the order of their rounding errors, smallest first.
_QUANTIZED = ("float16", "int8")
# Minimum relative gain that justifies a larger rounding error.
_MIN_GAIN = 0.03

Assign = Callable[[TrainingWorkload], Assignment | None]


@dataclass(frozen=True, slots=True)
class RowsChoice:
    """Result of `data.feature_dtype=auto`."""

    rows: str
    """Selected value of the setting `data.feature_dtype`."""
    training: TrainingWorkload
    """Work of the run with rows in this format."""
    reason: str
    """Sentence with the reason for the selection."""


def choose_rows(
    config: Config, platform: Platform, training: TrainingWorkload, assign: Assign = lambda training: None
) -> RowsChoice:
    """Select the most precise row format whose epoch takes at most 3 % longer than the shortest.

    `platform` contains the run's trainers, and `training` rows in their stored format. `assign` returns the
    initial assignment for a workload, or None to search for the best assignment.
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
        f"data.feature_dtype=auto selects {rows}, predicted to take {format_duration(epochs_s[rows])} per "
        f"epoch ({alternatives})"
    )
    return RowsChoice(rows, works[rows], reason)


def resolve_rows(config: Config, prepared: PreparedRun) -> tuple[Config, PreparedRun, str]:
    """Replace `data.feature_dtype: auto` in the settings and the graph with the selected format.

    Returns the settings, the prepared run with matching graph and sampler, and a line for the user.
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
                f"data.feature_dtype=auto leaves the rows as they are, because {rows} fails: {error}",
            )
    config = config.model_copy(update={"data": config.data.model_copy(update={"feature_dtype": rows})})
    if graph is not prepared.graph:
        prepared = PreparedRun(config, graph, prepared.model if prepared.is_custom_module else None)
    return config, prepared, reason


def _choice_here(config: Config, prepared: PreparedRun) -> tuple[str, str]:
    """Return the selected format for a run on this machine, and the reason."""
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


def unsupported_reason(config: Config) -> str:
    """Return the reason why the FPGA kernels do not support the configured model, or "".

    Limits on row widths depend on the dataset and are not checked. Raises ConfigError for an unknown model.
    """
    from hyrt.device.discovery import BACKENDS
    from hyrt.errors import ConfigError
    from hyrt.predict.step_dry_run import meta_model

    try:
        model = meta_model(config, num_features=1, num_classes=1)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return str(BACKENDS.find_entry("fpga").load().unsupported_reason(model))


def select_designs(
    machine: Platform, work: TrainingWorkload, config: Config | None, *, paper: bool
) -> tuple[Platform, list[str]]:
    """Return a platform without FPGA designs that do not apply to the work, and an explanation.

    `config` is None if the work is given as sizes. The `paper` form of the performance model has no designs.
    """
    designed = [accelerator.kind for accelerator in machine.accelerators if accelerator.design is not None]
    if not designed:
        return machine, []
    reason = "" if paper or config is None else unsupported_reason(config)
    if not (reason or paper) and not has_single_products(work.at(1.0)):
        reason = "they compute one product per layer, and read a row once for each edge"
    if not (reason or paper):
        return machine, []
    rated = replace(
        machine, accelerators=tuple(replace(accelerator, design=None) for accelerator in machine.accelerators)
    )
    if paper:
        return rated, []
    return rated, [
        f"hyrt's kernels do not support this model on {', '.join(designed)} ({reason}); the prediction uses "
        "rates as if they did"
    ]


def kernel_sentences(machine: Platform, prediction: Prediction, unit: str = "target") -> list[str]:
    """Return the cycle model's assumptions about FPGAs, one sentence each.

    `machine` contains the task sizes (`hyrt_hls.arena_limits`). `unit` is the name of the sampler's units.
    """
    return [
        _describe_accelerator(accelerator, prediction, unit)
        for accelerator in machine.accelerators
        if accelerator.design is not None
    ]


def _describe_accelerator(accelerator: Accelerator, now: Prediction, unit: str) -> str:
    assert accelerator.design is not None
    units = [
        count
        for name, count in zip(now.trainers, now.assignment.split, strict=True)
        if name.rpartition(":")[0] == accelerator.kind
    ]
    design, assumed = accelerator.design, ", ".join(sorted(accelerator.design.assumed))
    return (
        f"{accelerator.kind} runs hyrt's kernels with {design.pes} PEs and {design.macs} MACs, "
        f"{_describe_tasks(units, accelerator.task_targets, unit)}; no build has confirmed {assumed}"
    )


def _describe_tasks(units: Sequence[int], task_units: int | None, unit: str) -> str:
    """Describe the tasks of a step, as in `its 84 targets per step as 1 task (a task has up to 256)`."""
    max_units = max(units, default=0)
    if not max_units:
        return "and it gets no targets"
    share = f"its {max_units} targets" if unit == "target" else f"its {max_units} x 1 {unit}"
    if task_units is None:
        return f"{share} per step as 1 task (whether they fit is unknown without arena_words)"
    count = math.ceil(max_units / task_units)
    return f"{share} per step as {count} task{'s' * (count > 1)} (a task has up to {task_units})"


def load_machine(name: str) -> tuple[Platform, list[str]]:
    """Load a built-in platform, a platform from a .yaml file, or `this-machine`.

    Also return the reasons why this machine's calibration is out of date. Raises ConfigError if there is no
    such platform or the calibration cannot be used.
    """
    try:
        platform = load_platform(name)
    except CalibrationError as error:
        alternatives = ", ".join(other for other in platform_names() if other != THIS_MACHINE)
        raise ConfigError(f"{error}, or choose a --platform ({alternatives}, or a .yaml file)") from error
    return platform, _staleness() if name == THIS_MACHINE else []


def _staleness() -> list[str]:
    """Return why the calibration is out of date; raise ConfigError if it belongs to another machine."""
    from hyrt_perfmodel.platform_file import read_calibration, staleness_reasons

    from hyrt.predict.calibrate.store import describe_machine

    calibration = read_calibration()
    here = describe_machine(calibration.machine.devices)
    reasons = staleness_reasons(calibration, here)
    if reasons and calibration.machine.node != here.node:
        raise ConfigError(f"the calibration was {reasons[0]}: run `hyrt calibrate`, or choose a --platform")
    return reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePrediction:
    """Prediction of work on one machine."""

    machine: Platform
    prediction: Prediction
    advice: Sequence[Advice]
    """Changes that would make the run faster, the most effective first."""
    scaling: Sequence[tuple[int, Prediction]]
    """Pairs (number of accelerators, prediction) if several numbers were requested."""
    chunked: ChunkPrediction | None = None
    """Epoch of full-graph training in chunks, if chunks are configured or the graph does not fit a device."""
    in_chunks: bool = False
    """Whether a run with these settings trains in chunks, in which case `prediction` does not apply to it."""
    choices: Sequence[str]
    """Values that replaced `auto`, one sentence each."""
    assumptions: Sequence[str]
    """Assumptions about the work and about FPGAs, one sentence each."""


def predict_platform(
    platform: Platform,
    work: TrainingWorkload,
    config: Config | None,
    *,
    is_local: bool = False,
    counts: Sequence[int] = (),
    paper: bool = False,
) -> MachinePrediction:
    """Predict work on a machine; raise ConfigError if this is not possible.

    `config` is None if the work is given as sizes, whose batch is that of one trainer. With `is_local`,
    `platform` is this machine with the configured trainers, and the assignment is the initial one of a run. A
    single number in `counts` replaces the platform's number of accelerators; several numbers are predicted
    one by one. With `paper`, the published performance model is used, which does not redistribute work.
    """
    if config is not None and not is_local:
        _check_known_costs(platform, config, work)
    terms = None if config is None else configured_terms(config)
    if len(counts) == 1:
        platform = with_accelerators(platform, counts[0])
    platform, no_kernels = select_designs(platform, work, config, paper=paper)
    matched, steps = match_platform(platform, work, config)
    choices: list[str] = []
    if config is not None and config.data.cache == "auto":
        steps = replace(steps, cached_fraction=free_cache_fraction(matched, steps))
    if config is not None and config.data.feature_dtype == AUTO:
        choice = choose_rows(config, matched, steps, lambda steps: _fixed_assignment(config, matched, steps))
        steps, choices = choice.training, [choice.reason]
    if config is not None:
        work = steps
    assignment = None
    if config is not None and not paper:
        as_run = is_local and not counts
        assignment = (
            first_assignment(config, matched, steps) if as_run else _fixed_assignment(config, matched, steps)
        )
    now = predict(matched, steps, assignment=assignment, terms=terms, paper=paper)
    other_work = [] if config is None or paper else other_samplers(config, steps)
    other_terms = [] if config is None or paper else other_schedules(config)
    advice = advise(
        matched, steps, now, terms=terms, paper=paper, other_workloads=other_work, other_terms=other_terms
    )
    scaling = []
    for count in counts if len(counts) > 1 else ():
        scaled, steps = match_platform(with_accelerators(matched, count), work, config)
        scaling.append((count, predict(scaled, steps, terms=terms, paper=paper)))
    for prediction in (now, *(prediction for _, prediction in scaling)):
        _check_finite(prediction)
    unit = "target" if config is None else config.sampler.unit
    assumptions = [] if config is None else [*workload_assumptions(config), *dense_row_notes(matched, steps)]
    chunked, is_configured = (
        (None, False) if config is None else _chunked(matched, steps, config, assumptions)
    )
    return MachinePrediction(
        machine=matched,
        prediction=now,
        advice=advice,
        scaling=scaling,
        chunked=chunked,
        in_chunks=is_configured and chunked is not None,
        choices=choices,
        assumptions=[*assumptions, *no_kernels, *kernel_sentences(matched, now, unit)],
    )


def _check_known_costs(platform: Platform, config: Config, work: TrainingWorkload) -> None:
    """Raise ConfigError if the model kind's costs are known only for measured machines."""
    kind = config.model.kind
    if work.at(1.0).edge_bytes is not None:
        for accelerator in platform.accelerators:
            if accelerator.design is not None:
                raise ConfigError(
                    f"{accelerator.kind} supports only one vertex type, but {config.data.source} has "
                    f"several: choose a --platform without {accelerator.kind}"
                )
    if work.model in HETERO_KINDS:
        return  # The costs of products and reads are known for these kinds.
    if not find_model(kind).costs_like:
        raise ConfigError(
            f"model.kind={kind} can be predicted only for this machine, where `hyrt calibrate --model "
            f"{kind}` measures it: predict the most similar of {', '.join(KINDS)} with the same settings"
        )


def _chunked(
    platform: Platform, work: TrainingWorkload, config: Config, notes: list[str]
) -> tuple[ChunkPrediction | None, bool]:
    """Return the epoch in chunks, and whether chunks are configured.

    Reasons why the prediction is less accurate are appended to `notes`.
    """
    if not config.sampler.is_full_graph:
        return None, False
    # Import lazily, because torch takes long to import and mini-batch predictions do not need it.
    from hyrt.predict.chunk_prediction import chunk_prediction_gap as chunk_gap
    from hyrt.predict.chunk_prediction import file_sentence, predict_chunks, trains_in_chunks

    chunked = predict_chunks(platform, work, config)
    if reason := chunk_gap(platform, work, config):
        notes.append(
            reason
            if chunked is not None
            else f"this prediction is for a run without chunks, because {reason}"
        )
    if chunked is None and (sentence := file_sentence(config, platform.host, work)):
        notes.append(sentence)
    return chunked, trains_in_chunks(platform, work, config)


def match_platform(
    platform: Platform, work: TrainingWorkload, config: Config | None
) -> tuple[Platform, TrainingWorkload]:
    """Return the platform with task sizes for the workload, and the workload of a whole step.

    `config` is None if the work is given as sizes, whose batch is that of one trainer. Raises ConfigError if
    an FPGA cannot hold one unit of a sampler whose mini-batches cannot be divided, and ValueError if it
    cannot hold one target or rows are wider than a trainer supports.
    """
    if config is None:
        work = replace(work, batch_size=work.batch_size * len(platform.trainers()))
    if any(accelerator.design is not None for accelerator in platform.accelerators):
        from hyrt_hls.arena_limits import UnitTooLargeError, with_task_targets

        try:
            platform = with_task_targets(platform, work)
        except UnitTooLargeError as error:
            sampler = None if config is None else config.sampler
            if sampler is None or sampler.unit == "target":
                raise
            raise ConfigError(
                f"one {sampler.unit} of sampler.kind={sampler.kind} {error.needs}, and an FPGA cannot "
                f"divide it: {sampler.smaller_unit}, or use a sampler whose batches can be divided, such as "
                "sampler.kind=neighbor"
            ) from error
    return platform, work


def _fixed_assignment(config: Config, platform: Platform, work: TrainingWorkload) -> Assignment | None:
    """Return the assignment that the settings fix at least partly, or None if they fix nothing."""
    runtime = config.runtime
    counts = {"sample": runtime.sample_threads, "load": runtime.load_threads, "train": runtime.train_threads}
    fixed = {stage: count for stage, count in counts.items() if count}
    if not fixed and config.split is None:
        return None
    terms = configured_terms(config)
    assignment = initial_assignment(platform, work, terms=terms)
    if fixed:
        assignment = initial_assignment(
            platform, work, terms=terms, threads=replace(assignment.threads, **fixed)
        )
    if config.split is not None:
        assignment = replace(assignment, split=tuple(split_by_shares(work.batch_size, config.split)))
    return assignment


def _check_finite(prediction: Prediction) -> None:
    """Raise ConfigError if a predicted time is infinite or zero."""
    times_s = (*prediction.stages_s.values(), prediction.epoch_s, prediction.ideal_epoch_s)
    if not all(math.isfinite(time_s) for time_s in (*times_s, prediction.throughput_mteps)):
        raise ConfigError(
            "a size or a rate is too large or too small to compute with, because an epoch on "
            f"{prediction.platform} takes {prediction.epoch_s} s, and its {prediction.bottleneck} "
            f"{prediction.iteration_s} s per step: check the sizes and rates"
        )
    if prediction.iteration_s == 0 or prediction.epoch_s == 0:
        raise ConfigError("a step of this workload takes no time: use vertices, edges and features above 0")
