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
# Numbers that a step tells besides its gradients, and what one of them takes.
_FIGURES_BYTES = 16 * 8
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
    """Seconds of all else that is done row by row."""
    rank_s: float = 0.0
    """Seconds that each rank takes in a step however few rows it has, with one core: for weights, and calls.
    """
    cores: int = 1
    """The cores of the machine that compute."""
    chunk_rows: int = 1
    """How many rows a core computes at a time: a rank with few rows keeps few cores busy."""
    most_waves: int = 1
    """Into how many exchanges the rows of a product are divided, at most."""
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
    algorithm: str,
    volumes: BlockVolumes,
    ranks: int,
    work: FullGraphWork,
    network: Network,
    *,
    ranks_of_machine: int | None = None,
) -> AlgorithmEpoch:
    """What an epoch takes.

    Own blocks are multiplied while rows travel, the others afterwards; all ranks wait for the slowest. An
    exchange of unequal blocks takes a rank as long as its own bytes, in the direction that has more, and a
    message to each other rank for each of its waves, which are up to `most_waves`.

    Where r ranks share the k cores of a machine, all that they compute at the same time is done one after the
    other: what takes one of them t with all cores, and the others t' in the mean, takes (r - 1) t' + t. What
    sending and receiving takes of cores is computing, too: c seconds of a core are c / k, and are not hidden.
    So own blocks that take t hide a journey of s seconds as far as max(s, (r - 1) (t' + c' / k) + t + c / k).

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
    ranks_of_machine
        How many ranks share a machine; None for what the network says.

    Raises
    ------
    ValueError
        If the ranks cannot be divided among the blocks.
    """
    num = volumes.num_blocks
    copies, rest = divmod(ranks, num)
    if rest or (copies > 1 and algorithm.startswith("1d")):
        raise ValueError(f"{ranks} ranks cannot have {num} blocks under {algorithm}")
    sharing = network.ranks_of_machine(ranks) if ranks_of_machine is None else ranks_of_machine
    columns = np.arange(num) * copies // num
    oblivious = algorithm.endswith("oblivious")
    needed = np.where(np.eye(num, dtype=bool), 0, volumes.rows[None, :] if oblivious else volumes.needed)
    products = [
        _product(
            *(width, needed, columns, volumes, work, network, sharing),
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
    # Loss and counts, before the gradients.
    gradients_s += all_reduce_s(_FIGURES_BYTES, ranks, network)
    products_s = sum(each.travel_s for each in products)
    rows_s = work.rows_s * (own_part + (sharing - 1) / num)
    busy = min(work.cores, sharing * -(-int(volumes.rows.max()) // work.chunk_rows))
    rows_s *= work.cores / max(1, busy)
    rank_s = work.rank_s * max(1.0, sharing / work.cores)
    compute_s = sum(each.compute_s for each in products) + rows_s + rank_s
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
    sharing: int,
    *,
    is_broadcast: bool,
    is_back: bool,
    summed_part: float,
) -> _Product:
    """A product of so many columns, whose partial sums are of a part of the rows.

    `columns` says in which one of the grid each block is multiplied with, and `sharing` how many ranks have
    the cores of a machine.
    """
    num, copies, row_bytes = len(columns), int(columns[-1]) + 1, width * _FLOAT
    all_columns = sum(work.forward) + sum(work.back)
    edge_s = work.edges_s * width / max(1, all_columns) / max(1, int(volumes.edges.sum()))
    # Every exchange is one of all ranks of a column, whichever rows it brings.
    messages = min(work.most_waves, num - 1) * (num - 1)
    everything = 0.0
    # [ranks] of each: the journey of rows, that of partial sums, computing meanwhile and after it, and bytes.
    exchange_s, sums_s, own_s, others_s, moved = ([] for _ in range(5))
    for column in range(copies):
        mine = columns == column
        sent = (needed * mine[None, :]).T * float(row_bytes)
        of_ranks = np.maximum(sent.sum(axis=0), sent.sum(axis=1))
        column_bytes = float(sent.sum())
        if is_broadcast and is_back:
            # A sum at one rank goes around a ring in pieces, which are then gathered.
            column_bytes *= 1 + 1 / num
            own_blocks = np.where(mine, volumes.rows, 0) * float(row_bytes)
            ring = own_blocks.sum() * (num - 1) / num
            of_ranks = ring + np.maximum(own_blocks * (num - 1) / num, (own_blocks.sum() - own_blocks) / num)
        everything += column_bytes
        own = np.where(mine, volumes.edges.diagonal(), 0)
        others = volumes.edges[:, mine].sum(axis=1) - own
        blocks = volumes.rows[mine] * float(row_bytes)
        broadcasts_s, broadcast_messages = _broadcasts(blocks, num, network, is_back=is_back)
        for i in range(num):
            rows_bytes = float(of_ranks[i])
            if is_broadcast:
                exchange_s.append(broadcasts_s)
                # Whoever has a block sends it about once, and passes on those of others.
                rows_bytes = column_bytes / num
                core_s = network.core_s(rows_bytes, broadcast_messages)
            else:
                exchange_s.append(network.uneven_s(rows_bytes, messages) if num > 1 else 0.0)
                core_s = network.core_s(rows_bytes, messages)
            # Partial sums forward. Backward, the rank that has all of a block's gradient sends each other one
            # a part, and then each sends its part to those that lack it: as long, by its link.
            block = float(volumes.rows[i]) * row_bytes * summed_part
            sums_s.append(all_reduce_s(block, copies, network))
            own_s.append(edge_s * float(own[i]) + core_s / work.cores)
            others_s.append(edge_s * float(others[i]))
            moved.append(float(of_ranks[i]) + all_reduce_bytes(block, copies))
    travels = np.add(exchange_s, sums_s)
    meanwhile, after = _shared(own_s, sharing), _shared(others_s, sharing)
    ends = np.maximum(exchange_s, meanwhile) + sums_s + after
    last = int(ends.argmax())
    # Backward, each of the others gets a block once.
    summed = (copies - 1) * float(volumes.rows.sum()) * row_bytes * summed_part
    return _Product(
        travel_s=float(travels[last]),
        compute_s=float(ends[last] - travels[last]),
        bytes=everything + summed * (1 if is_back else 2),
        most_bytes=max(moved),
    )


def _shared(seconds: Sequence[float], sharing: int) -> NDArray[np.float64]:
    """[ranks] what computing takes ranks of which so many have the same cores."""
    each = np.array(seconds, np.float64)
    found: NDArray[np.float64] = each + (sharing - 1) * each.mean()
    return found


def _broadcasts(
    blocks: NDArray[np.float64], ranks: int, network: Network, *, is_back: bool
) -> tuple[float, int]:
    """Seconds of broadcasting blocks of so many bytes, each from another of the ranks, along trees; or of
    adding them up where they are, which takes as long, with a message from each rank to the next, twice. And
    the messages of a rank.
    """
    if ranks < 2:
        return 0.0, 0
    depth = math.ceil(math.log2(ranks))
    rounds = ranks if is_back else depth
    each = [network.seconds(depth * float(size), rounds) for size in blocks]
    seconds = sum(each) / (_BROADCASTS_AT_ONCE if len(each) > 1 else 1.0)
    return seconds, len(blocks) * (2 * ranks - 1 if is_back else 1)
