"""What the paper's equations leave out, a named and switchable term each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from hyrt_perfmodel.prediction.stages import update_s
from hyrt_perfmodel.workloads.workload import Workload

# A column number of an edge; the offset of a vertex.
_EDGE_BYTES = 4
_OFFSET_BYTES = 8


Overlap = Literal["all", "trainers", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Which terms beyond the paper's count."""

    launch: bool = True
    """What a step and a transfer cost whatever their size, and the optimiser."""
    flush: bool = True
    fill: bool = True
    """`flush` and `fill`: draining and filling a device's own pipeline, for each layer."""
    topology: bool = True
    """Bytes of the blocks' edges and offsets over the link."""
    weight_gradients: bool = True
    """The second product of a layer's backward pass: for its weights, beside that for its input."""
    values: bool = True
    """Reading and writing what is multiplied, bias, activation, dropout and loss; and what an edge costs
    whatever its row's width."""
    load_forms: bool = True
    """Trainers that can take it get their input aggregated while it is loaded, or read it in place."""
    cycles: bool = True
    """An FPGA whose design is known takes what its cycle model says, instead of what rates do."""
    shared_cores: bool = True
    """Stages on the host use one set of cores: no iteration is shorter than their work over the cores."""
    overlap: Overlap = "all"
    """What happens at the same time: `all`, the pipeline's stages and the trainers; `trainers`, where one
    mini-batch is in flight and its stages follow each other; `nothing`, where trainers follow each other,
    too."""

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
"""The paper's form, exactly."""


def topology_s(workload: Workload, link_bytes_per_s: float) -> float:
    """Sending the blocks."""
    return topology_bytes(workload) / link_bytes_per_s


def topology_bytes(workload: Workload) -> float:
    """Of the blocks: the source of every edge, and what it has besides; an offset for every destination."""
    return (
        sum(workload.edges) * (_EDGE_BYTES + workload.edge_value_bytes)
        + sum(workload.vertices[1:]) * _OFFSET_BYTES
    )


def weight_gradients_s(workload: Workload, macs_per_s: float) -> float:
    """The products that the paper's backward pass counts once and that are two: all layers' but the first."""
    return sum(update_s(workload, layer, macs_per_s) for layer in range(2, workload.layers + 1))


def num_edge_rows(workload: Workload) -> float:
    """Rows that are read along edges: of all layers forward, and of all but the first backward, one for each
    head. Narrow ones cost their place and factor more than their bytes.
    """
    return workload.rows_per_edge * (sum(workload.edges) + sum(workload.edges[1:]))


def num_results(workload: Workload) -> float:
    """Values of the layers' results: the sum over the layers of |V^l| f^l."""
    return sum(rows * width for rows, width in zip(workload.vertices[1:], workload.features[1:], strict=True))


def num_values(workload: Workload) -> float:
    """Values that enter and leave the updates: the sum over the layers of |V^l| (f_in^l + f^l), and the
    width of a hidden layer in between.

    Attention has a row for each head. Products of narrow matrices run at the pace of these, not of their
    multiply-accumulates, as bias, activation, dropout and loss do.
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
