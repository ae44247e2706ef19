"""Simulation of the four-stage pipeline on a described machine, with a policy in the loop."""

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
    """Simulate the pipeline of `hyrt.pipeline.pipeline` on a described machine.

    The host samples and loads the trainers' shares one after the other; each trainer transfers and propagates
    its share, and propagates a step with the weights of the previous step. At most `depth` steps are in
    flight. Overlapping stages slow each other down if they need more cores than the host has, more memory
    bandwidth than `Host.shared_memory_gb_s`, or more bandwidth of a switch than `Accelerator.switch_gb_s`.

    Parameters
    ----------
    platform, training
        The machine and the work; durations are those of `stage_times`.
    start
        Assignment of the first steps.
    policy
        Policy queried after each step is synchronized, with the observations of the last 64 steps; its
        decision after step i applies from step i + depth, the first that cannot have been sampled yet. None
        keeps the assignment.
    iterations
        Number of steps.
    depth
        Maximum number of steps in flight.
    noise
        Standard deviation of the logarithm of the noise factors, which have mean 1: per step, one factor each
        for sample, load and synchronize, and one for each trainer's transfer and propagation.
    seed
        Seed of the noise. The same seed gives the same factors, regardless of the policy's decisions.
    limits
        Limits passed to the policy and enforced, with `depth` as their delay. By default the platform's:
        trainers have unlimited memory, and stages share cores if `start` has more threads than there are
        cores.
    changes
        Changes of the machine's speeds.
    terms
        Terms beyond the paper's; all by default.

    Raises
    ------
    ValueError
        If a number is out of range, a change names an unknown trainer, the start does not match the platform,
        or a decision violates the limits.
    """
    check_kind("platform", platform, Platform, "give a platform, as load_platform returns")
    check_kind("training", training, TrainingWorkload, "give a TrainingWorkload")
    check_kind("start", start, Assignment, "give an assignment, as a prediction has")
    check_size("simulation: noise", noise)
    for name, value, minimum in (("iterations", iterations, 1), ("depth", depth, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise ValueError(
                f"simulation: {name} is {value!r:.60}: give a whole number of at least {minimum}"
            )
    terms = Terms() if terms is None else terms
    num_trainers = len(platform.trainers(training.model))
    check_changes(changes, num_trainers)
    factors = noise_factors(noise, 2 * num_trainers + 3, seed)
    cached_training = training.remembered()
    profile_of = cache(partial(step_profile, platform, cached_training, terms))
    delayed_limits = replace(_limits(platform, training, start) if limits is None else limits, delay=depth)
    loop = PolicyLoop(policy, start, delayed_limits, iterations)
    steps: list[SimulatedStep] = []

    def begin(number: int) -> SimulatedStep:
        assignment = loop.assignment(number)
        profile = profile_of(assignment, speeds_at(changes, number))
        return with_noise(number, assignment, profile, next(factors))

    def end(step: SimulatedStep) -> None:
        steps.append(step)
        loop.synchronized(step)

    has_contention = has_shared_resources(platform, terms)
    if has_contention and policy is None:
        first_steps = sorted({0, *(change.step for change in changes)})
        has_contention = can_slow([profile_of(start, speeds_at(changes, step)) for step in first_steps])
    # Without shared resources the recurrence is exact, and faster.
    run = run_events if has_contention else run_recurrence
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
