"""CPU and OpenCL train one model in one step: any split gives one device's weights on the union batch."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from hyrt.config import build_config
from hyrt.errors import DeviceOutOfMemoryError
from hyrt.graph import open_graph
from hyrt.pipeline.work_items import cut
from hyrt.runtime.workers import Workers
from hyrt.sampling.neighbor_sampler import NeighborSampler
from hyrt.telemetry.events import Notice
from hyrt.training.build_run import build_run
from hyrt.training.train import Training

pytest.importorskip("pyopencl", reason='pyopencl is not installed: pip install "hyrt[opencl]"')
from hyrt_devices.opencl import OpenclDevice

if not OpenclDevice.probe():
    pytest.skip(f"no OpenCL device: {OpenclDevice.missing()}", allow_module_level=True)

BATCH = 1024
STEPS = 20
SPLITS = [[1, 1023], [512, 512], [1000, 24], [0, 1024]]


@functools.cache
def graph():
    # Its training vertices make four whole steps.
    return open_graph("synthetic:community,vertices=7k")


def weights(
    devices: list[str], split: list[int] | None, kind: str, notices: list[str] | None = None, **sections
) -> np.ndarray:
    per_epoch = -(-len(graph().split("train")) // BATCH)
    settings = {
        "data": {"batch_size": BATCH},
        "sampler": {"fanout": [10, 5], **sections.pop("sampler", {})},
        "model": {"kind": kind, "hidden": 32, **sections.pop("model", {})},
        # Adam's first steps are the sign of a gradient: where one is zero up to rounding, they differ by the
        # whole rate.
        "train": {
            "epochs": STEPS // per_epoch,
            "optimizer": "SGD",
            "lr": 0.05,
            "optimizer_options": {"momentum": 0.9},
        },
        "evaluate": {"every": 0},
        "devices": devices,
        "split": split,
        **sections,
    }

    def hear(event) -> None:
        if notices is not None and isinstance(event, Notice) and event.kind == "warning":
            notices.append(event.text)

    training = Training(build_run(build_config(settings), graph(), emit=hear))
    assert training.run().summary["steps"] == STEPS
    return torch.cat([p.detach().flatten() for p in training.parts.learner.parameters]).numpy()


@pytest.mark.parametrize("kind", ["gcn", "graphsage"])
def test_every_split_gives_the_weights_of_one_device(kind: str) -> None:
    alone = weights(["cpu"], None, kind)
    for split in SPLITS:
        hybrid = weights(["cpu", "opencl"], split, kind)
        np.testing.assert_allclose(hybrid, alone, atol=1e-4, err_msg=f"{kind} split {split}")


def test_dropout_and_sampling_on_the_device_change_nothing() -> None:
    model = {"dropout": 0.3, "input_dropout": 0.1}
    alone = weights(["cpu"], None, "graphsage", model=dict(model))
    hybrid = weights(
        ["cpu", "opencl"], [300, 724], "graphsage", model=dict(model), sampler={"on_device": True}
    )
    np.testing.assert_allclose(hybrid, alone, atol=1e-4)


def test_too_little_device_memory_moves_targets_to_the_cpu() -> None:
    alone = weights(["cpu"], None, "graphsage")
    notices: list[str] = []
    hybrid = weights(
        ["cpu", "opencl"],
        [24, 1000],
        "graphsage",
        notices=notices,
        runtime={"device_memory_gib": 0.004, "fuse_load": False},
    )
    np.testing.assert_allclose(hybrid, alone, atol=1e-4)
    assert "opencl:0 is out of memory; split cpu:0 24 → 524, opencl:0 1000 → 500" in notices[0]


def test_the_sampled_edges_are_the_same_for_every_split() -> None:
    sampler = NeighborSampler(graph(), graph().split("train"), [10, 5], BATCH, 0)
    edges: dict[tuple[int, int], tuple[int, ...]] = {}
    with Workers(2, "t") as team:
        for split in [[BATCH], *SPLITS]:
            seen = {1: set(), 2: set()}
            for units in cut(sampler.units(3), split):
                for block in sampler.sample(3, units, team, in_place=False).blocks:
                    sources = block.sources[block.columns]
                    for i, vertex in enumerate(block.destinations):
                        drawn = tuple(sources[block.indptr[i] : block.indptr[i + 1]].tolist())
                        assert edges.setdefault((block.layer, int(vertex)), drawn) == drawn
                        seen[block.layer].add(int(vertex))
            for layer, vertices in seen.items():
                assert vertices == {vertex for at, vertex in edges if at == layer}


def test_weights_that_do_not_fit_are_said_with_the_remedy() -> None:
    with pytest.raises(
        DeviceOutOfMemoryError, match=r"opencl:0 is out of memory .*weights do not fit.*model\.hidden"
    ):
        weights(["opencl"], None, "gcn", runtime={"device_memory_gib": 1e-5})
