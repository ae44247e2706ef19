"""A trainer: one replica of the model on one device."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.device import Device, InputForm
from hyrt.graph.feature_cache import CacheIndex
from hyrt.graph.graph import Graph
from hyrt.graph.hetero.rows import HeteroRows
from hyrt.graph.row_source import PrefetchedRowSource, QuantizedRowSource, SparseSource
from hyrt.nn.architecture import Aggregation
from hyrt.nn.inputs import get_model_inputs
from hyrt.nn.message_passing.model_checks import needs_loops
from hyrt.pipeline.work_items import WorkShare
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.sampler import HopSampler
from hyrt.telemetry.hooks import Hook, Site, call_with_hooks

T = TypeVar("T")


@runtime_checkable
class AggregatedRows(PrefetchedRowSource, Protocol):
    """Fetched rows that a first layer's aggregation can read where they have come to."""

    def aggregate(
        self, aggregation: Aggregation, block: Block, out: NDArray[np.float32], workers: Workers
    ) -> None:
        """Aggregate the rows of a block of the step that was fetched last.

        Parameters
        ----------
        aggregation
            What to compute.
        block
            A block read in place: its columns are vertices of the graph.
        out
            [num_dst, aggregation.width(width)] float32, overwritten.
        workers
            The threads that share the work.

        Raises
        ------
        UnsupportedModelError
            If edges have weights, and a maximum would leave them out.
        """
        ...


@dataclass(frozen=True, slots=True)
class InputPlan:
    """In which form a trainer gets its input features."""

    form: InputForm
    """`rows`: the rows of V^0, gathered; `sparse`: the same as sparse rows; `aggregated`: the first layer's
    aggregate, computed while reading the features in place; `in_place`: the whole feature matrix, unmoved;
    `ids`: nothing, the device gathers the rows of V^0 itself; `narrow`: gathered rows in their narrow
    format, for the device to widen; `cached`: the gathered rows that the device does not keep; `is_hetero`:
    the
    gathered rows of each type of vertices."""
    aggregation: Aggregation | None = None
    """What the first layer aggregates, for `aggregated`."""
    places: CacheIndex | None = None
    """Which rows the device keeps, for `cached`."""
    sends_quantized: bool = False
    """Whether rows are sent in their narrow format, for `cached`."""
    leaves_tables: bool = False
    """Whether the tables of types are read where they lie, for `is_hetero`."""

    @property
    def in_place(self) -> bool:
        """Whether the first block's sources stay vertices of the graph."""
        return self.form in ("aggregated", "in_place") or self.leaves_tables


def plan_input(
    model: torch.nn.Module,
    graph: Graph,
    forms: Collection[InputForm],
    *,
    fuse: bool,
    whole: bool = False,
) -> InputPlan:
    """Choose the cheapest form that the model and the device can take.

    Parameters
    ----------
    model
        The forms that it takes are those of `get_model_inputs`.
    graph
        The graph, for the kind of its features.
    forms
        The forms of input that the device takes.
    fuse
        Whether loading and aggregation may be fused.
    whole
        Whether the mini-batches are the whole graph: then the matrix itself is preferred to an aggregate of
        its size.
    """
    takes = get_model_inputs(model)
    if graph.types is not None:
        may_leave = fuse and not whole and takes.in_place and "in_place" in forms
        return InputPlan("typed", leaves_tables=may_leave and _lie_in_memory(graph))
    if isinstance(graph.features, SparseSource):
        return InputPlan("sparse" if takes.sparse and "sparse" in forms else "rows")
    features = graph.features
    may_read = takes.in_place and "in_place" in forms
    in_place = may_read and features.matrix is not None
    if whole and may_read:
        return InputPlan("in_place" if in_place else "rows")
    is_here = features.matrix is not None or (
        isinstance(features, AggregatedRows)
        or (isinstance(features, QuantizedRowSource) and features.all_rows is not None)
    )
    # If the host computes the vertices of a whole graph, it reads the rows themselves.
    may_fuse = fuse and is_here and not (whole and needs_loops(model))
    if may_fuse and takes.aggregation is not None and "aggregated" in forms:
        return InputPlan("aggregated", takes.aggregation)
    if fuse and in_place and not takes.prefers_gathered_rows:
        return InputPlan("in_place")
    if "ids" in forms and features.matrix is not None:
        return InputPlan("ids")
    is_narrow = isinstance(features, QuantizedRowSource) and features.row_format.is_quantized
    return InputPlan("narrow" if is_narrow and "narrow" in forms and not whole else "rows")


def _lie_in_memory(graph: Graph) -> bool:
    """Whether loops can read all tables of a typed graph where they lie, and nothing weighs their rows."""
    assert isinstance(graph.features, HeteroRows)
    tables = [table for table in graph.features.tables if table is not None]
    return graph.topology.edge_weights is None and all(table.matrix is not None for table in tables)


@dataclass(slots=True)
class Trainer:
    """A device with the form of input it takes, and the lock that keeps `transfer` and `update` apart."""

    device: Device
    """The device, which has a replica of the model."""
    plan: InputPlan
    """The form in which it gets its input."""
    hops: HopSampler | None = None
    """Samples its mini-batches on the device; None where the host does."""
    quiet: threading.Lock = field(default_factory=threading.Lock)
    """Held during `transfer` and `update`."""
    lost: Exception | None = None
    """What ended it, where the run goes on without it."""
    max_units: int | None = None
    """The most units of a step that it gets since it has been out of memory; None where it has not."""
    resize: Callable[[int], None] | None = None
    """Changes the threads it computes with, between two of its mini-batches; None where they stay."""
    threads: int = 0
    """How many threads it computes with, where they can change."""
    update_s: float = 0.0
    """How long taking the weights took the last time."""
    hooks: Sequence[Hook] = ()
    """Called around every stage's work for it."""

    @property
    def name(self) -> str:
        return self.device.info.name

    @property
    def is_short(self) -> bool:
        """Whether it has been out of memory."""
        return self.max_units is not None

    def work(self, stage: str, share: WorkShare, work: Callable[[], T]) -> T:
        """Do a stage's work for a share inside the hooks, and note how long the work itself took."""
        if not self.hooks:
            return self._timed(stage, share, work)
        if share.site is None:
            units = len(share.units)
            share.site = Site(self.name, share.work.step, share.trainer, share.number, units)
        return call_with_hooks(self.hooks, stage, share.site, partial(self._timed, stage, share, work))

    def _timed(self, stage: str, share: WorkShare, work: Callable[[], T]) -> T:
        started = time.perf_counter()
        result = work()
        share.seconds[stage] = time.perf_counter() - started
        return result
