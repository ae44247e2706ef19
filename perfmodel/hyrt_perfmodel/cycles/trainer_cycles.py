"""Cycles of a task on the FPGA trainer, by phase."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from hyrt_perfmodel.cycles.closed_form import NetworkLoad, network_cycles_expected
from hyrt_perfmodel.cycles.design import EDGE_BYTES, LANES, VALUE_BYTES, FpgaDesign, num_chunks, row_words
from hyrt_perfmodel.cycles.systolic import drain_cycles, num_tiles, systolic_cycles
from hyrt_perfmodel.cycles.task_shape import LayerSizes, TaskShape

_WORD_BYTES = LANES * VALUE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCycles:
    """Cycles of a layer."""

    aggregate: float
    update: float
    """`aggregate` and `update`: forward pass."""
    backward: float
    """Gradient of the combined rows and its aggregation; 0 for the first layer."""
    weight_gradient: float
    """Weight gradient, including the mask of the layer's output."""
    memory: float
    """Cycles to move the layer's bytes at the effective memory rate; included in the other counts, not added
    to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCycles:
    """Cycles of a task."""

    layers: tuple[LayerCycles, ...]
    """Cycles per layer, input layer first."""
    loss: float
    """Softmax, its gradient, and the count of correct predictions."""
    pipelined: bool
    """Whether aggregation and update of a layer overlap in the forward pass."""
    assumed: frozenset[str]
    """Design fields not confirmed by a build or a board."""

    @property
    def forward(self) -> float:
        if self.pipelined:
            return sum(max(layer.aggregate, layer.update) for layer in self.layers)
        return sum(layer.aggregate + layer.update for layer in self.layers)

    @property
    def backward(self) -> float:
        return sum(layer.backward + layer.weight_gradient for layer in self.layers)

    @property
    def total(self) -> float:
        return self.forward + self.loss + self.backward


def task_cycles(shape: TaskShape, design: FpgaDesign, *, pipelined: bool = False) -> TaskCycles:
    """Return the expected cycles of a task.

    Sequential phases of the kernel of `hyrt_hls` are added: aggregation and update of each layer forward; the
    loss; for each layer backward the mask, the weight gradient, and above the first layer the gradient of the
    combined rows and its aggregation over the transposed edges. A phase takes as long as the slowest of its
    concurrent parts:

        aggregation      the network; reading its edges, one per cycle (or per interval of the design);
                         memory traffic (layer 1 feature rows once, in whole words; edges)
        a product        per panel of mac_cols columns: loading the panel, then for every tile the slowest of
                         the array including draining, transposing the left matrix (LANES columns of
                         mac_rows rows at a time), and writing the results
        weight gradient  the same array with the tile's rows of the gradient on the left, while all rows
                         of the layer stream through

    `pipelined=True` is the paper's form: aggregation and update of a layer overlap in the forward pass, and
    the longer one counts (equation 10). The kernel does not overlap them; docs/fpga.md explains why.

    Not counted: latencies of loops and of starting processes (tens of cycles per region), and refresh and
    turn-around of the memory beyond `ddr_efficiency`.

    Parameters
    ----------
    shape, design
        The task, and the design that runs it.
    pipelined
        Whether aggregation and update overlap, as in the paper (see above).
    """
    layers = tuple(
        _layer_cycles(layer, design, first=number == 0) for number, layer in enumerate(shape.layers)
    )
    chunks = num_chunks(shape.classes)
    loss = shape.targets * (shape.classes + 2 * chunks + LANES)
    return TaskCycles(layers=layers, loss=loss, pipelined=pipelined, assumed=design.assumed)


def task_seconds(shape: TaskShape, design: FpgaDesign) -> float:
    """Return the seconds of a task on the card, including its launch but not the link."""
    return design.launch_s + task_cycles(shape, design).total / design.clock_hz


def _layer_cycles(layer: LayerSizes, design: FpgaDesign, *, first: bool) -> LayerCycles:
    chunks, out_chunks = num_chunks(layer.in_width), num_chunks(layer.out_width)
    load = layer.forward_load(design.pes)
    sources = min(layer.num_src, load.groups)
    row_bytes = row_words(layer.in_width, layer.value_bytes) * _WORD_BYTES
    read = layer.edges * EDGE_BYTES + (sources * row_bytes if first else 0.0)
    aggregate = _aggregate(load, layer.rows * layer.parts, chunks, read, design)
    steps = layer.parts * chunks * LANES
    weight_bytes = (steps + 1) * out_chunks * _WORD_BYTES
    update = _product(layer.rows, layer.parts, chunks, layer.out_width, design, transposed=False)
    gradient = _weight_gradient(layer, design) + _blocks(layer.rows, design.pes) * out_chunks
    moved = read + 2 * weight_bytes
    backward = 0.0
    if not first:
        edge_bytes = layer.edges * EDGE_BYTES
        moved += edge_bytes + weight_bytes
        backward = _product(
            layer.rows, 1, out_chunks, layer.parts * chunks * LANES, design, transposed=True
        ) + _aggregate(layer.backward_load(design.pes), layer.num_src, chunks, edge_bytes, design)
    return LayerCycles(
        aggregate=aggregate,
        update=update,
        backward=backward,
        weight_gradient=gradient,
        memory=moved / design.ddr_bytes_per_cycle,
    )


def _aggregate(load: NetworkLoad, rows: float, chunks: int, read_bytes: float, design: FpgaDesign) -> float:
    """Return the cycles of an aggregation, after clearing the sums (one word per bank and cycle)."""
    clear = _blocks(rows, design.pes) * chunks
    # At a network interval of 2, the adder hazard is already counted in iterations, so all cycles are
    # doubled.
    network = network_cycles_expected(load, chunks, design) * design.network_ii
    return clear + max(network, load.edges * design.edge_ii, read_bytes / design.ddr_bytes_per_cycle)


def _product(
    rows: float, parts: int, chunks: int, columns: int, design: FpgaDesign, *, transposed: bool
) -> float:
    """Return the cycles of [rows, parts * chunks * LANES] times [parts * chunks * LANES, columns].

    The loading of panels is included.
    """
    if rows <= 0:
        return 0.0
    cells, steps = design.mac_cells, parts * chunks * LANES
    panels = ceil(num_chunks(columns) / cells)
    # A transposed panel is loaded in squares of LANES x LANES values: written by rows, read by columns.
    taken = cells * chunks * 2 * LANES if transposed else cells * (steps + 1)
    panel = max(taken, cells * (steps + 1) * _WORD_BYTES / design.ddr_bytes_per_cycle)
    fills = ceil(design.mac_rows / design.pes) * parts
    turn = chunks * max(fills, LANES * parts)
    write = design.mac_rows * cells
    tile = max(_tile(steps, design), turn, write)
    return panels * (panel + tile * ceil(rows / design.mac_rows))


def _weight_gradient(layer: LayerSizes, design: FpgaDesign) -> float:
    """Return the cycles of a weight gradient: tiles over weight rows and bias row; layer rows are the
    steps.
    """
    if layer.rows <= 0:
        return 0.0
    weight_rows = layer.parts * num_chunks(layer.in_width) * LANES + 1
    blocks = _blocks(layer.rows, design.pes)
    fills = max(design.mac_rows // LANES, 1) * layer.parts + design.mac_cells
    scatter = (blocks + 1) * max(fills, design.pes)
    write = design.mac_rows * design.mac_cells
    tile = max(_tile(blocks * design.pes, design), scatter, write)
    return tile * num_tiles(weight_rows, num_chunks(layer.out_width) * LANES, design)


def _tile(steps: int, design: FpgaDesign) -> int:
    return systolic_cycles(1, steps, 1, design) + drain_cycles(design)


def _blocks(rows: float, pes: int) -> int:
    return ceil(rows / pes)
