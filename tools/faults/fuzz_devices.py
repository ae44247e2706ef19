"""Fuzzed calls of devices, objectives and the performance model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from fuzz_objects import (
    CLASSES,
    COUNT,
    Call,
    OnlyWrong,
    bad_blocks,
    cached_batch,
    floats,
    graph_kind,
    model,
    number,
    opened,
    tensor,
    user_batch,
)
from fuzz_values import Arrays, Kind, flag, whole, words_of
from hyrt_devices.cpu import CpuDevice
from hyrt_devices.null import NullDevice

from hyrt.device import DeviceInfo, DeviceOptions
from hyrt.device.capabilities import device_sampler, missing_reason, usable_forms
from hyrt.device.protocol import Rates
from hyrt.objective.classification import Classification
from hyrt.objective.multilabel import MultiLabel
from hyrt.objective.regression import Regression
from hyrt.testing import check_device


def batch_calls() -> list[Call]:
    shared_batch = cached_batch()
    fields = {
        "step": whole(0, wrong=("a", None, 3.5)),
        "targets": Arrays(lambda: shared_batch.targets),
        "labels": Arrays(lambda: shared_batch.labels, bound=CLASSES),
        "target_weights": Arrays(lambda: np.ones(len(shared_batch.targets), np.float32), optional=True),
        "normalizer": Kind(
            lambda: 8.0, wrong=[("'a'", lambda: "a"), ("None", lambda: None), ("nan", lambda: np.nan)]
        ),
        "inputs": Arrays(lambda: shared_batch.inputs),
        "blocks": OnlyWrong(lambda: user_batch().blocks, wrong=bad_blocks()),
    }

    def train(kind: Any, **fields: Any) -> None:
        device = opened() if kind is CpuDevice else NullDevice.open(NullDevice.probe()[0], DeviceOptions())
        device.propagate(device.transfer(user_batch(**fields)))

    parameters = OnlyWrong(
        lambda: list(model().parameters()),
        wrong=[
            ("None", lambda: None),
            ("none", list),
            ("arrays", lambda: [np.ones(3)]),
            ("3", lambda: [3]),
            ("shapes", lambda: [parameter[:1] for parameter in model().parameters()]),
        ],
    )
    return [
        Call("CpuDevice.propagate", lambda **given: train(CpuDevice, **given), fields, 4),
        # The null device computes nothing, so it reads no inputs.
        Call(
            "NullDevice.propagate",
            lambda **given: train(NullDevice, **given),
            {name: kind for name, kind in fields.items() if name != "inputs"},
        ),
        Call("CpuDevice.update", lambda parameters: opened().update(parameters), {"parameters": parameters}),
        Call(
            "CpuDevice.load",
            lambda model, parameters: CpuDevice.open(CpuDevice.probe()[0], DeviceOptions()).load(
                model, parameters
            ),
            {
                "model": Kind(model, wrong=[("3", lambda: 3), ("None", lambda: None)]),
                "parameters": parameters,
            },
        ),
        Call(
            "CpuDevice.transfer",
            lambda batch: opened().transfer(batch),
            {"batch": Kind(user_batch, wrong=[("None", lambda: None), ("3", lambda: 3)])},
        ),
        Call("CpuDevice.resize", lambda threads: opened().resize(threads), {"threads": COUNT}),
        Call(
            "device.Rates",
            Rates,
            {
                "macs_per_s": number(1e9),
                "memory_bytes_per_s": number(1e9),
                "link_bytes_per_s": number(1e9),
                "source": Kind(lambda: "assumed"),
            },
        ),
        Call(
            "device.DeviceInfo",
            DeviceInfo,
            {
                "kind": Kind(lambda: "a"),
                "index": whole(0),
                "description": Kind(lambda: "b"),
                "memory_bytes": whole(100),
                "host_cores": whole(1, optional=True),
                "link": Kind(lambda: "PCIe", optional=True),
            },
        ),
        Call(
            "device.DeviceOptions",
            lambda **given: CpuDevice.open(CpuDevice.probe()[0], DeviceOptions(**given)),
            {"threads": COUNT, "memory_bytes": whole(10**9, optional=True, wrong=(-1, "a", 3.5))},
        ),
        Call(
            "device.usable_forms",
            usable_forms,
            {"device": Kind(opened, wrong=[("3", lambda: 3)]), "graph": graph_kind()},
        ),
        Call(
            "device.device_sampler",
            device_sampler,
            {"device": Kind(opened, wrong=[("3", lambda: 3)]), "graph": graph_kind()},
        ),
        Call(
            "device.missing_reason",
            missing_reason,
            {"backend": Kind(lambda: CpuDevice, wrong=[("3", lambda: 3)], harmless=("a class",))},
        ),
        Call(
            "testing.check_device",
            lambda open_fn, **given: check_device(open_fn, only="probe", **given),
            {
                "open_fn": Kind(
                    lambda: lambda options: NullDevice.open(NullDevice.probe()[0], options),
                    wrong=[("3", lambda: 3), ("returns None", lambda: lambda options: None)],
                ),
                "cycles": COUNT,
                "computes": flag(),
            },
            0.2,
        ),
    ]


def objective_calls() -> list[Call]:
    n = 12
    classes = np.random.default_rng(3).integers(0, CLASSES, n)
    flags = np.random.default_rng(3).integers(0, 2, (n, CLASSES)).astype(np.int8)
    scores, array_scores = Arrays(lambda: tensor(n, CLASSES)), Arrays(lambda: floats(n, CLASSES))
    numbers = floats(n, CLASSES)
    calls = []
    for objective, labels, bound in (
        (Classification, classes, CLASSES),
        (MultiLabel, flags, None),
        (Regression, numbers, None),
    ):
        of_arrays = Arrays(lambda labels=labels: labels, bound=bound)
        of_tensors = Arrays(lambda labels=labels: torch.from_numpy(labels), bound=bound)
        name = objective.__name__
        calls += [
            Call(
                f"{name}.loss_sum",
                lambda objective=objective, **given: objective().loss_sum(**{"weights": None, **given}),
                {"scores": scores, "labels": of_tensors, "weights": Arrays(lambda: tensor(n), optional=True)},
            ),
            Call(
                f"{name}.count",
                lambda objective=objective, **given: objective().count(**given),
                {"scores": scores, "labels": of_tensors},
            ),
            Call(
                f"{name}.evaluate",
                lambda objective=objective, **given: objective().evaluate(**given),
                {"scores": array_scores, "labels": of_arrays},
            ),
            Call(
                f"{name}.fit_to_targets",
                lambda objective=objective, **given: objective().fit_to_targets(**given),
                {
                    "labels": Arrays(lambda labels=labels: labels, any_length=True),
                    "num_outputs": whole(CLASSES),
                },
            ),
        ]
    weights = Kind(lambda: "balanced", wrong=[("'a'", lambda: "a"), ("-1", lambda: [-1.0]), ("3", lambda: 3)])
    calls += [
        Call(
            "Classification",
            Classification,
            {
                "class_weights": weights,
                "label_smoothing": Kind(lambda: 0.1, wrong=[("2", lambda: 2), ("'a'", lambda: "a")]),
            },
        ),
        Call("MultiLabel", MultiLabel, {"class_weights": weights}),
        Call(
            "Classification.class_weights",
            lambda **given: Classification(class_weights="balanced").class_weights(**given),
            {
                "labels": Arrays(lambda: classes, bound=CLASSES, any_length=True),
                "num_classes": whole(CLASSES),
            },
        ),
    ]
    return calls


def model_calls() -> list[Call]:
    """Return calls of the performance model."""
    from hyrt_perfmodel.platform_file import load_platform
    from hyrt_perfmodel.prediction.predict import predict, with_accelerators
    from hyrt_perfmodel.prediction.simulate import simulate
    from hyrt_perfmodel.workload import TrainingWorkload, Workload, proportional_workload

    def work(**fields: Any) -> Workload:
        known = {
            "vertices": (16_000, 2_200, 102),
            "edges": (21_000, 2_400),
            "features": (100, 256, 47),
            "concat": True,
        }
        return Workload(**known | fields)

    def training(units: Any = 1024, **fields: Any) -> TrainingWorkload:
        known = {
            "at": proportional_workload(work(), units),
            "targets_per_epoch": 9_000,
            "batch_size": 2048,
            "sample_s": 0.003,
        }
        return TrainingWorkload(**known | fields)

    def platform() -> Any:
        return load_platform("2x-epyc7763-4x-u250")

    sizes = OnlyWrong(
        lambda: (16_000, 2_200, 102),
        wrong=[
            ("negative", lambda: (-1, 2, 3)),
            ("text", lambda: ("a", 2, 3)),
            ("two", lambda: (1, 2)),
            ("None", lambda: None),
            ("3", lambda: 3),
            ("nan", lambda: (np.nan, 2, 3)),
            ("nothing", tuple),
        ],
    )
    of_edges = OnlyWrong(
        lambda: (21_000, 2_400),
        wrong=[
            ("negative", lambda: (-1, 2)),
            ("text", lambda: ("a", 2)),
            ("None", lambda: None),
            ("nothing", tuple),
        ],
    )
    return [
        Call(
            "perfmodel.Workload",
            work,
            {"vertices": sizes, "edges": of_edges, "bytes_per_value": whole(4, wrong=(-1, "a", None))},
        ),
        Call(
            "perfmodel.TrainingWorkload",
            lambda **given: predict(platform(), training(**given)),
            {
                "units": number(1024.0),
                "targets_per_epoch": COUNT,
                "batch_size": COUNT,
                "sample_s": number(0.01),
            },
        ),
        Call("perfmodel.load_platform", load_platform, {"name_or_path": words_of(("2x-epyc7763-4x-u250",))}),
        Call(
            "perfmodel.with_accelerators",
            lambda platform, count: with_accelerators(platform, count),
            {
                "platform": Kind(platform, wrong=[("3", lambda: 3)]),
                "count": whole(2, wrong=(-1, "a", None, 3.5)),
            },
        ),
        Call(
            "perfmodel.predict",
            predict,
            {
                "platform": Kind(platform, wrong=[("3", lambda: 3)]),
                "training": Kind(training, wrong=[("3", lambda: 3)]),
                "paper": flag(),
            },
        ),
        Call(
            "perfmodel.simulate",
            lambda **given: simulate(
                platform(), training(), start=predict(platform(), training()).assignment, **given
            ),
            {
                "iterations": whole(20, wrong=(0, -1, "a", None)),
                "depth": whole(4, optional=True, wrong=(0, -1, "a")),
                "noise": number(0.1),
                "seed": whole(1, wrong=(-1, 3.5, "3", None)),
            },
            0.3,
        ),
    ]
