"""Prediction of a distributed epoch: the stages of one rank on mini-batches, and 1D and 1.5D full-graph
algorithms, whose volumes are counted on a partition and have alpha-beta costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.network import Network
from hyrt_perfmodel.platform import Platform
from hyrt_perfmodel.policy import Assignment
from hyrt_perfmodel.prediction.initial_assignment import initial_assignment
from hyrt_perfmodel.prediction.stage_times import StageTimes, iteration_s, stage_times
from hyrt_perfmodel.prediction.stages import ExtraTerms
from hyrt_perfmodel.traffic import EDGES, ROWS, WEIGHT_PURPOSES, StepTraffic, all_reduce_bytes, all_reduce_s
from hyrt_perfmodel.workload import TrainingWorkload

# With these strategies, the load stage receives results of the first layer, which all ranks compute together.
_JOINT_FIRST_LAYER = ("p3", "naive-migration")


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedPrediction:
    """Prediction of an epoch on several equal ranks."""

    strategy: str
    ranks: int
    network: str
    time_steps: int
    """Number of time steps into which a rank divides its part of a step."""
    stages_s: Mapping[str, float]
    """Seconds of a step's stages on one rank. `sample` and `load` include edges and rows from other ranks,
    and `propagate` includes all other communication."""
    communication_s: Mapping[str, float]
    """Seconds of a step's communication, by purpose."""
    iteration_s: float
    iterations: int
    epoch_s: float
    epoch_bytes: Mapping[str, float]
    """Bytes that all ranks together send per epoch, by purpose."""
    bottleneck: str
    """Stage that limits the iteration; `network` and a purpose if communication dominates this stage; or
    `link` if the busiest link takes longer than every stage."""

    @property
    def total_bytes(self) -> float:
        return sum(self.epoch_bytes.values())

    def to_json(self) -> dict[str, Any]:
        """Return the values that `hyrt predict --ranks --json` prints."""
        names = (
            "strategy",
            "ranks",
            "network",
            "time_steps",
            "iteration_s",
            "iterations",
            "epoch_s",
            "bottleneck",
        )
        return {
            **{name: getattr(self, name) for name in names},
            "stages_s": dict(self.stages_s),
            "travel_s": dict(self.communication_s),
            "epoch_bytes": {name: round(num_bytes) for name, num_bytes in self.epoch_bytes.items()},
        }


def predict_distributed(
    strategy: str,
    platform: Platform,
    training: TrainingWorkload,
    traffic: StepTraffic,
    network: Network,
    *,
    terms: ExtraTerms | None = None,
    assign: Callable[[TrainingWorkload], Assignment] | None = None,
    ranks_per_machine: int = 1,
) -> DistributedPrediction:
    """Predict an epoch on equal ranks that each train a part of every step.

    Loading waits for rows from other ranks and sampling for edges from other ranks, while stages of other
    steps continue. Propagation waits for all other communication. No step is shorter than the time of its
    bytes on the busiest link. The last step of an epoch may have fewer targets, but sends complete gradients
    and models.

    `platform` is the machine of one rank, whose cores `ranks_per_machine` ranks share. The batch size of
    `training` is that of a step over all ranks. `assign` returns a rank's assignment for its part of a step,
    by default the best one. Raises ValueError if a part does not fit in the memory of the trainers.
    """
    terms = ExtraTerms() if terms is None else terms
    parts = traffic.ranks * traffic.time_steps
    largest_batch = traffic.largest_share * training.batch_size / parts
    # Fetched rows are aggregated after their arrival, and no device reads such rows in place.
    form = training.best_form
    if form == "in_place" or (form == "aggregated" and strategy in _JOINT_FIRST_LAYER):
        form = "rows"
    rank_training = replace(training, batch_size=max(1, round(largest_batch)), best_form=form)
    assignment = (
        initial_assignment(platform, rank_training, terms=terms) if assign is None else assign(rank_training)
    )
    alone = _repeated(stage_times(platform, rank_training, assignment, terms), traffic.time_steps)
    if alone.core_s is not None:
        alone = replace(alone, core_s=ranks_per_machine * alone.core_s)
    purpose_s = traffic.seconds_by_purpose(network)
    edges_s = purpose_s.get(EDGES, 0.0)
    weights_s = sum(purpose_s[name] for name in WEIGHT_PURPOSES)
    vectors_s = sum(purpose_s.values()) - purpose_s[ROWS] - edges_s - weights_s
    full_link_s = traffic.link_s(network)

    def link_of(fraction: float) -> float:
        """Return the time in seconds of the busiest link in a step with a fraction of the targets."""
        link_weights_s = min(weights_s, full_link_s)
        return link_weights_s + fraction * (full_link_s - link_weights_s)

    def stages_of(fraction: float) -> StageTimes:
        """Return the stages of a step with a fraction of the targets, including communication."""
        times = _partial_step(alone, fraction)
        inside_s = fraction * vectors_s + weights_s
        return replace(
            times,
            sample_s=times.sample_s + fraction * edges_s,
            load_s=times.load_s + fraction * purpose_s[ROWS],
            propagate_s=times.propagate_s + inside_s,
            synchronize_s=times.synchronize_s + inside_s,
        )

    def step_s(fraction: float) -> float:
        return max(iteration_s(stages_of(fraction), platform.host, terms), link_of(fraction))

    stages, link_s, seconds = stages_of(1.0), link_of(1.0), step_s(1.0)
    steps = training.targets_per_epoch / training.batch_size
    num_full, last = divmod(steps, 1.0)
    sent = traffic.bytes_by_purpose()
    return DistributedPrediction(
        strategy=strategy,
        ranks=traffic.ranks,
        network=network.name,
        time_steps=traffic.time_steps,
        stages_s=stages.stages_s,
        communication_s=purpose_s,
        iteration_s=seconds,
        iterations=math.ceil(steps),
        epoch_s=num_full * seconds + (step_s(last) if last else 0.0),
        epoch_bytes={
            name: (math.ceil(steps) if name in WEIGHT_PURPOSES else steps) * num for name, num in sent.items()
        },
        bottleneck=_bottleneck(stages, purpose_s, seconds, link_s),
    )


def _partial_step(times: StageTimes, fraction: float) -> StageTimes:
    """Return the stages of a step with a fraction of its targets. Synchronization takes the same time."""

    def scaled(seconds: float) -> float:
        return times.synchronize_s + fraction * (seconds - times.synchronize_s)

    def scaled_all(seconds: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(fraction * trainer_s for trainer_s in seconds)

    return replace(
        times,
        sample_s=fraction * times.sample_s,
        load_s=fraction * times.load_s,
        transfer_s=fraction * times.transfer_s,
        propagate_s=scaled(times.propagate_s),
        trainer_load_s=scaled_all(times.trainer_load_s),
        trainer_transfer_s=scaled_all(times.trainer_transfer_s),
        trainer_propagate_s=scaled_all(times.trainer_propagate_s),
        busy_s=scaled(times.busy_s) if times.busy_s else 0.0,
        core_s=None if times.core_s is None else scaled(times.core_s),
    )


def _repeated(times: StageTimes, count: int) -> StageTimes:
    """Return the stages of `count` equal parts one after the other, with one synchronization."""

    def repeated_all(seconds: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(count * trainer_s for trainer_s in seconds)

    extra_s = (count - 1) * (times.propagate_s - times.synchronize_s)
    extra_busy_s = (count - 1) * (times.busy_s - times.synchronize_s) if times.busy_s else 0.0
    extra_core_s = (count - 1) * ((times.core_s or 0.0) - times.synchronize_s)
    return replace(
        times,
        sample_s=count * times.sample_s,
        load_s=count * times.load_s,
        transfer_s=count * times.transfer_s,
        propagate_s=times.propagate_s + extra_s,
        trainer_load_s=repeated_all(times.trainer_load_s),
        trainer_transfer_s=repeated_all(times.trainer_transfer_s),
        trainer_propagate_s=repeated_all(times.trainer_propagate_s),
        busy_s=times.busy_s + extra_busy_s,
        core_s=None if times.core_s is None else times.core_s + extra_core_s,
    )


def _bottleneck(times: StageTimes, purpose_s: Mapping[str, float], seconds: float, link_s: float) -> str:
    if link_s >= seconds:
        return "link"
    stage = times.bottleneck
    purposes = {
        "sample": {EDGES: purpose_s.get(EDGES, 0.0)},
        "load": {ROWS: purpose_s[ROWS]},
        "propagate": {name: time_s for name, time_s in purpose_s.items() if name not in (EDGES, ROWS)},
    }.get(stage, {})
    largest = max(purposes, key=lambda name: purposes[name], default="")
    if 2 * sum(purposes.values()) > times.stages_s[stage]:
        return f"network ({largest})"
    return stage


_FLOAT_BYTES = 4
# Bytes that are reduced in a step in addition to its gradients: 16 values of 8 bytes.
_METRICS_BYTES = 16 * 8
# Gloo runs two broadcasts concurrently, each along a tree; the trees share links. Measured on 4 and 8
# emulated nodes: benchmarks/2026-11-23-products.md.
_BROADCAST_CONCURRENCY = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockVolumes:
    """Communication and compute volumes of a product whose rows are divided into B blocks."""

    rows: NDArray[np.int64]
    """Number of rows in each block: [B]."""
    needed: NDArray[np.int64]
    """Number of distinct rows of block k with an edge to block i: [B, B]. The diagonal is ignored."""
    edges: NDArray[np.int64]
    """Number of edges to block i from block k: [B, B]."""

    @property
    def num_blocks(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullGraphWork:
    """Work of a full-graph epoch, as on one machine."""

    forward_widths: Sequence[int]
    """Number of columns that each gather with remote rows in every epoch exchanges in the forward pass."""
    backward_widths: Sequence[int]
    """Number of gradient columns that each gather with remote rows exchanges in the backward pass."""
    has_only_sums: bool
    """Whether all gathers are sums, as 1.5D requires."""
    target_fraction: float = 1.0
    """Fraction of the rows for which the last gather is computed."""
    edges_s: float
    """Time in seconds of the gathers along all edges in both passes."""
    rows_s: float
    """Time in seconds of all other work on rows."""
    rank_s: float = 0.0
    """Fixed time in seconds per rank and step on one core, for weights and calls."""
    cores: int = 1
    """Number of cores of the machine that compute."""
    chunk_rows: int = 1
    """Number of rows that a core computes at a time. If a rank has few rows, some cores are idle."""
    max_rounds: int = 1
    """Maximum number of exchanges into which the rows of a product are divided."""
    gradient_bytes: float
    """Size of the gradients of all parameters in bytes."""
    matrix_bytes: float
    """Size of the matrices with one row per vertex in bytes."""
    feature_bytes: float
    graph_bytes: float
    """Size of the topology, which every rank reads, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmEpoch:
    """Prediction of an epoch with one algorithm."""

    algorithm: str
    """Name of the algorithm: `1d`, `1d-oblivious`, `1.5d` or `1.5d-oblivious`."""
    replication: int
    """Number of ranks that have a copy of each block."""
    ranks: int
    epoch_s: float
    compute_s: float
    """Time in seconds of computation that does not overlap with communication, on the slowest rank."""
    products_s: float
    """Time in seconds of exchanging rows, their gradients and partial sums."""
    gradients_s: float
    """Time in seconds of the all-reduce of the weight gradients."""
    epoch_bytes: float
    """Number of bytes that all ranks together receive per epoch."""
    most_bytes: float
    """Maximum number of bytes that a rank sends or receives in distributed products."""
    memory_bytes: float
    """Maximum memory that a rank needs, in bytes."""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @property
    def name(self) -> str:
        """Name of the algorithm with its replication, for tables."""
        return self.algorithm if self.replication == 1 else f"{self.algorithm}, c = {self.replication}"


def algorithm_epoch(
    algorithm: str,
    volumes: BlockVolumes,
    ranks: int,
    work: FullGraphWork,
    network: Network,
    *,
    ranks_per_machine: int | None = None,
) -> AlgorithmEpoch:
    """Predict an epoch with one of the algorithms `1d`, `1d-oblivious`, `1.5d` and `1.5d-oblivious`.

    Local blocks are multiplied while rows are exchanged, and remote blocks afterwards. All ranks wait for the
    slowest rank. An exchange of unequal blocks takes the time of a rank's bytes in its busier direction, plus
    one message to each other rank per round, of which there are at most `max_rounds`.

    If r ranks share the k cores of a machine, their concurrent computations run sequentially: if one rank
    takes t with all cores, and the others t' on average, it takes (r - 1) t' + t. The CPU time c of sending
    and receiving counts as computation, c / k, which does not overlap. If local blocks take t and an exchange
    takes s, both together thus take max(s, (r - 1) (t' + c' / k) + t + c / k).

    `volumes` has as many blocks as the algorithm: ranks divided by replication. `work` is the epoch on a
    machine like that of each rank. `ranks_per_machine` is by default that of the network. Raises ValueError
    if the ranks cannot be divided among the blocks.
    """
    num = volumes.num_blocks
    copies, rest = divmod(ranks, num)
    if rest or (copies > 1 and algorithm.startswith("1d")):
        raise ValueError(
            f"{algorithm} cannot divide {num} blocks among {ranks} ranks: use {num} ranks"
            + ("" if algorithm.startswith("1d") else f", or a multiple of {num}")
        )
    sharing = network.ranks_per_machine(ranks) if ranks_per_machine is None else ranks_per_machine
    columns = np.arange(num) * copies // num
    oblivious = algorithm.endswith("oblivious")
    needed = np.where(np.eye(num, dtype=bool), 0, volumes.rows[None, :] if oblivious else volumes.needed)
    products = [
        _product(
            *(width, needed, columns, volumes, work, network, sharing),
            is_broadcast=oblivious,
            is_backward=number >= len(work.forward_widths),
            summed_part=work.target_fraction if number + 1 == len(work.forward_widths) else 1.0,
        )
        for number, width in enumerate((*work.forward_widths, *work.backward_widths))
    ]
    vertices = max(1, int(volumes.rows.sum()))
    local_fraction = float(volumes.rows.max()) / vertices
    received_rows = [(needed * (columns == column)[None, :]).sum(axis=1) for column in range(copies)]
    matrix_fraction = float((volumes.rows + np.max(received_rows, axis=0)).max()) / vertices
    gradients_s = all_reduce_s(work.gradient_bytes, ranks, network)
    # The loss and the counts are reduced before the gradients.
    gradients_s += all_reduce_s(_METRICS_BYTES, ranks, network)
    products_s = sum(product.communication_s for product in products)
    rows_s = work.rows_s * (local_fraction + (sharing - 1) / num)
    busy_cores = min(work.cores, sharing * -(-int(volumes.rows.max()) // work.chunk_rows))
    rows_s *= work.cores / max(1, busy_cores)
    rank_s = work.rank_s * max(1.0, sharing / work.cores)
    compute_s = sum(product.compute_s for product in products) + rows_s + rank_s
    return AlgorithmEpoch(
        algorithm=algorithm,
        replication=copies,
        ranks=ranks,
        epoch_s=products_s + compute_s + gradients_s,
        compute_s=compute_s,
        products_s=products_s,
        gradients_s=gradients_s,
        epoch_bytes=sum(product.bytes for product in products)
        + ranks * all_reduce_bytes(work.gradient_bytes, ranks),
        most_bytes=sum(product.max_bytes for product in products),
        memory_bytes=work.matrix_bytes * matrix_fraction
        + work.feature_bytes * local_fraction
        + work.graph_bytes,
    )


def fastest_algorithm(epochs: Sequence[AlgorithmEpoch]) -> AlgorithmEpoch:
    """Return the shortest epoch, or among equally short ones the one that sends the fewest bytes."""
    return min(epochs, key=lambda epoch: (epoch.epoch_s, epoch.epoch_bytes))


def explain_choice(epochs: Sequence[AlgorithmEpoch]) -> str:
    """Explain in a sentence why the fastest algorithm was chosen."""
    best = fastest_algorithm(epochs)
    text = (
        f"{best.name} is the fastest by the cost model, at {best.epoch_s * 1e3:,.3g} ms per epoch; "
        f"exchanging {best.most_bytes / 1e6:,.3g} MB at the busiest rank takes {best.products_s * 1e3:,.3g} "
        "ms of that"
    )
    slower = sorted((epoch for epoch in epochs if epoch is not best), key=lambda epoch: epoch.epoch_s)
    if not slower:
        return text
    return f"{text}; slower: {', '.join(f'{epoch.name} {epoch.epoch_s * 1e3:,.3g} ms' for epoch in slower)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """Cost of one distributed product."""

    communication_s: float
    """Time in seconds of exchanging rows and partial sums, on the rank that ends last."""
    compute_s: float
    """Time in seconds of the computation that does not overlap with the exchange."""
    bytes: float
    """Number of bytes that all ranks together receive."""
    max_bytes: float
    """Maximum number of bytes that one rank sends or receives."""


def _product(
    width: int,
    needed: NDArray[np.int64],
    columns: NDArray[np.int64],
    volumes: BlockVolumes,
    work: FullGraphWork,
    network: Network,
    sharing: int,
    *,
    is_broadcast: bool,
    is_backward: bool,
    summed_part: float,
) -> _Product:
    """Return the cost of a product of `width` columns, whose partial sums cover `summed_part` of the rows.

    `columns` contains the grid column in which each block is multiplied. `sharing` is the number of ranks per
    machine.
    """
    num, copies, row_bytes = len(columns), int(columns[-1]) + 1, width * _FLOAT_BYTES
    all_columns = sum(work.forward_widths) + sum(work.backward_widths)
    edge_s = work.edges_s * width / max(1, all_columns) / max(1, int(volumes.edges.sum()))
    # Every exchange involves all ranks of a column, whichever rows are sent.
    messages = min(work.max_rounds, num - 1) * (num - 1)
    total_bytes = 0.0
    # One entry per rank: exchange of rows, reduction of partial sums, computation during and after the
    # exchange, bytes.
    exchange_s, sums_s, local_s, remote_s, moved = ([] for _ in range(5))
    for column in range(copies):
        in_column = columns == column
        sent = (needed * in_column[None, :]).T * float(row_bytes)
        rank_bytes = np.maximum(sent.sum(axis=0), sent.sum(axis=1))
        column_bytes = float(sent.sum())
        if is_broadcast and is_backward:
            # A reduction to one rank is a ring reduce-scatter of pieces, followed by a gather of the pieces.
            column_bytes *= 1 + 1 / num
            block_bytes = np.where(in_column, volumes.rows, 0) * float(row_bytes)
            ring = block_bytes.sum() * (num - 1) / num
            rank_bytes = ring + np.maximum(
                block_bytes * (num - 1) / num, (block_bytes.sum() - block_bytes) / num
            )
        total_bytes += column_bytes
        local_edges = np.where(in_column, volumes.edges.diagonal(), 0)
        remote_edges = volumes.edges[:, in_column].sum(axis=1) - local_edges
        blocks = volumes.rows[in_column] * float(row_bytes)
        broadcasts_s, broadcast_messages = _broadcasts(blocks, num, network, is_backward=is_backward)
        for i in range(num):
            rows_bytes = float(rank_bytes[i])
            if is_broadcast:
                exchange_s.append(broadcasts_s)
                # A rank sends its local block about once, and forwards the blocks that it receives.
                rows_bytes = column_bytes / num
                core_s = network.core_s(rows_bytes, broadcast_messages)
            else:
                exchange_s.append(network.uneven_s(rows_bytes, messages) if num > 1 else 0.0)
                core_s = network.core_s(rows_bytes, messages)
            # Forward, partial sums are all-reduced. Backward, the rank with a block's full gradient scatters
            # it, and the parts are all-gathered, which takes its link the same time.
            block = float(volumes.rows[i]) * row_bytes * summed_part
            sums_s.append(all_reduce_s(block, copies, network))
            local_s.append(edge_s * float(local_edges[i]) + core_s / work.cores)
            remote_s.append(edge_s * float(remote_edges[i]))
            moved.append(float(rank_bytes[i]) + all_reduce_bytes(block, copies))
    communication_s = np.add(exchange_s, sums_s)
    overlapped, after = _contended(local_s, sharing), _contended(remote_s, sharing)
    ends = np.maximum(exchange_s, overlapped) + sums_s + after
    last = int(ends.argmax())
    # In the backward pass, each of the other ranks receives a block once.
    sum_bytes = (copies - 1) * float(volumes.rows.sum()) * row_bytes * summed_part
    return _Product(
        communication_s=float(communication_s[last]),
        compute_s=float(ends[last] - communication_s[last]),
        bytes=total_bytes + sum_bytes * (1 if is_backward else 2),
        max_bytes=max(moved),
    )


def _contended(seconds: Sequence[float], sharing: int) -> NDArray[np.float64]:
    """Return the computation time of each rank if `sharing` ranks share the cores: [ranks]."""
    alone = np.array(seconds, np.float64)
    shared: NDArray[np.float64] = alone + (sharing - 1) * alone.mean()
    return shared


def _broadcasts(
    blocks: NDArray[np.float64], ranks: int, network: Network, *, is_backward: bool
) -> tuple[float, int]:
    """Return the seconds to broadcast one block per rank along trees, and the number of messages per rank.

    With `is_backward`, blocks are reduced at their ranks instead. This takes the same time, with two messages
    from each rank to the next.
    """
    if ranks < 2:
        return 0.0, 0
    depth = math.ceil(math.log2(ranks))
    rounds = ranks if is_backward else depth
    block_s = [network.seconds(depth * float(size), rounds) for size in blocks]
    seconds = sum(block_s) / (_BROADCAST_CONCURRENCY if len(block_s) > 1 else 1.0)
    return seconds, len(blocks) * (2 * ranks - 1 if is_backward else 1)
