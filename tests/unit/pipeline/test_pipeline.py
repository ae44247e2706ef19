from __future__ import annotations

import gc
import threading
import time
import weakref
from contextlib import ExitStack

import numpy as np
import pytest
from graphs import random_graph
from hyrt_devices.null import NullDevice

from hyrt.device import DeviceOptions
from hyrt.errors import DeviceFaultError, StageError, StallError
from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN
from hyrt.objective.classification import Classification
from hyrt.pipeline.load import Loader
from hyrt.pipeline.pipeline import GuardedSteps, Pipeline, SerialSteps
from hyrt.pipeline.stages import Stages
from hyrt.pipeline.trainer import InputPlan, Trainer
from hyrt.pipeline.work_items import cut
from hyrt.runtime.workers import Workers
from hyrt.sampling.neighbor_sampler import NeighborSampler
from hyrt.telemetry.hooks import Hook

STEPS = 12


class Faulty(NullDevice):
    """A null device that does something else at one call of one method."""

    def __init__(self, info, method: str, at: int, action) -> None:
        super().__init__(info)
        self._calls = {"transfer": 0, "propagate": 0}
        self._fault = (method, at, action)

    def _count(self, method: str) -> None:
        wanted, at, action = self._fault
        if method == wanted and self._calls[method] == at:
            action()
        self._calls[method] += 1

    def transfer(self, batch):
        self._count("transfer")
        return super().transfer(batch)

    def propagate(self, staged):
        self._count("propagate")
        return super().propagate(staged)


def stages(devices, split, sampler=None, loader=None) -> Stages:
    graph = random_graph()
    model = GNN(Architecture(in_features=12, hidden=8, num_classes=3))
    trainers = [Trainer(device, InputPlan("rows")) for device in devices]
    for trainer in trainers:
        trainer.device.load(model, list(model.parameters()))
    return Stages(
        sampler or NeighborSampler(graph, graph.split("train"), [3, 3], 32, 0),
        loader or Loader(graph.features),
        trainers,
        split,
        list(model.parameters()),
        Workers(1, "s"),
        Workers(1, "l"),
        counts=Classification.counts,
    )


def null(count: int = 1) -> list[NullDevice]:
    return [NullDevice.open(info, DeviceOptions()) for info in NullDevice.probe()[:count]]


def pipeline_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("hyrt.") and t.is_alive()]


def run(what: Stages, depth: int = 3, timeout: float = 30.0, **options) -> list[int]:
    seen = []
    with Pipeline(what, range(STEPS), depth=depth, stall_timeout_s=timeout, **options) as pipeline:
        for work in pipeline.steps():
            seen.append(work.step)
    return seen


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("trainers", [1, 3])
def test_steps_come_in_order_and_threads_end(depth: int, trainers: int) -> None:
    split = [32] if trainers == 1 else [10, 0, 22]
    assert run(stages(null(trainers), split), depth) == list(range(STEPS))
    assert pipeline_threads() == []


class Shared(NullDevice):
    """A null device whose `transfer` and `update` both take a while, and fail if the other runs meanwhile."""

    def __init__(self, info) -> None:
        super().__init__(info)
        self.busy = threading.Lock()
        self.waited = {"transfer": 0, "update": 0}

    def _alone(self, method: str) -> None:
        if not self.busy.acquire(blocking=False):
            raise RuntimeError(f"{method} while the other runs")
        time.sleep(0.005)
        self.waited[method] += 1
        self.busy.release()

    def transfer(self, batch):
        self._alone("transfer")
        return super().transfer(batch)

    def update(self, parameters):
        self._alone("update")
        super().update(parameters)


@pytest.mark.parametrize("depth", [2, 4])
def test_a_trainer_takes_weights_and_mini_batches_one_after_the_other(depth: int) -> None:
    devices = [Shared(info) for info in NullDevice.probe()[:2]]
    assert run(stages(devices, [20, 12]), depth) == list(range(STEPS))
    assert [device.waited for device in devices] == [{"transfer": STEPS, "update": STEPS}] * 2


def test_credits_bound_the_steps_in_flight() -> None:
    alive, peak = set(), 0
    lock = threading.Lock()

    class Counting(NeighborSampler):
        def sample(self, step, units, workers, *, in_place, hops=None):
            nonlocal peak
            batch = super().sample(step, units, workers, in_place=in_place)
            with lock:
                alive.add(step)
                peak = max(peak, len(alive))
            batch.on_release(lambda: alive.discard(step))
            return batch

    graph = random_graph()
    run(stages(null(), [32], Counting(graph, graph.split("train"), [3, 3], 32, 0)), depth=3)
    assert peak <= 3
    assert not alive


def fault(error: BaseException):
    def action() -> None:
        raise error

    return action


@pytest.mark.parametrize(
    "error", [ValueError("broken"), DeviceFaultError("gone"), SystemExit(3), KeyboardInterrupt()]
)
@pytest.mark.parametrize("at", [0, 5, STEPS - 1])
@pytest.mark.parametrize("method", ["transfer", "propagate"])
def test_a_fault_on_a_device_names_stage_device_and_step(method: str, at: int, error: BaseException) -> None:
    devices = [null()[0], Faulty(NullDevice.probe()[1], method, at, fault(error))]
    started = time.monotonic()
    with pytest.raises(StageError, match=rf"error in {method} on null:1 at step {at}") as raised:
        run(stages(devices, [16, 16]))
    assert raised.value.__cause__ is error
    assert time.monotonic() - started < 5
    assert pipeline_threads() == []


@pytest.mark.parametrize("stage", ["sample", "load"])
@pytest.mark.parametrize("at", [0, 7])
def test_a_fault_in_sampling_or_loading(stage: str, at: int) -> None:
    graph = random_graph()

    class Sampler(NeighborSampler):
        def sample(self, step, units, workers, *, in_place, hops=None):
            if stage == "sample" and step == at:
                raise OSError("disk gone")
            return super().sample(step, units, workers, in_place=in_place)

    class Load(Loader):
        def load(self, batch, plan, workers):
            if stage == "load" and batch.step == at:
                raise OSError("disk gone")
            super().load(batch, plan, workers)

    what = stages(null(), [32], Sampler(graph, graph.split("train"), [3, 3], 32, 0), Load(graph.features))
    with pytest.raises(StageError, match=rf"error in {stage} on cpu at step {at}: OSError: disk gone"):
        run(what)
    assert pipeline_threads() == []
    with pytest.raises(StageError, match=rf"error in {stage} on cpu at step {at}: OSError: disk gone"):
        list(SerialSteps(what, range(STEPS)).steps())


def test_a_hang_is_found_and_named() -> None:
    release = threading.Event()
    device = Faulty(NullDevice.probe()[0], "propagate", 4, release.wait)
    stacks: list[str] = []

    def on_stall(text: str) -> None:
        stacks.append(text)
        release.set()  # Let the thread end, so that the test leaves none.

    with pytest.raises(StallError, match=r"nothing moved for 0.2 s .*null:0"):
        run(stages([device], [32]), timeout=0.2, on_stall=on_stall)
    assert "hyrt.propagate.null:0" in stacks[0]
    assert "propagate on null:0: step 4" in stacks[0]
    assert pipeline_threads() == []


def test_a_consumer_that_leaves_early_ends_the_threads() -> None:
    with Pipeline(stages(null(2), [16, 16]), range(STEPS), depth=2, stall_timeout_s=30) as pipeline:
        for work in pipeline.steps():
            if work.step == 3:
                break
    assert pipeline_threads() == []


def test_an_error_in_the_consumer_ends_the_threads() -> None:
    def consume() -> None:
        with Pipeline(stages(null(), [32]), range(STEPS), depth=2, stall_timeout_s=30) as pipeline:
            for _ in pipeline.steps():
                raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        consume()
    assert pipeline_threads() == []


def test_trainers_wait_for_new_weights() -> None:
    """No trainer propagates step i + 1 before the consumer asked for it."""
    asked = -1
    early = []

    class Watching(NullDevice):
        def propagate(self, staged):
            if staged.step > asked + 1:
                early.append(staged.step)
            return super().propagate(staged)

    what = stages([Watching(NullDevice.probe()[0])], [32])
    with Pipeline(what, range(STEPS), depth=4, stall_timeout_s=30) as pipeline:
        for work in pipeline.steps():
            time.sleep(0.005)  # Time in which an unbound trainer would run ahead.
            asked = work.step
    assert early == []


@pytest.mark.parametrize("size", [0, 1, 7, 31, 32])
@pytest.mark.parametrize("split", [[32], [1, 31], [0, 32], [10, 0, 22], [11, 11, 10]])
def test_cut_keeps_every_unit_once(split: list[int], size: int) -> None:
    units = np.arange(size)
    pieces = cut(units, split)
    assert len(pieces) == len(split)
    assert np.array_equal(np.concatenate(pieces), units)
    if size == 32:
        assert [len(piece) for piece in pieces] == split
    for piece, share in zip(pieces, split, strict=True):
        assert abs(len(piece) - size * share / 32) <= 1


def test_pipelined_and_serial_runs_give_the_same_batches() -> None:
    def contents(works) -> list[tuple[int, bytes, bytes]]:
        return [
            (work.step, batch.blocks[0].columns.tobytes(), batch.inputs.numpy().tobytes())
            for work in works
            for batch in [work.shares[0].batch]
        ]

    serial = contents(SerialSteps(stages(null(), [32]), range(STEPS)).steps())
    with Pipeline(stages(null(), [32]), range(STEPS), depth=4, stall_timeout_s=30) as pipeline:
        assert contents(pipeline.steps()) == serial
    with GuardedSteps(stages(null(), [32]), range(STEPS), stall_timeout_s=30) as guarded:
        assert contents(guarded.steps()) == serial
    assert pipeline_threads() == []


@pytest.mark.parametrize(("stage", "step"), [("transfer", 2), ("propagate", 0), ("propagate", STEPS - 1)])
def test_guarded_steps_end_as_the_pipeline_does(stage: str, step: int) -> None:
    def refuse() -> None:
        raise DeviceFaultError("refused")

    told: list[BaseException] = []

    class Heard(Hook):
        def on_pipeline_failure(self, failure: BaseException) -> None:
            told.append(failure)

    device = Faulty(NullDevice.probe()[0], stage, step, refuse)
    steps = GuardedSteps(stages([device], [32]), range(STEPS), stall_timeout_s=30, hooks=[Heard()])
    with (
        pytest.raises(StageError, match=f"^error in {stage} on null:0 at step {step}: refused$") as raised,
        steps,
    ):
        list(steps.steps())
    assert told == [raised.value]
    assert isinstance(raised.value.__cause__, DeviceFaultError)
    assert pipeline_threads() == []


def test_guarded_steps_that_hang_are_named() -> None:
    release, stacks = threading.Event(), []

    def on_stall(text: str) -> None:
        stacks.append(text)
        release.set()

    device = Faulty(NullDevice.probe()[0], "propagate", 2, release.wait)
    steps = GuardedSteps(stages([device], [32]), range(STEPS), stall_timeout_s=0.2, on_stall=on_stall)
    with pytest.raises(StallError, match=r"propagate on null:0 at step 2 did not return"), steps:
        list(steps.steps())
    assert "hyrt.steps" in stacks[0]
    assert pipeline_threads() == []


def test_nothing_is_under_way_while_guarded_steps_are_consumed() -> None:
    class Seen(NullDevice):
        transferred = 0

        def transfer(self, batch):
            self.transferred += 1
            return super().transfer(batch)

    device = Seen(NullDevice.probe()[0])
    with GuardedSteps(stages([device], [32]), range(STEPS), stall_timeout_s=30) as steps:
        for work in steps.steps():
            assert device.transferred == work.step + 1


@pytest.mark.parametrize("is_pipelined", [True, False])
def test_a_step_that_is_done_waits_for_no_collector(is_pipelined: bool) -> None:
    """Mini-batches and gradients in cycles would pile up in a process that seldom looks for cycles."""
    batches = []
    what = stages(null(2), [20, 12])
    gc.collect()
    gc.disable()
    try:
        with ExitStack() as stack:
            if is_pipelined:
                works = stack.enter_context(Pipeline(what, range(STEPS), depth=3, stall_timeout_s=30)).steps()
            else:
                works = SerialSteps(what, range(STEPS)).steps()
            for work in works:
                batches += [weakref.ref(share.batch.blocks[0].columns) for share in work.shares]
        del work, works
        gone = [each() is None for each in batches]
    finally:
        gc.enable()
    assert len(gone) == 2 * STEPS
    assert all(gone)


def test_a_hung_transfer_is_found_while_the_weights_wait_for_it() -> None:
    """The update waits for the trainer's transfer; the consumer must not, out of the guard's sight."""
    release = threading.Event()
    device = Faulty(NullDevice.probe()[0], "transfer", 5, release.wait)
    with pytest.raises(StallError, match=r"nothing moved for 0.2 s"):
        run(stages([device], [32]), timeout=0.2, on_stall=lambda stacks: release.set())
    assert pipeline_threads() == []


def test_a_stall_whose_report_fails_still_ends_the_run() -> None:
    release = threading.Event()
    device = Faulty(NullDevice.probe()[0], "propagate", 2, release.wait)

    def on_stall(stacks: str) -> None:
        release.set()
        raise OSError(28, "No space left on device")

    with pytest.raises(StallError, match="nothing moved") as raised:
        run(stages([device], [32]), timeout=0.2, on_stall=on_stall)
    assert "No space left" in " ".join(raised.value.__notes__)


def test_a_thread_that_stays_stuck_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyrt.runtime.stage_threads._JOIN_S", 0.2)
    release = threading.Event()
    device = Faulty(NullDevice.probe()[0], "propagate", 2, release.wait)
    try:
        with pytest.raises(StageError, match=r"nothing moved .*thread hyrt.propagate.null:0 did not end"):
            run(stages([device], [32]), timeout=0.2)
    finally:
        release.set()
    for thread in threading.enumerate():
        if thread.name == "hyrt.propagate.null:0":
            thread.join(5)
    assert pipeline_threads() == []


def test_a_failed_update_names_the_synchronize_stage() -> None:
    class Refusing(NullDevice):
        def update(self, parameters):
            raise DeviceFaultError("weights refused")

    device = Refusing(NullDevice.probe()[0])
    with pytest.raises(StageError, match=r"error in synchronize on null:0 at step 0: weights refused"):
        run(stages([device], [32]))
    with pytest.raises(StageError, match=r"error in synchronize on null:0 at step 0: weights refused"):
        list(SerialSteps(stages([device], [32]), range(STEPS)).steps())


def test_what_the_channels_hold_between_two_moments() -> None:
    # Whoever makes the new weights is slow: the only steps that can wait, wait in front of it.
    with Pipeline(stages(null(2), [20, 12]), range(STEPS), depth=3, stall_timeout_s=30.0) as pipeline:
        before = None
        for work in pipeline.steps():
            if work.step == 3:
                before = pipeline.queues()
            time.sleep(0.02)
        assert before is not None
        after = pipeline.queues()
    names = [f"{channel}.null:{i}" for channel in ("loaded", "staged", "done") for i in (0, 1)]
    assert after.capacity == {"sampled": 6} | dict.fromkeys(names, 3)
    mean = after.mean_items_since(before)
    assert set(mean) == set(after.capacity)
    assert all(0 <= items <= after.capacity[name] for name, items in mean.items())
    # Two of three steps are staged: the trainers wait for the weights of the one that is being synchronized.
    assert 1 < mean["staged.null:0"] < 2.5
    assert mean["sampled"] < 1
    waited = {end: after.blocked_s[end] - before.blocked_s[end] for end in after.blocked_s}
    assert waited["sample.input"] >= 0.02 * (STEPS - 5)
    assert waited["synchronize.input"] < 0.02 * (STEPS - 5)
    assert after.mean_items_since(after) == {}
