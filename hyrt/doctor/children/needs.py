"""What a configured run takes of memory and disk, by the performance model's estimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hyrt_perfmodel.memory import host_memory_bytes, mini_batch_bytes, trainer_memory_bytes
from hyrt_perfmodel.sizes import expected_sizes
from hyrt_perfmodel.workload import Training, Workload

from hyrt.config import Config
from hyrt.configured_training import configured_training
from hyrt.device_names import AUTO, split_by_shares
from hyrt.doctor.children.dataset_sizes import DatasetSizes

_GIB = 2**30
# Of a process with torch, numba and the compiled kernels, before there is any data: 467 MiB in runs on `synthetic:tiny`.
_PROCESS_BYTES = 480 * 2**20
_FLOAT_BYTES = 4
# Weights, two moments of Adam, and the weights of the best evaluation.
_KEPT_WEIGHTS = 4


def needs(config: Config, sizes: DatasetSizes, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Estimate memory of host and devices, and disk, in bytes.

    Parameters
    ----------
    config
        All settings.
    sizes
        Of the dataset.
    found
        Devices of the machine, as `hyrt.doctor.children.backends` describes them.

    Returns
    -------
    `host` and `disk` (by what it is for, and `total_bytes`), `devices` (name to `need_bytes` and `have_bytes`, of those
    with memory of their own), and `staged_bytes` (the largest mini-batches in flight to one device).

    Raises
    ------
    ValueError
        If nothing can be estimated; the text says why.
    """
    if config.sampler.kind != "neighbor":
        raise ValueError(
            f"sampler.kind={config.sampler.kind}: mini-batches of random walks are not estimated"
        )
    if sizes.sparse:
        raise ValueError("its features are sparse, and the model counts dense rows only")
    if not sizes.targets:
        raise ValueError("the dataset has no training vertices")
    training = _training(config, sizes)
    here, own = _trainers(config, training, found)
    workloads = [*here, *(workload for _, workload in own.values())]
    depth = config.runtime.depth
    running = host_memory_bytes(workloads, training, depth, computed_here=here)
    data = sizes.feature_bytes + sizes.graph_bytes
    hidden = sizes.degrees.num_vertices * config.model.hidden * _FLOAT_BYTES
    layers = min(2, config.model.layers - 1)
    full = config.evaluate.mode == "full" and config.model.layers > 1
    budget = config.evaluate.memory_gib * _GIB
    evaluation = min(budget, 2 * layers * hidden) if full else 0.0
    host = {
        "process_bytes": _PROCESS_BYTES,
        "dataset_bytes": round(data),
        "training_bytes": round(running - data),
        "evaluation_bytes": round(evaluation),
    }
    weights = workloads[0].num_weights * _FLOAT_BYTES
    disk = {
        # A new one is written before the oldest goes.
        "checkpoints_bytes": round((config.checkpoint.keep + 1) * _KEPT_WEIGHTS * weights),
        # `hyrt.runtime.infer` puts matrices above a third of its budget into files.
        "evaluation_bytes": round(layers * hidden) if full and hidden > budget / 3 else 0,
    }
    return {
        "host": {**host, "total_bytes": sum(host.values())},
        "disk": {**disk, "total_bytes": sum(disk.values())},
        "devices": {
            name: {"need_bytes": round(trainer_memory_bytes(workload)), "have_bytes": have}
            for name, (have, workload) in own.items()
        },
        "staged_bytes": round(
            max((2 * mini_batch_bytes(workload) for _, workload in own.values()), default=0)
        ),
    }


def _training(config: Config, sizes: DatasetSizes) -> Training:
    return configured_training(
        config,
        lambda targets: expected_sizes(sizes.degrees, config.fanouts, targets),
        num_features=sizes.features,
        num_classes=sizes.classes,
        num_targets=sizes.targets,
        value_bytes=sizes.value_bytes,
        feature_bytes=sizes.feature_bytes,
        graph_bytes=sizes.graph_bytes,
    )


def _trainers(
    config: Config, training: Training, found: Sequence[Mapping[str, Any]]
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
            own[name] = (have, workload)
    return here, own
