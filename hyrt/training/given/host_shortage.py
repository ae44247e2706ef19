"""Whether a run's weights and rows are more than the machine has memory for, told before they are made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
from hyrt_perfmodel.prediction.memory import activations_bytes, weights_bytes
from hyrt_perfmodel.workloads.model_workload import model_workload
from hyrt_perfmodel.workloads.workload import Workload

from hyrt.config import Config
from hyrt.graph.graph import Graph
from hyrt.machine.cores import memory_left
from hyrt.machine.workers import Workers
from hyrt.nn.architecture import Architecture
from hyrt.nn.models.model_kind import find_model
from hyrt.quantities import size
from hyrt.sampling.sampler import Sampler

_FLOAT_BYTES = 4
# Of kinds that do not say what they cost: a layer has one product at least.
_LEAST_COSTS = "gcn"


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may still take: of the machine, and of its control group."""
    left = memory_left(root / "proc/self/cgroup", root / "sys/fs/cgroup")
    available = int(psutil.virtual_memory().available)
    return available if left is None else min(available, left)


def why_short(
    config: Config, graph: Graph, model: Architecture, sampler: Callable[[], Sampler], have_bytes: int
) -> str:
    """What to tell a user whose run needs more host memory than there is; empty where it fits.

    Weights count with their gradients and Adam's moments, learned rows with the moments alone; of rows,
    those that the CPU keeps for the backward pass of a step. The bytes are those of
    `hyrt_perfmodel.prediction.memory`.

    Parameters
    ----------
    config, graph
        All settings, and the graph to train on.
    model
        The configured model.
    sampler
        Gives the run's sampler, which is asked for one step where that might not fit.
    have_bytes
        Bytes that are free.
    """
    on_cpu = all(each.name.partition(":")[0] == "cpu" for each in config.trained_on)
    layers = config.model.layers
    most = _work(model, [graph.num_vertices] * (layers + 1))
    weights = 2 * weights_bytes(most) + (weights_bytes(most) if on_cpu else 0.0) + _table_bytes(model)
    rows = 0.0
    if on_cpu and config.sampler.whole_graph:
        # Who limits them has the rest in a file. The widest and its gradient are there at the same time.
        if config.fullgraph.host_memory is None:
            rows = 2.0 * _FLOAT_BYTES * graph.num_vertices * max(model.widths[1:])
    elif on_cpu and graph.links is None and weights + activations_bytes(most) > have_bytes:
        rows = activations_bytes(_work(model, _vertices(sampler())))
    if weights + rows <= have_bytes:
        return ""
    remedy = "model.hidden or model.layers"
    if rows > weights:
        remedy = (
            "model.hidden"
            if config.sampler.whole_graph
            else "model.hidden, data.batch_size or sampler.fanout"
        )
    return (
        f"the run needs about {size(weights + rows)} of memory (weights, gradients and optimizer "
        f"{size(weights)}, rows of a step {size(rows)}), and {size(have_bytes)} are free: the system may end "
        f"it without a word. Lower {remedy}"
    )


def _table_bytes(model: Architecture) -> float:
    """Learned rows with the moments of Adam; replicas share them, and a step's gradient has few of them."""
    shape = model.shape
    rows = 0 if shape is None else sum(shape.counts[number] for number in shape.learned)
    return 3.0 * _FLOAT_BYTES * rows * model.in_features


def _work(model: Architecture, vertices: list[int]) -> Workload:
    """A step over so many vertices of each layer, the input's first."""
    return model_workload(
        find_model(model.kind).costs_like or _LEAST_COSTS,
        vertices,
        [0] * model.layers,
        model.widths,
        heads=model.heads,
        hidden=model.hidden,
    )


def _vertices(sampler: Sampler) -> list[int]:
    """The vertices of each layer in the first step."""
    with Workers(1, "hyrt.sample") as workers:
        batch = sampler.sample(0, sampler.units(0), workers, in_place=False)
    counts = [batch.blocks[0].num_src, *(block.num_dst for block in batch.blocks)]
    batch.release()
    return counts
