"""Predictions of full-graph training on several ranks, and the algorithm that a run takes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hyrt_perfmodel.distributed_epoch import algorithm_epoch, fastest_algorithm
from hyrt_perfmodel.measured_costs import FullGraphRates, GatherCost
from hyrt_perfmodel.network import Network, find_network
from hyrt_perfmodel.platform import Host, Platform
from hyrt_perfmodel.platform_file import load_platform
from hyrt_perfmodel.prediction.predict import predict

from hyrt.config import Config, build_config
from hyrt.errors import ConfigError
from hyrt.graph.partition.block_volumes import count_block_volumes
from hyrt.graph.partition.write_parts import PartitionJob, write_parts
from hyrt.graph.source import open_graph
from hyrt.predict.distributed_full_graph import full_graph_work, predict_full_graph
from hyrt.predict.rank_run import choose_algorithm
from hyrt.predict.workload import configured_workload
from hyrt.report.predict_table import full_graph_lines

H200 = load_platform("h200")


def settings(source: Path | str, **model: Any) -> Config:
    return build_config(
        {
            "data": {"source": str(source)},
            "sampler": {"kind": "full"},
            "model": {"kind": "gcn", "layers": 3, "hidden": 8, **model},
        }
    )


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "parts"
    write_parts(PartitionJob("synthetic:tiny", folder, num_parts=4, method="random"))
    return folder


def test_rows_are_counted_from_the_parts(parts: Path) -> None:
    config, graph = settings(parts), open_graph("synthetic:tiny")
    work = configured_workload(config)
    found = predict_full_graph(H200, work, config, 4, find_network("1gbit"))
    homes = np.load(parts / "graph" / "home.npy")
    into = np.repeat(homes, graph.topology.in_degrees)
    rows = sum(
        int((homes[np.unique(graph.topology.indices[into == part])] != part).sum()) for part in range(4)
    )
    # Features are gathered once; 8 columns and the classes' travel forth, and back.
    columns = 2 * (8 + graph.num_classes)
    assert [each.gradients_s > 0 for each in found.algorithms] == [True] * 4
    by_name = {each.name: each for each in found.algorithms}
    assert list(by_name) == ["1d", "1d-oblivious", "1.5d, c = 2", "1.5d-oblivious, c = 2"]
    weights = 8 * (graph.num_features + 1) + 8 * (8 + 1) + graph.num_classes * (8 + 1)
    # A ring adds up gradients: each of 4 ranks receives 3 quarters of them twice.
    gradients = 4 * 2 * 0.75 * 4 * weights
    assert by_name["1d"].epoch_bytes - gradients == rows * 4 * columns
    # Each block goes to the 3 others. The gradients of a block are added up around the ring, in which each
    # rank receives 3 quarters, and then its owner receives the 3 quarters that others have.
    broadcast = 3 * graph.num_vertices * 4 * columns // 2
    assert by_name["1d-oblivious"].epoch_bytes - gradients == broadcast + broadcast * (1 + 1 / 4)
    assert [each.ranks for each in found.scaling] == [1, 2, 4]
    told = full_graph_lines(found)
    assert told[0].startswith("4 ranks like h200 · 1gbit")
    # Rows of a table that a narrow terminal cuts are no table.
    slow = replace(found.algorithms[-1], epoch_s=1234.5, compute_s=1234.5, products_s=1234.5)
    large = replace(slow, epoch_bytes=999.4 * 2**30, memory_bytes=999.4 * 2**30, gradients_s=0.123)
    table = full_graph_lines(replace(found, algorithms=[large], scaling=[large, large]))
    assert [line for line in table[1:-4] if len(line) > 80] == []
    assert f"assumed: exchanged rows are counted for the 4 parts in {parts}" in told
    assert json.loads(json.dumps(found.to_json()))["fastest"]["ranks"] == 4


def test_what_a_rank_does_for_itself_does_not_get_less_with_its_rows(parts: Path) -> None:
    # A pass over a chunk takes two cores 1 ms, and all else but 10 ns for a row along an edge takes no time.
    read = GatherCost(kind="sum", back=False, matrix_bytes=1e6, row_s=1e-8, gb_s=1e9)
    rates = FullGraphRates(
        threads=2, reads=(read,), mask_s=0.0, call_s=1e-3, macs_per_s=1e30, values_per_s=1e30
    )
    host = Host(memory_gb_s=10.0, macs_per_s=1e10, cores=2, whole_graph=rates)
    machine = Platform(name="two cores", host=host, accelerators=(), source="made up")
    config, graph = settings(parts), open_graph(str(parts))
    training = configured_workload(config)
    work = full_graph_work(config, graph, machine, training)
    # Two layers forward, the last one with its loss and gradients, and two layers back: rows are kept.
    calls = 2 * 1 + 3 + 2 * 2
    alone = predict(machine, training).stages.synchronize_s
    assert work.rank_s == pytest.approx(alone + calls * 2 * 1e-3)
    assert work.rows_s == pytest.approx(0.0, abs=1e-9)
    # What the first layer gathers is kept, so four gatherings read edges; those of the last one lead to
    # targets, and each row reads its own, too.
    targets = graph.split("train")
    of_targets = int(graph.topology.in_degrees[targets].sum()) + len(targets)
    whole = graph.num_edges + graph.num_vertices
    assert 2 * whole + of_targets < work.edges_s / 1e-8 <= 4 * whole
    assert (work.cores, work.max_rounds) == (2, 4)
    one = full_graph_work(config, graph, machine, training, threads=1)
    assert one.edges_s == pytest.approx(2 * work.edges_s)
    assert one.rank_s == pytest.approx(work.rank_s)


def test_data_without_parts_for_the_ranks_are_cut(parts: Path) -> None:
    config = settings(parts)
    said: list[str] = []
    network = find_network("slingshot-11")
    found = predict_full_graph(H200, configured_workload(config), config, 8, network, notify=said.append)
    # As the parts that there are were cut.
    assert "8 parts by random, made for this prediction" in found.assumptions[0]
    assert said[0].startswith("partitioning the graph into 8 parts with random, which needs at most ")
    assert found.algorithms[0].ranks == 8
    # Four blocks are the four parts, as in a run, with one rank each or two.
    fewer = predict_full_graph(H200, configured_workload(config), config, 4, network, notify=said.append)
    assert len(said) == 1
    assert [each for each in found.scaling if each.ranks == 4] == [fastest_algorithm(fewer.algorithms)]
    graph = open_graph("synthetic:tiny")
    homes = np.load(parts / "graph" / "home.npy")
    volumes = count_block_volumes(graph.topology.indptr, graph.topology.indices, homes, 4)
    one = full_graph_work(config, graph, H200, configured_workload(config))
    [replicated] = [each for each in found.algorithms if each.name == "1.5d, c = 2"]
    assert replicated == algorithm_epoch("1.5d", volumes, 8, one, network)
    attention = settings("synthetic:tiny", kind="gat")
    found = predict_full_graph(H200, configured_workload(attention), attention, 4, find_network("1gbit"))
    assert [each.name for each in found.algorithms] == ["1d", "1d-oblivious"]


def test_homes_of_another_graph_are_refused(tmp_path: Path) -> None:
    config = settings("synthetic:tiny")
    np.save(tmp_path / "homes.npy", np.zeros(3, np.int64))
    (tmp_path / "text.npy").write_text("0 0 0")
    for name in ("homes.npy", "text.npy", "nothing.npy"):
        with pytest.raises(ConfigError, match=r"must be a \.npy file with the part of .*, integers \[2000\]"):
            predict_full_graph(
                H200, configured_workload(config), config, 2, find_network("1gbit"), tmp_path / name
            )


def test_a_run_takes_the_fastest_algorithm_on_its_network(parts: Path) -> None:
    slow = Network(name="slow", latency_s=1e-6, gb_s=1e-3)
    algorithm, replication, text = choose_algorithm(settings(parts), 4, slow)
    assert (algorithm, replication) == ("1d", 1)
    assert "1d is the fastest by the cost model" in text
    assert "network: 1 MB/s, 1 us per message" in text
    # Four parts at eight ranks: each has to be at two of them.
    assert choose_algorithm(settings(parts), 8, slow)[:2] == ("1.5d", 2)
    with pytest.raises(
        ConfigError,
        match=r"3 ranks cannot share the 4 parts in .* evenly: start a number of ranks that divides 4",
    ):
        choose_algorithm(settings(parts), 3, slow)
