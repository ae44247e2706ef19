"""`hyrt predict` and `hyrt run` start from one assignment, on the same devices."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hyrt_perfmodel.measured_costs import ChunkReadCost, HostChunkRates, LoadCost, SampleCost
from hyrt_perfmodel.platform import Accelerator, Host, Platform, TrainerRates
from hyrt_perfmodel.platform_file import Calibration
from hyrt_perfmodel.policy import Threads
from typer.testing import CliRunner

from hyrt.cli.commands import app
from hyrt.config import build_config
from hyrt.config.load import apply_overrides
from hyrt.device.protocol import HOST_FORMS
from hyrt.graph import open_graph
from hyrt.pipeline.trainer import plan_input
from hyrt.predict.calibrate.store import (
    describe_machine,
    real_devices,
    save_calibration,
    shares_cores,
    stored_calibration,
)
from hyrt.predict.predict_run import predict_run
from hyrt.predict.workload import sampled_workload
from hyrt.runtime.hardware import available_cores
from hyrt.sampling.neighbor_sampler import NeighborSampler
from hyrt.telemetry.events import RunPrediction
from hyrt.training.setup import build_model

RATES = {
    kind: TrainerRates(memory_gb_s=8.0, macs_per_s=4e10, launch_s=1e-4, values_per_s=1e9)
    for kind in ("graphsage", "gcn", "gin")
}
CORES = available_cores()
CHUNKS = HostChunkRates(
    threads=1,
    copy_gb_s=4.0,
    reads=(ChunkReadCost(matrix_bytes=1e6, edge_s=1e-8, gb_s=4.0),),
    factor_s=1e-9,
    factor_value_s=1e-10,
    row_s=1e-7,
    row_value_s=1e-9,
    call_s=1e-5,
    macs_per_s=4e10,
    values_per_s=1e9,
    drawn_per_s=1e8,
    scores_per_s=1e8,
)
HOST = Host(
    chunks=(CHUNKS,),
    memory_gb_s=8.0,
    macs_per_s=4e10,
    cores=CORES,
    models=RATES,
    forms=("rows", "sparse", "aggregated", "in_place"),
    loading=tuple(
        LoadCost(form=form, matrix_bytes=1e6, threads=1, row_s=1e-8, gb_s=2.0)
        for form in ("rows", "sparse", "aggregated")
    ),
    sampling=tuple(
        SampleCost(renumbers=renumbers, graph_bytes=1e6, edges=1e4, threads=1, edges_per_s=2e7)
        for renumbers in (False, True)
    ),
)
OPENCL = Accelerator(
    kind="opencl",
    memory_gb_s=8.0,
    macs_per_s=4e10,
    link_gb_s=float("inf"),
    host_cores=1,
    models={kind: replace(rates, macs_per_s=2e10) for kind, rates in RATES.items()},
)


@pytest.fixture
def calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calibration:
    """A made-up calibration of this machine, with a device that shares its cores."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    machine = describe_machine({"cpu:0": "made up", "opencl:0": "made up"})
    platform = Platform(name="this-machine", host=HOST, accelerators=(OPENCL,), source="measured")
    found = Calibration(machine=machine, date="2026-01-01", seconds=1.0, platform=platform, measured={})
    save_calibration(found)
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A graph with sparse rows in a file: both commands open it and sample it."""
    graph = open_graph("synthetic:tiny")
    count, random = graph.num_vertices, np.random.default_rng(0)
    columns = np.sort([random.choice(50, 3, replace=False) for _ in range(count)], axis=1)
    path = tmp_path / "bags.npz"
    np.savez(
        path,
        indptr=graph.topology.indptr,
        indices=graph.topology.indices,
        labels=graph.labels,
        feat_indptr=np.arange(0, 3 * count + 1, 3),
        feat_indices=columns.ravel().astype(np.int32),
        feat_values=np.ones(3 * count, np.float32),
        feat_shape=np.array([count, 50]),
        **{f"{name}_mask": mask for name, mask in graph.masks.items()},
    )
    return path


def predicted(data: Path, *words: str) -> dict:
    done = CliRunner().invoke(app, ["predict", "--data", str(data), "--json", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def expected(data: Path, *settings: str) -> RunPrediction:
    said: list[str] = []
    config = build_config(apply_overrides({"data": {"source": str(data)}}, settings))
    found = predict_run(config, open_graph(str(data)), notify=said.append)
    assert found is not None, said
    return found


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["data.batch_size=256", "model.kind=gcn"],
        ["devices=opencl", "data.batch_size=128"],
        ["devices=[cpu, opencl]"],
        ["devices=[opencl, cpu]", "data.batch_size=300"],
        ["devices=[cpu=1, opencl=3]"],
        ["devices=[opencl, cpu]", "split=[1000, 24]"],
        ["devices=[cpu, opencl]", "balance.predict=false"],
        ["runtime.sample_threads=1", "runtime.load_threads=1", "runtime.train_threads=1"],
        ["runtime.max_in_flight_steps=1"],
        ["sampler.kind=saint", "sampler.roots=50", "model.kind=gin"],
        ["sampler.kind=saint", "sampler.roots=50", "sampler.units=5", "devices=[opencl, cpu]"],
    ],
)
def test_predict_says_what_a_run_starts_with(
    calibrated: Calibration, data: Path, settings: list[str]
) -> None:
    printed, run = predicted(data, *settings), expected(data, *settings)
    assert printed["assignment"]["split"] == dict(run.split)
    assert Threads(**printed["assignment"]["threads"]) == run.threads
    assert printed["iteration_s"] == pytest.approx(run.iteration_s)
    assert printed["stages_s"] == pytest.approx(dict(run.stages_s))
    assert printed["epoch_s"] == pytest.approx(run.epoch_s)


def test_devices_that_share_a_whole_graph_are_predicted_together(calibrated: Calibration, data: Path) -> None:
    """An epoch of one of them alone is none of theirs."""
    words = ["predict", "--data", str(data), "--full-graph", "--devices", "opencl,cpu", "model.kind=gcn"]
    facts = predicted(data, *words[3:])
    shared = facts["chunks"]
    assert shared["device"] == "opencl:0+cpu:0"
    assert sum(shared["columns"]) == shared["intervals"]
    assert min(shared["columns"]) > 0
    assert facts["epoch_s"] == facts["iteration_s"] == shared["epoch_s"] > 0
    assert not facts.keys() & {"assignment", "stages_s", "advice"}
    printed = CliRunner().invoke(app, words, catch_exceptions=False).stdout.splitlines()
    assert printed[0].startswith("in chunks on opencl:0+cpu:0: epoch ")
    assert sum("epoch" in line.partition("assumed")[0] for line in printed) == 1


@pytest.mark.parametrize(
    "settings",
    [
        ["fullgraph.chunks=3", "devices=cpu"],
        ["fullgraph.chunks=2", "devices=opencl", "fullgraph.order=row-column"],
        ["devices=[cpu=1, opencl=2]", "fullgraph.host_memory=1MiB"],
        ["fullgraph.device_memory=3MiB", "devices=cpu"],
    ],
)
def test_a_run_in_chunks_expects_what_predict_says(
    calibrated: Calibration, data: Path, settings: list[str]
) -> None:
    words = ["sampler.kind=full", "model.kind=gcn", *settings]
    printed, run = predicted(data, *words), expected(data, *words)
    assert printed["epoch_s"] == printed["chunks"]["epoch_s"] == pytest.approx(run.epoch_s)
    assert run.iteration_s == pytest.approx(sum(run.stages_s.values()))
    assert list(run.split) == [printed["chunks"]["device"]]
    assert printed["chunks"]["intervals"] > 1
    assert (printed["chunks"]["file_bytes"] > 0) == any("host_memory" in each for each in settings)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["model.kind=gat", "devices=cpu"], "the cost of full-graph chunks on the CPU was not measured"),
        (
            ["model.kind=gat", "devices=[cpu, opencl]"],
            "loops over edges, which were measured only on the CPU, not on opencl:0",
        ),
    ],
)
def test_what_cannot_be_said_of_a_run_in_chunks(
    calibrated: Calibration, data: Path, settings: list[str], reason: str
) -> None:
    gat = {"gat": RATES["gcn"]}
    platform = replace(
        calibrated.platform,
        host=replace(HOST, models={**RATES, **gat}),
        accelerators=(replace(OPENCL, models={**RATES, **gat}),),
    )
    save_calibration(replace(calibrated, platform=platform))
    said: list[str] = []
    words = ["sampler.kind=full", "fullgraph.chunks=2", *settings]
    config = build_config(apply_overrides({"data": {"source": str(data)}}, words))
    assert predict_run(config, open_graph(str(data)), notify=said.append) is None
    assert reason in said[0]


def test_alone_it_predicts_the_device_that_runs_have_by_default(calibrated: Calibration, data: Path) -> None:
    assert list(predicted(data)["assignment"]["split"]) == ["cpu:0"]
    assert list(predicted(data, "--devices", "cpu,opencl")["assignment"]["split"]) == ["cpu:0", "opencl:0"]
    # A kind is known in any case.
    assert list(predicted(data, "--devices", "CPU,OpenCL")["assignment"]["split"]) == ["cpu:0", "opencl:0"]
    # What shares the cores is not chosen by itself.
    assert list(predicted(data, "--devices", "auto")["assignment"]["split"]) == ["cpu:0"]


def test_auto_needs_no_open_graph(calibrated: Calibration) -> None:
    assert list(predicted(Path("synthetic:tiny"), "--devices", "auto")["assignment"]["split"]) == ["cpu:0"]


class ReturnsNothing(NeighborSampler):
    def sample(self, *_: Any, **__: Any) -> Any:
        return None


def test_a_sampler_that_fails_leaves_it_to_the_run_to_fail(calibrated: Calibration, data: Path) -> None:
    graph, said = open_graph(str(data)), []
    sampler = ReturnsNothing(graph, graph.split("train"), [2, 2], 64, 0)
    assert predict_run(build_config({"data": {"batch_size": 64}}), graph, sampler, said.append) is None
    (reason,) = said
    assert re.fullmatch(r"no prediction: sampler.kind 'neighbor' \(.*\): sample failed: .*NoneType.*", reason)


def test_a_run_that_cannot_be_predicted_says_which_part(calibrated: Calibration, data: Path) -> None:
    graph = open_graph(str(data))
    for settings, says in (
        ({"devices": ["cpu", "null"]}, "the calibrated devices are cpu:0, opencl:0"),
        ({"model": {"kind": "gat"}}, "cpu:0 was not calibrated with model.kind=gat"),
    ):
        said: list[str] = []
        assert predict_run(build_config(settings), graph, notify=said.append) is None
        assert len(said) == 1
        assert said[0].startswith("no prediction: ")
        assert says in said[0]


def test_what_shares_the_cores_need_not_be_calibrated(
    calibrated: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = replace(real_devices()[0], description="made up")
    sharing = replace(cpu, kind="opencl", host_cores=2)
    other = replace(cpu, kind="cuda", host_cores=0, description="a card")
    assert shares_cores(sharing)
    assert not shares_cores(cpu)
    assert not shares_cores(other)
    alone = replace(
        calibrated,
        machine=describe_machine({"cpu:0": "made up"}),
        platform=replace(calibrated.platform, accelerators=()),
    )
    save_calibration(alone)
    assert stored_calibration([cpu, sharing])[1] == []
    assert stored_calibration([cpu, other])[1] == ["made without cuda:0"]


def test_without_predictions_parts_are_equal(calibrated: Calibration, data: Path) -> None:
    found = predicted(data, "devices=[cpu, opencl]", "balance.predict=false", "data.batch_size=300")
    assert found["assignment"]["split"] == {"cpu:0": 150, "opencl:0": 150}


def test_sampled_subgraphs_know_their_walks(data: Path) -> None:
    sampler = {"kind": "saint", "roots": 50, "walk_length": 3, "units": 4}
    work = sampled_workload(build_config({"sampler": sampler}), open_graph(str(data)))
    for units in (1, 2, 4):
        assert work.at(units).walk_steps == pytest.approx(units * 50 * 4)


@pytest.mark.parametrize(
    ("model", "form"),
    [
        ({"kind": "gcn"}, "aggregated"),
        ({"kind": "gat"}, "in_place"),
        ({"kind": "gcn", "input_dropout": 0.1}, "rows"),
        # A residual connection needs the rows, but that of a single layer there is none.
        ({"kind": "gcn", "residual": True}, "rows"),
        ({"kind": "gcn", "residual": True, "layers": 1}, "aggregated"),
    ],
)
def test_the_form_of_input_is_the_one_that_the_run_takes(model: dict, form: str) -> None:
    graph = open_graph("synthetic:tiny")
    config = build_config({"model": model})
    assert sampled_workload(config, graph).best_form == form
    assert plan_input(build_model(config, graph), graph, HOST_FORMS, fuse=True).form == form


def test_what_shares_the_cores_and_was_measured_is_asked_for(calibrated: Calibration) -> None:
    cpu = replace(real_devices()[0], description="made up")
    sharing = replace(cpu, kind="opencl", host_cores=2)
    assert stored_calibration([cpu, sharing])[1] == []
    assert stored_calibration([cpu])[1] == ["made with opencl:0, which is no longer available"]
