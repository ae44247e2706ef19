"""Memory needs of hosts and devices, and the number of targets that fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from hyrt_perfmodel.platforms.platform import Platform, PlatformTrainer
from hyrt_perfmodel.prediction.extra_terms import topology_bytes
from hyrt_perfmodel.prediction.sparse_terms import multiplied_first
from hyrt_perfmodel.workloads.workload import TrainingWorkload, Workload

# Mini-batches on the device: one is computed while the next is transferred.
_STAGED = 2
_FLOAT_BYTES = 4
_GIB = 2**30


def weights_bytes(workload: Workload) -> float:
    """Return the bytes of a replica's weights and their gradients."""
    return 2 * workload.num_weights * workload.bytes_per_value


def mini_batch_bytes(workload: Workload) -> float:
    """Return the bytes of one staged mini-batch: input rows and blocks."""
    return workload.vertices[0] * workload.row_bytes + topology_bytes(workload)


def activations_bytes(workload: Workload) -> float:
    """Return the bytes of the activations: input and output of each product, and the largest gradient.

    A first layer over sparse rows saves the product of each row instead of a dense row.
    """
    products = 0.0 if workload.sparse is None else workload.vertices[0] * workload.sparse.product_width
    workload = multiplied_first(workload)
    layers = range(1, workload.layers + 1)
    saved = products + sum(
        workload.vertices[layer] * (workload.f_in(layer) + workload.between(layer) + workload.features[layer])
        for layer in layers
    )
    largest = max(products, *(workload.vertices[layer] * workload.f_in(layer) for layer in layers))
    return (saved + largest) * workload.bytes_per_value


def whole_graph_arrays(workload: Workload, training: TrainingWorkload) -> dict[str, float]:
    """Return an upper bound of the bytes per array in full-graph training.

    A layer saves its gathered rows and its result for the backward pass. A trainer that recomputes either, or
    multiplies on the narrower side of the aggregation, needs less.

    Parameters
    ----------
    workload
        The full graph, as a step.
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
        # Attention gathers one row per head.
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
    """Return the bytes per array of full-graph training on a trainer.

    For the CPU trainer these are its own step's arrays, if the work defines that step; for other trainers an
    upper bound.
    """
    if trainer.is_host and training.whole is not None:
        memory_gib = trainer.device.memory_gib
        return training.whole(math.inf if memory_gib is None else memory_gib * _GIB, threads).arrays
    return whole_graph_arrays(trainer.taken(training.at(1.0)), training)


def trainer_memory_bytes(workload: Workload) -> float:
    """Return the bytes that a device with separate memory holds while it trains mini-batches of that size.

    Optimizer state and master weights are in host memory.
    """
    return weights_bytes(workload) + _STAGED * mini_batch_bytes(workload) + activations_bytes(workload)


def host_memory_bytes(
    workloads: Sequence[Workload],
    training: TrainingWorkload,
    depth: int,
    *,
    computed_here: Sequence[Workload] = (),
) -> float:
    """Return the bytes of host memory that training needs.

    These are features, learned embeddings and topology if known, mini-batches in flight, four copies of the
    weights (master copy, its gradient and the two moments of Adam), and for every trainer that computes in
    host memory its activations and, as on a device, a replica of the weights with gradients.

    Parameters
    ----------
    workloads
        Mini-batches of all trainers that have targets.
    training
        The work.
    depth
        Mini-batches in flight.
    computed_here
        The subset of `workloads` whose trainers have no separate memory.
    """
    sizes = (training.feature_bytes, training.graph_bytes, training.learned_bytes)
    known = sum(size for size in sizes if math.isfinite(size))
    in_flight = depth * sum(mini_batch_bytes(workload) for workload in workloads)
    weights = 2 * weights_bytes(workloads[0]) if workloads else 0.0
    computed = sum(weights_bytes(workload) + activations_bytes(workload) for workload in computed_here)
    return known + in_flight + weights + computed


def kept_rows_bytes(trainer: PlatformTrainer, training: TrainingWorkload) -> float:
    """Return the bytes of an accelerator's feature cache."""
    if trainer.is_host or trainer.device.design is not None or not math.isfinite(training.feature_bytes):
        return 0.0
    return training.kept_part * training.feature_bytes


def free_kept_part(platform: Platform, training: TrainingWorkload) -> float:
    """Return the fraction of all feature rows that fills half of the free memory of every accelerator.

    The result is 0 if no accelerator's memory is known, or no accelerator can cache rows.
    """
    fractions = [
        0.5
        * max(0.0, accelerator.memory_gib * _GIB - weights_bytes(training.at(1.0)))
        / training.feature_bytes
        for accelerator in platform.accelerators
        if accelerator.memory_gib is not None
        and math.isfinite(accelerator.link_gb_s)
        and accelerator.design is None
    ]
    return min([1.0, *fractions]) if fractions else 0.0


def most_units(trainer: PlatformTrainer, training: TrainingWorkload) -> int:
    """Return the maximum targets whose mini-batches fit into a trainer's memory; the whole step if
    unknown.
    """
    if trainer.device.memory_gib is None:
        return training.batch_size
    available = trainer.device.memory_gib * _GIB
    if training.resident:
        arrays = whole_graph_arrays(trainer.taken(training.at(1.0)), training)
        return training.batch_size if sum(arrays.values()) <= available else 0
    available -= kept_rows_bytes(trainer, training)
    return most_that(
        training.batch_size,
        lambda units: trainer_memory_bytes(trainer.taken(training.at(units))) <= available,
    )


def most_that(limit: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number in 0..limit that fits.

    `fits` must be monotonic: every number below a number that fits also fits. 0 always fits.
    """
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
