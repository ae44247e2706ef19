"""Work and memory of full-graph steps of `hyrt.fullgraph`."""

from __future__ import annotations

import math
import sys
from typing import TypeGuard

import torch
from hyrt_perfmodel.workloads.whole_graph import WholeGraphStep

from hyrt.fullgraph.plan import KEPT_PART, can_take_apart, plan_chain
from hyrt.nn.layer import Layer
from hyrt.nn.model import GNN
from hyrt.nn.saga.gather import SagaSum
from hyrt.predict.whole_graphs.kept_arrays import kept_arrays
from hyrt.predict.whole_graphs.step_walk import StepWalk
from hyrt.predict.whole_graphs.whole_graph_sizes import WholeGraphSizes


def can_say(model: torch.nn.Module) -> TypeGuard[GNN]:
    """Return whether the CPU time of a step of a model can be predicted.

    It cannot if the CPU trains the full graph as one block, or torch computes messages in chunks.
    """
    if not can_take_apart(model):
        return False
    parts = [layer.parts(multiply_first=False) for layer in model.layers if isinstance(layer, Layer)]
    return not any(layer_parts is None or _is_torch(layer_parts.gather) for layer_parts in parts)


def _is_torch(gather: object) -> bool:
    """Return whether torch computes the messages because no loop could be compiled for them."""
    return isinstance(gather, SagaSum) and bool(gather.program.unfused)


def whole_graph_step(
    model: GNN, sizes: WholeGraphSizes, *, memory_bytes: float, threads: int, limited: bool = False
) -> WholeGraphStep:
    """Return the work of a step, and the memory of a run.

    Parameters
    ----------
    model
        A model that `can_take_apart`. Without `can_say`, only the memory is exact.
    sizes
        Sizes of the graph.
    memory_bytes
        Memory of the machine, a fraction of which may cache the first layer's gather.
    threads
        Threads that compute chunks of rows.
    limited
        Whether matrices in host memory are limited.
    """
    plan = plan_chain(
        model,
        sizes.vertices,
        sizes.edges,
        is_sparse=sizes.row_entries is not None,
        memory_bytes=int(memory_bytes) // KEPT_PART if math.isfinite(memory_bytes) else sys.maxsize,
        limited=limited,
    )
    dry_run = StepWalk(plan, sizes)
    dry_run.step()
    reads, work = tuple(dry_run.reads), (dry_run.calls, dry_run.macs, dry_run.values)
    sparse = (dry_run.sparse_macs, dry_run.sparse_weights)
    dry_run.scores()
    return WholeGraphStep(
        arrays=kept_arrays(dry_run, threads),
        reads=reads,
        calls=work[0],
        macs=work[1],
        values=work[2],
        sparse_macs=sparse[0],
        sparse_weights=sparse[1],
        matrices=dict(dry_run.pool.arrays),
    )
