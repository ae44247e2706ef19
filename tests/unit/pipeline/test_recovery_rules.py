"""Who takes over from whom, from which step on, and what is said about it."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hyrt_devices.cpu import CpuDevice
from unit.pipeline.test_recovery import BATCH, STEPS, Mortal, Run, Small, opened, same

from hyrt.device import DeviceOptions
from hyrt.errors import DeviceFaultError, DeviceOutOfMemoryError, StageError, StallError
from hyrt.pipeline.load import Loader
from hyrt.pipeline.pipeline import Pipeline
from hyrt.sampling.kernels import count_neighbors, prefix_sum, sample_neighbors
from hyrt.sampling.sampler import Hop


@pytest.fixture(scope="module")
def undisturbed():
    return Run(opened(CpuDevice, 1), [BATCH])


def small(*rooms: int) -> list[Small]:
    infos = CpuDevice.probe()
    devices = [Small.open(infos[i % len(infos)], DeviceOptions()) for i in range(len(rooms))]
    for device, room in zip(devices, rooms, strict=True):
        device.room = room
    return devices


@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize(
    ("rooms", "split", "ends"),
    [
        # The first gives, and the second, which then has too much, keeps it and does it in parts.
        ((9, 20), [16, 16], [8, 24]),
        # Both at once: nobody can take.
        ((7, 7), [16, 16], [16, 16]),
        ((5, 12), [4, 28], [18, 14]),
    ],
)
def test_targets_do_not_go_back_and_forth(undisturbed, rooms, split, ends, pipelined: bool) -> None:
    run = Run(small(*rooms), split, pipelined=pipelined)
    same(run, undisturbed)
    assert run.stages.split == ends
    # Each is said once, whatever the number of steps.
    assert len(run.notices) == 2


def test_parts_of_a_single_trainer_are_said_once() -> None:
    run = Run(small(9), [BATCH])
    # It does all of a step, in parts: a limit below its split would have no assignment.
    assert run.stages.trainers[0].max_units == BATCH == run.stages.split[0]
    assert len(run.notices) == 1
    assert run.notices[0].startswith("step 0: cpu:0 is out of memory and no other trainer can take more")


@pytest.mark.parametrize("depth", [1, 4])
def test_a_change_acts_on_the_first_step_that_was_not_cut(depth: int, monkeypatch) -> None:
    seen: list[list[int]] = []
    consume = Run._consume

    def watch(self, works, synchronizer) -> None:
        def watched():
            for work in works:
                seen.append([len(share.batch.targets) if share.batch else 0 for share in work.shares[:2]])
                yield work

        consume(self, watched(), synchronizer)

    monkeypatch.setattr(Run, "_consume", watch)
    monkeypatch.setattr(
        "unit.pipeline.test_recovery.Pipeline",
        lambda *args, **options: Pipeline(*args, **{**options, "depth": depth}),
    )
    Run(small(12, 99), [20, 12])
    full = [step for step in range(STEPS) if sum(seen[step]) == BATCH]
    assert [seen[step] for step in full if step < depth] == [[20, 12] for step in full if step < depth]
    assert all(seen[step] == [10, 22] for step in full if step >= depth)


def test_equal_events_give_equal_bits() -> None:
    first, second = (Run(small(6, 99, 99), [20, 6, 6]).weights for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("stage", ["sample", "load"])
def test_a_fault_while_a_share_is_prepared_again_is_named(stage: str, monkeypatch) -> None:
    """Only a share that is cut anew holds ten targets here."""
    load = Loader.load

    def broken(self, batch, plan, workers) -> None:
        if len(batch.targets) == 10:
            raise OSError("disk gone")
        load(self, batch, plan, workers)

    def missing(self, step, units, *more, **options):
        if len(units) == 10:
            raise OSError("disk gone")
        return sample(self, step, units, *more, **options)

    from hyrt.sampling.neighbor_sampler import NeighborSampler

    sample = NeighborSampler.sample
    if stage == "load":
        monkeypatch.setattr(Loader, "load", broken)
    else:
        monkeypatch.setattr(NeighborSampler, "sample", missing)
    for pipelined in (True, False):
        with pytest.raises(StageError, match=f"error in {stage} on cpu at step 0: OSError: disk gone"):
            Run(small(12, 99), [20, 12], pipelined=pipelined)
    assert not [t.name for t in threading.enumerate() if t.name.startswith(("hyrt.transfer", "hyrt.sample"))]


def test_a_share_that_hangs_the_second_time_is_found(monkeypatch) -> None:
    release = threading.Event()

    class Stuck(Small):
        def transfer(self, batch):
            if len(batch.targets) == 10:
                release.wait()
            return super().transfer(batch)

    devices = small(12, 99)
    devices[0].close()
    devices[0] = Stuck.open(CpuDevice.probe()[0], DeviceOptions())
    devices[0].room = 12

    def patient(stages, steps, **options):
        options |= {"stall_timeout_s": 0.2, "on_stall": lambda stacks: release.set()}
        return Pipeline(stages, steps, **options)

    monkeypatch.setattr("unit.pipeline.test_recovery.Pipeline", patient)
    with pytest.raises(StallError, match=r"nothing moved for 0.2 s"):
        Run(devices, [20, 12])


def test_when_the_last_of_two_is_lost_the_run_ends(undisturbed) -> None:
    devices = opened(Mortal, 2, dies=("propagate", 3))
    devices[1].close()
    devices[1] = Mortal.open(CpuDevice.probe()[1], DeviceOptions())
    devices[1].dies = ("propagate", 9)
    with pytest.raises(StageError, match=r"propagate on cpu:1 at step 9: .*no trainer is left") as raised:
        Run(devices, [16, 16], on_loss="continue")
    assert isinstance(raised.value.__cause__, DeviceFaultError)


class Hops:
    """Draws hops like a device would, until it cannot."""

    def __init__(self, graph, fails_at: int, error: Exception) -> None:
        self._graph, self._left, self._error = graph, fails_at, error
        self.drawn = 0

    def draw(self, vertices, fanout: int, key, *, relabel: bool) -> Hop:
        if not self._left:
            raise self._error
        self._left -= 1
        self.drawn += 1
        graph, num = self._graph, len(vertices)
        degrees, counts = np.empty(num, np.int32), np.empty(num, np.int32)
        count_neighbors(graph.topology.indptr, vertices, fanout, 0, num, degrees, counts)
        offsets = np.empty(num + 1, np.int32)
        prefix_sum(counts, offsets)
        neighbors = np.empty(offsets[-1], vertices.dtype)
        positions = np.empty(offsets[-1], np.int64)
        sample_neighbors(
            graph.topology.indptr,
            graph.topology.indices,
            vertices,
            offsets,
            key,
            0,
            num,
            positions,
            neighbors,
        )
        return Hop(degrees, offsets, neighbors)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "error", [None, DeviceOutOfMemoryError("cpu:0: no room"), DeviceFaultError("cpu:0: gone")]
)
def test_a_device_that_samples_and_then_cannot(undisturbed, error, monkeypatch) -> None:
    from unit.pipeline import test_recovery

    made: list[Hops] = []

    def trainer(device, plan):
        found = Trainer(device, plan)
        if not made:
            made.append(Hops(test_recovery.random_graph(vertices=240), 12 if error else 10**6, error))
            found.hops = made[0]
        return found

    Trainer = test_recovery.Trainer
    monkeypatch.setattr(test_recovery, "Trainer", trainer)
    run = Run(opened(CpuDevice, 2), [20, 12], on_loss="continue")
    same(run, undisturbed)
    if error is None:
        assert made[0].drawn == 2 * STEPS
        assert not run.notices
    elif isinstance(error, DeviceOutOfMemoryError):
        assert run.notices == [
            "step 6: cpu:0 has too little memory for sampling, so the host samples for it (cpu:0: no room)"
        ]
        assert run.stages.split == [20, 12]
    else:
        assert len(run.notices) == 1
        assert run.stages.split == [0, BATCH]
        made.clear()
        with pytest.raises(StageError, match=r"error in sample on cpu at step 6: cpu:0: gone"):
            Run(opened(CpuDevice, 2), [20, 12])
