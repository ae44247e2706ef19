"""Memory by array of training on an open graph, and estimates of the memory and disk space of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import psutil
from hyrt_perfmodel.prediction.initial_assignment import (
    activations_bytes,
    full_graph_arrays,
    mini_batch_bytes,
)
from hyrt_perfmodel.workload import TrainingWorkload, Workload

from hyrt.config import Config
from hyrt.config.command_line import new_config
from hyrt.config.compatibility import check_compatibility, list_graph_features, model_component
from hyrt.device.discovery import AUTO, split_by_shares
from hyrt.formatting import format_bytes
from hyrt.fullgraph.plan import is_decomposable
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import HeteroRows
from hyrt.nn.layer import Layer
from hyrt.nn.model import GNN
from hyrt.predict.dataset_sizes import (
    DatasetSizes,
    FullGraphSizes,
    counted_full_graph_sizes,
    expected_block_sizes,
    graph_sizes,
    with_transpose,
)
from hyrt.predict.step_dry_run import full_graph_step, meta_model, model_for_widths
from hyrt.predict.workload import training_vertices, training_workload
from hyrt.runtime.hardware import available_cores

_VALUE_BYTES = 4
_WITH_MOMENTS = 3


def hetero_memory_facts(graph: Graph, kind: str) -> dict[str, Any]:
    """Return the memory of a heterogeneous graph, its feature rows and its learned embeddings as JSON values.

    The keys are `model` and `arrays` (the bytes of each array). Embeddings have the default width of the
    model `kind` and include the two moments of Adam. The memory of a step is not included, because it is
    unknown before a run. Raises ConfigError if the kind is unknown or does not support heterogeneous graphs.
    """
    check_compatibility([model_component(kind)], list_graph_features(graph.name, is_hetero=True))
    types, rows = graph.types, graph.features
    assert types is not None
    assert isinstance(rows, HeteroRows)
    hidden = new_config(None, [f"model.kind={kind}"]).model.hidden
    arrays = {"topology": graph.topology.nbytes}
    if graph.topology.edge_weights is not None:
        arrays["sums of weights"] = _VALUE_BYTES * graph.num_edges
    for name, table in zip(types.vertex_types, rows.tables, strict=True):
        if table is not None:
            arrays[f"feature rows of {name}"] = table.nbytes
        else:
            learned = _WITH_MOMENTS * _VALUE_BYTES * types.count(name) * hidden
            arrays[f"learned rows of {name}, moments"] = learned
    return {"model": kind, "arrays": arrays}


def hetero_memory_lines(facts: dict[str, Any]) -> list[str]:
    """Format the result of `hetero_memory_facts` as lines."""
    arrays = facts["arrays"]
    width = max(map(len, arrays))
    return [
        f"training with {facts['model']} needs {format_bytes(sum(arrays.values()))} "
        "in addition to what a step computes:",
        *(f"  {name:<{width}}  {format_bytes(bytes_):>10}" for name, bytes_ in arrays.items()),
        "  arrays in a folder are memory-mapped, so their pages need not stay in memory",
    ]


_FLOAT_BYTES = 4


def memory_facts(graph: Graph, kind: str) -> dict[str, Any]:
    """Return the memory of full-graph training with a model `kind` of default size, as JSON values.

    The keys are `model`; `symmetric`; `topology_integers`, counted as in GraphPy (6.1): V + E, or twice that
    if a graph that is not symmetric needs a transpose; `edge_tensor_integers`, which adds E edge indices of
    the transpose for user modules with edge tensors; `arrays`, the bytes of each array on the CPU; and
    `at_most`, whether these are upper bounds. Raises ConfigError if there is no such kind or no training
    vertex, and UnsupportedModelError if a layer of the kind cannot be analysed.
    """
    config = new_config(None, [f"model.kind={kind}", "sampler.kind=full"])
    targets = training_vertices(config, graph)
    dataset = with_transpose(graph_sizes(graph, targets), graph)
    sizes = counted_full_graph_sizes(config, graph, dataset, targets)
    model = model_for_widths(config, dataset.features, dataset.classes)
    is_exact = is_decomposable(model)
    if is_exact:
        memory, cores = float(psutil.virtual_memory().total), available_cores()
        arrays = full_graph_step(model, sizes, memory_bytes=memory, threads=cores).arrays
    else:
        arrays = _layer_arrays(model, sizes)
    integers = graph.num_vertices + graph.num_edges
    symmetric = graph.topology.is_symmetric
    integers = integers if symmetric else 2 * integers
    return {
        "model": kind,
        "symmetric": symmetric,
        "topology_integers": integers,
        "edge_tensor_integers": integers + graph.num_edges,
        "at_most": not is_exact,
        "arrays": {name: round(bytes_) for name, bytes_ in arrays.items()},
    }


def _layer_arrays(model: GNN, sizes: FullGraphSizes) -> dict[str, float]:
    """Return upper bounds on the bytes of each array for a model that takes the full graph as one block.

    Torch saves all results of a layer for the backward pass, and needs the gradient of the largest one.
    """
    arrays = dict(sizes.data_bytes)
    rows = []
    for i, layer in enumerate(model.layers, 1):
        assert isinstance(layer, Layer)
        footprint = layer.footprint()
        rows.append(_FLOAT_BYTES * (footprint.row * sizes.vertices + footprint.edge * sizes.edges))
        arrays[f"what layer {i} computes"] = rows[-1]
    arrays["gradient of the largest"] = max(rows)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    arrays["parameters, gradients, optimizer"] = 6 * _FLOAT_BYTES * numbers
    return {name: bytes_ for name, bytes_ in arrays.items() if bytes_}


def memory_lines(facts: dict[str, Any]) -> list[str]:
    """Format the result of `memory_facts` as lines."""
    arrays = facts["arrays"]
    explanation = (
        "it is symmetric, so it is its own transpose"
        if facts["symmetric"]
        else "with its transpose, because it is directed"
    )
    width = max(map(len, arrays))
    prefix = "at most " if facts["at_most"] else ""
    return [
        f"full-graph training with {facts['model']} needs "
        f"{prefix}{format_bytes(sum(arrays.values()))} on the CPU:",
        *(f"  {name:<{width}}  {format_bytes(bytes_):>10}" for name, bytes_ in arrays.items()),
        f"  the topology is {facts['topology_integers']:,} integers ({explanation})",
        f"  with edge tensors (hyrt.ops) it is {facts['edge_tensor_integers']:,}, one more per edge",
    ]


_GIB = 2**30
# Memory of a process with torch, numba and kernels, without data: 467 MiB on `synthetic:tiny`.
_PROCESS_BYTES = 480 * 2**20
_FLOAT32_BYTES = 4
# Bytes of the settings, counters and RNG state in a checkpoint.
_STATE_BYTES = 10_000
# Number of state values per weight of torch.optim's optimizers. Unknown optimizers count as 0.
_MOMENTS = dict.fromkeys(("Adadelta", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Rprop"), 2)
_MOMENTS |= dict.fromkeys(("Adagrad", "ASGD", "Muon", "RMSprop"), 1)
# Each of these options adds one state value per weight.
_STATE_OPTIONS = ("amsgrad", "momentum", "centered")
_OPTIMIZERS_WITH_OPTIONS = ("Adam", "AdamW", "RMSprop", "SGD")


def estimate_needs(
    config: Config, sizes: DatasetSizes, devices: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Estimate the host memory, device memory and disk space of a run in bytes.

    In the result, `host` and `disk` map purposes to bytes and contain `total_bytes`; `disk` also contains
    `least_bytes`, the size of the first checkpoint. `devices` maps devices with separate memory to
    `need_bytes` and `have_bytes`. `staged_bytes` is the maximum size of the mini-batches in flight to one
    device. Sparse rows stay sparse in host memory, but devices receive dense rows.
    """
    assert sizes.degrees is not None
    training = training_workload(config, sizes, lambda units: expected_block_sizes(config, sizes, units))
    host_workloads, device_workloads = _split_trainers(config, training, devices)
    workloads = [*host_workloads, *(workload for _, workload in device_workloads.values())]
    model = meta_model(config, sizes.features, sizes.classes)
    weights = sum(parameter.numel() for parameter in model.parameters()) * _FLOAT32_BYTES
    moments = optimizer_values_per_weight(config.train.optimizer, config.train.optimizer_options)
    # A checkpoint contains the weights, the optimizer state and the best weights.
    checkpoint = (2 + moments) * weights + _STATE_BYTES
    batches = config.sampler.persistent_bytes(sizes.degrees.num_vertices, sizes.degrees.num_edges)
    if training.resident:
        batches += sum(_full_graph_bytes(workload, training) for workload in host_workloads)
    else:
        batches += config.runtime.max_in_flight_steps * sum(
            mini_batch_bytes(workload) for workload in workloads
        )
        batches += sum(activations_bytes(workload) for workload in host_workloads)
    hidden = sizes.degrees.num_vertices * config.model.hidden * _FLOAT32_BYTES
    layers = min(2, config.model.layers - 1)
    full = config.evaluate.mode == "full" and config.model.layers > 1
    budget = config.evaluate.memory_gib * _GIB
    evaluation = min(budget, 2 * layers * hidden) if full else 0.0
    host = {
        "process_bytes": _PROCESS_BYTES,
        "dataset_bytes": round(sizes.feature_bytes + sizes.graph_bytes),
        "mini_batches_bytes": round(batches),
        # Count the master weights, the current and previous gradient, the optimizer state with two
        # temporaries, and the best weights. Each host trainer adds a replica and its gradients, each device
        # trainer only the gradients that it returns.
        "weights_bytes": (6 + moments + 2 * len(host_workloads) + len(device_workloads)) * weights,
        # Serialization needs three copies: the cloned tensors, their bytes and the joined bytes.
        "checkpoint_bytes": 3 * checkpoint,
        "evaluation_bytes": round(evaluation),
    }
    disk = {
        # Add one, because a new checkpoint is written before the oldest is deleted.
        "checkpoints_bytes": (config.checkpoint.keep + 1) * checkpoint,
        # `hyrt.inference.infer` stores matrices larger than a third of its budget in files.
        "evaluation_bytes": round(layers * hidden) if full and hidden > budget / 3 else 0,
    }
    return {
        "host": {**host, "total_bytes": sum(host.values())},
        "disk": {
            **disk,
            "total_bytes": sum(disk.values()),
            "least_bytes": checkpoint + disk["evaluation_bytes"],
        },
        "devices": {
            name: {
                "need_bytes": round(2 * weights + _device_bytes(workload, training)),
                "have_bytes": capacity,
            }
            for name, (capacity, workload) in device_workloads.items()
        },
        "staged_bytes": round(
            max((_staged_bytes(workload, training) for _, workload in device_workloads.values()), default=0)
        ),
    }


def _full_graph_bytes(workload: Workload, training: TrainingWorkload) -> float:
    """Return the memory of full-graph training in bytes, without dataset and weights."""
    counted = ("topology", "features", "parameters, gradients, optimizer")
    arrays = full_graph_arrays(workload, training)
    return sum(num_bytes for name, num_bytes in arrays.items() if name not in counted)


def _staged_bytes(workload: Workload, training: TrainingWorkload) -> float:
    """Return the bytes of the mini-batches in flight to a device: one for a full graph, otherwise two."""
    return (1 if training.resident else 2) * mini_batch_bytes(workload)


def _device_bytes(workload: Workload, training: TrainingWorkload) -> float:
    activations = _full_graph_bytes(workload, training) if training.resident else activations_bytes(workload)
    return activations + _staged_bytes(workload, training)


def _split_trainers(
    config: Config, training: TrainingWorkload, found: Sequence[Mapping[str, Any]]
) -> tuple[list[Workload], dict[str, tuple[int | None, Workload]]]:
    """Return the workloads of trainers in host memory, and by name of devices with separate memory."""
    known = {info["name"]: info for info in found}
    requests = config.device_requests
    if requests[0].name == AUTO:
        chosen = [info for info in found if not info["simulated"] and not info["host_cores"]]
        names, shares = ["cpu:0", *(info["name"] for info in chosen)], [1.0] * (1 + len(chosen))
    else:
        names = [request.name if ":" in request.name else f"{request.name}:0" for request in requests]
        shares = [1.0 if request.share is None else request.share for request in requests]
    split = config.split if config.split is not None else split_by_shares(training.batch_size, shares)
    host_workloads: list[Workload] = []
    device_workloads: dict[str, tuple[int | None, Workload]] = {}
    for name, units in zip(names, split, strict=True):
        if not units:
            continue
        workload = training.at(float(min(units, training.batch_size)))
        info = known.get(name)
        if info is None or info["zero_copy"] or info["host_cores"] or info["simulated"]:
            host_workloads.append(workload)
        else:
            limit = config.runtime.device_memory_gib
            capacity = info["memory_bytes"] or None
            if limit is not None:
                capacity = min(round(limit * _GIB), capacity or round(limit * _GIB))
            device_workloads[name] = (capacity, replace(workload, sparse=None))
    return host_workloads, device_workloads


def optimizer_values_per_weight(optimizer: str, options: dict[str, Any]) -> int:
    """Return a lower bound on the number of values that an optimizer stores per weight."""
    extra = (
        sum(bool(options.get(name)) for name in _STATE_OPTIONS)
        if optimizer in _OPTIMIZERS_WITH_OPTIONS
        else 0
    )
    return _MOMENTS.get(optimizer, 0) + extra
