"""The resource manager in a run: what policies see, when they act, and that nothing else changes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph
from hyrt_devices.cpu import CpuDevice
from hyrt_perfmodel.policy import Assignment, AssignmentLimits, Decision, Observation, Threads
from unit.pipeline import test_recovery as recovery
from unit.pipeline.test_recovery import BATCH, Mortal, Small, opened, same, three

from hyrt.balance.registry import DEFAULT_POLICY
from hyrt.balance.resource_manager import configured_policy
from hyrt.config import build_config
from hyrt.errors import StageError
from hyrt.pipeline.work_items import RankSlice
from hyrt.telemetry.events import AssignmentChanged, CheckpointWritten, Event, StepMetrics
from hyrt.training.build_run import ALONE, DistributedRunConfig, build_run
from hyrt.training.checkpoint import load_newest_checkpoint
from hyrt.training.train import Training

GRAPH = random_graph(vertices=240)


class Scripted:
    """Decides what a function of step and present assignment says, and keeps what it was told."""

    name = "scripted"
    description = "for tests"

    def __init__(self, choose: Callable[[int, Assignment], Assignment]) -> None:
        self._choose = choose
        self.steps: list[int] = []
        self.observations: list[Observation] = []
        self.limits: list[AssignmentLimits] = []

    def decide(
        self, history: Sequence[Observation], present: Assignment, limits: AssignmentLimits
    ) -> Decision:
        assert 1 <= len(history) <= 64
        self.steps.append(history[-1].step)
        self.observations.append(history[-1])
        self.limits.append(limits)
        return Decision(
            assignment=self._choose(history[-1].step, present), reason="as scripted", expected_s=0.5
        )


def wandering(seed: int, most: Sequence[int] | None = None) -> Scripted:
    """Moves units and threads at random, at about half of the steps; some trainers get nothing at times."""
    draw = random.Random(seed)

    def choose(step: int, present: Assignment) -> Assignment:
        if draw.random() < 0.5:
            return present
        left, split = sum(present.split), []
        for limit in (most or [left] * len(present.split))[:-1]:
            split.append(draw.choice([0, draw.randint(0, min(left, limit))]))
            left -= split[-1]
        threads = Threads(sample=draw.randint(1, 2), load=draw.randint(1, 2), train=draw.randint(1, 2))
        return Assignment(split=(*split, left), threads=threads)

    return Scripted(choose)


def unmoved() -> Scripted:
    return Scripted(lambda step, present: present)


@pytest.fixture(scope="module")
def undisturbed():
    return recovery.Run(opened(CpuDevice, 1), [BATCH])


@pytest.mark.parametrize(("seed", "pipelined"), [(0, True), (1, False), (2, True)])
def test_moving_at_random_changes_no_edge_and_no_weight(undisturbed, pipelined: bool, seed: int) -> None:
    run = recovery.Run(three(CpuDevice), [20, 12, 0], pipelined=pipelined, policy=wandering(seed))
    same(run, undisturbed)
    assert len(run.balanced) >= 4
    assert len({tuple(event.split.values()) for event in run.balanced}) >= 3


@pytest.mark.parametrize("pipelined", [True, False])
def test_subgraphs_move_whole(pipelined: bool) -> None:
    one = recovery.Run(opened(CpuDevice, 1), [8], saint=True)
    run = recovery.Run(opened(CpuDevice, 2), [3, 5], saint=True, pipelined=pipelined, policy=wandering(5))
    same(run, one)
    assert run.balanced


@pytest.mark.parametrize(("seed", "pipelined"), [(0, True), (1, False), (2, True)])
def test_out_of_memory_while_a_policy_moves(undisturbed, pipelined: bool, seed: int) -> None:
    """The device has room for 9; the policy asks for what it was allowed, and hears when that shrinks."""
    policy = wandering(seed)
    plain = policy._choose
    policy._choose = lambda step, present: fitted(plain(step, present), policy.limits[-1])
    run = recovery.Run(opened(Small, 2, room=9), [20, 12], pipelined=pipelined, policy=policy)
    same(run, undisturbed)
    most = [limits.max_units[0] for limits in policy.limits]
    assert most == sorted(most, reverse=True)
    assert most[-1] <= 10
    assert {limits.max_units[1] for limits in policy.limits} == {BATCH}


def fitted(wanted: Assignment, limits: AssignmentLimits) -> Assignment:
    first = min(wanted.split[0], limits.max_units[0])
    return replace(wanted, split=(first, sum(wanted.split) - first))


@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize("stage", ["transfer", "propagate", "update"])
def test_a_policy_goes_on_without_a_lost_device(undisturbed, pipelined: bool, stage: str) -> None:
    draw = random.Random(3)
    policy = Scripted(lambda step, present: shuffled(present, policy.limits[-1], draw))
    run = recovery.Run(
        three(Mortal, dies=(stage, 7)), [12, 10, 10], pipelined=pipelined, on_loss="continue", policy=policy
    )
    same(run, undisturbed)
    assert policy.limits[0].max_units == (BATCH, BATCH, BATCH)
    assert policy.limits[-1].max_units == (0, BATCH, BATCH)
    assert run.stages.split[0] == 0


def shuffled(present: Assignment, limits: AssignmentLimits, draw: random.Random) -> Assignment:
    """Another split between those that are there."""
    free = [index for index, most in enumerate(limits.max_units) if most]
    split = [0] * len(present.split)
    for _ in range(sum(present.split)):
        split[draw.choice(free)] += 1
    return replace(present, split=tuple(split))


def train(
    policy=None,
    *,
    events: list[Event] | None = None,
    graph=GRAPH,
    module=None,
    shared: DistributedRunConfig = ALONE,
    **sections: Any,
) -> Training:
    settings = {
        "data": {"batch_size": 24},
        "sampler": {"fanout": [4, 3]},
        "model": {"hidden": 16, "dropout": 0.3},
        "evaluate": {"every": 0},
        "train": {"epochs": 4, "optimizer": "SGD", "lr": 0.02},
        "devices": ["cpu:0", "cpu:1"],
        **sections,
        "balance": {"predict": False, **sections.get("balance", {})},
    }
    training = Training(
        build_run(
            build_config(settings),
            graph,
            model=module,
            policy=policy,
            shared=shared,
            emit=lambda event: None if events is None else events.append(event),
        )
    )
    training.run()
    return training


def weights(training: Training) -> np.ndarray:
    return torch.cat([p.detach().flatten() for p in training.parts.learner.parameters]).numpy()


def losses(events: Sequence[Event]) -> list[float]:
    return [loss for event in events if isinstance(event, StepMetrics) for loss in event.losses]


# Of other kinds, sums over any split are those of one trainer: unit/pipeline/test_hybrid_step.py.
@pytest.mark.parametrize(("kind", "pipelined"), [("graphsage", True), ("gcn", False)])
def test_weights_of_sgd_are_those_of_a_static_run(kind: str, pipelined: bool) -> None:
    settings = {"model": {"kind": kind, "hidden": 16, "dropout": 0.3}}
    told: list[Event] = []
    still = train(devices=["cpu"], **settings)
    moved = train(wandering(1), events=told, runtime={"pipelined": pipelined}, **settings)
    assert sum(isinstance(event, AssignmentChanged) for event in told) >= 4
    np.testing.assert_allclose(weights(moved), weights(still), atol=1e-5)


@pytest.mark.parametrize(("pipelined", "depth", "delay"), [(True, 4, 4), (True, 2, 2), (False, 4, 1)])
def test_a_decision_acts_on_the_first_step_not_yet_cut(
    monkeypatch: pytest.MonkeyPatch, pipelined: bool, depth: int, delay: int
) -> None:
    cut_at: dict[int, list[int]] = {}
    threads: dict[tuple[str, int], int] = {}
    from hyrt.pipeline.load import LoadStage
    from hyrt.pipeline.sample import SampleStage
    from hyrt.pipeline.stages import Stages

    cut, draw, load, propagate = Stages.cut, SampleStage._draw, LoadStage.__call__, CpuDevice.propagate

    def noting_cut(self, step):
        shares = cut(self, step)
        cut_at[step] = [len(share.units) for share in shares]
        return shares

    def noting_draw(self, share, hops):
        threads["sample", share.work.step] = self.workers.count
        return draw(self, share, hops)

    def noting_load(self, share):
        load(self, share)
        if len(share.units):
            threads["load", share.work.step] = self.workers.count

    def noting_propagate(self, staged):
        threads[self.info.name, staged.step] = self._workers.count
        return propagate(self, staged)

    monkeypatch.setattr(Stages, "cut", noting_cut)
    monkeypatch.setattr(SampleStage, "_draw", noting_draw)
    monkeypatch.setattr(LoadStage, "__call__", noting_load)
    monkeypatch.setattr(CpuDevice, "propagate", noting_propagate)
    after = Assignment(split=(5, 19), threads=Threads(sample=2, load=3, train=2))
    policy = Scripted(lambda step, present: after if step >= 3 else present)
    told: list[Event] = []
    # Threads at 0, so that they may move; on machines of any size the start is this.
    monkeypatch.setattr(
        "hyrt.training.build_run.assign_threads", lambda *_: Threads(sample=1, load=1, train=3)
    )
    graph = random_graph(vertices=480)
    train(
        policy,
        events=told,
        graph=graph,
        data={"batch_size": 24},
        runtime={"pipelined": pipelined, "depth": depth},
    )
    first = 3 + delay
    (event,) = [event for event in told if isinstance(event, AssignmentChanged)]
    assert (event.step, event.acts_from, event.policy) == (4, first, "scripted")
    assert event.split_before == {"cpu:0": 12, "cpu:1": 12}
    assert event.split == {"cpu:0": 5, "cpu:1": 19}
    assert event.threads_before == {"sample": 1, "load": 1, "train": 3}
    assert event.threads == {"sample": 2, "load": 3, "train": 2}
    assert (event.reason, event.expected_s) == ("as scripted", 0.5)
    full = [step for step in cut_at if sum(cut_at[step]) == 24]
    assert [step for step in full if cut_at[step] == [5, 19]] == [step for step in full if step >= first]
    for (where, step), count in threads.items():
        before, later = {"sample": (1, 2), "load": (1, 3)}.get(where, (3, 2))
        assert count == (before if step < first else later), (where, step)
    for seen in policy.observations:
        assert seen.assignment.split == ((12, 12) if seen.step < first else (5, 19))
    assert {limits.delay for limits in policy.limits} == {delay}


def test_what_is_not_usual_is_not_shown() -> None:
    """The first step, short steps, and those in flight during an evaluation."""
    graph = random_graph(vertices=480)
    policy = unmoved()
    training = train(policy, graph=graph, evaluate={"every": 1}, train={"epochs": 3}, runtime={"depth": 2})
    per_epoch = training.parts.sampler.steps_per_epoch()
    assert len(graph.split("train")) % 24
    assert per_epoch > 6
    expected = [
        step
        for step in range(3 * per_epoch)
        if step % per_epoch != per_epoch - 1
        and (step >= 1 if step < per_epoch else step % per_epoch >= 2)
        # Nothing is left to decide then.
        and step + 2 <= 3 * per_epoch - 1
    ]
    assert policy.steps == expected


def test_steps_of_a_rank_are_usual_if_they_have_nearly_the_most_units() -> None:
    graph = random_graph(vertices=480)
    policy = unmoved()
    # Half of 24 targets is what a rank gets; 10 of 11 are enough, 9 are not.
    counts = [11, 9, 10, 9, 10, 11, 9]

    def own(step: int, units: Any) -> list[Any]:
        return [units[: counts[step % len(counts)]]]

    part = RankSlice(num_processes=2, local_units=own)
    train(
        policy, graph=graph, shared=DistributedRunConfig(part=part), train={"epochs": 1}, runtime={"depth": 1}
    )
    last = -(-len(graph.split("train")) // 24) - 1
    assert policy.steps == [step for step in range(1, last) if counts[step % len(counts)] != 9]


def test_times_are_the_trainers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device's own times count where it has them; a trainer without targets has none."""
    propagate = CpuDevice.propagate

    def timed(self, staged):
        result = propagate(self, staged)
        result.seconds = {"transfer": 0.25, "propagate": 0.5} if self.info.name == "cpu:0" else {}
        return result

    monkeypatch.setattr(CpuDevice, "propagate", timed)
    for split in ([12, 12], [24, 0]):
        policy = unmoved()
        train(policy, split=split)
        for seen in policy.observations:
            assert (seen.propagate_s[0], seen.transfer_s[0]) == (0.5, 0.25)
            if split[1]:
                assert 0 < seen.propagate_s[1] < 10
                assert 0 < seen.transfer_s[1] < 10
                assert min(seen.sample_s[1], seen.load_s[1]) > 0
            else:
                assert (seen.propagate_s[1], seen.transfer_s[1]) == (0, 0)
                assert (seen.sample_s[1], seen.load_s[1]) == (0, 0)
            assert seen.sample_on_device_s == (0, 0)
            assert min(seen.sample_s[0], seen.load_s[0], seen.iteration_s, seen.synchronize_s) > 0
        limits = policy.limits[0]
        assert limits.trainers == ("cpu:0", "cpu:1")
        assert limits.is_host == (True, True)
        assert limits.max_units == (24, 24)


def test_sampling_on_a_device_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    from unit.pipeline.test_recovery_rules import Hops

    monkeypatch.setattr(
        "hyrt.training.trainers.device_sampler",
        lambda device, graph: Hops(graph, -1, None) if device.info.name == "cpu:1" else None,
    )
    policy = unmoved()
    train(policy, sampler={"fanout": [4, 3], "on_device": True})
    assert policy.limits[0].samples_on_device == (False, True)
    for seen in policy.observations:
        assert seen.sample_on_device_s[0] == 0 < seen.sample_on_device_s[1]
        assert seen.sample_s[1] == 0 < seen.sample_s[0]


def test_threads_of_the_settings_stay() -> None:
    told: list[Event] = []
    train(wandering(2), events=told, runtime={"sample_threads": 3, "train_threads": 1})
    moves = [event for event in told if isinstance(event, AssignmentChanged)]
    assert moves
    assert {(event.threads["sample"], event.threads["train"]) for event in moves} == {(3, 1)}
    assert len({event.threads["load"] for event in moves}) > 1


class Rows(torch.nn.Module):
    """A module of a user's, whose products torch computes with threads of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.out = torch.nn.Linear(GRAPH.num_features, GRAPH.num_classes)

    def forward(self, blocks: Any, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(x[: blocks[-1].num_dst])
        return scores


def test_threads_of_a_users_module_stay() -> None:
    """Torch's rounding may depend on them."""
    policy = unmoved()
    train(policy, module=Rows())
    assert policy.limits[0].is_host == (False, False)


@pytest.mark.parametrize("pipelined", [True, False])
def test_a_policy_that_fails_ends_the_run_by_name(pipelined: bool) -> None:
    def fail(step: int, present: Assignment) -> Assignment:
        if step == 3:
            raise ZeroDivisionError("no steps")
        return present

    with pytest.raises(StageError, match=r"error in policy scripted at step 3: .*no steps") as raised:
        train(Scripted(fail), runtime={"pipelined": pipelined})
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert not [t.name for t in threading.enumerate() if t.name.startswith("hyrt.")]


@pytest.mark.parametrize(
    ("split", "what"),
    [((12, 13), "24 units for 2 trainers"), ((24,), "24 units for 2 trainers")],
)
def test_what_no_policy_may_decide_ends_the_run(split: tuple[int, ...], what: str) -> None:
    with pytest.raises(StageError, match=f"policy scripted decided .*{what}"):
        train(Scripted(lambda step, present: replace(present, split=split)))


def test_more_threads_than_cores_are_refused() -> None:
    with pytest.raises(StageError, match=r"policy scripted decided .*the limits are"):
        train(Scripted(lambda step, present: replace(present, threads=Threads(sample=999, load=1, train=1))))


def interrupted(folder: Path, policy: Scripted, at: int | None, *, resume: bool = False, **sections: Any):
    """A run that stops when that many steps are done."""
    heard: list[Event] = []
    training = Training(
        build_run(
            build_config(
                {
                    "data": {"batch_size": 24},
                    "sampler": {"fanout": [4, 3]},
                    "model": {"hidden": 16},
                    "train": {"epochs": 4},
                    "devices": ["cpu:0", "cpu:1"],
                    "balance": {"predict": False},
                    **sections,
                }
            ),
            GRAPH,
            policy=policy,
            emit=heard.append,
            checkpoints=folder,
            should_stop=lambda: at is not None and training.state.step >= at,
        )
    )
    if resume:
        training.resume(load_newest_checkpoint(folder, pytest.fail))
    result = training.run()
    return training, result, heard


@pytest.mark.parametrize("at", [3, 4, 6, 9])
def test_a_resumed_run_goes_on_from_the_split_and_the_threads(tmp_path: Path, at: int) -> None:
    """Also from a decision that has not acted yet, on the step it was decided for.

    The result is bit-equal to that of a run that went on.
    """
    after = Assignment(split=(5, 19), threads=Threads(sample=2, load=1, train=1))

    def choose(step: int, present: Assignment) -> Assignment:
        return after if step >= 3 else present

    whole, _, told = interrupted(tmp_path / "a", Scripted(choose), None)
    _, result, before = interrupted(tmp_path / "b", Scripted(choose), at)
    assert result.status == "interrupted"
    # Where it was decided already, the policy of the second run moves nothing: what it has comes from the
    # checkpoint.
    second, result, later = interrupted(
        tmp_path / "b", Scripted(choose if at < 4 else lambda step, present: present), None, resume=True
    )
    if at >= 4:
        assert losses(before) + losses(later) == losses(told)
        assert np.array_equal(weights(second), weights(whole))
    assert result.summary["split"] == {"cpu:0": 5, "cpu:1": 19}
    assert result.summary["threads"] == {"sample": 2, "load": 1, "train": 1}
    np.testing.assert_allclose(weights(second), weights(whole), atol=1e-4)


def test_resumed_with_other_threads_of_the_settings(tmp_path: Path) -> None:
    after = Assignment(split=(5, 19), threads=Threads(sample=2, load=1, train=1))
    interrupted(tmp_path, Scripted(lambda step, present: after), 5)
    _, result, _ = interrupted(tmp_path, unmoved(), None, resume=True, runtime={"load_threads": 3})
    assert result.summary["split"] == {"cpu:0": 5, "cpu:1": 19}
    assert result.summary["threads"] == {"sample": 2, "load": 3, "train": 1}


def test_on_a_machine_with_other_cores_threads_are_chosen_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = Assignment(split=(5, 19), threads=Threads(sample=2, load=1, train=1))
    interrupted(tmp_path, Scripted(lambda step, present: after), 5)
    monkeypatch.setattr("hyrt.training.open_run.available_cores", lambda: 7)
    monkeypatch.setattr(
        "hyrt.training.build_run.assign_threads", lambda *_: Threads(sample=3, load=1, train=2)
    )
    _, result, _ = interrupted(tmp_path, unmoved(), None, resume=True)
    assert result.summary["split"] == {"cpu:0": 5, "cpu:1": 19}
    assert result.summary["threads"] == {"sample": 3, "load": 1, "train": 2}


def test_a_resumed_run_knows_what_did_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hyrt.errors import DeviceOutOfMemoryError

    transfer = CpuDevice.transfer
    refused = []

    def small(self, batch):
        if self.info.name == "cpu:0" and len(batch.targets) > 7:
            refused.append(batch.step)
            raise DeviceOutOfMemoryError("cpu:0: room for 7")
        return transfer(self, batch)

    monkeypatch.setattr(CpuDevice, "transfer", small)
    interrupted(tmp_path, unmoved(), 6)
    assert refused
    refused.clear()
    policy = unmoved()
    _, result, _ = interrupted(tmp_path, policy, None, resume=True)
    assert result.summary["split"] == {"cpu:0": 6, "cpu:1": 18}
    assert policy.limits[0].max_units == (6, 24)
    assert not [step for step in refused if step >= 6 + 4]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, DEFAULT_POLICY),
        ({"devices": ["cpu:0", "cpu:1"]}, DEFAULT_POLICY),
        ({"devices": ["cpu:0=1", "cpu:1=2"]}, "static"),
        ({"split": [1024]}, "static"),
        ({"balance": {"policy": "bottleneck"}}, "bottleneck"),
        ({"split": [1024], "balance": {"policy": "model"}}, "model"),
        ({"balance": {"policy": "static"}}, "static"),
    ],
)
def test_the_policy_of_the_settings(settings: dict[str, Any], name: str) -> None:
    assert configured_policy(build_config(settings), simulated=False).name == name
    # A virtual clock beside the wall's says nothing of who is slow; who asks for a policy gets it all the
    # same.
    asked = settings.get("balance", {}).get("policy", "auto") != "auto"
    assert configured_policy(build_config(settings), simulated=True).name == (name if asked else "static")
    # One trainer on one core.
    unmoved = configured_policy(build_config(settings), simulated=False, moves=False)
    assert unmoved.name == (name if asked else "static")


@pytest.mark.parametrize("name", ["static", "bottleneck", "model"])
@pytest.mark.parametrize("pipelined", [True, False])
def test_every_policy_in_a_run(name: str, pipelined: bool) -> None:
    told: list[Event] = []
    still = train(devices=["cpu"], train={"epochs": 6, "optimizer": "SGD", "lr": 0.02})
    run = train(
        events=told,
        train={"epochs": 6, "optimizer": "SGD", "lr": 0.02},
        split=[23, 1],
        balance={"policy": name},
        runtime={"pipelined": pipelined},
    )
    np.testing.assert_allclose(weights(run), weights(still), atol=1e-5)
    moves = [event for event in told if isinstance(event, AssignmentChanged)]
    assert all(sum(event.split.values()) == 24 and event.reason for event in moves)
    assert not (name == "static" and moves)


def test_checkpoints_hold_plain_values_for_lost_devices(tmp_path: Path) -> None:
    """A run that lost a device starts from its settings when it is resumed: the device may be there again."""
    with pytest.MonkeyPatch.context() as patch:
        propagate = CpuDevice.propagate

        def fail(self, staged):
            if self.info.name == "cpu:0" and staged.step == 2:
                raise OSError("gone")
            return propagate(self, staged)

        patch.setattr(CpuDevice, "propagate", fail)
        interrupted(tmp_path, unmoved(), 8, runtime={"on_device_loss": "continue"})
    assert load_newest_checkpoint(tmp_path, pytest.fail).state["balance"] is None
    _, result, heard = interrupted(tmp_path, unmoved(), None, resume=True)
    assert result.summary["split"] == {"cpu:0": 12, "cpu:1": 12}
    assert any(isinstance(event, CheckpointWritten) for event in heard)


@pytest.mark.parametrize(("cores", "devices", "name"), [(1, 1, "static"), (1, 2, "model"), (2, 1, "model")])
def test_one_trainer_on_one_core_has_no_policy(
    monkeypatch: pytest.MonkeyPatch, cores: int, devices: int, name: str
) -> None:
    chosen: list[str] = []

    def notes(*given: Any, **named: Any) -> Any:
        found = configured_policy(*given, **named)
        chosen.append(found.name)
        return found

    monkeypatch.setattr("hyrt.training.open_run.available_cores", lambda: cores)
    monkeypatch.setattr("hyrt.training.open_run.configured_policy", notes)
    train(devices=[f"cpu:{number}" for number in range(devices)], train={"epochs": 1})
    assert chosen == [name]
