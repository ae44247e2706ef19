"""The time each stage needs at least, from the equations of HyScale-GNN's performance model (Lin and Prasanna, 2023).

Bandwidths are effective ones, in bytes a second; rates in multiply-accumulates a second.
"""

from __future__ import annotations

from hyrt_perfmodel.workload import Workload


def load_s(workload: Workload, host_bytes_per_s: float) -> float:
    """T_load of one trainer: |V^0| f^0 S / BW_host."""
    return workload.vertices[0] * workload.features[0] * workload.bytes_per_value / host_bytes_per_s


def aggregate_s(workload: Workload, layer: int, device_bytes_per_s: float) -> float:
    """t_agg of layer 1..L: |E^l| f^(l-1) S / BW_device."""
    return (
        workload.edges[layer - 1]
        * workload.features[layer - 1]
        * workload.bytes_per_value
        / device_bytes_per_s
    )


def update_s(workload: Workload, layer: int, macs_per_s: float) -> float:
    """t_upd of layer 1..L: |V^l| f_in^l f^l multiply-accumulates."""
    return workload.vertices[layer] * workload.f_in(layer) * workload.features[layer] / macs_per_s


def trainer_s(workload: Workload, device_bytes_per_s: float, macs_per_s: float) -> float:
    """T_trainer where aggregation and update do not overlap (CPU, GPU).

    Forward of all layers; backward the update of layer 1 and both parts of the others: the input takes no gradient.
    """
    layers = range(1, workload.layers + 1)
    forward = sum(
        aggregate_s(workload, layer, device_bytes_per_s) + update_s(workload, layer, macs_per_s)
        for layer in layers
    )
    backward = update_s(workload, 1, macs_per_s) + sum(
        aggregate_s(workload, layer, device_bytes_per_s) + update_s(workload, layer, macs_per_s)
        for layer in layers[1:]
    )
    return forward + backward
