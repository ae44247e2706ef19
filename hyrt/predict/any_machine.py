"""Prediction of configured work on any machine: built in, from a file, or this machine as calibrated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hyrt_perfmodel.assignment import Assignment
from hyrt_perfmodel.platforms.calibration_file import CalibrationError
from hyrt_perfmodel.platforms.platform import Platform
from hyrt_perfmodel.platforms.platform_file import THIS_MACHINE, load_platform, platform_names
from hyrt_perfmodel.prediction.advice import Advice, advise
from hyrt_perfmodel.prediction.mapping import initial_assignment
from hyrt_perfmodel.prediction.memory import free_kept_part
from hyrt_perfmodel.prediction.predict import Prediction, predict, with_accelerators
from hyrt_perfmodel.workloads.model_workload import KINDS
from hyrt_perfmodel.workloads.typed_workload import TYPED_KINDS
from hyrt_perfmodel.workloads.workload import TrainingWorkload

from hyrt.config import Config
from hyrt.device.names import split_by_shares
from hyrt.errors import ConfigError
from hyrt.nn.models.model_kind import find_model
from hyrt.predict.choose_rows import AUTO, choose_rows
from hyrt.predict.fpga_kernels import kernel_sentences, with_kernels
from hyrt.predict.this_run import first_assignment
from hyrt.predict.workload import assumptions_of, dense_rows, other_samplers, other_ways, terms_of

if TYPE_CHECKING:
    from hyrt.predict.chunks.predicted_chunks import ChunkPrediction


def machine(name: str) -> tuple[Platform, list[str]]:
    """Load a platform by name or from a file.

    Parameters
    ----------
    name
        A built-in platform, a .yaml file, or `this-machine`.

    Returns
    -------
    The platform, and the reasons why this machine's calibration is out of date.

    Raises
    ------
    ConfigError
        If there is no such platform, or this machine's calibration cannot be used.
    """
    try:
        platform = load_platform(name)
    except CalibrationError as error:
        alternatives = ", ".join(other for other in platform_names() if other != THIS_MACHINE)
        raise ConfigError(f"{error}, or give a platform: {alternatives}, or a .yaml file") from error
    return platform, _staleness() if name == THIS_MACHINE else []


def _staleness() -> list[str]:
    """Return why this machine's calibration is out of date; raise an error if it is of another machine."""
    from hyrt_perfmodel.platforms.calibration_file import read_calibration, why_stale

    from hyrt.predict.calibrate.store import this_machine

    calibration = read_calibration()
    here = this_machine(calibration.machine.devices)
    reasons = why_stale(calibration, here)
    if reasons and calibration.machine.node != here.node:
        raise ConfigError(f"the calibration was {reasons[0]}: run `hyrt calibrate`, or give a --platform")
    return reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePrediction:
    """Prediction of some work on a machine."""

    machine: Platform
    """Platform of the prediction."""
    now: Prediction
    """The prediction."""
    advice: Sequence[Advice]
    """Changes that would speed it up, best first."""
    scaling: Sequence[tuple[int, Prediction]]
    """Predictions by number of accelerators, if a range was requested."""
    chunked: ChunkPrediction | None = None
    """Epoch in chunks, for full-graph training if the graph does not fit a device or chunks are
    configured."""
    in_chunks: bool = False
    """Whether a run with these settings trains in chunks, so that `now` describes another run."""
    choices: Sequence[str]
    """Resolutions of `auto`, one sentence each."""
    assumptions: Sequence[str]
    """Assumptions about the work and about FPGAs, one sentence each."""


def predict_on(
    platform: Platform,
    work: TrainingWorkload,
    config: Config | None,
    *,
    here: bool = False,
    counts: Sequence[int] = (),
    paper: bool = False,
) -> MachinePrediction:
    """Predict work on a machine.

    Parameters
    ----------
    platform, work
        The machine and the work.
    config
        Settings of the work; None if the work was given as sizes, with a batch per trainer.
    here
        Whether the platform is this machine with the configured trainers: the assignment is then the initial
        one of a run.
    counts
        Numbers of accelerators: a single number replaces the platform's, several are predicted one by one.
    paper
        Whether to use the published form of the model, without re-splitting.

    Raises
    ------
    ConfigError
        If the work or the platform cannot be predicted.
    """
    if config is not None and not here:
        _check_known_costs(platform, config, work)
    terms = None if config is None else terms_of(config)
    if len(counts) == 1:
        platform = with_accelerators(platform, counts[0])
    platform, no_kernels = with_kernels(platform, work, config, paper=paper)
    matched, steps = prepared(platform, work, config)
    choices: list[str] = []
    if config is not None and config.data.cache == "auto":
        steps = replace(steps, kept_part=free_kept_part(matched, steps))
    if config is not None and config.data.rows == AUTO:
        choice = choose_rows(config, matched, steps, lambda steps: _fixed_assignment(config, matched, steps))
        steps, choices = choice.training, [choice.reason]
    if config is not None:
        work = steps
    assignment = None
    if config is not None and not paper:
        as_run = here and not counts
        assignment = (
            first_assignment(config, matched, steps) if as_run else _fixed_assignment(config, matched, steps)
        )
    now = predict(matched, steps, assignment=assignment, terms=terms, paper=paper)
    other_work = [] if config is None or paper else other_samplers(config, steps)
    other_terms = [] if config is None or paper else other_ways(config)
    advice = advise(matched, steps, now, terms=terms, paper=paper, others=other_work, ways=other_terms)
    scaling = []
    for count in counts if len(counts) > 1 else ():
        scaled, steps = prepared(with_accelerators(matched, count), work, config)
        scaling.append((count, predict(scaled, steps, terms=terms, paper=paper)))
    for prediction in (now, *(prediction for _, prediction in scaling)):
        _check_finite(prediction)
    unit = "target" if config is None else config.sampler.unit
    assumptions = [] if config is None else [*assumptions_of(config), *dense_rows(matched, steps)]
    chunked, is_configured = (
        (None, False) if config is None else _chunked(matched, steps, config, assumptions)
    )
    return MachinePrediction(
        machine=matched,
        now=now,
        advice=advice,
        scaling=scaling,
        chunked=chunked,
        in_chunks=is_configured and chunked is not None,
        choices=choices,
        assumptions=[*assumptions, *no_kernels, *kernel_sentences(matched, now, unit)],
    )


def _check_known_costs(platform: Platform, config: Config, work: TrainingWorkload) -> None:
    """Reject kinds of models whose costs are known only where they were measured."""
    kind = config.model.kind
    if work.at(1.0).edge_bytes is not None:
        for accelerator in platform.accelerators:
            if accelerator.design is not None:
                raise ConfigError(
                    f"{accelerator.kind} takes rows of one type of vertices, and {config.data.source} has "
                    "rows of several: give a --platform without it"
                )
    if work.model in TYPED_KINDS:
        return  # Their products and reads are known.
    if not find_model(kind).costs_like:
        raise ConfigError(
            f"model.kind={kind} can be predicted for this machine alone, where `hyrt calibrate --model "
            f"{kind}` measures it: predict the most similar of {', '.join(KINDS)} with the same settings"
        )


def _chunked(
    platform: Platform, work: TrainingWorkload, config: Config, notes: list[str]
) -> tuple[ChunkPrediction | None, bool]:
    """Return the epoch in chunks, and whether chunks are configured.

    Reasons that limit the prediction's accuracy are appended to `known`.
    """
    if not config.sampler.whole_graph:
        return None, False
    # Deferred: mini-batches are predicted without torch, whose import dominates a short command's time.
    from hyrt.predict.chunks.chunk_prediction import is_asked_for, predict_chunks
    from hyrt.predict.chunks.chunk_prediction import why_not_in_chunks as chunk_gap
    from hyrt.predict.chunks.kept_in_file import file_sentence

    chunked = predict_chunks(platform, work, config)
    if reason := chunk_gap(platform, work, config):
        notes.append(
            reason if chunked is not None else f"{reason}. What is said here is of a run without chunks"
        )
    if chunked is None and (sentence := file_sentence(config, platform.host, work)):
        notes.append(sentence)
    return chunked, is_asked_for(platform, work, config)


def prepared(
    platform: Platform, work: TrainingWorkload, config: Config | None
) -> tuple[Platform, TrainingWorkload]:
    """Match a machine and work: task sizes of FPGAs, and the batch size of a whole step.

    Parameters
    ----------
    platform, work
        The machine and the work.
    config
        Settings of the work; None if the work was given as sizes, with a batch per trainer.

    Raises
    ------
    ConfigError
        If an FPGA cannot hold one unit of a sampler whose mini-batches cannot be divided.
    ValueError
        If an FPGA cannot hold one target, or rows are wider than a trainer supports.
    """
    if config is None:
        work = replace(work, batch_size=work.batch_size * len(platform.trainers()))
    if any(accelerator.design is not None for accelerator in platform.accelerators):
        from hyrt_hls.task.arena_limits import UnitTooLarge, with_task_targets

        try:
            platform = with_task_targets(platform, work)
        except UnitTooLarge as error:
            sampler = None if config is None else config.sampler
            if sampler is None or sampler.unit == "target":
                raise
            raise ConfigError(
                f"one {sampler.unit} of sampler.kind={sampler.kind} {error.needs}, and an FPGA trains it "
                f"whole: {sampler.smaller_unit}, or use a sampler whose batches can be cut, such as "
                "sampler.kind=neighbor"
            ) from error
    return platform, work


def _fixed_assignment(config: Config, platform: Platform, work: TrainingWorkload) -> Assignment | None:
    """Return the assignment that the settings fix in part or completely; None if they fix nothing."""
    runtime = config.runtime
    counts = {"sample": runtime.sample_threads, "load": runtime.load_threads, "train": runtime.train_threads}
    fixed = {stage: count for stage, count in counts.items() if count}
    if not fixed and config.split is None:
        return None
    terms = terms_of(config)
    assignment = initial_assignment(platform, work, terms=terms)
    if fixed:
        assignment = initial_assignment(
            platform, work, terms=terms, threads=replace(assignment.threads, **fixed)
        )
    if config.split is not None:
        assignment = replace(assignment, split=tuple(split_by_shares(work.batch_size, config.split)))
    return assignment


def _check_finite(prediction: Prediction) -> None:
    """Raise ConfigError for a prediction with infinite or zero times."""
    times_s = (*prediction.stages_s.values(), prediction.epoch_s, prediction.ideal_epoch_s)
    if not all(math.isfinite(time_s) for time_s in (*times_s, prediction.throughput_mteps)):
        raise ConfigError(
            "a size or a rate is too large or too small to compute with: an epoch on "
            f"{prediction.platform} takes {prediction.epoch_s} s, its {prediction.bottleneck} "
            f"{prediction.iteration_s} s per step"
        )
    if prediction.iteration_s == 0 or prediction.epoch_s == 0:
        raise ConfigError("a step of this workload takes no time: give vertices, edges and features above 0")
