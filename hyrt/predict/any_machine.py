"""The prediction of configured work on any machine: built in, from a file, or this one as calibrated."""

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
    """A platform by name or file.

    Parameters
    ----------
    name
        A built-in platform, a .yaml file, or `this-machine`.

    Returns
    -------
    The platform, and the reasons why this machine's calibration no longer holds.

    Raises
    ------
    ConfigError
        If there is no such platform, or this machine's calibration cannot be used.
    """
    try:
        found = load_platform(name)
    except CalibrationError as error:
        others = ", ".join(other for other in platform_names() if other != THIS_MACHINE)
        raise ConfigError(f"{error}, or give a platform: {others}, or a .yaml file") from error
    return found, _stale() if name == THIS_MACHINE else []


def _stale() -> list[str]:
    """Why this machine's calibration no longer holds; one of another machine is an error."""
    from hyrt_perfmodel.platforms.calibration_file import read_calibration, why_stale

    from hyrt.predict.calibrate.store import this_machine

    kept = read_calibration()
    here = this_machine(kept.machine.devices)
    reasons = why_stale(kept, here)
    if reasons and kept.machine.node != here.node:
        raise ConfigError(f"the calibration was {reasons[0]}: run `hyrt calibrate`, or give a --platform")
    return reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePrediction:
    """What the performance model says of some work on a machine."""

    machine: Platform
    """The platform it was predicted for."""
    now: Prediction
    """The prediction."""
    advice: Sequence[Advice]
    """What would make it faster, the best first."""
    scaling: Sequence[tuple[int, Prediction]]
    """Predictions by number of accelerators, where a range was asked for."""
    chunked: ChunkPrediction | None = None
    """The epoch in chunks, where the whole graph is trained on and does not fit a device, or chunks are asked
    for."""
    in_chunks: bool = False
    """Whether a run of the settings trains in chunks, so that `now` is of another run."""
    choices: Sequence[str]
    """What `auto` stands for here, one sentence each."""
    assumptions: Sequence[str]
    """What is assumed of the work and of FPGAs, one sentence each."""


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
        The settings of the work; None where it was given in sizes, with a batch for each trainer.
    here
        Whether the platform is this machine with the trainers of the settings: then the assignment is the
        one that a run would start with.
    counts
        Numbers of accelerators: one replaces the platform's, several are predicted one by one.
    paper
        Whether the published form of the model is wanted, in which nothing is re-split.

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
    on_it, steps = prepared(platform, work, config)
    said: list[str] = []
    if config is not None and config.data.cache == "auto":
        steps = replace(steps, kept_part=free_kept_part(on_it, steps))
    if config is not None and config.data.rows == AUTO:
        choice = choose_rows(config, on_it, steps, lambda steps: _given(config, on_it, steps))
        steps, said = choice.training, [choice.reason]
    if config is not None:
        work = steps
    given = None
    if config is not None and not paper:
        as_run = here and not counts
        given = first_assignment(config, on_it, steps) if as_run else _given(config, on_it, steps)
    now = predict(on_it, steps, assignment=given, terms=terms, paper=paper)
    others = [] if config is None or paper else other_samplers(config, steps)
    ways = [] if config is None or paper else other_ways(config)
    advice = advise(on_it, steps, now, terms=terms, paper=paper, others=others, ways=ways)
    scaling = []
    for count in counts if len(counts) > 1 else ():
        scaled, steps = prepared(with_accelerators(on_it, count), work, config)
        scaling.append((count, predict(scaled, steps, terms=terms, paper=paper)))
    for each in (now, *(prediction for _, prediction in scaling)):
        _check_finite(each)
    unit = "target" if config is None else config.sampler.unit
    known = [] if config is None else [*assumptions_of(config), *dense_rows(on_it, steps)]
    chunked, asked = (None, False) if config is None else _chunked(on_it, steps, config, known)
    return MachinePrediction(
        machine=on_it,
        now=now,
        advice=advice,
        scaling=scaling,
        chunked=chunked,
        in_chunks=asked and chunked is not None,
        choices=said,
        assumptions=[*known, *no_kernels, *kernel_sentences(on_it, now, unit)],
    )


def _check_known_costs(platform: Platform, config: Config, work: TrainingWorkload) -> None:
    """Refuse kinds of models whose costs are only known where they were measured."""
    kind = config.model.kind
    if work.at(1.0).edge_bytes is not None:
        for accelerator in platform.accelerators:
            if accelerator.design is not None:
                raise ConfigError(
                    f"{accelerator.kind} takes rows of one type of vertices, and {config.data.source} has "
                    "rows of several: give a --platform without it"
                )
    if work.model in TYPED_KINDS:
        return  # What these multiply and read is known.
    if not find_model(kind).costs_like:
        raise ConfigError(
            f"model.kind={kind} can be predicted for this machine alone, where `hyrt calibrate --model "
            f"{kind}` measures it: predict the most similar of {', '.join(KINDS)} with the same settings"
        )


def _chunked(
    platform: Platform, work: TrainingWorkload, config: Config, known: list[str]
) -> tuple[ChunkPrediction | None, bool]:
    """The epoch in chunks, and whether the settings ask for them; `known` hears why it is not known well."""
    if not config.sampler.whole_graph:
        return None, False
    # Mini-batches are predicted without torch, which this imports: that takes most of a short command's time.
    from hyrt.predict.chunks.chunk_prediction import is_asked_for, predict_chunks
    from hyrt.predict.chunks.chunk_prediction import why_not_in_chunks as why_not
    from hyrt.predict.chunks.kept_in_file import file_sentence

    found = predict_chunks(platform, work, config)
    if why := why_not(platform, work, config):
        known.append(why if found is not None else f"{why}. What is said here is of a run without chunks")
    if found is None and (sentence := file_sentence(config, platform.host, work)):
        known.append(sentence)
    return found, is_asked_for(platform, work, config)


def prepared(
    platform: Platform, work: TrainingWorkload, config: Config | None
) -> tuple[Platform, TrainingWorkload]:
    """A machine and work that fit each other: tasks for the chips of FPGAs, and the batch of a whole step.

    Parameters
    ----------
    platform, work
        The machine and the work.
    config
        The settings of the work; None where it was given in sizes, with a batch for each trainer.

    Raises
    ------
    ConfigError
        If an FPGA cannot hold one unit of a sampler whose mini-batches cannot be cut.
    ValueError
        If it cannot hold one target, or rows are wider than a trainer takes.
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


def _given(config: Config, platform: Platform, work: TrainingWorkload) -> Assignment | None:
    """The assignment that the settings fix, in part or whole; None where they leave all of it open."""
    runtime = config.runtime
    counts = {"sample": runtime.sample_threads, "load": runtime.load_threads, "train": runtime.train_threads}
    fixed = {stage: count for stage, count in counts.items() if count}
    if not fixed and config.split is None:
        return None
    terms = terms_of(config)
    found = initial_assignment(platform, work, terms=terms)
    if fixed:
        found = initial_assignment(platform, work, terms=terms, threads=replace(found.threads, **fixed))
    if config.split is not None:
        found = replace(found, split=tuple(split_by_shares(work.batch_size, config.split)))
    return found


def _check_finite(prediction: Prediction) -> None:
    """Rates of almost nothing, and work of nothing at all, are numbers too."""
    times_s = (*prediction.stages_s.values(), prediction.epoch_s, prediction.ideal_epoch_s)
    if not all(math.isfinite(time_s) for time_s in (*times_s, prediction.throughput_mteps)):
        raise ConfigError(
            "a size or a rate is too large or too small to compute with: an epoch on "
            f"{prediction.platform} takes {prediction.epoch_s} s, its {prediction.bottleneck} "
            f"{prediction.iteration_s} s per step"
        )
    if prediction.iteration_s == 0 or prediction.epoch_s == 0:
        raise ConfigError("a step of this workload takes no time: give vertices, edges and features above 0")
