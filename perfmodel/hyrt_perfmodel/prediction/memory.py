"""What a device's memory must hold, and how many targets that allows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from hyrt_perfmodel.platforms.platform import Platform, PlatformTrainer
from hyrt_perfmodel.prediction.extra_terms import topology_bytes
from hyrt_perfmodel.prediction.sparse_terms import multiplied_first
from hyrt_perfmodel.workloads.workload import TrainingWorkload, Workload

# One is computed while the next is transferred.
_STAGED = 2
_FLOAT_BYTES = 4
_GIB = 2**30


def weights_bytes(workload: Workload) -> float:
    """A replica's weights and their gradients."""
    return 2 * workload.num_weights * workload.bytes_per_value


def mini_batch_bytes(workload: Workload) -> float:
    """Input rows and blocks of one staged mini-batch."""
    return workload.vertices[0] * workload.row_bytes + topology_bytes(workload)


def activations_bytes(workload: Workload) -> float:
    """What each layer multiplies and gives, kept for backward, and the gradient of the largest of them.

    A first layer over sparse rows keeps the product of each instead of a dense row.
    """
    products = 0.0 if workload.sparse is None else workload.vertices[0] * workload.sparse.product_width
    workload = multiplied_first(workload)
    layers = range(1, workload.layers + 1)
    kept = products + sum(
        workload.vertices[layer] * (workload.f_in(layer) + workload.between(layer) + workload.features[layer])
        for layer in layers
    )
    largest = max(products, *(workload.vertices[layer] * workload.f_in(layer) for layer in layers))
    return (kept + largest) * workload.bytes_per_value


def whole_graph_arrays(workload: Workload, training: TrainingWorkload) -> dict[str, float]:
    """The bytes that training on the whole graph keeps, array by array, at most.

    A layer keeps what it gathered and its result for the backward pass. Who computes either again, or does
    the product on the narrower side of the aggregation, keeps less.

    Parameters
    ----------
    workload
        The whole graph, as a step.
    training
        The work.
    """
    dense = multiplied_first(workload)
    arrays = {
        "topology": training.graph_bytes,
        "edges by source": training.transpose_bytes,
        "learned rows, moments": training.learned_bytes,
    }
    arrays = {name: size for name, size in arrays.items() if size and math.isfinite(size)}
    if workload.rows_per_edge > 1:
        arrays["edges' numbers by source"] = _FLOAT_BYTES * workload.edges[0]
    arrays["degrees and their factors"] = 2 * _FLOAT_BYTES * workload.vertices[0]
    if math.isfinite(training.feature_bytes):
        arrays["features"] = training.feature_bytes
    rows = []
    if workload.sparse is not None:
        rows.append(("products of features", workload.vertices[0] * workload.sparse.product_width))
    for layer in range(1, dense.layers + 1):
        vertices, last = dense.vertices[layer], layer == dense.layers
        # Attention gathers a row for each head.
        width = max(dense.f_in(layer), dense.rows_per_edge * dense.features[layer - 1])
        rows.append((f"gathered by layer {layer}", vertices * width))
        if dense.between(layer):
            rows.append((f"hidden rows in layer {layer}", vertices * dense.between(layer)))
        rows.append(("scores" if last else f"hidden rows of layer {layer}", vertices * dense.features[layer]))
    arrays.update({name: _FLOAT_BYTES * values for name, values in rows})
    arrays["gradient of the widest"] = _FLOAT_BYTES * max(values for _, values in rows)
    arrays["parameters, gradients, optimizer"] = 6 * _FLOAT_BYTES * workload.num_weights
    return arrays


def arrays_of_whole(
    trainer: PlatformTrainer, training: TrainingWorkload, threads: int
) -> Mapping[str, float]:
    """The bytes that training on the whole graph keeps on a trainer, array by array.

    Of the CPU trainer those of its own step, where the work has one; of others at most.
    """
    if trainer.is_host and training.whole is not None:
        memory_gib = trainer.device.memory_gib
        return training.whole(math.inf if memory_gib is None else memory_gib * _GIB, threads).arrays
    return whole_graph_arrays(trainer.taken(training.at(1.0)), training)


def trainer_memory_bytes(workload: Workload) -> float:
    """Everything a device of its own memory holds while it trains mini-batches of that size.

    The optimiser's state and the master weights are in host memory.
    """
    return weights_bytes(workload) + _STAGED * mini_batch_bytes(workload) + activations_bytes(workload)


def host_memory_bytes(
    workloads: Sequence[Workload],
    training: TrainingWorkload,
    depth: int,
    *,
    computed_here: Sequence[Workload] = (),
) -> float:
    """What training keeps in host memory.

    Features, learned rows and topology as far as they are known, mini-batches in flight, the weights four
    times (the master copy, its gradient and two moments of Adam's), and for every trainer that computes in
    host memory its activations and, as on a device, a replica of the weights with their gradients.

    Parameters
    ----------
    workloads
        The mini-batches of all trainers that have targets.
    training
        The work.
    depth
        Mini-batches in flight.
    computed_here
        Those of `workloads` whose trainers have no memory of their own.
    """
    sizes = (training.feature_bytes, training.graph_bytes, training.learned_bytes)
    known = sum(size for size in sizes if math.isfinite(size))
    in_flight = depth * sum(mini_batch_bytes(workload) for workload in workloads)
    weights = 2 * weights_bytes(workloads[0]) if workloads else 0.0
    computed = sum(weights_bytes(workload) + activations_bytes(workload) for workload in computed_here)
    return known + in_flight + weights + computed


def kept_rows_bytes(trainer: PlatformTrainer, training: TrainingWorkload) -> float:
    """The feature rows that an accelerator keeps for the whole run."""
    if trainer.is_host or trainer.device.design is not None or not math.isfinite(training.feature_bytes):
        return 0.0
    return training.kept_part * training.feature_bytes


def free_kept_part(platform: Platform, training: TrainingWorkload) -> float:
    """The part of all feature rows that fills half of the memory which each accelerator has free.

    0 where the memory of none is known, or none keeps rows.
    """
    parts = [
        0.5 * max(0.0, each.memory_gib * _GIB - weights_bytes(training.at(1.0))) / training.feature_bytes
        for each in platform.accelerators
        if each.memory_gib is not None and math.isfinite(each.link_gb_s) and each.design is None
    ]
    return min([1.0, *parts]) if parts else 0.0


def most_units(trainer: PlatformTrainer, training: TrainingWorkload) -> int:
    """The most targets whose mini-batches the trainer's memory holds; the whole step if it is not known."""
    if trainer.device.memory_gib is None:
        return training.batch_size
    have = trainer.device.memory_gib * _GIB
    if training.resident:
        arrays = whole_graph_arrays(trainer.taken(training.at(1.0)), training)
        return training.batch_size if sum(arrays.values()) <= have else 0
    have -= kept_rows_bytes(trainer, training)
    return most_that(
        training.batch_size, lambda units: trainer_memory_bytes(trainer.taken(training.at(units))) <= have
    )


def most_that(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest of 0..limit that fits, where all smaller ones do, too; 0 always does."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
