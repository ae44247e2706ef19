"""What a configured run takes of memory and disk, by the performance model's estimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hyrt_perfmodel.prediction.memory import activations_bytes, mini_batch_bytes, whole_graph_arrays
from hyrt_perfmodel.workloads.workload import TrainingWorkload, Workload

from hyrt.config import Config
from hyrt.device.names import AUTO, split_by_shares
from hyrt.predict.bare_model import bare_model
from hyrt.predict.block_sizes import expected_block_sizes
from hyrt.predict.dataset_sizes import DatasetSizes
from hyrt.predict.workload import training_workload

_GIB = 2**30
# Of a process with torch, numba and the compiled kernels, before there is any data: 467 MiB in runs on
# `synthetic:tiny`.
_PROCESS_BYTES = 480 * 2**20
_FLOAT_BYTES = 4
# Settings, counters and the state of the generator, in a checkpoint.
_STATE_BYTES = 10_000
# Numbers that torch.optim keeps for each weight; of optimizers that are not here nothing is counted.
_MOMENTS = dict.fromkeys(("Adadelta", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Rprop"), 2)
_MOMENTS |= dict.fromkeys(("Adagrad", "ASGD", "Muon", "RMSprop"), 1)
# An option that is set adds one.
_MORE = ("amsgrad", "momentum", "centered")
_WITH_MORE = ("Adam", "AdamW", "RMSprop", "SGD")


def needs(config: Config, sizes: DatasetSizes, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Estimate memory of host and devices, and disk, in bytes.

    Parameters
    ----------
    config
        All settings.
    sizes
        The sizes of the dataset.
    found
        Devices of the machine, as `hyrt.doctor.children.backends` describes them.

    Returns
    -------
    `host` and `disk` (by what it is for, and `total_bytes`; of the disk also `least_bytes`, for the first
    checkpoint), `devices` (name to `need_bytes` and `have_bytes`, of those with memory of their own), and
    `staged_bytes` (the largest mini-batches in flight to one device). Devices get dense rows; in host memory
    sparse rows stay sparse.
    """
    assert sizes.degrees is not None
    training = training_workload(config, sizes, lambda units: expected_block_sizes(config, sizes, units))
    here, own = _trainers(config, training, found)
    both = [*here, *(workload for _, workload in own.values())]
    model = bare_model(config, sizes.features, sizes.classes)
    weights = sum(parameter.numel() for parameter in model.parameters()) * _FLOAT_BYTES
    moments = num_moments(config.train.optimizer, config.train.optimizer_options)
    # Weights, moments and the best weights.
    checkpoint = (2 + moments) * weights + _STATE_BYTES
    batches = config.sampler.kept_bytes(sizes.degrees.num_vertices, sizes.degrees.num_edges)
    if training.resident:
        batches += sum(_made_of_whole(workload, training) for workload in here)
    else:
        batches += config.runtime.depth * sum(mini_batch_bytes(workload) for workload in both)
        batches += sum(activations_bytes(workload) for workload in here)
    hidden = sizes.degrees.num_vertices * config.model.hidden * _FLOAT_BYTES
    layers = min(2, config.model.layers - 1)
    full = config.evaluate.mode == "full" and config.model.layers > 1
    budget = config.evaluate.memory_gib * _GIB
    evaluation = min(budget, 2 * layers * hidden) if full else 0.0
    host = {
        "process_bytes": _PROCESS_BYTES,
        "dataset_bytes": round(sizes.feature_bytes + sizes.graph_bytes),
        "mini_batches_bytes": round(batches),
        # The master copy, its gradient and the one before, the optimizer's moments and two temporaries of it,
        # and the best weights. A trainer has a replica and its gradients; of one on a device only the
        # gradients come back.
        "weights_bytes": (6 + moments + 2 * len(here) + len(own)) * weights,
        # The tensors are copied, each copy is made bytes, and these are joined.
        "checkpoint_bytes": 3 * checkpoint,
        "evaluation_bytes": round(evaluation),
    }
    disk = {
        # A new one is written before the oldest goes.
        "checkpoints_bytes": (config.checkpoint.keep + 1) * checkpoint,
        # `hyrt.inference.infer` puts matrices above a third of its budget into files.
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
                "need_bytes": round(2 * weights + _on_device(workload, training)),
                "have_bytes": have,
            }
            for name, (have, workload) in own.items()
        },
        "staged_bytes": round(
            max((_staged_bytes(workload, training) for _, workload in own.values()), default=0)
        ),
    }


def _made_of_whole(workload: Workload, training: TrainingWorkload) -> float:
    """What training on the whole graph keeps beside the dataset and the weights."""
    counted = ("topology", "features", "parameters, gradients, optimizer")
    arrays = whole_graph_arrays(workload, training)
    return sum(num_bytes for name, num_bytes in arrays.items() if name not in counted)


def _staged_bytes(workload: Workload, training: TrainingWorkload) -> float:
    """The mini-batches that are on a device at the same time: one of the whole graph, or two."""
    return (1 if training.resident else 2) * mini_batch_bytes(workload)


def _on_device(workload: Workload, training: TrainingWorkload) -> float:
    kept = _made_of_whole(workload, training) if training.resident else activations_bytes(workload)
    return kept + _staged_bytes(workload, training)


def _trainers(
    config: Config, training: TrainingWorkload, found: Sequence[Mapping[str, Any]]
) -> tuple[list[Workload], dict[str, tuple[int | None, Workload]]]:
    """The mini-batches of trainers in host memory, and by name those of devices with their own."""
    known = {info["name"]: info for info in found}
    requests = config.device_requests
    if requests[0].name == AUTO:
        chosen = [info for info in found if not info["simulated"] and not info["host_cores"]]
        names, shares = ["cpu:0", *(info["name"] for info in chosen)], [1.0] * (1 + len(chosen))
    else:
        names = [request.name if ":" in request.name else f"{request.name}:0" for request in requests]
        shares = [1.0 if request.share is None else request.share for request in requests]
    split = config.split if config.split is not None else split_by_shares(training.batch_size, shares)
    here: list[Workload] = []
    own: dict[str, tuple[int | None, Workload]] = {}
    for name, units in zip(names, split, strict=True):
        if not units:
            continue
        workload = training.at(float(min(units, training.batch_size)))
        info = known.get(name)
        if info is None or info["zero_copy"] or info["host_cores"] or info["simulated"]:
            here.append(workload)
        else:
            limit = config.runtime.device_memory_gib
            have = info["memory_bytes"] or None
            if limit is not None:
                have = min(round(limit * _GIB), have or round(limit * _GIB))
            own[name] = (have, replace(workload, sparse=None))
    return here, own


def num_moments(optimizer: str, options: dict[str, Any]) -> int:
    """Numbers that an optimizer keeps for each weight, at least."""
    more = sum(bool(options.get(name)) for name in _MORE) if optimizer in _WITH_MORE else 0
    return _MOMENTS.get(optimizer, 0) + more
