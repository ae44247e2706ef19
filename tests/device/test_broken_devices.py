"""The conformance suite finds out devices that are wrong in one way each."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from device.unusual_devices import GatheringDevice, HostHops, LimitedDevice, SamplingDevice
from hyrt_devices.cpu import CpuDevice

from hyrt.device import Health, StepResult
from hyrt.errors import DeviceFaultError, UnsupportedModelError
from hyrt.nn.layer import AggregatedFeatures, InPlaceFeatures
from hyrt.nn.model import GNN
from hyrt.nn.operators.sparse import SparseRows
from hyrt.testing import ConformanceError, check_device

INFO = CpuDevice.probe()[0]
Change = Callable[[StepResult], StepResult]


def changed(change: Change) -> type[CpuDevice]:
    """A device whose results of full mini-batches are changed."""

    class Changed(CpuDevice):
        def _step(self, model, batch):
            result = super()._step(model, batch)
            return change(result) if result.counts else result

    return Changed


def gradients(change: Callable[[StepResult], list[Any]]) -> type[CpuDevice]:
    return changed(lambda result: replace(result, gradients=change(result)))


# What is computed.


class ForgetsTargetWeights(CpuDevice):
    def _step(self, model, batch):
        batch.target_weights = None
        return super()._step(model, batch)


class TakesTheFirstRowsForTheTargets(CpuDevice):
    def _step(self, model, batch):
        if batch.target_rows is not None:
            # As a mini-batch like any other, since a whole graph's rows are not read.
            batch.target_rows, batch.full_graph = np.arange(len(batch.targets)), None
        return super()._step(model, batch)


class KeepsTheFirstStep(CpuDevice):
    kept: Any = None

    def _step(self, model, batch):
        if batch.full_graph is not None:
            if self.kept is None or self.kept.full_graph is not batch.full_graph:
                self.kept = batch
            batch = self.kept
        return super()._step(model, batch)


class ForgetsEdgeWeights(CpuDevice):
    def _step(self, model, batch):
        batch.blocks = [replace(block, weights=None) for block in batch.blocks]
        return super()._step(model, batch)


class ForgetsWeightsOfTheGraph(CpuDevice):
    def _step(self, model, batch):
        batch.blocks = [replace(block, edge_weights=None, weighted_degrees=None) for block in batch.blocks]
        return super()._step(model, batch)


class ForgetsDropout(CpuDevice):
    def _step(self, model, batch):
        model.module.eval()
        return super()._step(model, batch)


class DropsByTheMiniBatch(CpuDevice):
    """Dropout masks by position, not by vertex."""

    def _step(self, model, batch):
        def renamed(ids):
            return None if ids is None else np.arange(len(ids), dtype=ids.dtype)

        batch.blocks = [
            replace(b, destinations=renamed(b.destinations), sources=renamed(b.sources)) for b in batch.blocks
        ]
        return super()._step(model, batch)


class MergesEdges(CpuDevice):
    """Takes each edge of a destination once."""

    def _step(self, model, batch):
        batch.blocks = [self._merged(block) for block in batch.blocks]
        return super()._step(model, batch)

    def _merged(self, block):
        rows = [np.unique(block.columns[a:b]) for a, b in zip(block.indptr, block.indptr[1:], strict=False)]
        indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(block.indptr.dtype)
        columns = np.concatenate(rows).astype(block.columns.dtype)
        return replace(block, indptr=indptr, columns=columns, _transposed=None)


class DividesByNoNeighbors(CpuDevice):
    def _step(self, model, batch):
        result = super()._step(model, batch)
        lonely = any(not block.num_edges for block in batch.blocks) and result.counts
        return replace(result, loss_sum=float("nan")) if lonely else result


class HoldsWordsOf32Bits(CpuDevice):
    def _step(self, model, batch):
        if batch.targets.dtype == np.int64:
            batch.labels = batch.labels[::-1].copy()
        return super()._step(model, batch)


class OverflowsInSoftmax(CpuDevice):
    def _step(self, model, batch):
        if not len(batch.targets):
            return super()._step(model, batch)
        with torch.no_grad():
            scores = model.module(batch.blocks, batch.inputs)
        labels = torch.from_numpy(batch.labels)
        losses = scores.exp().sum(1).log() - scores[torch.arange(len(labels)), labels]
        return replace(super()._step(model, batch), loss_sum=float(losses.sum()))


class HidesWhatIsNoNumber(CpuDevice):
    def _step(self, model, batch):
        result = super()._step(model, batch)
        shown = [torch.nan_to_num(gradient) for gradient in result.gradients]
        return replace(result, loss_sum=float(np.nan_to_num(result.loss_sum)), gradients=shown)


class ReadsOthersRows(GatheringDevice):
    def rows(self, sources):
        return super().rows(np.roll(sources, 1))


class Noisy(CpuDevice):
    def _step(self, model, batch):
        result = super()._step(model, batch)
        noise = 1 + 1e-5 * torch.rand(()).item()
        return replace(result, gradients=[gradient * noise for gradient in result.gradients])


# What is kept between calls.


class AddsUp(CpuDevice):
    """Gradients of one step go on into the next."""

    def _step(self, model, batch):
        result = super()._step(model, batch)
        if not result.counts:
            return result
        before = getattr(self, "_before", None)
        if before is not None and [g.shape for g in before] == [g.shape for g in result.gradients]:
            total = [a + b for a, b in zip(result.gradients, before, strict=True)]
            result = replace(result, gradients=total)
        self._before = result.gradients
        return result


class OneGradientBuffer(CpuDevice):
    def _step(self, model, batch):
        result = super()._step(model, batch)
        if not result.counts:
            return result
        kept = self.__dict__.setdefault("_kept", [torch.empty_like(g) for g in result.gradients])
        for to, gradient in zip(kept, result.gradients, strict=True):
            to.copy_(gradient)
        return replace(result, gradients=kept)


class OneStagingBuffer(CpuDevice):
    """A mini-batch overwrites the one that was staged before it."""

    def transfer(self, batch):
        staged = super().transfer(batch)
        self._last = staged
        return staged

    def _step(self, model, batch):
        if len(batch.targets) == len(self._last.targets):
            return super()._step(model, batch)
        return super()._step(model, self._last)


class ZerosForNoTargets(CpuDevice):
    def _step(self, model, batch):
        result = super()._step(model, batch)
        if result.counts:
            return result
        return replace(result, gradients=[torch.zeros_like(p) for p in model.parameters])


class RemembersTheFirst(CpuDevice):
    """Keeps the first mini-batch's labels by reference, for every one of its size."""

    def _step(self, model, batch):
        seen = self.__dict__.setdefault("_seen", {})
        batch.labels = seen.setdefault(len(batch.labels), batch.labels)
        return super()._step(model, batch)


class WritesToLabels(CpuDevice):
    def _step(self, model, batch):
        result = super()._step(model, batch)
        batch.labels[:] = 0
        return result


class WritesToRows(CpuDevice):
    def _step(self, model, batch):
        result = super()._step(model, batch)
        if torch.is_tensor(batch.inputs):
            batch.inputs *= 2
        return result


class KeepsTheTensors(CpuDevice):
    """Trains with the tensors that it was given."""

    def update(self, parameters):
        super().update(parameters)
        for mine, given in zip(self._model.parameters, parameters, strict=True):
            mine.data = given.data


class TrainsTheModulesWeights(CpuDevice):
    def load(self, model, parameters):
        super().load(model, [p for p in model.parameters() if p.requires_grad])


class IgnoresUpdates(CpuDevice):
    def load(self, model, parameters):
        self._told = False
        super().load(model, parameters)
        self._told = True

    def update(self, parameters):
        if not self._told:
            super().update(parameters)


class UpdatesInReverse(CpuDevice):
    """Where shapes allow."""

    def update(self, parameters):
        parameters = list(parameters)
        biases = [i for i, p in enumerate(parameters) if p.ndim == 1]
        parameters[biases[0]] = parameters[biases[0]].flip(0)
        super().update(parameters)


class LoadsOnce(CpuDevice):
    def load(self, model, parameters):
        if self._model is None:
            super().load(model, parameters)


class SharesWeights(CpuDevice):
    """With every other open device."""

    theirs: Any = None

    def load(self, model, parameters):
        super().load(model, parameters)
        SharesWeights.theirs = self._model

    def _step(self, model, batch):
        return super()._step(SharesWeights.theirs, batch)


class ChangesTorch(CpuDevice):
    def load(self, model, parameters):
        super().load(model, parameters)
        torch.use_deterministic_algorithms(True)

    def close(self):
        super().close()


# Which models it takes.


class TakesStatistics(CpuDevice):
    def load(self, model, parameters):
        if isinstance(model, GNN):
            super().load(model, parameters)


class RefusesWithoutAName(CpuDevice):
    def load(self, model, parameters):
        if isinstance(model, GNN) and model.architecture.kind == "gat":
            raise UnsupportedModelError("no")
        super().load(model, parameters)


class RefusesEverything(CpuDevice):
    def load(self, model, parameters):
        raise UnsupportedModelError(f"layer 'layers.0' on {self.info.name}: no")


class BreaksAtARefusal(CpuDevice):
    def load(self, model, parameters):
        if model.architecture.kind == "gat":
            error = UnsupportedModelError(f"layer 'layers.0' on {self.info.name}: no")
            raise self._health.fail("load", error) if hasattr(self, "_refused") else self._refuse(error)
        if hasattr(self, "_refused"):
            raise DeviceFaultError("broken by a refusal")
        super().load(model, parameters)

    def _refuse(self, error):
        self._refused = True
        return error


class TrainsFrozenParameters(CpuDevice):
    def load(self, model, parameters):
        super().load(model, parameters)
        for parameter in self._model.module.parameters():
            parameter.requires_grad_(True)
        self._model._parameters = list(self._model.module.parameters())


# Threads.


class BoundToItsThread(CpuDevice):
    def propagate(self, staged):
        # Not its number: an ended thread's is used again.
        if self.__dict__.setdefault("_thread", threading.current_thread()) is not threading.current_thread():
            raise RuntimeError("no context on this thread")
        return super().propagate(staged)


class OneCallAtATime(CpuDevice):
    busy = False

    def transfer(self, batch):
        if self.busy:
            raise RuntimeError("the queue is in use")
        return super().transfer(batch)

    def _step(self, model, batch):
        self.busy = True
        time.sleep(0.005)
        try:
            return super()._step(model, batch)
        finally:
            self.busy = False


# Faults and closing.


class Forgives(CpuDevice):
    """A fault is not terminal."""

    def propagate(self, staged):
        try:
            return super().propagate(staged)
        except DeviceFaultError:
            self._health = Health(self.info.name)
            raise


class PlainErrors(CpuDevice):
    def propagate(self, staged):
        self._health.check()
        return self._step(self._model, self._staged.take(staged))


class AnotherFaultEachTime(CpuDevice):
    def transfer(self, batch):
        try:
            return super().transfer(batch)
        except DeviceFaultError as fault:
            raise DeviceFaultError("something else") from fault


class TakesAnything(CpuDevice):
    def propagate(self, staged):
        if staged is None or not hasattr(staged, "blocks"):
            return StepResult.empty(0.0)
        return super().propagate(staged)


class PropagatesAgain(CpuDevice):
    def propagate(self, staged):
        with self._health.terminal("propagate"):
            return self._step(self._model, staged)


class NoCause(CpuDevice):
    def propagate(self, staged):
        try:
            return super().propagate(staged)
        except DeviceFaultError as fault:
            fault.__cause__ = None
            raise fault from None


class LivesOn(CpuDevice):
    """Works after it was closed."""

    def close(self):
        self._workers.close()


class ClosesOnce(CpuDevice):
    def close(self):
        if self.__dict__.setdefault("_closed", []):
            raise RuntimeError("closed already")
        self._closed.append(True)
        super().close()


class ClosesOnlyWhenIdle(CpuDevice):
    def close(self):
        waiting = len(self._staged._waiting)
        super().close()
        if waiting:
            raise RuntimeError(f"{waiting} mini-batches are in flight")


class CannotCloseAfterAFault(CpuDevice):
    def close(self):
        fault = self._health._fault
        super().close()
        if fault is not None and "closed" not in self.__dict__:
            self.closed = True
            if "after it was closed" not in str(fault):
                raise fault


END = threading.Event()


class LeavesAThread(CpuDevice):
    def close(self):
        super().close()
        threading.Thread(target=END.wait, daemon=True, name="left").start()


class LeavesAFile(CpuDevice):
    def load(self, model, parameters):
        super().load(model, parameters)
        LEFT_FILES.append(os.open(os.devnull, os.O_RDONLY))


class LeavesMemory(CpuDevice):
    def transfer(self, batch):
        LEFT_MEMORY.append(batch.inputs + 1)
        return super().transfer(batch)


LEFT_FILES: list[int] = []
LEFT_MEMORY: list[torch.Tensor] = []


class Hangs(CpuDevice):
    def _step(self, model, batch):
        if not len(batch.targets):
            END.wait()
        return super()._step(model, batch)


# Memory.


class KeepsWhatDidNotFit(LimitedDevice):
    def refused(self, batch):
        self.used += self.room // 3


class DiesOfMemory(LimitedDevice):
    def refused(self, batch):
        raise MemoryError("cannot allocate")


class FitsInTheEnd(LimitedDevice):
    def refused(self, batch):
        self.room *= 2


class IgnoresItsLimit(LimitedDevice):
    def cost(self, batch):
        return 0


# Samplers.


def sampling(change: Callable[[Any], Any]) -> type[CpuDevice]:
    class Hops(HostHops):
        def draw(self, vertices, fanout, key, *, relabel):
            return change(super().draw(vertices, fanout, key, relabel=relabel))

    class Sampling(SamplingDevice):
        def sampler(self, graph):
            return Hops(graph)

    return Sampling


def _misnumbered(hop):
    if hop.columns is None or not len(hop.columns):
        return hop
    return replace(hop, sources=hop.sources[::-1].copy(), columns=len(hop.sources) - 1 - hop.columns)


class LowersFanouts(SamplingDevice):
    """To what its kernel can hold."""

    def sampler(self, graph):
        class Hops(HostHops):
            def draw(self, vertices, fanout, key, *, relabel):
                return super().draw(
                    vertices, min(fanout, 64) if fanout > 64 else fanout, key, relabel=relabel
                )

        return Hops(graph)


class TrustsItsCopy(SamplingDevice):
    """Trains on the copy that it kept of the last mini-batch it sampled, for every one it is given."""

    def sampler(self, graph):
        class Hops(HostHops):
            last = None

            def draw(self, vertices, fanout, key, *, relabel):
                hop = super().draw(vertices, fanout, key, relabel=relabel)
                Hops.last = Hops.last or replace(hop)
                return replace(hop, resident=Hops.last)

        return Hops(graph)

    def _step(self, model, batch):
        batch.blocks = [
            replace(b, weights=np.full(b.num_edges, 0.5, np.float32))
            if b.resident is not None and len(b.resident.neighbors) != b.num_edges
            else b
            for b in batch.blocks
        ]
        return super()._step(model, batch)


class SamplesWhenIdle(SamplingDevice):
    busy = False

    def sampler(self, graph):
        device = self

        class Hops(HostHops):
            def draw(self, vertices, fanout, key, *, relabel):
                if device.busy:
                    raise RuntimeError("the queue is in use")
                return super().draw(vertices, fanout, key, relabel=relabel)

        return Hops(graph)

    def _step(self, model, batch):
        self.busy = True
        time.sleep(0.005)
        try:
            return super()._step(model, batch)
        finally:
            self.busy = False


class ClosesSamplersOnce(SamplingDevice):
    def sampler(self, graph):
        device = self

        class Hops(HostHops):
            def close(self):
                if device._model is None:
                    raise RuntimeError("no context")

        return Hops(graph)


class WrongAggregates(CpuDevice):
    """Takes what was aggregated while loading for something else."""

    def _step(self, model, batch):
        if isinstance(batch.inputs, AggregatedFeatures):
            batch.inputs = AggregatedFeatures(batch.inputs.values.roll(1, 0))
        return super()._step(model, batch)


class RoundsInPlace(CpuDevice):
    """Reads halves as if they were their bits."""

    def _step(self, model, batch):
        if isinstance(batch.inputs, InPlaceFeatures) and batch.inputs.values.dtype == np.uint16:
            batch.inputs = InPlaceFeatures(batch.inputs.values.astype(np.float32))
        return super()._step(model, batch)


class ForgetsTheLastColumn(CpuDevice):
    def _step(self, model, batch):
        rows = batch.inputs
        if isinstance(rows, SparseRows):
            kept = np.where(rows.columns == rows.width - 1, np.float32(0), rows.values)
            batch.inputs = SparseRows(rows.indptr, rows.columns, kept, rows.width)
        return super()._step(model, batch)


class NoGradientOfWhatIsUnused(CpuDevice):
    def _step(self, model, batch):
        result = super()._step(model, batch)
        used = [g for g, p in zip(result.gradients, model.parameters, strict=False) if p.grad is not None]
        return replace(result, gradients=used)


class FindsOthers(CpuDevice):
    @classmethod
    def probe(cls):
        return [replace(INFO, kind="npu")]


class FindsSomethingElseEachTime(CpuDevice):
    count = 0

    @classmethod
    def probe(cls):
        FindsSomethingElseEachTime.count += 1
        return [replace(INFO, index=FindsSomethingElseEachTime.count)]


class FailsToProbe(CpuDevice):
    @classmethod
    def probe(cls):
        raise OSError("no driver")


@pytest.fixture(autouse=True)
def _give_back():
    END.clear()
    yield
    END.set()
    torch.use_deterministic_algorithms(False)
    while LEFT_FILES:
        os.close(LEFT_FILES.pop())
    LEFT_MEMORY.clear()


CASES: list[tuple[str, type[CpuDevice], str, str]] = [
    # name, the device, the check that finds it out, what the check says
    (
        "means",
        gradients(lambda r: [g / r.counts["targets"] for g in r.gradients]),
        "two parts add up to the whole",
        "gradient 0",
    ),
    (
        "mean loss",
        changed(lambda r: replace(r, loss_sum=r.loss_sum / r.counts["targets"])),
        "two parts add up to the whole",
        "expected the loss sum",
    ),
    (
        "no gradient of a bias",
        gradients(lambda r: [g if g.ndim > 1 else 0 * g for g in r.gradients]),
        "sums agree with float64: gcn, layers=1",
        r"gradient 1 \(layers\.0\.bias\)",
    ),
    (
        "a gradient of one element",
        gradients(lambda r: [g + (torch.arange(g.numel()).view(g.shape) == 0) * 1e-2 for g in r.gradients]),
        "sums agree with float64: gat, layers=2",
        "gradient 0",
    ),
    (
        "counts one more",
        changed(lambda r: replace(r, counts={**r.counts, "correct": r.counts["correct"] + 1})),
        "sums agree with float64: gin, layers=2",
        r"expected \d+ correct targets; the count is",
    ),
    ("first rows", TakesTheFirstRowsForTheTargets, "a full graph is a step", "the loss sum"),
    ("the first step for all", KeepsTheFirstStep, "a full graph is a step", "the next step"),
    ("no target weights", ForgetsTargetWeights, "sums agree with float64: gcn, layers=2", "class weights"),
    (
        "no edge weights",
        ForgetsEdgeWeights,
        "sums agree with float64: graphsage (mean), layers=2",
        "edge factors",
    ),
    (
        "no weights of the graph",
        ForgetsWeightsOfTheGraph,
        "sums agree with float64: gcn, layers=2",
        "edge weights",
    ),
    ("no dropout", ForgetsDropout, "sums agree with float64: gin, layers=3, dropout", "loss sum"),
    ("other masks", DropsByTheMiniBatch, "sums agree with float64: gcn, layers=3, dropout", "loss sum"),
    ("repeated edges", MergesEdges, "repeated edges count each time", "loss sum"),
    (
        "no neighbours",
        DividesByNoNeighbors,
        "one target and isolated vertices",
        "it is nan.*one isolated target",
    ),
    ("wide ids", HoldsWordsOf32Bits, "vertices may be 64 bits wide", "64 bits"),
    ("overflow", OverflowsInSoftmax, "large scores do not overflow", "it is (inf|nan)"),
    (
        "hidden NaN",
        HidesWhatIsNoNumber,
        "weights that are not numbers show",
        "gradient of NaN for NaN weights",
    ),
    ("other rows", ReadsOthersRows, "input form ids gives the same sums", "loss sum"),
    ("noise", Noisy, "equal steps give equal bits", "gradient 0 .* in a repeated step"),
    (
        "zeros for no targets",
        ZerosForNoTargets,
        "no targets give no gradients",
        "no gradients for an empty mini-batch",
    ),
    (
        "normalizer",
        changed(lambda r: replace(r, normalizer=float(r.counts["targets"]))),
        "the normalizer is passed on",
        "expected the mini-batch's normalizer 2.5; it is 40",
    ),
    (
        "reversed",
        gradients(lambda r: list(r.gradients)[::-1]),
        "gradients have form and order of the parameters",
        "expected gradients of shapes",
    ),
    (
        "float64",
        gradients(lambda r: [g.double() for g in r.gradients]),
        "gradients have form and order of the parameters",
        "plain float32 on the host; it is torch.float64",
    ),
    (
        "attached",
        gradients(lambda r: [g.clone().requires_grad_() for g in r.gradients]),
        "gradients have form and order of the parameters",
        "requires a gradient",
    ),
    (
        "tensors for numbers",
        changed(lambda r: replace(r, loss_sum=torch.tensor(r.loss_sum))),
        "gradients have form and order of the parameters",
        "loss_sum to be a float; it is Tensor",
    ),
    ("adds up", AddsUp, "equal steps give equal bits", "in a repeated step"),
    ("one gradient buffer", OneGradientBuffer, "a result stays as it is", "after later steps"),
    ("one staging buffer", OneStagingBuffer, "several mini batches are in flight", "all were staged first"),
    ("remembers", RemembersTheFirst, "host buffers are not written", "buffers are reused"),
    ("writes to labels", WritesToLabels, "host buffers are not written", "expected the mini-batch's labels"),
    ("writes to rows", WritesToRows, "host buffers are not written", "expected the mini-batch's inputs"),
    ("keeps tensors", KeepsTheTensors, "update takes new weights", "were overwritten"),
    ("module's weights", TrainsTheModulesWeights, "load uses the passed parameters", "passed to load"),
    ("ignores updates", IgnoresUpdates, "update takes new weights", "after an update"),
    ("other order", UpdatesInReverse, "update takes new weights", "after an update"),
    ("loads once", LoadsOnce, "a second load replaces the first", ""),
    ("shared weights", SharesWeights, "two open devices share nothing", "while another device is open"),
    ("torch's settings", ChangesTorch, "the process keeps its settings", "determinism"),
    ("takes BatchNorm", TakesStatistics, "statistics over a mini batch are refused", "load accepted it"),
    ("nameless", RefusesWithoutAName, "sums agree with float64: gat, layers=2", "to name the device cpu:0"),
    ("refuses all", RefusesEverything, "equal steps give equal bits", "support at least one of the models"),
    (
        "broken by a refusal",
        BreaksAtARefusal,
        "sums agree with float64: gat, layers=2",
        "broken by a refusal",
    ),
    (
        "trains what is frozen",
        TrainsFrozenParameters,
        "frozen parameters are left out or refused",
        "one gradient for each of",
    ),
    (
        "milliseconds",
        changed(lambda r: replace(r, seconds={"propagate": 1000 * r.seconds["propagate"]})),
        "times are plausible",
        "a propagate time from 0 to .* s, the duration of the step",
    ),
    (
        "stages of its own",
        changed(lambda r: replace(r, seconds={"kernels": 0.0})),
        "times are plausible",
        "got one for 'kernels'",
    ),
    ("one thread", BoundToItsThread, "calls may use different threads", "no context on this thread"),
    ("no overlap", OneCallAtATime, "transfer and propagate run on two threads", "the queue is in use"),
    ("forgives", Forgives, "propagating a foreign object is a fault", "transfer after a fault; it returned"),
    (
        "plain errors",
        PlainErrors,
        "propagating a foreign object is a fault",
        "expected DeviceFaultError from propagate.*TypeError",
    ),
    ("plain errors of work", PlainErrors, "an unfit mini batch is a fault", "ValueError"),
    (
        "another fault",
        AnotherFaultEachTime,
        "propagating a foreign object is a fault",
        "the first fault again",
    ),
    ("takes anything", TakesAnything, "propagating a foreign object is a fault", "it returned"),
    ("propagates again", PropagatesAgain, "a mini batch is propagated once", "twice; it returned"),
    ("another's", PropagatesAgain, "another devices mini batch is a fault", "it returned"),
    (
        "no cause",
        NoCause,
        "a broken device faults for good",
        "as its cause; it has none",
    ),
    ("lives on", LivesOn, "use after close is a fault", "transfer after close; it returned"),
    ("closes once", ClosesOnce, "closing is idempotent", "closed already"),
    ("closes when idle", ClosesOnlyWhenIdle, "closing is idempotent", "3 mini-batches are in flight"),
    (
        "cannot close",
        CannotCloseAfterAFault,
        "propagating a foreign object is a fault",
        "close after a fault to work",
    ),
    ("leaves a thread", LeavesAThread, "closing ends its threads", "still running: left"),
    ("leaves threads", LeavesAThread, "opening and closing leaks nothing", "no more threads"),
    ("leaves files", LeavesAFile, "opening and closing leaks nothing", "no more file descriptors"),
    ("leaves memory", LeavesMemory, "opening and closing leaks nothing", "no memory growth"),
    ("hangs", Hangs, "no targets give no gradients", r"within 1 s; it hangs at .* in _step"),
    ("keeps what did not fit", KeepsWhatDidNotFit, "out of memory is recoverable", "DeviceOutOfMemoryError"),
    ("dies of memory", DiesOfMemory, "out of memory is recoverable", "MemoryError: cannot allocate"),
    ("fits in the end", FitsInTheEnd, "out of memory is recoverable", "DeviceOutOfMemoryError each time"),
    ("no limit", IgnoresItsLimit, "out of memory is recoverable", "separate memory"),
    (
        "other neighbours",
        sampling(lambda hop: replace(hop, neighbors=hop.neighbors[::-1].copy())),
        "sampler matches the host",
        "the same neighbors as on the host",
    ),
    (
        "other numbers",
        sampling(_misnumbered),
        "sampler matches the host",
        "the same sources as on the host",
    ),
    (
        "wide neighbours",
        sampling(lambda hop: replace(hop, neighbors=hop.neighbors.astype(np.int64))),
        "sampler matches the host",
        "neighbors of int32",
    ),
    ("its own copy", TrustsItsCopy, "mini batches it sampled are trained", "the device sampled"),
    ("samples when idle", SamplesWhenIdle, "sampler draws while the device trains", "the queue is in use"),
    ("closes samplers", ClosesSamplersOnce, "the sampler may outlive the device", "no context"),
    ("aggregates", WrongAggregates, "input form aggregated gives the same sums", "loss sum"),
    ("halves", RoundsInPlace, "input form in_place gives the same sums", "loss sum.*float16"),
    ("columns", ForgetsTheLastColumn, "input form sparse gives the same sums", "loss sum"),
    (
        "unused",
        NoGradientOfWhatIsUnused,
        "a user module is trained or refused",
        "each of 5 parameters; got 4",
    ),
    ("other kinds", FindsOthers, "probe finds devices of its kind", "devices of kind cpu; it is 'npu'"),
    (
        "other devices",
        FindsSomethingElseEachTime,
        "probe finds devices of its kind",
        "to find the same devices",
    ),
    ("failing probe", FailsToProbe, "probe finds devices of its kind", "got OSError: no driver"),
    (
        "large fan-outs",
        LowersFanouts,
        "sampler matches the host",
        "at fan-out 65",
    ),
]


def _break(device: Any) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("the bus is off")

    device._step = fail


@pytest.mark.parametrize(("kind", "check", "says"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_a_broken_device_is_found_out(kind: type[CpuDevice], check: str, says: str) -> None:
    with pytest.raises(ConformanceError) as error:
        check_device(
            lambda options: kind(INFO, options),
            cycles=150 if kind is LeavesMemory else 10,
            break_next=_break,
            limit_s=1 if kind is Hangs else 60,
            only=check,
        )
    (failed, *_) = error.value.report.failed
    assert failed.name == check
    assert re.search(says, failed.detail), failed.detail


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"description": ""}, "description to be one line"),
        ({"kind": "C PU"}, "lower-case word"),
        ({"forms": ("sparse",)}, "forms to contain rows"),
        ({"forms": ("rows", "columns")}, "forms to be some of"),
        ({"forms": ("rows", "rows")}, "each once"),
    ],
)
def test_an_info_that_says_nothing_is_found_out(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConformanceError, match=says):
        check_device(lambda options: CpuDevice(replace(INFO, **change), options), only="info")


def test_a_device_that_says_it_computes_nothing_is_simulated() -> None:
    with pytest.raises(ConformanceError, match="without computation is marked simulated"):
        check_device(lambda options: CpuDevice(INFO, options), computes=False, only="simulated")


def test_a_missing_call_is_found_out() -> None:
    class NoUpdate(CpuDevice):
        update = None  # type: ignore[assignment]

    class OtherResize(CpuDevice):
        def resize(self):
            pass

    class TakesIds(CpuDevice):
        def __init__(self, info, options):
            super().__init__(replace(info, forms=("rows", "ids")), options)

    class OtherCall(CpuDevice):
        def transfer(self, batch, stream):
            return super().transfer(batch)

    for kind, says in {
        NoUpdate: "a method update",
        OtherCall: r"expected transfer\(batch\)",
        OtherResize: r"expected resize\(threads\)",
        TakesIds: "a device with the form ids to be a GathersRows",
    }.items():
        with pytest.raises(ConformanceError, match=says):
            check_device(
                lambda options, kind=kind: kind(INFO, options),
                only="takes ids" if kind is TakesIds else "every protocol method",
            )
