"""Rows that an OpenCL device keeps change what it is sent, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hyrt.config import Config, build_config
from hyrt.device import DeviceOptions
from hyrt.errors import ConfigError, DeviceOutOfMemoryError, UnsupportedModelError
from hyrt.graph.graph import Graph
from hyrt.graph.quantized.features import quantize_graph
from hyrt.graph.row_source import DenseFeatures
from hyrt.telemetry.events import Event, Notice, StepMetrics
from hyrt.training import feature_caches
from hyrt.training.build_run import build_run
from hyrt.training.setup import build_model
from hyrt.training.train import Training

pytest.importorskip("pyopencl", reason='pyopencl is not installed: pip install "hyrt[opencl]"')
from graphs import random_graph
from hyrt_devices.opencl import OpenclDevice

pytestmark = pytest.mark.skipif(not OpenclDevice.probe(), reason=OpenclDevice.missing() or "no OpenCL device")


def settings(cache: Any, **sections: Any) -> Config:
    return build_config(
        {
            "data": {"batch_size": 30, **({} if cache is None else {"cache": cache})},
            "sampler": {"fanout": [3, 2]},
            "model": {"hidden": 8, "dropout": 0.3, **sections.pop("model", {})},
            "train": {"epochs": sections.pop("epochs", 2)},
            "runtime": {"fuse_load": False},
            "evaluate": {"every": 0},
            "devices": ["opencl"],
            **sections,
        }
    )


def trained(config: Config, graph: Graph) -> tuple[np.ndarray, dict[str, Any], list[Event]]:
    """Weights, summary and events of a run."""
    heard: list[Event] = []
    training = Training(build_run(config, graph, emit=heard.append))
    summary = training.run().summary
    weights = torch.cat([p.detach().flatten() for p in training.parts.learner.parameters])
    return weights.numpy(), summary, heard


@pytest.mark.parametrize("rows", ["float32", "int8"])
@pytest.mark.parametrize("devices", [["opencl"], ["cpu", "opencl"]])
def test_weights_are_those_of_a_run_without_a_cache(
    rows: str, devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rows are sent to the cache in several pieces.
    monkeypatch.setattr(feature_caches, "_PIECE_BYTES", 500)
    graph = random_graph(seed=4)
    graph = graph if rows == "float32" else quantize_graph(graph, rows)
    given = {"devices": devices, "balance": {"policy": "static"}}
    plain, without, _ = trained(settings(None, **given), graph)
    for cache in ("30%", "100%"):
        mine, summary, heard = trained(settings(cache, **given), graph)
        # Codes that come alone are widened in the first aggregation, which rounds otherwise.
        np.testing.assert_allclose(mine, plain, rtol=0, atol=0 if rows == "float32" else 1e-6)
        figures = summary["device_caches"]["opencl:0"]
        width = graph.num_features
        assert figures["bytes"] == figures["rows"] * (4 * width if rows == "float32" else width + 4)
        assert figures["rows"] <= graph.num_vertices * float(cache[:-1]) / 100
        assert figures["hit_rate"] == pytest.approx(figures["predicted_hit_rate"], abs=0.05)
        assert (figures["hit_rate"] == 1.0) == (cache == "100%")
        groups = [event for event in heard if isinstance(event, StepMetrics)]
        assert groups[-1].cache_hits == {"opencl:0": pytest.approx(figures["hit_rate"], abs=0.05)}
        said = [event.text for event in heard if isinstance(event, Notice)]
        assert any(f"opencl:0 caches {figures['rows']} rows" in text for text in said)
        assert any(f"opencl:0 found {figures['hit_rate']:.1%} of its rows" in text for text in said)
    assert "device_caches" not in without


def test_another_run_keeps_the_rows_that_its_graph_has() -> None:
    graph, config = random_graph(seed=4), settings("50%", epochs=1)
    first, _, _ = trained(config, graph)
    values = graph.features.matrix
    assert values is not None
    values *= 2
    changed, _, _ = trained(config, graph)
    plain, _, _ = trained(settings(None, epochs=1), graph.with_features(DenseFeatures(values.copy())))
    np.testing.assert_array_equal(changed, plain)
    assert (changed != first).any()


def test_what_has_no_effect_is_refused() -> None:
    graph = random_graph(seed=4)
    with pytest.raises(
        ConfigError, match=r"data\.cache has no effect, because no device .* rows \(cpu:0 receives"
    ):
        trained(settings("10%", devices=["cpu"], runtime={}), graph)
    # PoCL's device is in host memory: what it reads there it need not keep.
    _, summary, heard = trained(settings("auto", epochs=1), graph)
    if OpenclDevice.probe()[0].zero_copy:
        assert "device_caches" not in summary
        assert any("no device in this run has its own memory" in getattr(e, "text", "") for e in heard)
    with pytest.raises(ConfigError, match=r"data\.cache=0\.1 does not support --full-graph"):
        build_config({"data": {"cache": "10%"}, "sampler": {"kind": "full"}})
    with pytest.raises(ConfigError, match="auto"):
        build_config({"data": {"cache": "most"}})


def test_rows_that_do_not_fit_are_refused_with_the_way_out() -> None:
    rows = np.zeros((150_000, 8), np.float32)
    graph = random_graph(seed=4)
    opened = OpenclDevice.open(OpenclDevice.probe()[0], DeviceOptions(memory_bytes=2 << 20))
    try:
        model = build_model(settings(None), graph.with_features(DenseFeatures(rows)))
        opened.load(model, list(model.parameters()))
        free = opened.free_bytes
        assert free < 2 << 20
        with pytest.raises(DeviceOutOfMemoryError):
            opened.keep_rows(len(rows), iter([rows]))
        assert opened.free_bytes == free
        opened.keep_rows(1000, iter([rows[:600], rows[600:1000]]))
        assert free - opened.free_bytes >= 4 * 8 * 1000
        # The next model's rows are others.
        opened.load(model, list(model.parameters()))
        assert opened.free_bytes == free
    finally:
        opened.close()


def test_a_model_whose_vertices_the_host_computes_takes_codes_and_keeps_no_rows() -> None:
    graph = quantize_graph(random_graph(seed=4), "int8")
    model = {"kind": "gat", "heads": 2}
    mine, _, _ = trained(settings(None, model=model), graph)
    cpus, _, _ = trained(settings(None, model=model, devices=["cpu"]), graph)
    np.testing.assert_allclose(mine, cpus, rtol=0, atol=1e-5)
    with pytest.raises(
        UnsupportedModelError, match=r"opencl:0 cannot cache feature rows for this model.*remove data\.cache"
    ):
        trained(settings("30%", model=model), graph)
