"""What a run on ranks predicts of itself, against what travels in it and the tables of `hyrt predict`."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hyrt_perfmodel.measured_costs import ChunkReadCost, HostChunkRates, LoadCost, SampleCost
from hyrt_perfmodel.network import Network, find_network
from hyrt_perfmodel.platform import Host, Platform, TrainerRates
from hyrt_perfmodel.platform_file import Calibration
from hyrt_perfmodel.traffic import all_reduce_s

from hyrt.config import Config, build_config
from hyrt.errors import ConfigError
from hyrt.graph import open_graph
from hyrt.graph.partition.read_parts import open_part
from hyrt.graph.partition.write_parts import PartitionJob, write_parts
from hyrt.predict.calibrate.store import describe_machine, save_calibration
from hyrt.predict.chunked_work import count_graph_chunks
from hyrt.predict.dataset_sizes import graph_sizes
from hyrt.predict.distributed_full_graph import predict_full_graph
from hyrt.predict.rank_run import RankRun
from hyrt.predict.workload import sampled_workload
from hyrt.runtime.hardware import available_cores
from hyrt.telemetry.events import RunPrediction
from hyrt.training.setup import build_model, build_sampler

RATES = TrainerRates(memory_gb_s=8.0, macs_per_s=4e10, launch_s=1e-4, values_per_s=1e9)
HOST = Host(
    memory_gb_s=8.0,
    macs_per_s=4e10,
    cores=available_cores(),
    models={"graphsage": RATES, "gcn": RATES},
    forms=("rows", "sparse", "aggregated", "in_place"),
    loading=tuple(
        LoadCost(form=form, matrix_bytes=1e6, threads=1, row_s=1e-8, gb_s=2.0)
        for form in ("rows", "sparse", "aggregated")
    ),
    sampling=tuple(
        SampleCost(renumbers=renumbers, graph_bytes=1e6, edges=1e4, threads=1, edges_per_s=edges_per_s)
        for renumbers, edges_per_s in ((True, 2e7), (False, 4e7))
    ),
)
SLOW = "1mbit"


@pytest.fixture
def calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calibration:
    """A made-up calibration of this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    platform = Platform(name="this-machine", host=HOST, accelerators=(), source="measured")
    machine = describe_machine({"cpu:0": "made up"})
    found = Calibration(machine=machine, date="2026-01-01", seconds=1.0, platform=platform, measured={})
    save_calibration(found)
    return found


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts") / "parts"
    write_parts(PartitionJob("synthetic:tiny", folder, num_parts=2, method="random"))
    return folder


def run_of(parts: Path, measured: Network | None = None, **settings: Any) -> RankRun:
    given = {"network": SLOW, **settings.pop("distributed", {})}
    data = {"source": str(parts)} | ({} if "sampler" in settings else {"batch_size": 64})
    found = {"data": data, "distributed": given, **settings}
    config = build_config(found)
    part = open_part(parts, 0)
    graph = part.graph.with_features(part.rows)
    return RankRun(
        config=config,
        graph=graph,
        homes=part.part_ids,
        num_ranks=2,
        sampler=lambda: build_sampler(config, graph, graph.split("train")),
        measured=measured,
        machines=(0, 1),
    )


def predicted(run: RankRun) -> RunPrediction:
    said: list[str] = []
    found = run.predict(said.append)
    assert said == []
    assert found is not None
    return found


def weights_of(config: Config) -> int:
    model = build_model(config, open_graph("synthetic:tiny"))
    return sum(parameter.numel() for parameter in model.parameters())


def test_rows_wait_in_the_load_stage_and_gradients_in_synchronize(
    calibrated: Calibration, parts: Path
) -> None:
    run = run_of(parts)
    slow, fast = (
        predicted(replace(run, config=_with(run.config, network=name))) for name in (SLOW, "loopback")
    )
    network, loopback = find_network(SLOW), find_network("loopback")
    gradients = 4.0 * weights_of(run.config)
    off_s = all_reduce_s(gradients, 2, network) - all_reduce_s(gradients, 2, loopback)
    # Biases do not count in the work.
    assert slow.stages_s["synchronize"] - fast.stages_s["synchronize"] == pytest.approx(off_s, rel=0.04)
    for stage in ("sample", "transfer", "propagate"):
        assert slow.stages_s[stage] == pytest.approx(fast.stages_s[stage])
    # About as many rows as are drawn and are not at home, of parts at random.
    work = sampled_workload(run.config, run.graph).at(32.0)
    rows_s = 0.5 * work.vertices[0] * work.row_bytes / (network.gb_s * network.uneven_part * 1e9)
    assert slow.stages_s["load"] - fast.stages_s["load"] == pytest.approx(rows_s, rel=0.15)
    # Ranks that read each other's rows where they lie send none.
    together = predicted(replace(run, machines=(0, 0)))
    assert slow.stages_s["load"] - together.stages_s["load"] == pytest.approx(rows_s, rel=0.15)
    # Rows and gradients share it.
    assert slow.bottleneck == "link"
    assert slow.iteration_s == pytest.approx(slow.stages_s["load"] + slow.stages_s["synchronize"], rel=0.02)
    steps = len(open_graph("synthetic:tiny").split("train")) / 64
    # The gradients of the short last step are sent in full.
    assert slow.epoch_s == pytest.approx(steps * slow.iteration_s, rel=0.02)
    assert slow.epoch_s > steps * slow.iteration_s
    assert dict(slow.split) == {"cpu:0": 64}


def _with(config: Config, **distributed: Any) -> Config:
    return config.model_copy(update={"distributed": config.distributed.model_copy(update=distributed)})


@pytest.mark.parametrize(
    ("strategy", "at_least"), [("p3", "propagate"), ("hopgnn", "load"), ("local", "load")]
)
def test_what_travels_follows_the_strategy(
    calibrated: Calibration, parts: Path, strategy: str, at_least: str
) -> None:
    run = run_of(parts, distributed={"strategy": strategy})
    found = predicted(run)
    assert max(found.stages_s, key=found.stages_s.__getitem__) == at_least


def test_models_that_travel_are_waited_for_while_synchronizing(calibrated: Calibration, parts: Path) -> None:
    run = run_of(parts, distributed={"strategy": "hopgnn", "time_steps": 2})
    once, home = _with(run.config, time_steps=1), _with(run.config, strategy="home", time_steps=None)
    twice_s, once_s, home_s = (
        predicted(replace(run, config=each)).stages_s["synchronize"] for each in (run.config, once, home)
    )
    assert once_s == pytest.approx(home_s)
    # Weights and their gradients go to another rank once: as many bytes again as are reduced twice over.
    moved = 2 * 4 * weights_of(run.config) / (find_network(SLOW).gb_s * find_network(SLOW).uneven_part * 1e9)
    assert twice_s - once_s == pytest.approx(moved, rel=0.03)


def test_less_of_the_rows_travels_where_they_are_kept_or_rounded(
    calibrated: Calibration, parts: Path
) -> None:
    plain, rounded, kept = (
        predicted(run_of(parts, distributed=given)).stages_s["load"]
        for given in ({}, {"comm_dtype": "float16"}, {"cache": "100%"})
    )
    assert rounded == pytest.approx(plain / 2, rel=0.02)
    assert kept < 0.02 * plain


def test_ranks_of_one_machine_share_its_cores(
    calibrated: Calibration, parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(parts, distributed={"network": "100gbit"})
    alone = predicted(run)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(4 * available_cores()))
    shared = predicted(run)
    assert shared.iteration_s > 1.5 * alone.iteration_s
    assert shared.threads == alone.threads


def test_a_full_graph_is_predicted_under_its_algorithm(calibrated: Calibration, parts: Path) -> None:
    settings = {"sampler": {"kind": "full"}, "model": {"kind": "gcn"}}
    for way in ("1d", "1d-oblivious"):
        run = run_of(parts, distributed={"algorithm": way}, **settings)
        found = predicted(run)
        work = sampled_workload(run.config, run.graph)
        table = predict_full_graph(calibrated.platform, work, run.config, 2, find_network(SLOW))
        [expected] = [each for each in table.algorithms if each.algorithm == way]
        assert found.epoch_s == pytest.approx(expected.epoch_s, rel=0.02)
        assert found.stages_s["synchronize"] == pytest.approx(expected.gradients_s)
        assert sum(found.stages_s.values()) == pytest.approx(found.epoch_s)
        assert found.bottleneck == "network (products)"


def test_ranks_in_chunks_take_what_one_machine_with_as_small_chunks_does(
    calibrated: Calibration, parts: Path
) -> None:
    settings = {"sampler": {"kind": "full"}, "model": {"kind": "gcn"}, "fullgraph": {"chunks": 2}}
    run = run_of(parts, distributed={"network": "100gbit"}, **settings)
    said: list[str] = []
    assert run.predict(said.append) is None
    assert "the cost of full-graph chunks on the CPU was not measured" in said[0]
    # A second for each row that is gathered to, and little else.
    chunks = HostChunkRates(
        threads=1,
        copy_gb_s=1e3,
        reads=(ChunkReadCost(matrix_bytes=1e6, edge_s=0.0, gb_s=1e6),),
        factor_s=0.0,
        factor_value_s=0.0,
        row_s=1.0,
        row_value_s=0.0,
        call_s=0.0,
        macs_per_s=math.inf,
        values_per_s=math.inf,
        drawn_per_s=math.inf,
        scores_per_s=math.inf,
    )
    save_calibration(
        replace(
            calibrated,
            platform=replace(calibrated.platform, host=replace(HOST, cores=1, chunks=(chunks,))),
        )
    )
    found = predicted(run)
    topology, targets = run.graph.topology, run.graph.split("train")
    # Two ranks of two intervals each: four, of which each rank computes half. Vertices read themselves, too.
    _, into = count_graph_chunks(topology, targets, 4)
    rows = into.destinations.sum() + into.sources.sum() + 2 * len(targets)
    assert found.epoch_s == pytest.approx(rows / 2, rel=0.1)


def test_a_network_that_was_measured_counts_where_none_is_named(calibrated: Calibration, parts: Path) -> None:
    run = run_of(parts, measured=find_network(SLOW), distributed={"network": None})
    assert predicted(run).stages_s == predicted(run_of(parts)).stages_s
    fast = run_of(parts, measured=find_network(SLOW), distributed={"network": "loopback"})
    assert predicted(fast).epoch_s < predicted(run).epoch_s


def test_what_lacks_is_said_in_a_line(
    calibrated: Calibration, parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said_of(run: RankRun) -> str:
        said: list[str] = []
        assert run.predict(said.append) is None
        (line,) = said
        return line

    unnamed = run_of(parts, distributed={"network": None})
    assert said_of(unnamed).startswith(
        "no prediction: the network between the ranks is unknown: set distributed."
    )
    split = said_of(replace(run_of(parts), edges_are_split=True))
    assert "edges are split" in split
    assert "run `hyrt predict --data PARTS --ranks 2 --network NETWORK`" in split
    assert "not calibrated with model.kind=gin" in said_of(run_of(parts, model={"kind": "gin"}))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))
    assert said_of(run_of(parts)) == "no prediction: this machine is not calibrated: run `hyrt calibrate`"
    assert "run `hyrt calibrate`, and set distributed.network" in said_of(unnamed)


def test_a_file_that_describes_no_network_is_an_error(
    calibrated: Calibration, parts: Path, tmp_path: Path
) -> None:
    (tmp_path / "lan.yaml").write_text("gb_s: 1\n")
    with pytest.raises(ConfigError, match=r"distributed\.network: .*lan\.yaml.*latency_s"):
        run_of(parts, distributed={"network": str(tmp_path / "lan.yaml")}).predict(print)
    with pytest.raises(ConfigError, match="did you mean '10gbit'"):
        build_config({"distributed": {"network": "10gbits"}})


def test_sparse_rows_of_a_part_stand_for_all(tmp_path: Path) -> None:
    graph, random = open_graph("synthetic:tiny"), np.random.default_rng(0)
    lengths = random.integers(1, 6, graph.num_vertices)
    columns = [np.sort(random.choice(30, length, replace=False)) for length in lengths]
    np.savez(
        tmp_path / "bags.npz",
        indptr=graph.topology.indptr,
        indices=graph.topology.indices,
        labels=graph.labels,
        feat_indptr=np.concatenate([[0], np.cumsum(lengths)]),
        feat_indices=np.concatenate(columns).astype(np.int32),
        feat_values=np.ones(lengths.sum(), np.float32),
        feat_shape=np.array([graph.num_vertices, 30]),
        **{f"{name}_mask": mask for name, mask in graph.masks.items()},
    )
    write_parts(PartitionJob(str(tmp_path / "bags.npz"), tmp_path / "parts", num_parts=2, method="random"))
    part = open_part(tmp_path / "parts", 0)
    of_part = graph_sizes(part.graph.with_features(part.rows), graph.split("train")).row_entries
    assert of_part == pytest.approx(lengths[part.vertices].mean())
    assert graph_sizes(open_graph(str(tmp_path / "bags.npz")), graph.split("train")).row_entries == (
        pytest.approx(lengths.mean())
    )


def test_a_sampler_of_subgraphs_sends_what_is_expected(calibrated: Calibration, parts: Path) -> None:
    subgraphs = {"kind": "saint", "roots": 20, "walk_length": 2, "units": 4}
    found = predicted(run_of(parts, sampler=subgraphs, distributed={"strategy": "model-centric"}))
    work = sampled_workload(run_of(parts, sampler=subgraphs).config, open_graph(str(parts))).at(2.0)
    rows_s = find_network(SLOW).seconds(0.5 * work.vertices[0] * work.row_bytes)
    # Of parts at random, about half of the rows; the busier of two ranks sends a bit more.
    assert found.stages_s["load"] == pytest.approx(rows_s / find_network(SLOW).uneven_part, rel=0.1)
