"""Scores of vertices, by the inference method that suits the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.config import Config
from hyrt.device import HOST_FORMS
from hyrt.graph.graph import Graph
from hyrt.inference.infer import infer_full_graph, infer_layerwise, infer_sampled
from hyrt.nn.description import overrides_only
from hyrt.nn.model import GNN
from hyrt.pipeline.trainer import plan_input
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Ids


def computes_by_layers(config: Config, model: torch.nn.Module) -> bool:
    """Return whether evaluations use layer-wise inference."""
    return config.evaluate.mode == "full" and _is_chain(model)


def _is_chain(model: torch.nn.Module) -> bool:
    return isinstance(model, GNN) and not overrides_only(type(model), "forward", "layer")


def score_vertices(
    model: torch.nn.Module,
    graph: Graph,
    vertices: Ids,
    config: Config,
    workers: Workers,
    *,
    full: bool,
    scratch: Path | None = None,
    check: Callable[[], None] = lambda: None,
) -> NDArray[np.float32]:
    """Apply a model to vertices, with all neighbours if `full`, otherwise with sampled ones.

    Returns [n, C] float32 in the order of `vertices`. A module that overrides `forward` does not support
    layer-wise inference. With all neighbours, it then gets small mini-batches (neighbourhoods grow with
    depth), or the full graph if it trains on that. `check` is called between pieces of the work and may raise
    to stop.
    """
    if full and isinstance(model, GNN) and _is_chain(model):
        return infer_layerwise(
            model,
            graph,
            vertices,
            workers,
            memory_bytes=int(config.evaluate.memory_gib * 2**30),
            scratch=scratch,
            between_chunks=check,
        )
    full_graph = full and config.sampler.is_full_graph
    plan = plan_input(model, graph, HOST_FORMS, fuse=config.runtime.fuse_load, whole=full_graph)
    if full_graph:
        check()
        return infer_full_graph(model, graph, vertices, workers, layers=len(config.fanouts), plan=plan)
    return infer_sampled(
        model,
        graph,
        vertices,
        workers,
        fanouts=[-1] * len(config.fanouts) if full else config.fanouts,
        batch_size=min(config.data.batch_size, 256) if full else config.data.batch_size,
        seed=config.seed,
        plan=plan,
        between_chunks=check,
    )
