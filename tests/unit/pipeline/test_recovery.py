"""A device that runs out of memory or is lost: what it had is done again with the same content."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from graphs import random_graph
from hyrt_devices.cpu import CpuDevice

from hyrt.balance.resource_manager import ResourceManager
from hyrt.device import DeviceOptions
from hyrt.errors import DeviceFaultError, DeviceOutOfMemoryError, StageError
from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN
from hyrt.objective.classification import Classification
from hyrt.pipeline.load import Loader
from hyrt.pipeline.pipeline import Pipeline, SerialSteps
from hyrt.pipeline.stages import Stages
from hyrt.pipeline.synchronize import Synchronizer
from hyrt.pipeline.trainer import InputPlan, Trainer
from hyrt.pipeline.work_items import RankSlice
from hyrt.runtime.workers import Workers
from hyrt.sampling.neighbor_sampler import NeighborSampler
from hyrt.sampling.saint_sampler import SaintSampler
from hyrt.telemetry.events import AssignmentChanged

STEPS = 20
BATCH = 32


class Small(CpuDevice):
    """A CPU trainer that has room for so many targets only."""

    room = 10**9
    stage = "transfer"

    def _fit(self, batch, stage: str) -> None:
        if self.stage == stage and len(batch.targets) > self.room:
            raise DeviceOutOfMemoryError(
                f"{self.info.name}: {len(batch.targets)} targets, room for {self.room}"
            )

    def transfer(self, batch):
        self._fit(batch, "transfer")
        return super().transfer(batch)

    def propagate(self, staged):
        self._fit(staged, "propagate")
        return super().propagate(staged)


class Mortal(CpuDevice):
    """A CPU trainer that fails for good at one step."""

    dies: tuple[str, int] = ("never", 0)

    def _live(self, stage: str, step: int) -> None:
        if (stage, step) == self.dies:
            raise DeviceFaultError(f"{self.info.name}: the bus has gone")

    def transfer(self, batch):
        self._live("transfer", batch.step)
        self.step = batch.step
        return super().transfer(batch)

    def propagate(self, staged):
        self._live("propagate", staged.step)
        self.done = staged.step
        return super().propagate(staged)

    def update(self, parameters) -> None:
        self._live("update", getattr(self, "done", -1))
        super().update(parameters)


class Run:
    """Twenty steps over devices, with the weights they end with and the edges they saw."""

    def __init__(
        self,
        devices,
        split,
        *,
        pipelined=True,
        on_loss="stop",
        saint=False,
        kind="graphsage",
        policy=None,
        times=1,
    ) -> None:
        graph = random_graph(vertices=240)
        torch.manual_seed(0)
        self.model = GNN(Architecture(kind=kind, in_features=12, hidden=8, num_classes=3, dropout=0.2))
        parameters = list(self.model.parameters())
        self.notices: list[str] = []
        self.edges: dict[tuple[int, int, int], tuple[int, ...]] = {}
        self.trained: list[list[int]] = []
        # A subgraph's edges depend on its unit, not on the vertex alone.
        self.records_edges = not saint
        targets = graph.split("train")
        with Workers(1, "s") as sampling, Workers(1, "l") as loading:
            if saint:
                sampler = SaintSampler(graph, targets, 2, 20, 2, 8, 0, workers=sampling)
            else:
                sampler = NeighborSampler(graph, targets, [4, 3], BATCH, 0)
            trainers = [Trainer(device, InputPlan("rows")) for device in devices]
            for trainer in trainers:
                trainer.device.load(self.model, parameters)
            self.stages = Stages(
                sampler,
                Loader(graph.features),
                trainers,
                split,
                parameters,
                sampling,
                loading,
                counts=Classification.counts,
                continue_on_loss=on_loss == "continue",
                notify=self.notices.append,
                part=RankSlice(
                    local_units=lambda step, units: np.array_split(units, times), max_time_steps=times
                ),
            )
            synchronizer = Synchronizer(parameters, torch.optim.Adam(parameters, 0.01), trainers, 0)
            self.balanced: list[AssignmentChanged] = []
            self.manager = None
            if policy is not None:
                self.manager = ResourceManager(
                    policy,
                    self.stages,
                    cores=4,
                    start=self.stages.schedule.latest.threads,
                    fixed_threads={},
                    steps_per_epoch=STEPS,
                    last_step=STEPS - 1,
                    emit=self.balanced.append,
                )
            try:
                if pipelined:
                    with Pipeline(self.stages, range(STEPS), depth=4, stall_timeout_s=30) as pipeline:
                        self._consume(pipeline.steps(), synchronizer)
                else:
                    self._consume(SerialSteps(self.stages, range(STEPS)).steps(), synchronizer)
            finally:
                for device in devices:
                    device.close()
        self.weights = np.concatenate([p.detach().numpy().ravel() for p in parameters])

    def _consume(self, works, synchronizer) -> None:
        for work in works:
            if work.has_more_time_steps:
                synchronizer.end_time_step(work)
                continue
            units = np.concatenate([share.units for share in work.shares])
            self.trained.append(sorted(units.tolist()))
            for share in work.shares:
                if share.result is None or share.batch is None or not self.records_edges:
                    continue
                for block in share.batch.blocks:
                    sources = block.sources[block.columns]
                    for i, vertex in enumerate(block.destinations):
                        key = (work.step, block.layer, int(vertex))
                        drawn = tuple(sources[block.indptr[i] : block.indptr[i + 1]].tolist())
                        assert self.edges.setdefault(key, drawn) == drawn
            synchronizer.step(work)
            if self.manager is not None:
                self.manager.observe(work, work.times(0.01))


def opened(kind, count: int, **attributes):
    devices = [CpuDevice.open(info, DeviceOptions()) for info in CpuDevice.probe()[:count]]
    bad = kind.open(CpuDevice.probe()[0], DeviceOptions())
    for name, value in attributes.items():
        setattr(bad, name, value)
    devices[0].close()
    devices[0] = bad
    return devices


def three(kind, **attributes):
    """The first misbehaves."""
    devices = opened(kind, 2, **attributes)
    devices.append(CpuDevice.open(CpuDevice.probe()[0], DeviceOptions()))
    return devices


@pytest.fixture(scope="module")
def undisturbed():
    run = Run(opened(CpuDevice, 1), [BATCH])
    assert not run.notices
    return run


def same(run: Run, wanted: Run) -> None:
    np.testing.assert_allclose(run.weights, wanted.weights, atol=1e-4)
    assert run.trained == wanted.trained
    assert run.edges == wanted.edges


@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize("stage", ["transfer", "propagate"])
@pytest.mark.parametrize(("room", "kept"), [(12, 10), (5, 5), (4, 2)])
def test_out_of_memory_moves_targets_and_changes_nothing_else(
    undisturbed, pipelined: bool, stage: str, room: int, kept: int
) -> None:
    run = Run(opened(Small, 2, room=room, stage=stage), [20, 12], pipelined=pipelined)
    same(run, undisturbed)
    assert run.stages.split == [kept, BATCH - kept]
    assert "out of memory" in run.notices[0]
    assert "step 0" in run.notices[0]
    # The log says a change once, not at every step.
    assert len(run.notices) <= 3


@pytest.mark.parametrize("pipelined", [True, False])
def test_a_step_in_three_times_is_the_step_in_one(undisturbed, pipelined: bool) -> None:
    run = Run(opened(Small, 2, room=5, stage="propagate"), [20, 12], pipelined=pipelined, times=3)
    same(run, undisturbed)
    assert "out of memory" in run.notices[0]
    for step in range(3):
        # Each trainer had a share in each time step.
        assert len(run.stages.cut(step)) == 6


@pytest.mark.parametrize("pipelined", [True, False])
def test_a_single_trainer_does_its_share_in_pieces(undisturbed, pipelined: bool) -> None:
    same(Run(opened(Small, 1, room=9), [BATCH], pipelined=pipelined), undisturbed)


@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize("split", [[BATCH], [BATCH, 0]])
def test_no_more_than_three_retries(split: list[int], pipelined: bool) -> None:
    devices = opened(Small, len(split), room=0)
    if len(split) == 2:
        devices[1].close()
        devices[1] = opened(Small, 1, room=1)[0]
    calls = []
    devices[0]._fit = lambda batch, stage: (
        calls.append(len(batch.targets)) or Small._fit(devices[0], batch, stage)
    )
    with pytest.raises(
        StageError, match=r"error in transfer on cpu:0 at step 0: (?!cpu:0).*room for 0.*batch_size"
    ) as error:
        Run(devices, split, pipelined=pipelined)
    assert isinstance(error.value.__cause__, DeviceOutOfMemoryError)
    assert not [t for t in threading.enumerate() if t.name.startswith("hyrt.transfer")]


@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize("step", [0, 7, STEPS - 1])
@pytest.mark.parametrize("stage", ["transfer", "propagate", "update"])
def test_a_lost_device_ends_the_run_or_is_replaced(
    undisturbed, pipelined: bool, stage: str, step: int
) -> None:
    if not (stage == "update" and step == STEPS - 1):
        where = "synchronize" if stage == "update" else stage
        with pytest.raises(
            StageError, match=f"error in {where} on cpu:0 at step {step}: (?!cpu:0).*bus has gone"
        ):
            Run(three(Mortal, dies=(stage, step)), [12, 12, 8], pipelined=pipelined)
    run = Run(three(Mortal, dies=(stage, step)), [12, 12, 8], pipelined=pipelined, on_loss="continue")
    same(run, undisturbed)
    if not (stage == "update" and step == STEPS - 1):
        assert run.stages.split == [0, 19, 13] or run.stages.split == [0, 20, 12]
        assert len([text for text in run.notices if "is lost" in text]) == 1
        assert "bus has gone" in run.notices[0]


def test_when_all_are_lost_the_first_cause_is_raised() -> None:
    devices = opened(Mortal, 1, dies=("propagate", 3))
    with pytest.raises(StageError, match=r"error in propagate on cpu:0 at step 3: .*no trainer is left"):
        Run(devices, [BATCH], on_loss="continue")


def test_a_trainer_without_a_share_takes_over(undisturbed) -> None:
    run = Run(opened(Mortal, 2, dies=("transfer", 4)), [BATCH, 0], on_loss="continue")
    same(run, undisturbed)
    assert run.stages.split == [0, BATCH]


def test_memory_and_loss_in_one_run(undisturbed) -> None:
    devices = three(Mortal, dies=("propagate", 5))
    devices[2].close()
    devices[2] = opened(Small, 1, room=9)[0]
    run = Run(devices, [12, 12, 8], on_loss="continue")
    same(run, undisturbed)
    assert run.stages.split[0] == 0
    assert run.stages.split[2] <= 9


def test_whole_subgraphs_are_done_again() -> None:
    wanted = Run(opened(CpuDevice, 1), [8], saint=True)
    run = Run(opened(Mortal, 2, dies=("propagate", 2)), [5, 3], saint=True, on_loss="continue")
    np.testing.assert_allclose(run.weights, wanted.weights, atol=1e-4)
    assert run.trained == wanted.trained
