"""Policy of HyScale-GNN's resource manager (Algorithm 1), which moves work or a thread per decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hyrt_perfmodel.policy import Assignment, AssignmentLimits, Decision, Observation

from hyrt.balance.assignments import describe_change


class BottleneckPolicy:
    """Algorithm 1 of Lin and Prasanna (HyScale-GNN, 2023), with one move per decision.

    The tasks are sampling on the CPU (T_SC) and on accelerators (T_SA), loading (T_L), training on the CPU
    (T_TC) and on accelerators (T_accel, the longer of transfer and training). The slowest task is the
    bottleneck; together with the fastest task it determines the move. Tasks that the machine does not have
    are ignored.

    If work moves, it is half of the amount that would equalize the times of both sides if times were
    proportional to targets. Threads move one at a time. The policy then waits for the first step under the
    new assignment.
    """

    name = "bottleneck"
    description = "moves targets or one thread to the bottleneck (the rules of the HyScale-GNN paper)"

    def decide(
        self, history: Sequence[Observation], present: Assignment, limits: AssignmentLimits
    ) -> Decision:
        """Return the assignment after one move, or the current one if no move is possible."""
        latest = history[-1]
        if latest.assignment != present:
            return Decision(assignment=present)
        tasks = task_times(latest, limits)
        if not any(tasks.values()):
            return Decision(assignment=present)
        action = choose_action(tasks)
        if action == ("work", "samplers"):
            after = _balance_samplers(latest, tasks, present, limits)
        elif action == ("work", "trainers"):
            after = _balance_trainers(latest, tasks, present, limits)
        else:
            after = _balance_thread(action[1], tasks, present, limits)
        if after == present:
            return Decision(assignment=present)
        reason = describe_change(
            present,
            after,
            limits.trainers,
            _trainers_s(latest),
            {"sample": tasks["T_SC"], "load": tasks["T_L"], "train": tasks.get("T_TC", 0.0)},
        )
        slowest = max(tasks, key=lambda task: tasks[task])
        return Decision(assignment=after, reason=f"{reason} ({slowest} is the bottleneck)")


def task_times(latest: Observation, limits: AssignmentLimits) -> dict[str, float]:
    """Return the seconds of each task that the machine has: T_SC, T_SA, T_L, T_TC and T_accel."""
    active = [index for index, limit in enumerate(limits.max_units) if limit]
    trainers_s = _trainers_s(latest)
    on_device = [index for index in active if _samples_on_device(limits, index)]
    cpu = [trainers_s[index] for index in active if limits.is_host[index]]
    accelerators = [trainers_s[index] for index in active if not limits.is_host[index]]
    tasks = {"T_SC": sum(latest.sample_s)}
    if on_device:
        tasks["T_SA"] = max(latest.sample_on_device_s[index] for index in on_device)
    tasks["T_L"] = sum(latest.load_s)
    if cpu:
        tasks["T_TC"] = max(cpu)
    if accelerators:
        tasks["T_accel"] = max(accelerators)
    return tasks


def choose_action(tasks: dict[str, float]) -> tuple[str, str]:
    """Return ("work", "samplers" or "trainers"), or ("thread", name of the stage that gets a thread)."""
    slowest = max(tasks, key=lambda task: tasks[task])
    fastest = sorted(tasks, key=lambda task: tasks[task])[:2]

    def is_fast(task: str, other: str) -> bool:
        return fastest[0] == task or fastest == [other, task]

    if slowest == "T_SA":
        return "work", "samplers"
    if slowest == "T_accel":
        return "work", "trainers"
    if slowest == "T_L":
        return "thread", "load"
    if slowest == "T_SC":
        return ("work", "samplers") if is_fast("T_SA", "T_accel") else ("thread", "sample")
    return ("work", "trainers") if is_fast("T_accel", "T_SA") else ("thread", "train")


def _trainers_s(latest: Observation) -> list[float]:
    return [max(pair) for pair in zip(latest.transfer_s, latest.propagate_s, strict=True)]


def _samples_on_device(limits: AssignmentLimits, index: int) -> bool:
    return bool(limits.samples_on_device) and limits.samples_on_device[index]


def _balance_trainers(
    latest: Observation, tasks: dict[str, float], present: Assignment, limits: AssignmentLimits
) -> Assignment:
    """Move work between the CPU trainer and accelerators, or between accelerators if it is full."""
    seconds = _trainers_s(latest)
    cpu_is_slow = max(tasks, key=lambda task: tasks[task]) == "T_TC"
    side = [
        index for index, host in enumerate(limits.is_host) if host == cpu_is_slow and present.split[index]
    ]
    source = max(side, key=lambda index: seconds[index])
    others = [index for index in range(len(seconds)) if limits.is_host[index] != cpu_is_slow]
    peers = [
        index for index in range(len(seconds)) if limits.is_host[index] == cpu_is_slow and index != source
    ]
    for candidates in (others, peers):
        free = [index for index in candidates if present.split[index] < limits.max_units[index]]
        if free:
            destination = min(free, key=lambda index: seconds[index])
            source_load, destination_load = (
                (seconds[index], present.split[index]) for index in (source, destination)
            )
            return _move_units(present, limits, source, destination, source_load, destination_load)
    return present


def _balance_samplers(
    latest: Observation, tasks: dict[str, float], present: Assignment, limits: AssignmentLimits
) -> Assignment:
    """Move work between trainers that sample on their device and trainers for which the CPU samples."""
    indices = range(len(present.split))
    trainers_s, device_s = _trainers_s(latest), latest.sample_on_device_s
    on_device = [index for index in indices if _samples_on_device(limits, index)]
    on_cpu = [index for index in indices if index not in on_device]
    cpu_units = sum(present.split[index] for index in on_cpu)
    device_is_slow = max(tasks, key=lambda task: tasks[task]) == "T_SA"
    sources, destinations = (on_device, on_cpu) if device_is_slow else (on_cpu, on_device)
    candidates = [index for index in sources if present.split[index]]
    free = [index for index in destinations if present.split[index] < limits.max_units[index]]
    if not candidates or not free:
        return present

    def slowness(index: int) -> float:
        return device_s[index] if index in on_device else trainers_s[index]

    def sampling(index: int) -> tuple[float, int]:
        """Return the sampling time in seconds and the units of the sampler that serves a trainer."""
        return (device_s[index], present.split[index]) if index in on_device else (tasks["T_SC"], cpu_units)

    source, destination = max(candidates, key=slowness), min(free, key=slowness)
    return _move_units(present, limits, source, destination, sampling(source), sampling(destination))


def _move_units(
    present: Assignment,
    limits: AssignmentLimits,
    source: int,
    destination: int,
    source_load: tuple[float, int],
    destination_load: tuple[float, int],
) -> Assignment:
    """Move half of the units that would equalize both times if these were proportional to units."""
    (source_s, source_units), (destination_s, destination_units) = source_load, destination_load
    source_unit_s = source_s / source_units
    destination_unit_s = destination_s / destination_units if destination_units else source_unit_s
    sum_unit_s = source_unit_s + destination_unit_s
    if source_s <= destination_s or sum_unit_s <= 0:
        return present
    capacity = limits.max_units[destination] - present.split[destination]
    amount = min(max(1, round((source_s - destination_s) / sum_unit_s / 2)), present.split[source], capacity)
    split = list(present.split)
    split[source] -= amount
    split[destination] += amount
    return replace(present, split=tuple(split))


def _balance_thread(
    stage: str, tasks: dict[str, float], present: Assignment, limits: AssignmentLimits
) -> Assignment:
    """Add a thread to a stage, from a free core or from the fastest CPU task that can spare one."""
    task_of = {"sample": "T_SC", "load": "T_L", "train": "T_TC"}
    threads = {name: getattr(present.threads, name) for name in task_of if task_of[name] in tasks}
    after = dict(threads)
    after[stage] += 1
    if not limits.allows(replace(present, threads=replace(present.threads, **after))):
        sources = [name for name in threads if name != stage and threads[name] > 1]
        if limits.threads_are_shared or not sources:
            return present
        after[min(sources, key=lambda name: tasks[task_of[name]])] -= 1
    return replace(present, threads=replace(present.threads, **after))
