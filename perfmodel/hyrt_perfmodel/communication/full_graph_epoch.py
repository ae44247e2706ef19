"""Predicting an epoch of full-graph training on several ranks, algorithm by algorithm.

The algorithms are those of sparsity-aware communication (1D and 1.5D, aware and oblivious); volumes are
counted from a partition, and costs are alpha-beta terms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.communication.collectives import all_reduce_bytes, all_reduce_s
from hyrt_perfmodel.communication.network import Network

_FLOAT = 4
# Gloo sends two broadcasts at once, each along a tree; these share links. Of 4 and 8 emulated nodes:
# benchmarks/2026-11-23-products.md.
_BROADCASTS_AT_ONCE = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockVolumes:
    """What a product needs whose rows are divided into B blocks."""

    rows: NDArray[np.int64]
    """[B] rows of each block."""
    needed: NDArray[np.int64]
    """[B, B] the distinct rows of block k that block i has edges from; the diagonal does not count."""
    edges: NDArray[np.int64]
    """[B, B] the edges into block i from block k."""

    @property
    def num_blocks(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullGraphWork:
    """An epoch of full-graph training, as one machine would do it."""

    forward: Sequence[int]
    """For each gathering that needs other rows in every epoch, the columns that travel forward."""
    back: Sequence[int]
    """The same of gradients that travel back."""
    adds_up: bool
    """Whether all of them are sums, as 1.5D needs."""
    target_part: float = 1.0
    """The part of the rows that the last gathering is computed at."""
    edges_s: float
    """Seconds of gathering along all edges, both ways."""
    rows_s: float
    """Seconds of all else, which is done row by row."""
    gradient_bytes: float
    """Bytes of the gradients of all parameters."""
    matrix_bytes: float
    """Bytes of the matrices that have a row a vertex."""
    feature_bytes: float
    """Bytes of the features."""
    graph_bytes: float
    """Bytes of the topology that every rank reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmEpoch:
    """What an epoch takes under one algorithm."""

    algorithm: str
    """`1d`, `1d-oblivious`, `1.5d` or `1.5d-oblivious`."""
    replication: int
    """How many ranks have each block."""
    ranks: int
    """The number of ranks."""
    epoch_s: float
    """Seconds of an epoch."""
    compute_s: float
    """Seconds of computing that no communication hides, of the rank that takes longest."""
    products_s: float
    """Seconds in which rows, their gradients and partial sums travel."""
    gradients_s: float
    """Seconds of adding up the weights' gradients."""
    epoch_bytes: float
    """What all ranks together receive in an epoch."""
    most_bytes: float
    """What the rank receives or sends that does most of either, in products."""
    memory_bytes: float
    """The memory of the rank that needs most."""

    def to_json(self) -> dict[str, Any]:
        """Plain values by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    @property
    def name(self) -> str:
        """The algorithm with its replication, for tables."""
        return self.algorithm if self.replication == 1 else f"{self.algorithm}, c = {self.replication}"


def algorithm_epoch(
    algorithm: str, volumes: BlockVolumes, ranks: int, work: FullGraphWork, network: Network
) -> AlgorithmEpoch:
    """What an epoch takes.

    Own blocks are multiplied while rows travel, the others afterwards; all ranks wait for the slowest. An
    exchange of unequal blocks takes a rank as long as its own bytes, in the direction that has more.

    Parameters
    ----------
    algorithm
        `1d`, `1d-oblivious`, `1.5d` or `1.5d-oblivious`.
    volumes
        Volumes of as many blocks as the algorithm has: the ranks over the replication.
    ranks
        How many there are.
    work
        What one machine like each of them would do.
    network
        What joins them.

    Raises
    ------
    ValueError
        If the ranks cannot be divided among the blocks.
    """
    num = volumes.num_blocks
    copies, rest = divmod(ranks, num)
    if rest or (copies > 1 and algorithm.startswith("1d")):
        raise ValueError(f"{ranks} ranks cannot have {num} blocks under {algorithm}")
    columns = np.arange(num) * copies // num
    oblivious = algorithm.endswith("oblivious")
    needed = np.where(np.eye(num, dtype=bool), 0, volumes.rows[None, :] if oblivious else volumes.needed)
    products = [
        _product(
            *(width, needed, columns, volumes, work, network),
            is_broadcast=oblivious,
            is_back=number >= len(work.forward),
            summed_part=work.target_part if number + 1 == len(work.forward) else 1.0,
        )
        for number, width in enumerate((*work.forward, *work.back))
    ]
    vertices = max(1, int(volumes.rows.sum()))
    own_part = float(volumes.rows.max()) / vertices
    of_columns = [(needed * (columns == column)[None, :]).sum(axis=1) for column in range(copies)]
    part = float((volumes.rows + np.max(of_columns, axis=0)).max()) / vertices
    gradients_s = all_reduce_s(work.gradient_bytes, ranks, network)
    products_s = sum(each.travel_s for each in products)
    compute_s = sum(each.compute_s for each in products) + work.rows_s * own_part
    return AlgorithmEpoch(
        algorithm=algorithm,
        replication=copies,
        ranks=ranks,
        epoch_s=products_s + compute_s + gradients_s,
        compute_s=compute_s,
        products_s=products_s,
        gradients_s=gradients_s,
        epoch_bytes=sum(each.bytes for each in products)
        + ranks * all_reduce_bytes(work.gradient_bytes, ranks),
        most_bytes=sum(each.most_bytes for each in products),
        memory_bytes=work.matrix_bytes * part + work.feature_bytes * own_part + work.graph_bytes,
    )


def fastest(found: Sequence[AlgorithmEpoch]) -> AlgorithmEpoch:
    """The one with the shortest epoch; of equal ones that which sends less."""
    return min(found, key=lambda each: (each.epoch_s, each.epoch_bytes))


def why(found: Sequence[AlgorithmEpoch]) -> str:
    """Why the fastest of several is that, in a sentence for people."""
    best = fastest(found)
    text = (
        f"{best.name} is the fastest by the cost model: {best.epoch_s * 1e3:,.3g} ms an epoch, of which "
        f"{best.products_s * 1e3:,.3g} ms for {best.most_bytes / 1e6:,.3g} MB at the busiest rank"
    )
    others = sorted((each for each in found if each is not best), key=lambda each: each.epoch_s)
    if not others:
        return text
    return f"{text}; {', '.join(f'{each.name} {each.epoch_s * 1e3:,.3g} ms' for each in others)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """One product on all ranks."""

    travel_s: float
    """Seconds in which rows and partial sums travel, at the rank that ends last."""
    compute_s: float
    """Seconds beyond these."""
    bytes: float
    """What all ranks receive."""
    most_bytes: float
    """What the busiest rank receives or sends."""


def _product(
    width: int,
    needed: NDArray[np.int64],
    columns: NDArray[np.int64],
    volumes: BlockVolumes,
    work: FullGraphWork,
    network: Network,
    *,
    is_broadcast: bool,
    is_back: bool,
    summed_part: float,
) -> _Product:
    """A product of so many columns, whose partial sums are of a part of the rows.

    `columns` says in which one of the grid each block is multiplied with.
    """
    num, copies, row_bytes = len(columns), int(columns[-1]) + 1, width * _FLOAT
    all_columns = sum(work.forward) + sum(work.back)
    edge_s = work.edges_s * width / max(1, all_columns) / max(1, int(volumes.edges.sum()))
    everything = 0.0
    found: list[tuple[float, float, float]] = []
    for column in range(copies):
        mine = columns == column
        sent = (needed * mine[None, :]).T * float(row_bytes)
        everything += float(sent.sum())
        of_ranks = np.maximum(sent.sum(axis=0), sent.sum(axis=1))
        own = np.where(mine, volumes.edges.diagonal(), 0)
        others = volumes.edges[:, mine].sum(axis=1) - own
        broadcasts_s = _broadcasts_s(volumes.rows[mine] * float(row_bytes), num, network)
        for i in range(num):
            exchange_s = broadcasts_s
            if not is_broadcast:
                exchange_s = network.uneven_s(float(of_ranks[i]), num - 1) if num > 1 else 0.0
            # Partial sums forward. Backward, the rank that has all of a block's gradient sends each other one
            # a part, and then each sends its part to those that lack it: as long, by its link.
            block = float(volumes.rows[i]) * row_bytes * summed_part
            travel_s = exchange_s + all_reduce_s(block, copies, network)
            compute_s = max(0.0, edge_s * float(own[i]) - exchange_s) + edge_s * float(others[i])
            moved = float(of_ranks[i]) + all_reduce_bytes(block, copies)
            found.append((travel_s + compute_s, travel_s, moved))
    longest_s, travel_s, _ = max(found)
    # Backward, each of the others gets a block once.
    summed = (copies - 1) * float(volumes.rows.sum()) * row_bytes * summed_part
    return _Product(
        travel_s=travel_s,
        compute_s=longest_s - travel_s,
        bytes=everything + summed * (1 if is_back else 2),
        most_bytes=max(moved for _, _, moved in found),
    )


def _broadcasts_s(blocks: NDArray[np.float64], ranks: int, network: Network) -> float:
    """Seconds of broadcasting blocks of so many bytes, each from another of the ranks, along trees."""
    if ranks < 2:
        return 0.0
    each = [math.ceil(math.log2(ranks)) * network.seconds(float(size)) for size in blocks]
    return sum(each) / (_BROADCASTS_AT_ONCE if len(each) > 1 else 1.0)
