"""How a pipeline ends where a thread goes, or the consumer hangs, or the last weights are not taken."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from graphs import dense_features, random_graph
from hyrt_devices.null import NullDevice

from hyrt.device import DeviceOptions
from hyrt.errors import StageError, StallError
from hyrt.graph.row_source import DenseFeatures
from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN
from hyrt.objective.classification import Classification
from hyrt.pipeline.load import Loader
from hyrt.pipeline.pipeline import Pipeline, SerialSteps
from hyrt.pipeline.stages import Stages
from hyrt.pipeline.trainer import InputPlan, Trainer
from hyrt.runtime.stage_threads import ChannelClosedError
from hyrt.runtime.workers import Workers
from hyrt.sampling.neighbor_sampler import NeighborSampler

STEPS = 6


class Device(NullDevice):
    """A null device that does something at the nth call of a method."""

    at: tuple[str, int, Any] = ("", 0, None)

    def _count(self, method: str) -> None:
        calls = self.__dict__.setdefault("calls", {})
        calls[method] = calls.get(method, 0) + 1
        if (method, calls[method] - 1) == self.at[:2]:
            self.at[2]()

    def transfer(self, batch: Any) -> Any:
        self._count("transfer")
        return super().transfer(batch)

    def update(self, parameters: Any) -> None:
        self._count("update")
        super().update(parameters)


def stages(at: tuple[str, int, Any] = ("", 0, None), rows: type[DenseFeatures] = DenseFeatures) -> Stages:
    graph = random_graph()
    model = GNN(Architecture(in_features=12, hidden=8, num_classes=3))
    device = Device.open(NullDevice.probe()[0], DeviceOptions())
    device.at = at  # type: ignore[attr-defined]
    device.load(model, list(model.parameters()))
    sampler = NeighborSampler(graph, graph.split("train"), [3, 3], 32, 0)
    trainers = [Trainer(device, InputPlan("rows"))]
    parameters = list(model.parameters())
    return Stages(
        sampler,
        Loader(rows(dense_features(graph).astype("float32"))),
        trainers,
        [32],
        parameters,
        Workers(1, "s"),
        Workers(1, "l"),
        counts=Classification.counts,
    )


def run(what: Stages, seen: list[int] | None = None, stall_timeout_s: float = 60.0) -> None:
    with Pipeline(what, range(STEPS), depth=4, stall_timeout_s=stall_timeout_s) as pipeline:
        for work in pipeline.steps():
            if seen is not None:
                seen.append(work.step)


def failing(error: BaseException) -> Any:
    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize("method", ["transfer", "update"])
def test_a_thread_that_leaves_is_noticed(method: str) -> None:
    """Nothing else would move again: without a failure the run would wait for the guard."""
    left = ChannelClosedError("left")
    with pytest.raises(StageError, match=r"on null:0 at step 2: ChannelClosedError: left") as raised:
        run(stages((method, 2, failing(left))))
    assert raised.value.__cause__ is left


def test_a_thread_that_waits_for_rows_of_other_processes_is_freed() -> None:
    waiting, ended = threading.Event(), threading.Event()

    class RemoteRows(DenseFeatures):
        def fetch(self, step: int, ids: Any, workers: Workers) -> None:
            if step == 2:
                waiting.set()
                assert ended.wait(20), "nobody has ended the wait"
                raise ChannelClosedError("no more rows are fetched")

        def release(self, step: int) -> None:
            pass

        def end(self) -> None:
            ended.set()

    def fail() -> None:
        assert waiting.wait(20)
        raise RuntimeError("unplugged")

    with pytest.raises(StageError, match="transfer on null:0 at step 1: RuntimeError: unplugged"):
        run(stages(("transfer", 1, fail), RemoteRows))
    assert ended.is_set()


def test_the_last_weights_are_waited_for() -> None:
    what = stages(("update", STEPS - 1, failing(RuntimeError("no room for weights"))))
    seen: list[int] = []
    with pytest.raises(StageError, match=rf"synchronize on null:0 at step {STEPS - 1}: .*no room"):
        run(what, seen)
    assert seen == list(range(STEPS))


def test_what_hangs_is_named() -> None:
    """Not what happened last: later steps were sampled and loaded meanwhile."""
    held = threading.Event()
    stuck = r"\(.*transfer on null:0 at step 1.* did not return\).*thread hyrt.transfer.null:0.* did not end"
    with pytest.raises(StageError, match=stuck):
        run(stages(("transfer", 1, held.wait)), stall_timeout_s=0.3)
    held.set()


def test_a_consumer_that_hangs_is_told_of() -> None:
    told = threading.Event()
    stacks: list[str] = []

    def hear(text: str) -> None:
        stacks.append(text)
        told.set()

    def hang(pipeline: Pipeline) -> None:
        for _ in pipeline.steps():
            with pipeline.guarded("synchronize at step 0"):
                assert told.wait(20)

    pipeline = Pipeline(stages(), range(STEPS), depth=2, stall_timeout_s=0.3, on_stall=hear)
    with pipeline, pytest.raises(StallError):
        hang(pipeline)
    assert stacks[0].startswith("nothing moved for 0.3 s (synchronize at step 0 did not return)")


def test_a_consumer_may_take_its_time_elsewhere() -> None:
    def hear(text: str) -> None:
        raise AssertionError(text)

    with Pipeline(stages(), range(2), depth=2, stall_timeout_s=0.2, on_stall=hear) as pipeline:
        for _ in pipeline.steps():
            threading.Event().wait(0.5)
        pipeline.raise_failure()


@pytest.mark.parametrize("error", [SystemExit(), GeneratorExit("odd")])
def test_one_after_the_other_no_exit_is_silent(error: BaseException) -> None:
    """SystemExit would end the process with the exit code 0."""
    with pytest.raises(StageError, match="error in transfer on null:0 at step 1") as raised:
        list(SerialSteps(stages(("transfer", 1, failing(error))), range(STEPS)).steps())
    assert raised.value.__cause__ is error
