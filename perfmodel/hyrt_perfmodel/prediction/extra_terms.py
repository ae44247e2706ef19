"""Terms beyond the paper's equations; each has a name and a switch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from hyrt_perfmodel.prediction.stages import update_s
from hyrt_perfmodel.workloads.workload import Workload

# Bytes of an edge's column index and of a vertex's offset.
_EDGE_BYTES = 4
_OFFSET_BYTES = 8


Overlap = Literal["all", "trainers", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Switches of the terms beyond the paper's."""

    launch: bool = True
    """Fixed costs of a step and of a transfer, and the optimizer."""
    flush: bool = True
    fill: bool = True
    """`flush` and `fill`: draining and filling a device's internal pipeline, per layer."""
    topology: bool = True
    """Transfer of the blocks' edges and offsets over the link."""
    weight_gradients: bool = True
    """Second product of a layer's backward pass, for the weight gradient in addition to the input
    gradient."""
    values: bool = True
    """Memory traffic of the products, bias, activation, dropout and loss, and the fixed cost per edge."""
    load_forms: bool = True
    """Aggregation while loading or in-place reads, for trainers that accept such input."""
    cycles: bool = True
    """Cycle model instead of rates, for an FPGA with a known design."""
    shared_cores: bool = True
    """Contention for host cores: no iteration is shorter than the core time of its stages."""
    overlap: Overlap = "all"
    """Concurrency: `all`, pipeline stages and trainers overlap; `trainers`, one mini-batch is in flight, so
    that stages run one after the other; `nothing`, trainers also run one after the other."""

    def __post_init__(self) -> None:
        if self.overlap not in get_args(Overlap):
            raise ValueError(
                f"terms: overlap is {self.overlap!r}: give one of {', '.join(get_args(Overlap))}"
            )


PAPER = Terms(
    launch=False,
    flush=False,
    fill=False,
    topology=False,
    weight_gradients=False,
    values=False,
    load_forms=False,
    cycles=False,
    shared_cores=False,
)
"""Exactly the paper's form."""


def topology_s(workload: Workload, link_bytes_per_s: float) -> float:
    """Return the time to transfer the blocks."""
    return topology_bytes(workload) / link_bytes_per_s


def topology_bytes(workload: Workload) -> float:
    """Return the bytes of the blocks: source and data per edge, offset per destination."""
    return (
        sum(workload.edges) * (_EDGE_BYTES + workload.edge_value_bytes)
        + sum(workload.vertices[1:]) * _OFFSET_BYTES
    )


def weight_gradients_s(workload: Workload, macs_per_s: float) -> float:
    """Return the time of the products that the paper's backward pass omits: the second one of every layer but
    the first.
    """
    return sum(update_s(workload, layer, macs_per_s) for layer in range(2, workload.layers + 1))


def num_edge_rows(workload: Workload) -> float:
    """Return the number of rows read along edges: all layers forward and all but the first backward, per
    head.

    For short rows, index and edge weight cost more than the row's bytes.
    """
    return workload.rows_per_edge * (sum(workload.edges) + sum(workload.edges[1:]))


def num_results(workload: Workload) -> float:
    """Return the number of result values: sum over the layers of |V^l| f^l."""
    return sum(rows * width for rows, width in zip(workload.vertices[1:], workload.features[1:], strict=True))


def num_values(workload: Workload) -> float:
    """Return the number of values that enter and leave the updates.

    This is the sum over the layers of |V^l| (f_in^l + f^l), plus the width of a hidden layer inside an
    update. Attention has one row per head. Products of narrow matrices, like bias, activation, dropout and
    loss, are bound by these values, not by multiply-accumulates.
    """
    return sum(
        workload.vertices[layer]
        * (
            max(workload.f_in(layer), workload.rows_per_edge * workload.features[layer - 1])
            + workload.between(layer)
            + workload.features[layer]
        )
        for layer in range(1, workload.layers + 1)
    )
