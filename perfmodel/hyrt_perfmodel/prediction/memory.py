"""What a device's memory must hold, and how many targets that allows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hyrt_perfmodel.platforms.platform import PlatformTrainer
from hyrt_perfmodel.prediction.extra_terms import topology_bytes
from hyrt_perfmodel.prediction.sparse_terms import multiplied_first
from hyrt_perfmodel.workloads.workload import TrainingWorkload, Workload

# One is computed while the next is transferred.
_STAGED = 2
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
        workload.vertices[layer] * (workload.f_in(layer) + workload.features[layer]) for layer in layers
    )
    largest = max(products, *(workload.vertices[layer] * workload.f_in(layer) for layer in layers))
    return (kept + largest) * workload.bytes_per_value


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

    Features and topology as far as they are known, mini-batches in flight, the weights four times (the master
    copy, its gradient and two moments of Adam's), and for every trainer that computes in host memory its
    activations and, as on a device, a replica of the weights with their gradients.

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
    known = sum(size for size in (training.feature_bytes, training.graph_bytes) if math.isfinite(size))
    in_flight = depth * sum(mini_batch_bytes(workload) for workload in workloads)
    weights = 2 * weights_bytes(workloads[0]) if workloads else 0.0
    computed = sum(weights_bytes(workload) + activations_bytes(workload) for workload in computed_here)
    return known + in_flight + weights + computed


def most_units(trainer: PlatformTrainer, training: TrainingWorkload) -> int:
    """The most targets whose mini-batches the trainer's memory holds; the whole step if it is not known."""
    if trainer.device.memory_gib is None:
        return training.batch_size
    have = trainer.device.memory_gib * _GIB
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
