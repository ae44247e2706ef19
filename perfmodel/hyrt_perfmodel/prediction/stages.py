"""Terms of HyScale-GNN's performance model (Lin and Prasanna, 2023), one function per equation.

Bandwidths are effective ones in bytes per second; rates are in multiply-accumulates per second. Terms that
the paper omits are in `extra_terms`.
"""

from __future__ import annotations

from collections.abc import Sequence

from hyrt_perfmodel.workload import Workload


def throughput_mteps(workloads: Sequence[Workload], execution_s: float) -> float:
    """Return million sampled edges per second: sum_i sum_l |E^l_i| / T_execution (equation 5)."""
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

    If each source is read once, it is |V^0| f^0 S / BW_device for the first layer and 0 for later layers,
    whose rows stay on the chip.
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
    """Return the time of aggregation and update: their maximum if pipelined, otherwise their sum."""
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

    The input has no gradient, so backward consists of the update of layer 1, and aggregation and update of
    all other layers.
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
    """Return T_synchronize (equation 13): gradients in and weights out, 2 sum_l f_in^l f^l S / BW_link."""
    return 2 * workload.num_weights * workload.bytes_per_value / link_bytes_per_s


def propagate_s(trainers_s: Sequence[float], synchronize_s: float) -> float:
    """Return T_propagate (equation 9): the slowest trainer, then synchronization."""
    return max(trainers_s) + synchronize_s
