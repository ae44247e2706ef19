"""What a run on this machine starts with, and its prediction, from this machine's calibration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from hyrt_perfmodel.assignment import Assignment
from hyrt_perfmodel.platforms.platform import Platform
from hyrt_perfmodel.platforms.this_machine import full_name, with_trainers
from hyrt_perfmodel.prediction.mapping import initial_assignment
from hyrt_perfmodel.prediction.memory import free_kept_part
from hyrt_perfmodel.prediction.predict import predict
from hyrt_perfmodel.workloads.workload import TrainingWorkload

from hyrt.config import Config
from hyrt.device.discovery import BACKENDS
from hyrt.device.names import split_by_shares
from hyrt.errors import ConfigError
from hyrt.nn.models.model_kind import find_model
from hyrt.predict.workload import sampled_workload, terms_of
from hyrt.training.given.expected_run import ExpectedRun

if TYPE_CHECKING:
    from hyrt.graph.graph import Graph
    from hyrt.sampling.sampler import Sampler


def predict_run(
    config: Config,
    graph: Graph,
    sampler: Sampler | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> ExpectedRun | None:
    """What the performance model expects of a run on this machine; None where it is not calibrated.

    Also None for runs that it has no words for, and for devices or models that were not measured.

    Parameters
    ----------
    config
        All settings; `devices` names the trainers.
    graph
        The graph to be trained on.
    sampler
        The run's sampler; one is built where there is no run.
    say
        Receives the reason if there is no prediction although the machine was calibrated.
    """
    from hyrt.predict.calibrate.store import usable

    calibration, reason = usable()
    if calibration is None:
        if reason:
            say(f"no prediction: {reason}")
        return None
    try:
        platform = devices_of(config, calibration.platform)
        training = sampled_workload(config, graph, sampler)
        check_measured(config, platform, training)
        if config.sampler.whole_graph and (chunked := _in_chunks(config, platform, training)) is not None:
            return chunked
        if config.data.cache == "auto":
            training = replace(training, kept_part=free_kept_part(platform, training))
        assignment = first_assignment(config, platform, training)
    except ConfigError as error:
        say(f"no prediction: {error}")
        return None
    prediction = predict(platform, training, assignment=assignment, terms=terms_of(config))
    split = split_by_shares(config.units_per_step, prediction.assignment.split)
    names = _names(config)
    return ExpectedRun(
        stages_s=prediction.stages_s,
        iteration_s=prediction.iteration_s,
        epoch_s=prediction.epoch_s,
        relative_error=prediction.relative_error,
        bottleneck=prediction.bottleneck,
        split={names[i]: split[place] for place, i in sorted(enumerate(_order(names)), key=lambda at: at[1])},
        threads=assignment.threads,
    )


def _in_chunks(config: Config, platform: Platform, training: TrainingWorkload) -> ExpectedRun | None:
    """What is expected of a run that trains the whole graph in chunks; None of other runs.

    Raises
    ------
    ConfigError
        If such a run cannot be predicted.
    """
    from hyrt.predict.chunks.chunk_prediction import chunked_run
    from hyrt.training.setup import assign_threads

    found = chunked_run(platform, training, config)
    if found is None:
        return None
    hosts = sum(each.is_host or each.device.host_cores > 0 for each in platform.trainers())
    stages_s = dict.fromkeys(("sample", "load", "transfer"), 0.0)
    return ExpectedRun(
        stages_s={
            **stages_s,
            "propagate": found.epoch_s - found.synchronize_s,
            "synchronize": found.synchronize_s,
        },
        iteration_s=found.epoch_s,
        epoch_s=found.epoch_s,
        relative_error=found.relative_error,
        bottleneck="propagate",
        split={found.device: 1},
        threads=assign_threads(config, hosts),
    )


def devices_of(config: Config, platform: Platform) -> Platform:
    """The part of a calibrated machine that a run trains on.

    Raises
    ------
    ConfigError
        If a device was not calibrated.
    """
    found = with_trainers(platform, _names(config))
    if found is None:
        there = ", ".join(trainer.name for trainer in platform.trainers())
        raise ConfigError(
            f"not all of --devices {','.join(config.devices)} are calibrated (the calibrated devices are "
            f"{there}): run `hyrt calibrate` for the others, with `--all` for those that compute on the "
            "CPU's cores"
        )
    return found


def first_assignment(config: Config, platform: Platform, training: TrainingWorkload) -> Assignment:
    """The split and the threads that a run on this machine starts with.

    Parameters
    ----------
    config
        All settings; `devices` names the trainers.
    platform
        The machine with these trainers, the host's first.
    training
        The run's work.

    Raises
    ------
    ConfigError
        If a device was not measured with the run's kind of model.
    """
    from hyrt.training.setup import assign_threads, first_split

    trainers = platform.trainers(training.model)
    check_measured(config, platform, training)
    host_trainers = sum(trainer.is_host or trainer.device.host_cores > 0 for trainer in trainers)
    threads = assign_threads(config, host_trainers)
    if config.gives_split or not config.balance.predict:
        names = _names(config)
        given = first_split(config, names, None, training.targets_per_epoch)
        # A step cannot have more targets than there are.
        split = split_by_shares(training.batch_size, [given[i] for i in _order(names)])
        return Assignment(split=tuple(split), threads=threads)
    return initial_assignment(platform, training, threads=threads, terms=terms_of(config))


def check_measured(config: Config, platform: Platform, training: TrainingWorkload) -> None:
    """Refuse devices that were not measured with the run's kind of model.

    Parameters
    ----------
    config
        All settings.
    platform
        The machine with the run's trainers.
    training
        The run's work.

    Raises
    ------
    ConfigError
        Naming the device.
    """
    for trainer in platform.trainers(training.model):
        models = platform.host.models if trainer.is_host else trainer.device.models
        if training.model not in models:
            kind = config.model.kind
            measure = "" if find_model(kind).costs_like else f" --model {kind}"
            raise ConfigError(
                f"{trainer.name} was not calibrated with model.kind={kind}: run `hyrt calibrate{measure}`, "
                "or choose another device with --devices"
            )


def _names(config: Config) -> list[str]:
    kinds = [request.name.partition(":") for request in config.trained_on]
    return [full_name(f"{BACKENDS.spelling(kind)}{colon}{number}") for kind, colon, number in kinds]


def _order(names: list[str]) -> list[int]:
    """Places of the trainers in the settings, the host's first, as a platform has them."""
    return sorted(range(len(names)), key=lambda i: not names[i].startswith("cpu:"))
