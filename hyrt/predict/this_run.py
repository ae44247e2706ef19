"""The prediction of a run that is about to start, from this machine's calibration."""

from __future__ import annotations

from collections.abc import Callable

from hyrt_perfmodel.assignment import Assignment
from hyrt_perfmodel.assignment import Threads as StageThreads
from hyrt_perfmodel.platforms.platform import Platform
from hyrt_perfmodel.platforms.this_machine import full_name, with_trainers
from hyrt_perfmodel.prediction.mapping import initial_assignment
from hyrt_perfmodel.prediction.predict import predict

from hyrt.config import Config
from hyrt.device.names import split_by_shares
from hyrt.graph.graph import Graph
from hyrt.predict.calibrate.store import usable
from hyrt.predict.workload import sampled_workload, terms_of
from hyrt.sampling.sampler import Sampler
from hyrt.training.expected_run import ExpectedRun
from hyrt.training.setup import assign_threads, first_split


def predict_run(
    config: Config,
    graph: Graph,
    sampler: Sampler | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> ExpectedRun | None:
    """What the performance model expects of a run on this machine; None where it is not calibrated.

    Also None for runs that it has no words for: subgraph sampling, sparse features, devices that were not
    measured.

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
    calibration, reason = usable()
    if calibration is None:
        if reason:
            say(f"no prediction: {reason}")
        return None
    names = [full_name(request.name) for request in config.device_requests]
    platform = with_trainers(calibration.platform, names)
    training = sampled_workload(config, graph, sampler) if platform is not None else None
    if platform is None or training is None:
        lacking = "devices" if platform is None else "sampler or sparse features"
        say(f"no prediction: the calibration does not cover this run's {lacking}")
        return None
    trainers = platform.trainers(training.model)
    if any(training.model not in models for models in _measured_models(platform)):
        return None
    host_trainers = sum(trainer.is_host or trainer.device.host_cores > 0 for trainer in trainers)
    given = assign_threads(config, host_trainers)
    terms = terms_of(config)
    threads = StageThreads(sample=given.sample, load=given.load, train=given.train)
    # The platform has the host first, whatever the order of the settings.
    order = sorted(range(len(names)), key=lambda i: not names[i].startswith("cpu:"))
    if config.gives_split:
        given_split = first_split(config, names, None, training.targets_per_epoch)
        # A step cannot have more targets than there are.
        split = split_by_shares(training.batch_size, [given_split[i] for i in order])
        assignment = Assignment(split=tuple(split), threads=threads)
    else:
        assignment = initial_assignment(platform, training, threads=threads, terms=terms)
    prediction = predict(platform, training, assignment=assignment, terms=terms)
    split = split_by_shares(config.units_per_step, prediction.assignment.split)
    by_name = {names[i]: split[place] for place, i in enumerate(order)}
    return ExpectedRun(
        stages_s=prediction.stages_s,
        iteration_s=prediction.iteration_s,
        epoch_s=prediction.epoch_s,
        relative_error=prediction.relative_error,
        bottleneck=prediction.bottleneck,
        split={name: by_name[name] for name in names},
        threads=threads,
    )


def _measured_models(platform: Platform) -> list[set[str]]:
    """The kinds of model each trainer was measured with."""
    found = [set(accelerator.models) for accelerator in platform.accelerators]
    return [set(platform.host.models), *found] if platform.host.trains else found
