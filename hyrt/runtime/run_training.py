"""What a run asks of the machine, as the performance model takes it."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence

import numpy as np
from hyrt_perfmodel.host_tables import LoadForm
from hyrt_perfmodel.model_workload import model_workload
from hyrt_perfmodel.workload import Training, Workload

from hyrt.config import Config
from hyrt.device import HOST_FORMS
from hyrt.graph.graph import DenseFeatures, Graph
from hyrt.runtime.load import plan_input
from hyrt.runtime.sampled_sizes import Sampled, sample_sizes
from hyrt.runtime.setup import build_model, build_sampler
from hyrt.workers import Workers

_PIECES = (1 / 64, 1 / 16, 1 / 4, 1 / 2, 1.0)


def run_training(config: Config, graph: Graph, *, sample_threads: int = 1) -> Training | None:
    """Sample a few mini-batches of a run and say what its epoch takes; None for runs the model has no words for.

    Parameters
    ----------
    config
        All settings.
    graph
        To be trained on.
    sample_threads
        Threads to sample with; T_sample comes from the machine's table, not from here.
    """
    if config.sampler.kind != "neighbor" or not isinstance(graph.features, DenseFeatures):
        return None
    targets = graph.split("train", config.data.split)
    if not len(targets):
        return None
    sampler = build_sampler(config, graph, targets)
    model = build_model(config, graph)
    batch_size = min(config.data.batch_size, len(targets))
    pieces = [max(1, round(batch_size * part)) for part in _PIECES]
    with Workers(sample_threads, "hyrt.predict") as workers:
        found = sample_sizes(sampler, pieces, workers, in_place=False)
    settings = config.model
    plan = plan_input(model, graph, HOST_FORMS, fuse=config.runtime.fuse_load)
    best: LoadForm = "aggregated" if plan.form == "aggregated" else "in_place" if plan.in_place else "rows"
    return Training(
        at=interpolated(
            found,
            lambda vertices, edges: model_workload(
                settings.kind,
                vertices,
                edges,
                [graph.num_features, *[settings.hidden] * (settings.layers - 1), graph.num_classes],
                heads=settings.heads,
                bytes_per_value=graph.features.values.itemsize
                if isinstance(graph.features, DenseFeatures)
                else 4,
            ),
        ),
        targets_per_epoch=len(targets),
        batch_size=batch_size,
        model=settings.kind,
        best_form=best,
        feature_bytes=float(graph.features.values.nbytes),
        graph_bytes=float(graph.indptr.nbytes + graph.indices.nbytes),
    )


def interpolated(
    found: Sequence[Sampled], make: Callable[[Sequence[float], Sequence[float]], Workload]
) -> Callable[[float], Workload]:
    """Sizes between the sampled ones, straight in the logarithms; beyond them in proportion to the last stretch."""
    at = [math.log(entry.units) for entry in found]
    sizes = np.log(np.maximum(1e-9, [[*entry.vertices, *entry.edges] for entry in found]))
    layers = len(found[0].edges)

    def workload(targets: float) -> Workload:
        x = math.log(max(targets, 1e-9))
        if len(at) == 1:
            row = sizes[0] + (x - at[0])
        else:
            i = min(max(bisect.bisect(at, x), 1), len(at) - 1)
            part = (x - at[i - 1]) / (at[i] - at[i - 1])
            row = sizes[i - 1] + part * (sizes[i] - sizes[i - 1])
        values = np.exp(row)
        return make([float(v) for v in values[: layers + 1]], [float(v) for v in values[layers + 1 :]])

    return workload
