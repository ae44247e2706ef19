"""Memory requirements of hosts and devices, and the assignment with the shortest predicted iteration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from hyrt_perfmodel.platform import Host, Platform, PlatformTrainer
from hyrt_perfmodel.policy import Assignment, Threads
from hyrt_perfmodel.prediction.stage_times import StepModel, host_trainers, iteration_s
from hyrt_perfmodel.prediction.stages import ExtraTerms, topology_bytes, without_sparse_product
from hyrt_perfmodel.workload import TrainingWorkload, Workload

# A device stores two mini-batches: one is computed while the next is transferred.
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
    """Return the bytes of activations: the input and output of each product, and the largest gradient.

    If the first layer multiplies sparse rows, it saves the product of each row instead of a dense row.
    """
    products = 0.0 if workload.sparse is None else workload.vertices[0] * workload.sparse.product_width
    workload = without_sparse_product(workload)
    layers = range(1, workload.layers + 1)
    saved = products + sum(
        workload.vertices[layer]
        * (workload.f_in(layer) + workload.hidden_width(layer) + workload.features[layer])
        for layer in layers
    )
    largest = max(products, *(workload.vertices[layer] * workload.f_in(layer) for layer in layers))
    return (saved + largest) * workload.bytes_per_value


def full_graph_arrays(workload: Workload, training: TrainingWorkload) -> dict[str, float]:
    """Return upper bounds on the bytes of each array in full-graph training. `workload` is the full graph.

    A layer saves its gathered rows and its result for the backward pass. A trainer needs less if it
    recomputes either, or multiplies on the narrower side of the aggregation.
    """
    dense = without_sparse_product(workload)
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
        if dense.hidden_width(layer):
            rows.append((f"hidden rows in layer {layer}", vertices * dense.hidden_width(layer)))
        rows.append(("scores" if last else f"hidden rows of layer {layer}", vertices * dense.features[layer]))
    arrays.update({name: _FLOAT_BYTES * values for name, values in rows})
    arrays["gradient of the widest"] = _FLOAT_BYTES * max(values for _, values in rows)
    arrays["parameters, gradients, optimizer"] = 6 * _FLOAT_BYTES * workload.num_weights
    return arrays


def trainer_full_graph_arrays(
    trainer: PlatformTrainer, training: TrainingWorkload, threads: int
) -> Mapping[str, float]:
    """Return the bytes of each array in full-graph training on a trainer.

    For the CPU trainer, these are the arrays of `TrainingWorkload.full_graph_step`, if it is defined. For
    other trainers, the sizes are upper bounds.
    """
    if trainer.is_host and training.full_graph_step is not None:
        memory_gib = trainer.device.memory_gib
        return training.full_graph_step(math.inf if memory_gib is None else memory_gib * _GIB, threads).arrays
    return full_graph_arrays(trainer.adapt_workload(training.at(1.0)), training)


def trainer_memory_bytes(workload: Workload) -> float:
    """Return the bytes that a device with separate memory needs to train on mini-batches of this size.

    Optimizer state and master weights are in host memory.
    """
    return weights_bytes(workload) + _STAGED * mini_batch_bytes(workload) + activations_bytes(workload)


def host_memory_bytes(
    workloads: Sequence[Workload],
    training: TrainingWorkload,
    depth: int,
    *,
    host_workloads: Sequence[Workload] = (),
) -> float:
    """Return the bytes of host memory that training needs with `depth` mini-batches in flight.

    These are features, learned embeddings and topology if known, mini-batches in flight, four copies of the
    weights (master copy, its gradient and the two moments of Adam), and for each trainer that computes in
    host memory its activations and a replica of the weights with gradients. `workloads` contains the
    mini-batches of all trainers with targets, and `host_workloads` those of trainers without separate memory.
    """
    sizes = (training.feature_bytes, training.graph_bytes, training.learned_bytes)
    known = sum(size for size in sizes if math.isfinite(size))
    in_flight = depth * sum(mini_batch_bytes(workload) for workload in workloads)
    weights = 2 * weights_bytes(workloads[0]) if workloads else 0.0
    computed = sum(weights_bytes(workload) + activations_bytes(workload) for workload in host_workloads)
    return known + in_flight + weights + computed


def feature_cache_bytes(trainer: PlatformTrainer, training: TrainingWorkload) -> float:
    """Return the bytes of an accelerator's feature cache."""
    if trainer.is_host or trainer.device.design is not None or not math.isfinite(training.feature_bytes):
        return 0.0
    return training.cached_fraction * training.feature_bytes


def free_cache_fraction(platform: Platform, training: TrainingWorkload) -> float:
    """Return the fraction of all feature rows that fills at most half of each accelerator's free memory.

    The result is 0 if no memory size is known, or no accelerator can cache rows.
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


def max_units(trainer: PlatformTrainer, training: TrainingWorkload) -> int:
    """Return the maximum targets that fit in a trainer's memory, or the whole step if this is unknown."""
    if trainer.device.memory_gib is None:
        return training.batch_size
    available = trainer.device.memory_gib * _GIB
    if training.resident:
        arrays = full_graph_arrays(trainer.adapt_workload(training.at(1.0)), training)
        return training.batch_size if sum(arrays.values()) <= available else 0
    available -= feature_cache_bytes(trainer, training)
    return largest_satisfying(
        training.batch_size,
        lambda units: trainer_memory_bytes(trainer.adapt_workload(training.at(units))) <= available,
    )


def largest_satisfying(limit: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from 0 to `limit` for which `fits` is true.

    `fits` must be monotonic: if true for a number, it is true for every smaller one. It is assumed true for
    0.
    """
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


_BISECTION_TOLERANCE = 1e-5
# Minimum relative gain for which threads are changed.
_MIN_THREADS_GAIN = 1e-6
# Minimum relative gain of an unbalanced split; below, equal trainers get equal shares.
_MIN_MOVE_GAIN = 2e-3
_MAX_CANDIDATES = 300


def initial_assignment(
    platform: Platform,
    training: TrainingWorkload,
    *,
    terms: ExtraTerms | None = None,
    threads: Threads | None = None,
) -> Assignment:
    """Return the best split and threads, or the best split for fixed `threads`.

    For each distribution of threads, bisection on the step time finds the split with equal trainer times,
    because a trainer's time grows monotonically with its targets. Then single trainers are removed, because
    the fixed or loading costs of a trainer can outweigh its contribution. Finally, targets are moved between
    pairs of trainers and threads between stages as long as this helps: if a host stage is the bottleneck,
    equal times are not optimal. Raises ValueError if a step does not fit in the trainers' combined memory.
    """
    terms = ExtraTerms() if terms is None else terms
    limits = [
        training.batch_size if trainer.is_host else max_units(trainer, training)
        for trainer in platform.trainers(training.model)
    ]
    if sum(limits) < training.batch_size and training.resident:
        raise ValueError(
            "the whole graph does not fit the memory of any trainer: remove --full-graph to train on "
            "mini-batches"
        )
    if sum(limits) < training.batch_size:
        raise ValueError(
            f"a step of {training.batch_size} targets does not fit the trainers' memory, which is enough for "
            f"{sum(limits)}: lower data.batch_size or sampler.fanout"
        )
    model = StepModel(platform, training.with_cached_sizes(), terms)
    costs = _TrainerCosts(model)

    def candidate(split: Sequence[int], threads: Threads) -> tuple[float, Assignment]:
        assignment = Assignment(split=tuple(split), threads=threads)
        return iteration_s(model.times(assignment), platform.host, terms), assignment

    def balanced(threads: Threads) -> tuple[float, Assignment]:
        return candidate(equal_times(costs.of(threads), limits, training.batch_size), threads)

    choices = _coarse_threads(platform.host) if threads is None else [threads]
    best = min((balanced(choice) for choice in choices), key=_seconds)
    improved = threads is None
    while improved:
        candidates = [
            balanced(nearby_threads) for nearby_threads in _nearby_threads(best[1].threads, platform.host)
        ]
        fastest = min(candidates, key=_seconds, default=best)
        improved = fastest[0] < best[0] * (1 - _MIN_THREADS_GAIN)
        best = fastest if improved else best
    # Try to remove trainers one after the other, starting with the one with the fewest targets.
    allowed, split, chosen = list(limits), best[1].split, best[1].threads
    while sum(1 for units in split if units) > 1:
        allowed[min((i for i, units in enumerate(split) if units), key=lambda i: (split[i], -i))] = 0
        if sum(allowed) < training.batch_size:
            break
        split = tuple(equal_times(costs.of(chosen), allowed, training.batch_size))
        best = min(best, candidate(split, chosen), key=_seconds)
    # Try each kind of trainer alone: contention for the same cores can make several kinds slower together.
    for kind in sorted(set(costs.kinds)):
        limits_of_kind = [
            units if kind == other else 0 for units, other in zip(limits, costs.kinds, strict=True)
        ]
        if sum(limits_of_kind) >= training.batch_size:
            split = tuple(equal_times(costs.of(chosen), limits_of_kind, training.batch_size))
            best = min(best, candidate(split, chosen), key=_seconds)
    evaluated = 0
    while evaluated < _MAX_CANDIDATES:
        current = best[1]
        nearby = [candidate(split, current.threads) for split in _moves(current.split, limits, costs.kinds)]
        nearby.append(candidate(_equalized(current.split, limits, costs.kinds), current.threads))
        if threads is None:
            nearby += [
                candidate(current.split, nearby_threads)
                for nearby_threads in _nearby_threads(current.threads, platform.host)
            ]
        evaluated += len(nearby)
        fastest_neighbor = min(nearby, key=_seconds, default=best)
        if fastest_neighbor[0] >= best[0] * (1 - _MIN_MOVE_GAIN):
            break
        best = fastest_neighbor
    # Give equal trainers equal shares unless this costs time.
    even = candidate(_equalized(best[1].split, limits, costs.kinds), best[1].threads)
    return (even if even[0] <= best[0] * (1 + 1e-9) else best)[1]


def _equalized(split: Sequence[int], limits: Sequence[int], kinds: Sequence[int]) -> tuple[int, ...]:
    """Return the split in which equal trainers share their targets equally."""
    equalized = list(split)
    for kind in set(kinds):
        members = [i for i, other in enumerate(kinds) if other == kind]
        quotient, remainder = divmod(sum(split[i] for i in members), len(members))
        for position, i in enumerate(members):
            equalized[i] = quotient + (position < remainder)
    return tuple(equalized) if all(n <= m for n, m in zip(equalized, limits, strict=True)) else tuple(split)


def _moves(split: Sequence[int], limits: Sequence[int], kinds: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield splits in which some targets of one trainer are moved to another.

    Each group of equal trainers is represented by one trainer.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for i, units in enumerate(split):
        groups.setdefault((kinds[i], units), []).append(i)
    for sources in groups.values():
        source = sources[-1]
        for targets in groups.values():
            target = targets[0]
            amount = min(split[source], limits[target] - split[target])
            while amount and target != source:
                moved = list(split)
                moved[source] -= amount
                moved[target] += amount
                yield tuple(moved)
                amount //= 2


def _seconds(candidate: tuple[float, Assignment]) -> float:
    return candidate[0]


class _TrainerCosts:
    """Time of each trainer in seconds as a function of its targets.

    This is the maximum of transfer and propagation, which includes synchronization.
    """

    def __init__(self, model: StepModel) -> None:
        self._model = model
        self._known: dict[tuple[int, int], dict[float, float]] = {}
        self._synchronize_s = model.synchronize_s(host_trainers(model.trainers))
        # Equal accelerators have equal costs, whatever their numbers.
        alike = [replace(trainer, name=trainer.name.partition(":")[0]) for trainer in model.trainers]
        self.kinds = [alike.index(kind) for kind in alike]

    def of(self, threads: Threads) -> list[Callable[[float], float]]:
        """Return one cost function per trainer. Equal trainers share a function."""
        by_kind: dict[int, Callable[[float], float]] = {}
        functions = []
        for number in self.kinds:
            if number not in by_kind:
                by_kind[number] = self._cost(number, threads)
            functions.append(by_kind[number])
        return functions

    def _cost(self, number: int, threads: Threads) -> Callable[[float], float]:
        model, trainer = self._model, self._model.trainers[number]
        cache = self._known.setdefault((number, threads.train if trainer.is_host else 0), {0: 0.0})

        def seconds(targets: float) -> float:
            if targets not in cache:
                work = model.training.at(targets)
                propagate_s = model.propagate_s(trainer, work, threads) + self._synchronize_s
                cache[targets] = max(model.transfer_s(trainer, work), propagate_s)
            return cache[targets]

        return seconds


def equal_times(costs: Sequence[Callable[[float], float]], limits: Sequence[int], total: int) -> list[int]:
    """Return the split of `total` targets with the fastest slowest trainer.

    `costs` contains the time of each trainer as an increasing function of its targets, and `limits` the
    maximum targets of each trainer, whose sum must be at least `total`. Raises OverflowError if a trainer's
    time is not finite.
    """
    high = max(cost(min(limit, total)) for cost, limit in zip(costs, limits, strict=True) if limit)
    if not math.isfinite(high):
        raise OverflowError(f"{total} targets on one trainer would take {high} s")
    low = 0.0
    # A coarse tolerance suffices, because the last loop removes any surplus, one target at a time.
    tolerance = min(_BISECTION_TOLERANCE, 1 / total)
    while high - low > tolerance * high:
        middle = (low + high) / 2
        units = sum(_max_units_within(costs, limits, middle, total))
        if units >= total:
            high = middle
        else:
            low = middle
        if units == total:
            break
    split = _max_units_within(costs, limits, high, total)
    surplus = sum(split) - total
    while surplus > 0:
        # Remove a target from the slowest trainer, or the last of equally slow ones, so that equal trainers
        # differ by at most 1.
        slowest = max((i for i, units in enumerate(split) if units), key=lambda i: (costs[i](split[i]), i))
        split[slowest] -= 1
        surplus -= 1
    return split


def _max_units_within(
    costs: Sequence[Callable[[float], float]], limits: Sequence[int], seconds: float, total: int
) -> list[int]:
    def units(cost: Callable[[float], float], limit: int) -> int:
        return largest_satisfying(min(limit, total), lambda count: cost(count) <= seconds)

    pairs = list(zip(costs, limits, strict=True))
    units_by_pair = {pair: units(*pair) for pair in set(pairs)}
    return [units_by_pair[pair] for pair in pairs]


def _coarse_threads(host: Host) -> list[Threads]:
    """Return distributions of threads in which sampling and loading have powers of two."""
    cores = host.cores or 1
    powers = sorted({*(2**i for i in range(cores.bit_length())), cores})
    choices = [_threads(sample, load, host) for sample in powers for load in powers if load <= cores]
    return [threads for threads in choices if threads is not None] or [Threads(sample=1, load=1, train=1)]


def _nearby_threads(threads: Threads, host: Host) -> list[Threads]:
    """Return distributions with about an eighth more or fewer threads for sampling, loading or both."""
    choices = [
        _threads(sample, load, host)
        for sample in _nearby_counts(threads.sample)
        for load in _nearby_counts(threads.load)
        if (sample, load) != (threads.sample, threads.load)
    ]
    return [choice for choice in choices if choice is not None]


def _nearby_counts(count: int) -> list[int]:
    step = max(1, count // 8)
    return [count + change for change in (-step, -1, 0, 1, step) if count + change >= 1]


def _threads(sample: int, load: int, host: Host) -> Threads | None:
    """Return the threads with the remaining cores for the CPU trainer, or None if there are too few cores.

    If stages share the cores, the CPU trainer has a thread per core.
    """
    cores = host.cores or 1
    if host.loading:
        return Threads(sample=sample, load=load, train=cores) if max(sample, load) <= cores else None
    remaining = cores - sample - load
    if remaining < (1 if host.trains else 0):
        return None
    return Threads(sample=sample, load=load, train=max(1, remaining))
