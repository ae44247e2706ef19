"""Terms of a step's time: the equations of HyScale-GNN (Lin and Prasanna, 2023), one function each, and
optional further terms. Bandwidths are effective ones in bytes per second; rates are in multiply-accumulates
per second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from hyrt_perfmodel.platform import TrainerRates
from hyrt_perfmodel.workload import Workload


def throughput_mteps(workloads: Sequence[Workload], execution_s: float) -> float:
    """Return the sampled edges per second in millions: sum_i sum_l |E^l_i| / T_execution (equation 5)."""
    return sum(workload.num_edges for workload in workloads) / execution_s / 1e6


def execution_s(sample_s: float, load_s: float, transfer_s: float, propagate_s: float) -> float:
    """Return T_execution (equation 6): the time of the slowest pipeline stage."""
    return max(sample_s, load_s, transfer_s, propagate_s)


def load_s(workload: Workload, host_bytes_per_s: float) -> float:
    """Return T_load of one trainer (equation 7): |V^0| f^0 S / BW_host; a step's is the sum over trainers."""
    return workload.vertices[0] * workload.dense_row_bytes / host_bytes_per_s


def transfer_s(workload: Workload, link_bytes_per_s: float) -> float:
    """Return T_transfer of one accelerator (equation 8): |V^0| f^0 S / BW_link; a step's is the maximum."""
    return workload.vertices[0] * workload.dense_row_bytes / link_bytes_per_s


def aggregate_s(
    workload: Workload, layer: int, device_bytes_per_s: float, *, reads_each_source_once: bool = False
) -> float:
    """Return t_aggregate of layer 1..L (equation 11): |E^l| f^(l-1) S / BW_device.

    If each source is read once, t_aggregate is |V^0| f^0 S / BW_device in the first layer, and 0 in later
    layers, whose rows stay on the chip.
    """
    if reads_each_source_once:
        rows = workload.vertices[0] if layer == 1 else 0.0
    else:
        rows = workload.edges[layer - 1] * workload.rows_per_edge
        if workload.edge_bytes is not None:
            return rows * workload.edge_bytes[layer - 1] / device_bytes_per_s
    row_bytes = workload.features[layer - 1] * workload.bytes_per_value
    return rows * (workload.dense_row_bytes if layer == 1 else row_bytes) / device_bytes_per_s


def update_s(workload: Workload, layer: int, macs_per_s: float) -> float:
    """Return t_update of layer 1..L (equation 12): |V^l| f_in^l f^l multiply-accumulates."""
    return workload.vertices[layer] * workload.macs(layer) / macs_per_s


def layer_s(aggregate_s: float, update_s: float, *, pipelined: bool) -> float:
    """Return the maximum of aggregation and update time if these are pipelined, otherwise their sum."""
    return max(aggregate_s, update_s) if pipelined else aggregate_s + update_s


def trainer_s(
    workload: Workload,
    device_bytes_per_s: float,
    macs_per_s: float,
    *,
    pipelined: bool = False,
    reads_each_source_once: bool = False,
) -> float:
    """Return T_trainer (equation 10): all layers forward, then backward.

    The input has no gradient, so the backward pass consists of the update of layer 1, and the aggregation and
    update of all other layers.
    """
    layers = [
        layer_s(
            aggregate_s(workload, layer, device_bytes_per_s, reads_each_source_once=reads_each_source_once),
            update_s(workload, layer, macs_per_s),
            pipelined=pipelined,
        )
        for layer in range(1, workload.layers + 1)
    ]
    return sum(layers) + update_s(workload, 1, macs_per_s) + sum(layers[1:])


def synchronize_s(workload: Workload, link_bytes_per_s: float) -> float:
    """Return T_synchronize (equation 13) of gradients in and weights out: 2 sum_l f_in^l f^l S / BW_link."""
    return 2 * workload.num_weights * workload.bytes_per_value / link_bytes_per_s


def propagate_s(trainers_s: Sequence[float], synchronize_s: float) -> float:
    """Return T_propagate (equation 9): the time of the slowest trainer plus synchronization."""
    return max(trainers_s) + synchronize_s


def page_miss_s(file_bytes: float, moved_bytes: float, cached_bytes: float, bytes_per_s: float) -> float:
    """Return the disk I/O time in seconds for pages that do not fit in a page cache of `cached_bytes`.

    If all pages fit in memory, the file costs nothing, because the system writes pages back in the
    background. Other pages are evicted before their next use, because a step accesses the pages cyclically.
    `moved_bytes` is the number of bytes that are read from the file and written to it.
    """
    if file_bytes <= 0:
        return 0.0
    return moved_bytes * max(0.0, 1 - cached_bytes / file_bytes) / bytes_per_s


def effective_rows(rows: float, chunk_rows: float, threads: int) -> float:
    """Return the number of rows that all threads could compute in the time of the busiest thread.

    Threads compute chunks of `chunk_rows` rows.
    """
    full, rest = divmod(rows, chunk_rows)
    chunks_per_thread, extra_chunks = divmod(full, threads)
    return threads * (chunks_per_thread * chunk_rows + (chunk_rows if extra_chunks else rest))


def with_effective_rows(workload: Workload, chunk_rows: float | None, threads: int) -> Workload:
    """Return the workload with its result rows replaced by their `effective_rows`.

    If `chunk_rows` is None, any number of rows is divided equally.
    """
    if chunk_rows is None or threads == 1:
        return workload
    inputs, *results = workload.vertices
    return replace(
        workload, vertices=(inputs, *(effective_rows(rows, chunk_rows, threads) for rows in results))
    )


def sparse_entries(workload: Workload) -> float:
    """Return the number of stored values that the first layer multiplies, including self rows if used."""
    sparse = workload.sparse
    if sparse is None:
        return 0.0
    rows = workload.vertices[0] + (workload.vertices[1] if sparse.has_self_rows else 0.0)
    return rows * sparse.row_entries


def sparse_macs(workload: Workload) -> float:
    """Return the multiply-accumulates of the sparse product, forward and for the weight gradient.

    There is one per stored value and product column. The input needs no gradient.
    """
    return 2 * sparse_entries(workload) * (0 if workload.sparse is None else workload.sparse.product_width)


def sparse_weights(workload: Workload) -> float:
    """Return the number of weights in the sparse product: f^0 times its columns, doubled for self rows."""
    sparse = workload.sparse
    if sparse is None:
        return 0.0
    return workload.features[0] * sparse.product_width * (2 if sparse.has_self_rows else 1)


def without_sparse_product(workload: Workload) -> Workload:
    """Return the workload of a step without the product of its sparse rows.

    The first layer then aggregates the products forward and, because these have a gradient, also backward.
    This is one aggregation with twice the edges over rows of the product's width. A product after the
    aggregation has `SparseInput.width_in` inputs.
    """
    sparse = workload.sparse
    if sparse is None:
        return workload
    widths = [workload.f_in(layer) for layer in range(1, workload.layers + 1)]
    return replace(
        workload,
        features=(round(sparse.product_width / workload.rows_per_edge), *workload.features[1:]),
        edges=(2 * workload.edges[0], *workload.edges[1:]),
        widths_in=(sparse.width_in, *widths[1:]),
        hidden_widths=None if workload.hidden_widths is None else (0.0, *workload.hidden_widths[1:]),
        sparse=None,
    )


# Bytes of an edge's column index, and of a vertex's offset.
_EDGE_BYTES = 4
_OFFSET_BYTES = 8


StageOverlap = Literal["all", "trainers", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraTerms:
    """Switches for the terms that extend the paper's model."""

    launch: bool = True
    """Fixed costs of a step and of a transfer, and the optimizer."""
    flush: bool = True
    fill: bool = True
    """Filling a device's internal pipeline in each layer; `flush` is draining it."""
    topology: bool = True
    """Transfer of the blocks' edges and offsets over the link."""
    weight_gradients: bool = True
    """Product for the weight gradient in a layer's backward pass, in addition to the input gradient."""
    values: bool = True
    """Memory traffic of products, bias, activation, dropout and loss, and a fixed cost per edge."""
    load_forms: bool = True
    """Aggregation while loading, or in-place reads, if a trainer accepts such input."""
    cycles: bool = True
    """Cycle model instead of rates for an FPGA with a known design."""
    shared_cores: bool = True
    """Contention for host cores: no iteration takes less than the core time of its stages."""
    overlap: StageOverlap = "all"
    """Concurrency. With `all`, pipeline stages and trainers overlap. With `trainers`, one step is in flight,
    so stages run one after the other. With `nothing`, trainers also run one after the other."""

    def __post_init__(self) -> None:
        if self.overlap not in get_args(StageOverlap):
            raise ValueError(
                f"terms: overlap must be one of {', '.join(get_args(StageOverlap))}, got {self.overlap!r}"
            )


PAPER_TERMS = ExtraTerms(
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
"""Terms of exactly the paper's model."""


def topology_s(workload: Workload, link_bytes_per_s: float) -> float:
    return topology_bytes(workload) / link_bytes_per_s


def topology_bytes(workload: Workload) -> float:
    """Return the bytes of the blocks: a source and data per edge, and an offset per destination."""
    return (
        sum(workload.edges) * (_EDGE_BYTES + workload.edge_value_bytes)
        + sum(workload.vertices[1:]) * _OFFSET_BYTES
    )


def weight_gradients_s(workload: Workload, macs_per_s: float) -> float:
    """Return the time of the weight-gradient products of all layers but the first, which the paper omits."""
    return sum(update_s(workload, layer, macs_per_s) for layer in range(2, workload.layers + 1))


def num_edge_rows(workload: Workload) -> float:
    """Return the number of rows that are read along edges, counted per head.

    All layers count in the forward pass, and all but the first in the backward pass. For short rows, the
    index and edge weight cost more than the bytes of the row.
    """
    return workload.rows_per_edge * (sum(workload.edges) + sum(workload.edges[1:]))


def num_results(workload: Workload) -> float:
    """Return the number of result values: sum over the layers of |V^l| f^l."""
    return sum(rows * width for rows, width in zip(workload.vertices[1:], workload.features[1:], strict=True))


def num_values(workload: Workload) -> float:
    """Return the number of values that enter and leave the updates.

    This is the sum over the layers of |V^l| (f_in^l + f^l), plus the width of a hidden layer inside an
    update. Attention has one row per head. These values, not multiply-accumulates, limit the speed of
    products of narrow matrices, bias, activation, dropout and loss.
    """
    return sum(
        workload.vertices[layer]
        * (
            max(workload.f_in(layer), workload.rows_per_edge * workload.features[layer - 1])
            + workload.hidden_width(layer)
            + workload.features[layer]
        )
        for layer in range(1, workload.layers + 1)
    )


def split_layers(work: Workload) -> list[Workload]:
    """Return one workload per layer, in which all other layers have no rows and no edges."""
    inputs, *results = work.vertices
    return [
        replace(
            work,
            vertices=(inputs, *(rows if index == layer else 0.0 for index, rows in enumerate(results))),
            edges=tuple(edges if index == layer else 0.0 for index, edges in enumerate(work.edges)),
        )
        for layer in range(work.layers)
    ]


def threaded_layers_s(
    layers: Sequence[Workload],
    single_thread: TrainerRates,
    all_threads: TrainerRates,
    threads: int,
    cores: int,
    seconds: Callable[[TrainerRates, Workload], float],
) -> float:
    """Return the time of layers that threads share whenever this is faster than a single thread.

    `layers` is a result of `split_layers`. `all_threads` contains the rates with one thread per core.
    `seconds` returns the time of a layer at given rates.
    """
    count, total = min(threads, cores), 0.0
    for work in layers:
        alone_s = seconds(single_thread, work)
        if count == 1:
            total += alone_s
            continue
        shared = with_effective_rows(work, all_threads.chunk_rows, cores)
        # Interpolate between one thread and all cores with Amdahl's law.
        serial_s = max(0.0, (seconds(all_threads, shared) - alone_s / cores) / (1 - 1 / cores))
        total += min(alone_s, serial_s + (alone_s - serial_s) / count + all_threads.waking_s)
    return total
