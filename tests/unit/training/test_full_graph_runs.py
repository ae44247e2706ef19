"""Runs on the whole graph: equal to sampled ones of all neighbours, seldom interrupted, bit-equal resumed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from graphs import random_graph, with_values
from hyrt_devices.opencl import OpenclDevice

import hyrt
from hyrt.config import build_config
from hyrt.errors import ConfigError, UnsupportedModelError
from hyrt.graph.graph import Graph
from hyrt.sampling.block import Block
from hyrt.telemetry.events import (
    CheckpointWritten,
    EpochEnded,
    EvaluationFinished,
    Event,
    Notice,
    RunStarted,
    StepMetrics,
)
from hyrt.training.build_run import build_run
from hyrt.training.checkpoint import load_newest_checkpoint
from hyrt.training.train import Training

needs_opencl = pytest.mark.skipif(
    not OpenclDevice.probe(), reason=OpenclDevice.missing() or "no OpenCL device"
)
GRAPH = random_graph(120, features=12)
ALL = len(GRAPH.split("train"))
QUIET: dict[str, Any] = {"balance": {"predict": False}}


def losses(heard: Sequence[Event]) -> list[float]:
    return [loss for event in heard if isinstance(event, StepMetrics) for loss in event.losses]


def trained(model: Any = "gcn", graph: Graph = GRAPH, **settings: Any) -> tuple[list[Event], Any]:
    heard: list[Event] = []
    result = hyrt.train(graph, model, emit=heard.append, **{**QUIET, **settings})
    return heard, result


class Sums(torch.nn.Module):
    """A module of the user's over edge lists."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.outer = torch.nn.Linear(12, 8), torch.nn.Linear(8, 3)

    def forward(self, blocks: Sequence[Block], x: torch.Tensor) -> torch.Tensor:
        for block, layer in zip(blocks, (self.inner, self.outer), strict=True):
            sources, destinations = block.edge_index()
            total = x.new_zeros(block.num_dst, x.shape[1]).index_add(0, destinations, x[sources])
            x = layer(total + x[: block.num_dst]).tanh()
        return x


@pytest.mark.parametrize("own", [False, True], ids=["gcn", "own module"])
def test_a_run_equals_one_with_all_neighbours_of_all_targets(own: bool) -> None:
    settings = {"train": {"epochs": 6, "optimizer": "SGD", "lr": 0.05}, "seed": 3}
    whole, found = trained(Sums() if own else "gcn", full_graph=True, **settings)
    sampled, wanted = trained(
        Sums() if own else "gcn", sampler={"fanout": [-1, -1]}, data={"batch_size": ALL}, **settings
    )
    assert losses(whole) == pytest.approx(losses(sampled), rel=1e-4)
    assert len(losses(whole)) == 6
    scores = [event.metrics["val"]["loss"] for event in whole if isinstance(event, EvaluationFinished)]
    others = [event.metrics["val"]["loss"] for event in sampled if isinstance(event, EvaluationFinished)]
    assert scores == pytest.approx(others, rel=1e-3)
    assert found.metrics["test"]["loss"] == pytest.approx(wanted.metrics["test"]["loss"], rel=1e-3)


def test_what_a_run_says_of_itself() -> None:
    heard, result = trained(full_graph=True, train={"epochs": 2})
    [started] = [event for event in heard if isinstance(event, RunStarted)]
    assert "full graph, one step per epoch" in started.model
    assert "cpu:0 1 whole graph · threads sample 1, load 1, train" in started.devices
    assert (started.epochs, started.steps_per_epoch) == (2, 1)
    assert result.summary["balance"] == {"policy": "static", "decisions": 0}
    assert result.summary["split"] == {"cpu:0": 1}
    assert not [thread.name for thread in threading.enumerate() if thread.name == "hyrt.steps"]


@pytest.mark.parametrize(("epochs", "evaluations"), [(100, 100), (101, 51), (250, 84)])
def test_a_long_run_is_evaluated_at_most_a_hundred_times(epochs: int, evaluations: int) -> None:
    config = build_config({"sampler": {"kind": "full"}}).evaluate
    due = [n for n in range(1, epochs + 1) if config.is_due(n, epochs, full_graph=True)]
    assert len(due) == evaluations
    assert due[-1] == epochs
    assert all(config.is_due(n, epochs, full_graph=False) for n in range(1, epochs + 1))
    given = build_config({"evaluate": {"every": 30}}).evaluate
    assert [n for n in range(1, 101) if given.is_due(n, 100, full_graph=True)] == [30, 60, 90, 100]


def test_checkpoints_of_short_epochs_are_a_minute_apart(tmp_path: Path, monkeypatch: Any) -> None:
    def saved(name: str) -> list[int]:
        heard, _ = trained(full_graph=True, folder=tmp_path / name, train={"epochs": 6})
        return [event.step for event in heard if isinstance(event, CheckpointWritten)]

    assert saved("at the end") == [6]
    monkeypatch.setattr("hyrt.config.settings._CHECKPOINT_S", 0.0)
    assert saved("each") == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "settings",
    [
        {"model": {"kind": "gat", "hidden": 8}},
        pytest.param(
            {"model": {"kind": "gcn", "hidden": 8}, "devices": ["opencl"], "fullgraph": {"chunks": 3}},
            marks=needs_opencl,
        ),
    ],
    ids=["cpu", "chunks"],
)
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(tmp_path: Path, settings: dict[str, Any]) -> None:
    config = build_config({"sampler": {"kind": "full"}, "train": {"epochs": 9}, **settings, **QUIET})

    def run(folder: Path, stop_after: int) -> tuple[list[Event], Any]:
        heard: list[Event] = []

        def should_stop() -> bool:
            return sum(isinstance(event, EpochEnded) for event in heard) >= stop_after

        parts = build_run(config, GRAPH, emit=heard.append, checkpoints=folder, should_stop=should_stop)
        training = Training(parts)
        if folder.is_dir():
            training.resume(load_newest_checkpoint(folder, pytest.fail))
        return heard, training.run()

    whole, wanted = run(tmp_path / "whole", 100)
    first, stopped = run(tmp_path / "parts", 4)
    second, found = run(tmp_path / "parts", 100)
    assert (stopped.status, found.status) == ("interrupted", "finished")
    assert losses(first) + losses(second) == losses(whole)
    mine, other = found.model.state_dict(), wanted.model.state_dict()
    assert all(torch.equal(mine[name], other[name]) for name in other)
    assert found.metrics == wanted.metrics


@needs_opencl
def test_a_run_in_chunks_says_how_the_graph_was_cut() -> None:
    heard, result = trained(
        full_graph=True, devices=["opencl"], fullgraph={"chunks": 3}, train={"epochs": 2}, model={"hidden": 8}
    )
    told = [event.text for event in heard if isinstance(event, Notice) and "chunks" in event.text]
    assert len(told) == 1, "once, as long as it stays"
    assert told[0].startswith("opencl:0 trains in 3 x 3 chunks of 40 vertices · ")
    groups = [event.chunks for event in heard if isinstance(event, StepMetrics)]
    assert [group["opencl:0"]["intervals"] for group in groups] == [3, 3]
    figures = result.summary["chunks"]["opencl:0"]
    assert figures == groups[-1]["opencl:0"]
    # What the first layer gathers, its rows, and what the last one does; with the edges.
    assert figures["host_bytes"] > 4 * 120 * (12 + 8)
    _, whole = trained(full_graph=True, train={"epochs": 1})
    assert "chunks" not in whole.summary


def test_a_module_of_the_users_is_loaded_with_its_blocks(tmp_path: Path) -> None:
    settings = {"sampler": {"fanout": [1, 1]}, "folder": tmp_path, "train": {"epochs": 3}}
    _, result = trained(Sums(), full_graph=True, **settings)
    run = hyrt.load_run(tmp_path, graph=GRAPH, model=Sums())
    assert (run.config.sampler.kind, run.config.fanouts) == ("full", [1, 1])
    assert run.metrics == result.metrics
    wanted = result.model.state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in run.model.state_dict().items())


def test_a_device_that_hangs_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(
        "hyrt_devices.null.NullDevice.propagate", lambda device, staged: release.wait(5) and None
    )
    monkeypatch.setattr("hyrt.runtime.stage_threads._JOIN_AFTER_STALL_S", 0.1)
    with pytest.raises(hyrt.errors.HyrtError, match="propagate on null:0 at step 0 did not return"):
        trained(full_graph=True, devices="null", runtime={"stall_timeout_s": 0.3})
    release.set()


def test_a_budget_of_host_memory_changes_no_bit(tmp_path: Path) -> None:
    graph = random_graph(4000, features=90)
    settings = {"model": {"hidden": 80}, "train": {"epochs": 4}}
    free, free_result = trained(graph=graph, full_graph=True, **settings)
    tight, tight_result = trained(
        graph=graph, full_graph=True, folder=tmp_path, fullgraph={"host_memory": "1MiB"}, **settings
    )
    assert losses(tight) == losses(free)
    for mine, other in zip(tight_result.model.parameters(), free_result.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    # It lived in the run's folder, and nothing of it is left.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints"]


def test_a_module_that_computes_all_at_once_refuses_a_budget() -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"Sums on cpu:0 .*fullgraph\.host_memory has no effect: remove it"
    ):
        trained(Sums(), full_graph=True, fullgraph={"host_memory": "1MiB"})


@pytest.mark.parametrize("given", [{"chunks": 3}, {"device_memory": "64MiB"}, {"order": "row-column"}])
def test_a_device_that_does_not_train_in_chunks_refuses_to(given: dict[str, Any]) -> None:
    (name,) = given
    words = rf"^null:0 does not support fullgraph\.{name}: use cuda or opencl, or remove"
    with pytest.raises(UnsupportedModelError, match=words):
        trained(full_graph=True, devices="null", fullgraph=given)


@needs_opencl
def test_more_intervals_than_vertices_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"fullgraph\.chunks=121 is more than the 120 vertices of .*: set"):
        trained(devices=["opencl:0"], sampler={"kind": "full"}, fullgraph={"chunks": 121})


@needs_opencl
def test_losses_are_those_of_the_cpu_for_any_number_of_chunks() -> None:
    settings = {"model": {"hidden": 8}, "train": {"epochs": 20}, "evaluate": {"every": 0}}
    graph = random_graph(300, features=12)
    wanted = losses(trained(graph=graph, full_graph=True, **settings)[0])
    for chunks in (1, 2, 4, 7):
        given = {"devices": ["opencl"], "fullgraph": {"chunks": chunks, "host_memory": "1MiB"}}
        found = losses(trained(graph=graph, full_graph=True, **settings, **given)[0])
        assert found == pytest.approx(wanted, rel=1e-5)


@needs_opencl
@pytest.mark.parametrize(
    ("model", "precision"),
    [
        ({"kind": "gin"}, "fp32"),
        ({"kind": "gcn", "norm": "layer"}, "fp32"),
        ({"kind": "graphsage", "aggregate": "sum", "norm": "layer"}, "fp32"),
        ({"kind": "deepgcn", "layers": 3}, "fp32"),
        ({"kind": "gcn"}, "bf16"),
    ],
)
def test_a_device_that_runs_loops_gets_rows_of_a_whole_graph(model: dict[str, Any], precision: str) -> None:
    """Sums of rows, which it takes of mini-batches, would leave nothing for the loops of the first layer."""
    settings = {
        "model": {"hidden": 8, "dropout": 0.0, **model},
        "train": {"epochs": 3, "precision": precision},
        "full_graph": True,
    }
    wanted, _ = trained(**settings)
    found, _ = trained(devices=["opencl:0"], **settings)
    assert losses(found) == pytest.approx(losses(wanted), rel=1e-2 if precision == "bf16" else 1e-5)


@pytest.mark.parametrize(
    ("model", "limit", "says"),
    [
        (
            "gcn",
            0.5,
            "fullgraph.filter_below=0.5 only costs time on cpu:0, which reads the host's memory in place",
        ),
        ({"kind": "gat", "heads": 2}, 0.5, "fullgraph.filter_below=0.5 has no effect on this model"),
        ("gcn", 0.0, None),
    ],
)
def test_a_filter_that_saves_nothing_is_warned_of(model: Any, limit: float, says: str | None) -> None:
    settings = {"train": {"epochs": 1}, "evaluate": {"every": 0}}
    heard, _ = trained(model, full_graph=True, fullgraph={"chunks": 2, "filter_below": limit}, **settings)
    said = [event.text for event in heard if isinstance(event, Notice) and event.kind == "warning"]
    assert len(said) == (says is not None)
    assert all(says in text for text in said if says)


def test_the_remedy_for_loops_in_chunks_leads_elsewhere() -> None:
    graph = with_values(random_graph(60, 5, features=4), 1)
    graph = replace(graph, topology=replace(graph.topology, edge_weights=None))
    settings: dict[str, Any] = {"train": {"epochs": 1}, "evaluate": {"every": 0}, "full_graph": True}
    model = {"kind": "gine", "hidden": 8}
    remedy = r"train it on one cpu or cuda device, without fullgraph\.chunks"
    for devices in ("cpu:0", "cpu:0,cpu:1"):
        with pytest.raises(UnsupportedModelError, match=rf"GineLayer\) in one .*: {remedy}") as refused:
            trained(model, graph, devices=devices.split(","), fullgraph={"chunks": 2}, **settings)
        # Nobody changes a line of hyrt's own layers.
        assert "change that line" not in str(refused.value)
    trained(model, graph, devices=["cpu:0"], **settings)
