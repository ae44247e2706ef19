"""Scores of vertices from one forward pass over the full graph, for modules without separate layers."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.graph.graph import Graph
from hyrt.machine.workers import Workers, working
from hyrt.nn.self_loops import drop_replaced_loops
from hyrt.pipeline.load import Loader
from hyrt.pipeline.trainer import InputPlan
from hyrt.sampling.block import Ids
from hyrt.sampling.full.full_sampler import FullSampler


def infer_whole(
    model: torch.nn.Module,
    graph: Graph,
    vertices: Ids,
    workers: Workers,
    *,
    layers: int,
    plan: InputPlan,
) -> NDArray[np.float32]:
    """Apply any model to the full graph, as in full-graph training.

    Parameters
    ----------
    model
        A module that maps (blocks, x) to one row of scores per vertex.
    graph
        Topology and features.
    vertices
        [n] vertices to compute.
    workers
        Thread team.
    layers
        Number of blocks to pass to the model.
    plan
        Input format of the model.

    Returns
    -------
    [n, classes] float32 in the order of `vertices`.
    """
    graph = drop_replaced_loops(graph, model)
    sampler = FullSampler(graph, np.unique(vertices), layers, seed=0)
    was_training = model.training
    model.eval()
    with ExitStack() as stack, torch.no_grad(), working(workers):
        stack.callback(model.train, was_training)
        # Negative step numbers are never used in training.
        batch = sampler.sample(-1, sampler.units(-1), workers, in_place=plan.in_place)
        Loader(graph.features).load(batch, plan, workers)
        scores: NDArray[np.float32] = model(batch.blocks, batch.inputs).float().numpy()
    return scores[vertices]
