"""Trainer, which is one replica of the model on one device."""

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
from hyrt.graph.row_source import HeteroRows, PrefetchedRowSource, QuantizedRowSource, SparseSource
from hyrt.nn.architecture import Aggregation
from hyrt.nn.layer import get_model_inputs
from hyrt.nn.model_checks import needs_loops
from hyrt.pipeline.work_items import WorkShare
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.sampler import HopSampler
from hyrt.telemetry.hooks import Hook, Site, call_with_hooks

T = TypeVar("T")


@runtime_checkable
class AggregatedRows(PrefetchedRowSource, Protocol):
    """Source of fetched rows that can aggregate the rows for the first layer without copying the rows."""

    def aggregate(
        self, aggregation: Aggregation, block: Block, out: NDArray[np.float32], workers: Workers
    ) -> None:
        """Aggregate the rows of the last fetched step over a block into `out`.

        The columns of `block` are vertices of the graph. `out` is float32 [num_dst,
        aggregation.width(width)]. Raises UnsupportedModelError for a maximum over weighted edges, which would
        ignore the weights.
        """
        ...


@dataclass(frozen=True, slots=True)
class InputPlan:
    """Form of a trainer's input features."""

    form: InputForm
    """Form of the input. `rows`: the gathered rows of V^0. `sparse`: the same rows, but sparse. `aggregated`:
    the first layer's aggregate, for which the features are read in place. `in_place`: the whole feature
    matrix without a copy. `ids`: no input, because the device gathers the rows of V^0. `quantized`: the
    gathered quantized rows, which the device dequantizes. `cached`: the gathered rows that are not in the
    device's feature cache. `hetero`: the gathered rows of each vertex type.
    """
    aggregation: Aggregation | None = None
    """Aggregation of the first layer, for `aggregated`."""
    places: CacheIndex | None = None
    """Index of the device's feature cache, for `cached`."""
    sends_quantized: bool = False
    """Whether rows are sent quantized, for `cached`."""
    leaves_tables: bool = False
    """Whether the feature tables of vertex types are read in place, for `hetero`."""

    @property
    def in_place(self) -> bool:
        """Whether the first block's sources are vertices of the graph, not positions in gathered rows."""
        return self.form in ("aggregated", "in_place") or self.leaves_tables


def plan_input(
    model: torch.nn.Module,
    graph: Graph,
    forms: Collection[InputForm],
    *,
    fuse: bool,
    whole: bool = False,
) -> InputPlan:
    """Choose the cheapest input form that both the model and the device (`forms`) accept.

    `fuse` allows loading and aggregation in one pass. If every mini-batch is the full graph (`whole`), the
    feature matrix is preferred to an aggregate of the same size.
    """
    takes = get_model_inputs(model)
    if graph.types is not None:
        may_leave = fuse and not whole and takes.in_place and "in_place" in forms
        return InputPlan("hetero", leaves_tables=may_leave and _lie_in_memory(graph))
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
    # If a full graph needs edge loops, the host computes its vertices and reads the rows directly.
    may_fuse = fuse and is_here and not (whole and needs_loops(model))
    if may_fuse and takes.aggregation is not None and "aggregated" in forms:
        return InputPlan("aggregated", takes.aggregation)
    if fuse and in_place and not takes.prefers_gathered_rows:
        return InputPlan("in_place")
    if "ids" in forms and features.matrix is not None:
        return InputPlan("ids")
    is_quantized = isinstance(features, QuantizedRowSource) and features.row_format.is_quantized
    return InputPlan("quantized" if is_quantized and "quantized" in forms and not whole else "rows")


def _lie_in_memory(graph: Graph) -> bool:
    """Return whether loops can read all tables of a heterogeneous graph in place, without row weights."""
    assert isinstance(graph.features, HeteroRows)
    tables = [table for table in graph.features.tables if table is not None]
    return graph.topology.edge_weights is None and all(table.matrix is not None for table in tables)


@dataclass(slots=True)
class Trainer:
    """Device with its input plan, and a lock so that `transfer` and `update` never run at the same time."""

    device: Device
    plan: InputPlan
    hops: HopSampler | None = None
    """Sampler that runs on the device; None if the host samples."""
    transfer_lock: threading.Lock = field(default_factory=threading.Lock)
    """Lock that is held during `transfer` and `update`."""
    lost: Exception | None = None
    """Error with which the trainer was lost, if the run continues without it."""
    max_units: int | None = None
    """Maximum number of units per step after an out-of-memory error; None without such an error."""
    resize: Callable[[int], None] | None = None
    """Function that changes the number of compute threads between two mini-batches; None if it is fixed."""
    threads: int = 0
    """Number of compute threads, if it can change."""
    update_s: float = 0.0
    """Duration of the last weight update, in seconds."""
    hooks: Sequence[Hook] = ()

    @property
    def name(self) -> str:
        return self.device.info.name

    @property
    def is_memory_limited(self) -> bool:
        """Whether the trainer has run out of memory."""
        return self.max_units is not None

    def work(self, stage: str, share: WorkShare, work: Callable[[], T]) -> T:
        """Do a stage's work for a share inside the hooks; the recorded duration excludes the hooks."""
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
