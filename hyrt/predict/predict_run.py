"""Initial assignment and prediction of a run on this machine, based on its calibration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from hyrt_perfmodel.platform import Platform, device_name, select_trainers
from hyrt_perfmodel.policy import Assignment
from hyrt_perfmodel.prediction.initial_assignment import free_cache_fraction, initial_assignment
from hyrt_perfmodel.prediction.predict import predict
from hyrt_perfmodel.workload import TrainingWorkload

from hyrt.config import Config
from hyrt.device.discovery import BACKENDS, split_by_shares
from hyrt.errors import ConfigError
from hyrt.nn.models.model_kind import find_model
from hyrt.predict.workload import configured_terms, sampled_workload
from hyrt.telemetry.events import RunPrediction

if TYPE_CHECKING:
    from hyrt.graph.graph import Graph
    from hyrt.sampling.sampler import Sampler


def predict_run(
    config: Config,
    graph: Graph,
    sampler: Sampler | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> RunPrediction | None:
    """Predict a run on this machine, or return None if the machine is not calibrated.

    Also return None, and pass the reason to `notify`, if the run is not supported or a device or model was
    not measured. If `sampler` is None, the configured sampler is created.
    """
    from hyrt.predict.calibrate.store import usable_calibration

    calibration, reason = usable_calibration()
    if calibration is None:
        if reason:
            notify(f"no prediction: {reason}")
        return None
    try:
        platform = run_platform(config, calibration.platform)
        training = sampled_workload(config, graph, sampler)
        check_calibrated(config, platform, training)
        if (
            config.sampler.is_full_graph
            and (chunked := _predict_in_chunks(config, platform, training)) is not None
        ):
            return chunked
        if config.data.cache == "auto":
            training = replace(training, cached_fraction=free_cache_fraction(platform, training))
        assignment = first_assignment(config, platform, training)
    except ConfigError as error:
        notify(f"no prediction: {error}")
        return None
    prediction = predict(platform, training, assignment=assignment, terms=configured_terms(config))
    split = split_by_shares(config.units_per_step, prediction.assignment.split)
    names = _trainer_names(config)
    return RunPrediction(
        stages_s=prediction.stages_s,
        iteration_s=prediction.iteration_s,
        epoch_s=prediction.epoch_s,
        relative_error=prediction.relative_error,
        bottleneck=prediction.bottleneck,
        split={
            names[i]: split[position]
            for position, i in sorted(enumerate(_platform_order(names)), key=lambda pair: pair[1])
        },
        threads=assignment.threads,
    )


def _predict_in_chunks(
    config: Config, platform: Platform, training: TrainingWorkload
) -> RunPrediction | None:
    """Predict a run that trains the full graph in chunks, or return None for another run.

    Raises ConfigError if such a run cannot be predicted.
    """
    from hyrt.predict.chunk_prediction import predict_chunked_run
    from hyrt.training.setup import assign_threads

    chunked = predict_chunked_run(platform, training, config)
    if chunked is None:
        return None
    hosts = sum(trainer.is_host or trainer.device.host_cores > 0 for trainer in platform.trainers())
    stages_s = dict.fromkeys(("sample", "load", "transfer"), 0.0)
    return RunPrediction(
        stages_s={
            **stages_s,
            "propagate": chunked.epoch_s - chunked.synchronize_s,
            "synchronize": chunked.synchronize_s,
        },
        iteration_s=chunked.epoch_s,
        epoch_s=chunked.epoch_s,
        relative_error=chunked.relative_error,
        bottleneck="propagate",
        split={chunked.device: 1},
        threads=assign_threads(config, hosts),
    )


def run_platform(config: Config, platform: Platform) -> Platform:
    """Return a platform with only the run's trainers; raise ConfigError if one was not measured."""
    platform_of_run = select_trainers(platform, _trainer_names(config))
    if platform_of_run is None:
        calibrated = ", ".join(trainer.name for trainer in platform.trainers())
        raise ConfigError(
            f"not all of --devices {','.join(config.devices)} are calibrated (the calibrated devices are "
            f"{calibrated}): run `hyrt calibrate` for the others, with `--all` for those that compute on the "
            "CPU's cores"
        )
    return platform_of_run


def first_assignment(config: Config, platform: Platform, training: TrainingWorkload) -> Assignment:
    """Return the initial assignment of a run on this machine.

    `platform` contains only the run's trainers, the host's first. Raises ConfigError if a device was not
    measured with the run's model kind.
    """
    from hyrt.training.setup import assign_threads, first_split

    trainers = platform.trainers(training.model)
    check_calibrated(config, platform, training)
    host_trainers = sum(trainer.is_host or trainer.device.host_cores > 0 for trainer in trainers)
    threads = assign_threads(config, host_trainers)
    if config.has_explicit_split or not config.balance.predict:
        names = _trainer_names(config)
        configured = first_split(config, names, None, training.targets_per_epoch)
        # Use the platform's batch size: a step cannot have more targets than the epoch.
        split = split_by_shares(training.batch_size, [configured[i] for i in _platform_order(names)])
        return Assignment(split=tuple(split), threads=threads)
    return initial_assignment(platform, training, threads=threads, terms=configured_terms(config))


def check_calibrated(config: Config, platform: Platform, training: TrainingWorkload) -> None:
    """Raise ConfigError if a device was not measured with the run's model kind."""
    for trainer in platform.trainers(training.model):
        models = platform.host.models if trainer.is_host else trainer.device.models
        if training.model not in models:
            kind = config.model.kind
            measure = "" if find_model(kind).costs_like else f" --model {kind}"
            raise ConfigError(
                f"{trainer.name} was not calibrated with model.kind={kind}: run `hyrt calibrate{measure}`, "
                "or choose another device with --devices"
            )


def _trainer_names(config: Config) -> list[str]:
    kinds = [request.name.partition(":") for request in config.training_requests]
    return [device_name(f"{BACKENDS.canonical_name(kind)}{colon}{number}") for kind, colon, number in kinds]


def _platform_order(names: list[str]) -> list[int]:
    """Return the indices of the trainers in the platform's order, in which the host is first."""
    return sorted(range(len(names)), key=lambda i: not names[i].startswith("cpu:"))
