"""Checks before a run: classes without training vertices, the predicted epoch time, and host memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from hyrt_perfmodel.model_workload import model_workload
from hyrt_perfmodel.prediction.initial_assignment import activations_bytes, weights_bytes
from hyrt_perfmodel.workload import Workload

from hyrt.config import Config
from hyrt.formatting import format_bytes
from hyrt.graph.graph import Graph
from hyrt.nn.architecture import Architecture
from hyrt.nn.models.model_kind import find_model
from hyrt.runtime.hardware import free_cgroup_memory
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.sampler import Sampler
from hyrt.telemetry.events import RunPrediction

_NAMED = 5


def missing_classes_text(graph: Graph, targets: Ids) -> str:
    """Return a warning if some classes have no vertex among the `targets`, otherwise ""."""
    labels = graph.labels[targets]
    if graph.vertices.label_kind != "classes" or not len(targets) or labels.min() < 0:
        return ""
    there = np.bincount(labels, minlength=graph.num_classes) > 0
    if there.sum() == 1:
        return (
            f"{graph.name}: all training vertices are of class {int(there.argmax())}, so there is nothing to "
            "learn: check train_mask, or choose another data.split"
        )
    missing = np.flatnonzero(~there)
    if not len(missing):
        return ""
    named = ", ".join(map(str, missing[:_NAMED])) + (", ..." if len(missing) > _NAMED else "")
    classes = f"class {named}" if len(missing) == 1 else f"classes {named}"
    return (
        f"{graph.name}: no training vertex is of {classes}, so the model cannot learn to predict "
        f"{'it' if len(missing) == 1 else 'them'}: check train_mask, or choose another data.split"
    )


def expected_figures(expected: RunPrediction) -> dict[str, Any]:
    """Return the prediction as entries of a run's records, with the names of `hyrt predict --json`."""
    return {
        "stages_s": dict(expected.stages_s),
        "iteration_s": expected.iteration_s,
        "epoch_s": expected.epoch_s,
        "relative_error": expected.relative_error,
        "bottleneck": expected.bottleneck,
    }


_FLOAT_BYTES = 4
# Model kind whose costs apply to kinds that do not define their cost: at least one matrix product per layer.
_DEFAULT_COSTS_LIKE = "gcn"


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes that this process may still allocate on this machine and in its control group."""
    left = free_cgroup_memory(root / "proc/self/cgroup", root / "sys/fs/cgroup")
    available = int(psutil.virtual_memory().available)
    return available if left is None else min(available, left)


def host_shortage(
    config: Config, graph: Graph, model: Architecture, sampler: Callable[[], Sampler], have_bytes: int
) -> str:
    """Return a warning if a run needs more host memory than `have_bytes`, otherwise "".

    Parameters count with gradients and Adam moments, and embedding tables with the moments only. The only
    rows that count are those that the CPU saves for the backward pass of a step. The sizes are from
    `hyrt_perfmodel.prediction.initial_assignment`. `sampler` returns the run's sampler, and is called only if
    the run might not fit, to sample one step.
    """
    on_cpu = all(each.name.partition(":")[0] == "cpu" for each in config.training_requests)
    layers = config.model.layers
    max_work = _work(model, [graph.num_vertices] * (layers + 1))
    weights = 2 * weights_bytes(max_work) + (weights_bytes(max_work) if on_cpu else 0.0) + _table_bytes(model)
    rows = 0.0
    if on_cpu and config.sampler.is_full_graph:
        # With fullgraph.host_memory, only the widest matrix and its gradient must be in memory; the rest is
        # in a file.
        if config.fullgraph.host_memory is None:
            rows = 2.0 * _FLOAT_BYTES * graph.num_vertices * max(model.widths[1:])
    elif on_cpu and graph.links is None and weights + activations_bytes(max_work) > have_bytes:
        rows = activations_bytes(_work(model, _vertices(sampler())))
    if weights + rows <= have_bytes:
        return ""
    remedy = "model.hidden or model.layers"
    if rows > weights:
        remedy = (
            "model.hidden"
            if config.sampler.is_full_graph
            else "model.hidden, data.batch_size or sampler.fanout"
        )
    return (
        f"the run needs about {format_bytes(weights + rows)} of memory (weights, gradients and optimizer "
        f"{format_bytes(weights)}, rows of a step {format_bytes(rows)}), but only "
        f"{format_bytes(have_bytes)} are free, so the system may kill it without a message: lower {remedy}"
    )


def _table_bytes(model: Architecture) -> float:
    """Return the bytes of embedding tables with Adam moments; replicas share the tables."""
    shape = model.shape
    rows = 0 if shape is None else sum(shape.counts[number] for number in shape.learned_types)
    return 3.0 * _FLOAT_BYTES * rows * model.in_features


def _work(model: Architecture, vertices: list[int]) -> Workload:
    """Return the workload of a step with the given numbers of vertices per layer, input layer first."""
    return model_workload(
        find_model(model.kind).costs_like or _DEFAULT_COSTS_LIKE,
        vertices,
        [0] * model.layers,
        model.widths,
        heads=model.heads,
        hidden=model.hidden,
    )


def _vertices(sampler: Sampler) -> list[int]:
    with Workers(1, "hyrt.sample") as workers:
        batch = sampler.sample(0, sampler.units(0), workers, in_place=False)
    counts = [batch.blocks[0].num_src, *(block.num_dst for block in batch.blocks)]
    batch.release()
    return counts
