"""What a step of `hyrt.fullgraph` takes, and what a run of such steps keeps in memory."""

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
    """Whether it is known how long the CPU takes for a step of a model.

    Not where it takes the whole graph as one block, nor where torch computes messages chunk by chunk.
    """
    if not can_take_apart(model):
        return False
    parts = [layer.parts(multiply_first=False) for layer in model.layers if isinstance(layer, Layer)]
    return not any(each is None or _is_torch(each.gather) for each in parts)


def _is_torch(gather: object) -> bool:
    """Whether messages are made by torch, since no loop could be compiled for them."""
    return isinstance(gather, SagaSum) and bool(gather.program.unfused)


def whole_graph_step(
    model: GNN, sizes: WholeGraphSizes, *, memory_bytes: float, threads: int, limited: bool = False
) -> WholeGraphStep:
    """What a step takes, and what a run keeps in memory.

    Parameters
    ----------
    model
        A model that `can_take_apart`. Unless `can_say`, only what it keeps is told in full.
    sizes
        The graph.
    memory_bytes
        The machine's memory, a part of which may be kept of what the first layer gathers.
    threads
        Threads that compute chunks of rows.
    limited
        Whether there is a limit for matrices in host memory.
    """
    plan = plan_chain(
        model,
        sizes.vertices,
        sizes.edges,
        is_sparse=sizes.row_entries is not None,
        memory_bytes=int(memory_bytes) // KEPT_PART if math.isfinite(memory_bytes) else sys.maxsize,
        limited=limited,
    )
    walk = StepWalk(plan, sizes)
    walk.step()
    reads, work = tuple(walk.reads), (walk.calls, walk.macs, walk.values)
    sparse = (walk.sparse_macs, walk.sparse_weights)
    walk.scores()
    return WholeGraphStep(
        arrays=kept_arrays(walk, threads),
        reads=reads,
        calls=work[0],
        macs=work[1],
        values=work[2],
        sparse_macs=sparse[0],
        sparse_weights=sparse[1],
        matrices=dict(walk.pool.arrays),
    )
