"""Runs on machines that are not there: the four-stage pipeline, simulated, with a policy in the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

from hyrt_perfmodel.assignment import Assignment
from hyrt_perfmodel.checks import check_kind, check_size
from hyrt_perfmodel.platforms.platform import Platform
from hyrt_perfmodel.policy import AssignmentLimits, Policy
from hyrt_perfmodel.prediction.extra_terms import Terms
from hyrt_perfmodel.simulation.changes import Change, check_changes, speeds_at
from hyrt_perfmodel.simulation.event_queue import run_events
from hyrt_perfmodel.simulation.noise import noise_factors
from hyrt_perfmodel.simulation.pipeline_recurrence import run_recurrence
from hyrt_perfmodel.simulation.policy_loop import PolicyLoop
from hyrt_perfmodel.simulation.simulated_run import Simulation, simulation_of
from hyrt_perfmodel.simulation.simulated_step import SimulatedStep, with_noise
from hyrt_perfmodel.simulation.step_profile import can_slow, has_shared_resources, step_profile
from hyrt_perfmodel.workloads.workload import TrainingWorkload

__all__ = ["Change", "Simulation", "simulate"]


def simulate(
    platform: Platform,
    training: TrainingWorkload,
    *,
    start: Assignment,
    policy: Policy | None = None,
    iterations: int,
    depth: int = 4,
    noise: float = 0.0,
    seed: int = 0,
    limits: AssignmentLimits | None = None,
    changes: Sequence[Change] = (),
    terms: Terms | None = None,
) -> Simulation:
    """Run steps through the pipeline of `hyrt.pipeline.pipeline` on a machine that is only described.

    The host samples and loads one trainer's share after the other; each trainer transfers and propagates its
    own, and propagates a step with the weights of the one before. At most `depth` steps are in flight. Stages
    that overlap slow each other where they need more cores than the host has, more memory bandwidth than
    `Host.shared_memory_gb_s` or more of a switch than `Accelerator.switch_gb_s`.

    Parameters
    ----------
    platform, training
        The machine and the work; durations are those of `stage_times`.
    start
        The assignment of the first steps.
    policy
        Asked after each step is synchronized, with the last 64 steps' observations; what it decides after
        step i acts on step i + depth, the first that cannot have been sampled. None leaves the assignment as
        it is.
    iterations
        Steps to run.
    depth
        Most steps in flight.
    noise
        Standard deviation of the logarithm of what each stage's time is multiplied with, which is 1 in the
        mean: one factor a step for sample, load and synchronize, and for each trainer's transfer and
        propagation.
    seed
        Seed of the noise. The same seed gives the same factors, whatever the policy decides.
    limits
        Told to the policy and enforced, with `depth` for their delay. By default those of the platform: no
        trainer is short of memory, and stages share cores where `start` has more threads than there are.
    changes
        Changes of the machine's speeds.
    terms
        Beyond the paper's; all of them by default.

    Raises
    ------
    ValueError
        If a number is out of range, a change is of no trainer, the start does not belong to the platform, or
        the policy decides what the limits do not allow.
    """
    check_kind("platform", platform, Platform, "give a platform, as load_platform returns")
    check_kind("training", training, TrainingWorkload, "give a TrainingWorkload")
    check_kind("start", start, Assignment, "give an assignment, as a prediction has")
    check_size("simulation: noise", noise)
    for name, value, least in (("iterations", iterations, 1), ("depth", depth, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"simulation: {name} is {value!r:.60}: give a whole number of at least {least}")
    terms = Terms() if terms is None else terms
    num_trainers = len(platform.trainers(training.model))
    check_changes(changes, num_trainers)
    factors = noise_factors(noise, 2 * num_trainers + 3, seed)
    remembered = training.remembered()
    profile_of = cache(partial(step_profile, platform, remembered, terms))
    told = replace(_limits(platform, training, start) if limits is None else limits, delay=depth)
    loop = PolicyLoop(policy, start, told, iterations)
    steps: list[SimulatedStep] = []

    def begin(number: int) -> SimulatedStep:
        assignment = loop.assignment(number)
        profile = profile_of(assignment, speeds_at(changes, number))
        return with_noise(number, assignment, profile, next(factors))

    def end(step: SimulatedStep) -> None:
        steps.append(step)
        loop.synchronized(step)

    shares = has_shared_resources(platform, terms)
    if shares and policy is None:
        first_steps = sorted({0, *(change.step for change in changes)})
        shares = can_slow([profile_of(start, speeds_at(changes, step)) for step in first_steps])
    # Where nothing is shared the recurrence is exact, and faster.
    run = run_events if shares else run_recurrence
    run(iterations, num_trainers, depth, begin, end)
    return simulation_of(steps, loop.decisions)


def _limits(platform: Platform, training: TrainingWorkload, start: Assignment) -> AssignmentLimits:
    trainers = platform.trainers(training.model)
    is_host = tuple(trainer.is_host for trainer in trainers)
    threads = start.threads.sample + start.threads.load + (start.threads.train if any(is_host) else 0)
    cores = platform.host.cores or threads
    return AssignmentLimits(
        trainers=tuple(trainer.name for trainer in trainers),
        is_host=is_host,
        most_units=(sum(start.split),) * len(trainers),
        cores=cores,
        delay=0,
        threads_are_shared=threads > cores,
    )
