"""Algorithm 1 of HyScale-GNN, its resource manager: move work or a thread to where the bottleneck is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hyrt_perfmodel.assignment import Assignment
from hyrt_perfmodel.policy import AssignmentLimits, Decision, Observation

from hyrt.balance.reason import change_in_words


class BottleneckPolicy:
    """Algorithm 1 of Lin and Prasanna (HyScale-GNN, 2023), one move for each decision.

    Of the times of sampling on the CPU T_SC and on accelerators T_SA, loading T_L, training on the CPU T_TC
    and on accelerators T_accel (the longer one of transfer and training), the slowest is the bottleneck, and
    with the fastest it chooses the move. Tasks that the machine does not have are not in the order.

    Work moves by half of what would make both sides' times equal if they grew in proportion to the targets. A
    thread moves alone. It waits for the first step that ran under its last decision.
    """

    name = "bottleneck"
    description = "moves targets or one thread to the bottleneck (the table of HyScale-GNN)"

    def decide(
        self, history: Sequence[Observation], present: Assignment, limits: AssignmentLimits
    ) -> Decision:
        """One move, or none where nothing can move."""
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
        reason = change_in_words(
            present,
            after,
            limits.trainers,
            _trainers_s(latest),
            {"sample": tasks["T_SC"], "load": tasks["T_L"], "train": tasks.get("T_TC", 0.0)},
        )
        slowest = max(tasks, key=lambda task: tasks[task])
        return Decision(assignment=after, reason=f"{reason} ({slowest} is the bottleneck)")


def task_times(latest: Observation, limits: AssignmentLimits) -> dict[str, float]:
    """Seconds of T_SC, T_SA, T_L, T_TC and T_accel, without those that nobody on this machine does."""
    there = [index for index, most in enumerate(limits.most_units) if most]
    trainers_s = _trainers_s(latest)
    on_device = [index for index in there if _samples_itself(limits, index)]
    cpu = [trainers_s[index] for index in there if limits.is_host[index]]
    accelerators = [trainers_s[index] for index in there if not limits.is_host[index]]
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
    """What the table says: ("work", "samplers" or "trainers"), or ("thread", the stage that gets one).

    Parameters
    ----------
    tasks
        The times of the tasks, as `task_times` gives them.
    """
    slowest = max(tasks, key=lambda task: tasks[task])
    fastest = sorted(tasks, key=lambda task: tasks[task])[:2]

    def is_fast(wanted: str, other: str) -> bool:
        return fastest[0] == wanted or fastest == [other, wanted]

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
    """T_TC or T_accel of each trainer."""
    return [max(pair) for pair in zip(latest.transfer_s, latest.propagate_s, strict=True)]


def _samples_itself(limits: AssignmentLimits, index: int) -> bool:
    return bool(limits.samples_on_device) and limits.samples_on_device[index]


def _balance_trainers(
    latest: Observation, tasks: dict[str, float], present: Assignment, limits: AssignmentLimits
) -> Assignment:
    """Between the CPU trainer and the accelerators; among accelerators where the CPU cannot take any."""
    seconds = _trainers_s(latest)
    cpu_gives = max(tasks, key=lambda task: tasks[task]) == "T_TC"
    side = [index for index, host in enumerate(limits.is_host) if host == cpu_gives and present.split[index]]
    giver = max(side, key=lambda index: seconds[index])
    others = [index for index in range(len(seconds)) if limits.is_host[index] != cpu_gives]
    peers = [index for index in range(len(seconds)) if limits.is_host[index] == cpu_gives and index != giver]
    for takers in (others, peers):
        free = [index for index in takers if present.split[index] < limits.most_units[index]]
        if free:
            taker = min(free, key=lambda index: seconds[index])
            gives, takes = ((seconds[index], present.split[index]) for index in (giver, taker))
            return _moved(present, limits, giver, taker, gives, takes)
    return present


def _balance_samplers(
    latest: Observation, tasks: dict[str, float], present: Assignment, limits: AssignmentLimits
) -> Assignment:
    """Between trainers that sample for themselves and those that the CPU samples for."""
    every = range(len(present.split))
    trainers_s, device_s = _trainers_s(latest), latest.sample_on_device_s
    on_device = [index for index in every if _samples_itself(limits, index)]
    on_cpu = [index for index in every if index not in on_device]
    cpu_units = sum(present.split[index] for index in on_cpu)
    device_gives = max(tasks, key=lambda task: tasks[task]) == "T_SA"
    givers, takers = (on_device, on_cpu) if device_gives else (on_cpu, on_device)
    giving = [index for index in givers if present.split[index]]
    free = [index for index in takers if present.split[index] < limits.most_units[index]]
    if not giving or not free:
        return present

    def slowness(index: int) -> float:
        return device_s[index] if index in on_device else trainers_s[index]

    def sampling(index: int) -> tuple[float, int]:
        """The seconds of the sampler of a trainer's mini-batches, and the units that it samples."""
        return (device_s[index], present.split[index]) if index in on_device else (tasks["T_SC"], cpu_units)

    giver, taker = max(giving, key=slowness), min(free, key=slowness)
    return _moved(present, limits, giver, taker, sampling(giver), sampling(taker))


def _moved(
    present: Assignment,
    limits: AssignmentLimits,
    giver: int,
    taker: int,
    gives: tuple[float, int],
    takes: tuple[float, int],
) -> Assignment:
    """Half of what would make both times equal, were these seconds in proportion to these units."""
    (giver_s, giver_units), (taker_s, taker_units) = gives, takes
    giver_unit_s = giver_s / giver_units
    taker_unit_s = taker_s / taker_units if taker_units else giver_unit_s
    together = giver_unit_s + taker_unit_s
    if giver_s <= taker_s or together <= 0:
        return present
    room = limits.most_units[taker] - present.split[taker]
    amount = min(max(1, round((giver_s - taker_s) / together / 2)), present.split[giver], room)
    split = list(present.split)
    split[giver] -= amount
    split[taker] += amount
    return replace(present, split=tuple(split))


def _balance_thread(
    stage: str, tasks: dict[str, float], present: Assignment, limits: AssignmentLimits
) -> Assignment:
    """One thread more for a stage: from a free core, else from the fastest CPU task that has two."""
    task_of = {"sample": "T_SC", "load": "T_L", "train": "T_TC"}
    threads = {name: getattr(present.threads, name) for name in task_of if task_of[name] in tasks}
    after = dict(threads)
    after[stage] += 1
    if not limits.allows(replace(present, threads=replace(present.threads, **after))):
        givers = [name for name in threads if name != stage and threads[name] > 1]
        if limits.threads_are_shared or not givers:
            return present
        after[min(givers, key=lambda name: tasks[task_of[name]])] -= 1
    return replace(present, threads=replace(present.threads, **after))
