"""Predictions on several ranks: counted traffic against plain sums, the table, and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphs import random_graph as graph_of_sparse
from hyrt_perfmodel.distributed_epoch import predict_distributed
from hyrt_perfmodel.network import find_network
from hyrt_perfmodel.platform_file import load_platform
from hyrt_perfmodel.traffic import EXPECTED, WorkDistribution, expected_traffic, hidden_bytes
from hyrt_perfmodel.workload import TrainingWorkload, Workload, proportional_workload
from unit.sampling.small_graphs import random_graph

from hyrt.config import Config, build_config
from hyrt.distributed.strategies.home import HomeStrategy
from hyrt.distributed.strategies.hopgnn import HopGnnStrategy
from hyrt.distributed.strategies.load_balancing import remote_reads
from hyrt.distributed.strategies.naive_migration import NaiveMigrationStrategy
from hyrt.distributed.strategies.registry import STRATEGIES, create_strategy
from hyrt.errors import ConfigError
from hyrt.graph import open_graph
from hyrt.graph.partition.write_parts import PartitionJob, write_parts
from hyrt.predict.counted_traffic import CountedSteps, configured_steps, wire_fraction
from hyrt.predict.predict_ranks import RankPredictionRequest, RanksComparison, predict_on_ranks
from hyrt.predict.workload import configured_workload
from hyrt.report.predict_table import ranks_lines
from hyrt.runtime.workers import Workers
from hyrt.sampling.neighbor_sampler import NeighborSampler
from hyrt.training.setup import build_model, build_sampler

RANKS, BATCH, SEED = 3, 30, 4
GRAPH = random_graph(200, 6.0, seed=2)
HOMES = (np.arange(200) // 67).astype(np.uint8)
WORK = Workload(vertices=(4_000, 900, 100), edges=(5_000, 950), features=(100, 16, 8), concat=True)
WEIGHT_BYTES = 4 * (200 * 16 + 32 * 8)
TRAINING = TrainingWorkload(at=proportional_workload(WORK, 100), targets_per_epoch=10_000, batch_size=400)
H200 = load_platform("h200")


def counted_steps() -> CountedSteps:
    return CountedSteps(GRAPH, HOMES, RANKS, [3, 2], BATCH, SEED)


def test_counted_rows_are_those_of_the_mini_batches_of_the_first_steps() -> None:
    sampler = NeighborSampler(GRAPH, GRAPH.split("train"), [3, 2], BATCH, SEED)
    sent = np.zeros((RANKS, RANKS))
    with Workers(1, "test") as workers:
        for step in range(4):
            units = sampler.units(step)
            for rank in range(RANKS):
                mine = units[10 * rank : 10 * (rank + 1)]
                block = sampler.sample(step, mine, workers, in_place=False).blocks[0]
                assert block.sources is not None
                for vertex in block.sources:
                    sent[HOMES[vertex], rank] += 400 / 4 * (HOMES[vertex] != rank)
    found = counted_steps().traffic(create_strategy("model-centric"), WORK)
    np.testing.assert_allclose(found.purposes["rows"].sent, sent)
    assert found.purposes["rows"].messages == RANKS - 1
    assert found.largest_share == pytest.approx(1.0)
    assert found.gradient_bytes == WEIGHT_BYTES


def test_requests_of_split_edges_are_those_of_the_mini_batches_of_the_first_steps() -> None:
    """Per hop and rank: a count, an id per destination; a degree, a size and the sampled ids in return."""
    sampler = NeighborSampler(GRAPH, GRAPH.split("train"), [3, 2], BATCH, SEED)
    sent = np.zeros((RANKS, RANKS))
    with Workers(1, "test") as workers:
        for step in range(4):
            units = sampler.units(step)
            for rank in range(RANKS):
                mine = units[10 * rank : 10 * (rank + 1)]
                for block in sampler.sample(step, mine, workers, in_place=False).blocks:
                    sent[rank] += 8
                    for vertex, count in zip(block.destinations, np.diff(block.indptr), strict=True):
                        sent[rank, HOMES[vertex]] += 4
                        sent[HOMES[vertex], rank] += 8 + 4 * count
    np.fill_diagonal(sent, 0)
    steps = CountedSteps(GRAPH, HOMES, RANKS, [3, 2], BATCH, SEED, edges_are_split=True)
    found = steps.traffic(create_strategy("model-centric"), WORK).purposes["edges"].sent
    np.testing.assert_allclose(found, sent / 4)


def test_cached_rows_do_not_travel_and_rounded_ones_take_half() -> None:
    sampler = NeighborSampler(GRAPH, GRAPH.split("train"), [3, 2], BATCH, SEED)
    cached = [
        remote_reads(GRAPH.topology, GRAPH.split("train"), HOMES, rank, RANKS, HomeStrategy(), BATCH, [3, 2])
        for rank in range(RANKS)
    ]
    fetched, steps = 0, 200
    with Workers(1, "test") as workers:
        for step in range(steps):
            units = sampler.units(step)
            for rank in range(RANKS):
                block = sampler.sample(step, units[HOMES[units] == rank], workers, in_place=False).blocks[0]
                assert block.sources is not None
                remote = block.sources[HOMES[block.sources] != rank]
                fetched += len(np.setdiff1d(remote, cached[rank].vertices[:40]))
    found = CountedSteps(GRAPH, HOMES, RANKS, [3, 2], BATCH, SEED, wire_fraction=0.5, cache=0.2)
    sent = found.traffic(HomeStrategy(), WORK).purposes["rows"].sent
    # Four steps are counted, and the part that is cached is expected.
    assert sent.sum() == pytest.approx(fetched / steps * 200, rel=0.1)
    in_bytes = CountedSteps(GRAPH, HOMES, RANKS, [3, 2], BATCH, SEED, wire_fraction=0.5, cache=40 * 200)
    np.testing.assert_allclose(in_bytes.traffic(HomeStrategy(), WORK).purposes["rows"].sent, sent)


@pytest.mark.parametrize(("wire", "part"), [("float32", 1.0), ("bfloat16", 0.5)])
def test_the_wire_rounds_dense_rows(wire: str, part: float) -> None:
    config = build_config({"distributed": {"comm_dtype": wire}})
    assert wire_fraction(config, GRAPH) == part
    assert wire_fraction(config, graph_of_sparse(sparse=True)) == 1.0


def test_counted_models_hop_between_all_time_steps() -> None:
    found = counted_steps().traffic(create_strategy("hopgnn"), WORK)
    assert found.time_steps == RANKS
    assert found.purposes["models"].messages == RANKS - 1
    assert found.purposes["models"].sent.sum() == RANKS * (RANKS - 1) * 2 * WEIGHT_BYTES
    assert found.largest_share > 1
    home = counted_steps().traffic(create_strategy("home"), WORK)
    assert home.largest_share <= found.largest_share


def test_attention_sends_the_rows_of_sources() -> None:
    """By hand: 4,000 sources and 900 destinations of each of 3 ranks; 100 columns, and 16 in all heads."""
    work = replace(WORK, concat=False, rows_per_edge=4, widths_in=(100.0, 16.0 * 4))
    training = TrainingWorkload(at=lambda targets: work, targets_per_epoch=1000, batch_size=300)
    plain, of_sources = (
        WorkDistribution(ranks=3, locality=1 / 3),
        WorkDistribution(ranks=3, locality=1 / 3, multiplies_sources=True),
    )
    for spread, products in ((plain, 900), (of_sources, 4000)):
        hidden = expected_traffic("p3", training, spread).purposes["hidden"]
        assert hidden.sent.sum() == pytest.approx(3 * 2 * 2 * products * 4 * 16)
    carried = expected_traffic("naive-migration", training, of_sources).purposes["partials"]
    # A third, two thirds and all of the sources' rows.
    assert carried.sent.sum() == pytest.approx(3 * 2 * 4000 * 4 * 100)
    # The only layer averages its heads, and multiplies for each of them.
    single = replace(
        WORK,
        vertices=(9, 3),
        edges=(8,),
        features=(100, 16),
        concat=False,
        rows_per_edge=4,
        widths_in=(400.0,),
    )
    assert hidden_bytes(single) == 4 * 16 * 4
    assert hidden_bytes(WORK) == 4 * 16
    gin = replace(WORK, concat=False, hidden_widths=(24.0, 24.0))
    assert hidden_bytes(gin) == 4 * 24


def test_counted_rows_of_attention_are_those_of_sources() -> None:
    plain, of_sources = (
        counted_steps().traffic(NaiveMigrationStrategy(each), WORK) for each in (False, True)
    )
    back_rows = of_sources.purposes["partials"].sent.sum() / (4 * 100)
    back_sums = plain.purposes["partials"].sent.sum() / (4 * 200)
    assert back_rows > back_sums


def test_products_of_sources_count_a_row_of_the_layer_below_each() -> None:
    """GNN-FiLM: one product a source, five a destination, and six weights a layer."""
    film = replace(WORK, concat=False).with_products(1, 5)
    for layer, (sources, rows, width, into) in enumerate(((4000, 900, 100, 16), (900, 100, 16, 8)), 1):
        assert rows * film.macs(layer) == pytest.approx((sources + 5 * rows) * width * into)
    assert film.num_weights == 6 * (100 * 16 + 16 * 8)
    assert film.scaled(2.0).num_weights == film.num_weights
    config = build_config({"data": {"source": "synthetic:tiny"}, "model": {"kind": "gnn-film", "layers": 3}})
    work = configured_workload(config).at(32.0)
    model = build_model(config, open_graph("synthetic:tiny"))
    matrices = [each for name, each in model.named_parameters() if each.ndim == 2 and "norm" not in name]
    # Residual connections between equal widths have none.
    assert work.num_weights == sum(each.numel() for each in matrices)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_counted_traffic_has_the_purposes_of_the_expected(name: str) -> None:
    steps = counted_steps()
    question = RankPredictionRequest(ranks=RANKS, network_name="1gbit")
    spread = WorkDistribution(ranks=RANKS, locality=0.5)
    expected = predict_distributed(
        name, H200, TRAINING, expected_traffic(name, TRAINING, spread), question.network
    )
    counted = predict_distributed(
        name, H200, TRAINING, steps.traffic(create_strategy(name), WORK), question.network
    )
    sent = {purpose for purpose, num_bytes in counted.epoch_bytes.items() if num_bytes}
    assert sent == {purpose for purpose, num_bytes in expected.epoch_bytes.items() if num_bytes}
    assert {purpose for purpose, time_s in counted.communication_s.items() if time_s} == sent


def test_a_batch_of_sizes_alone_is_that_of_each_trainer() -> None:
    question = RankPredictionRequest(ranks=4, network_name="1gbit", strategy_name="home")
    [found] = predict_on_ranks(H200, TRAINING, None, question).predictions
    # The h200 has two trainers, of 400 targets each.
    assert found.iterations == 4
    [given] = predict_on_ranks(H200, TRAINING, Config(), question).predictions
    assert given.iterations == 25


def test_an_uneven_placement_is_as_slow_as_its_largest_rank() -> None:
    traffic = replace(counted_steps().traffic(create_strategy("home"), WORK), largest_share=1.5)
    fast = find_network("slingshot-11")
    uneven = predict_distributed("home", H200, TRAINING, traffic, fast)
    even = predict_distributed("home", H200, TRAINING, replace(traffic, largest_share=1.0), fast)
    own_s = [each.stages_s["load"] - each.communication_s["rows"] for each in (uneven, even)]
    assert own_s[0] == pytest.approx(1.5 * own_s[1], rel=0.02)


def _fixed_times(config: Config, ranks: int) -> dict[str, int]:
    question = RankPredictionRequest(ranks=ranks, network_name="200mbit", locality=0.25)
    found = predict_on_ranks(H200, TRAINING, config, question).predictions
    return {each.strategy: each.time_steps for each in found}


def test_time_steps_are_merged_as_long_as_that_is_faster() -> None:
    def time_steps(locality: float, network: str) -> int:
        question = RankPredictionRequest(
            ranks=4, network_name=network, strategy_name="hopgnn", locality=locality
        )
        return predict_on_ranks(H200, TRAINING, Config(), question).predictions[0].time_steps

    fixed = Config().model_copy(
        update={"distributed": Config().distributed.model_copy(update={"time_steps": 3})}
    )
    assert _fixed_times(fixed, ranks=4)["home"] == 1
    # As in a run, no more than there are ranks.
    assert [_fixed_times(fixed, ranks)["hopgnn"] for ranks in (4, 2)] == [3, 2]
    # Where homes are random, or the network costs nothing, there is nothing to go home for.
    assert time_steps(0.25, "200mbit") == 1
    assert time_steps(0.9, "100000gbit") == 1
    assert time_steps(0.95, "200mbit") == 4


def test_every_strategy_can_be_predicted() -> None:
    assert list(EXPECTED) == list(STRATEGIES)
    found = predict_on_ranks(H200, TRAINING, None, RankPredictionRequest(ranks=4, network_name="10gbit"))
    lines = ranks_lines(found)
    assert lines[0] == "4 ranks like h200 · 10gbit: 1.19 GB/s each way, 30 us per message"
    assert [line.split()[0] for line in lines[2:8]] == list(STRATEGIES)
    [marked] = [line for line in lines if line.endswith("(changes what is trained)")]
    assert marked.startswith("local ")
    assert "1 of 4 rows" in lines[-1]
    json.dumps(found.to_json())


def test_one_strategy_shows_its_stages_and_bytes() -> None:
    question = RankPredictionRequest(ranks=4, network_name="10gbit", strategy_name="home", locality=0.8)
    found = predict_on_ranks(H200, TRAINING, None, question)
    lines = ranks_lines(found)
    assert any(line.startswith("4 steps of ") for line in lines)
    assert [line.split()[0] for line in lines[-5:-2]] == ["purpose", "rows", "gradients"]
    assert lines[-1].startswith("assumed: 80% of the input rows")
    # 40 input rows of 400 bytes for each of 10,000 targets, a fifth of them remote.
    assert found.predictions[0].epoch_bytes["rows"] == pytest.approx(0.2 * 40 * 400 * 10_000)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ranks": 0}, "ranks must be at least 1, got 0"),
        ({"network_name": "10gbyte"}, "unknown network '10gbyte'"),
        ({"strategy_name": "hom"}, "did you mean 'home'"),
        ({"locality": 1.5}, "locality must be a fraction from 0 to 1, got 1.5"),
    ],
)
def test_impossible_questions_are_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RankPredictionRequest(**{"ranks": 2, "network_name": "1gbit", **given})  # type: ignore[arg-type]


def test_homes_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "home.npy"
    config = build_config({"data": {"source": "synthetic:tiny", "batch_size": 90}})
    question = RankPredictionRequest(ranks=3, network_name="1gbit", homes=file)

    def rows(homes: object) -> dict[str, float]:
        np.save(file, np.asarray(homes))
        found = predict_on_ranks(H200, configured_workload(config), config, question)
        assert found.assumptions[-1].endswith(str(file))
        return {each.strategy: each.epoch_bytes["rows"] for each in found.predictions}

    # Everything is at rank 0: a rank that trains elsewhere fetches all of it.
    alone = rows(np.zeros(2000, np.uint8))
    assert alone["local"] == 0
    assert alone["model-centric"] > alone["home"] > 0
    assert alone["p3"] == 0
    for wrong, said in (
        (np.zeros(3, np.uint8), r"must be a .npy file .* integers \[2000\], got uint8\[3\]"),
        (np.zeros(2000), r"integers \[2000\], got float64\[2000\]"),
        (np.full(2000, -1), "of at least 0, got -1"),
        (np.full(2000, 3), "has parts 3 to 3, but the 3 ranks are numbered 0 to 2"),
    ):
        with pytest.raises(ConfigError, match=said):
            rows(wrong)
    np.savez(tmp_path / "archive.npz", np.zeros(2000, np.uint8))
    for data in (b"no array", b"", (tmp_path / "archive.npz").read_bytes()):
        file.write_bytes(data)
        with pytest.raises(ConfigError, match=r"must be a \.npy file with the part of each vertex"):
            predict_on_ranks(H200, TRAINING, config, question)
    file.unlink()
    with pytest.raises(ConfigError, match=r"integers \[2000\] \(No such file"):
        predict_on_ranks(H200, TRAINING, config, question)
    with pytest.raises(ConfigError, match="specify --data instead of --workload"):
        predict_on_ranks(H200, TRAINING, None, question)
    with pytest.raises(ConfigError, match="remove --locality"):
        replace(question, locality=0.5)


def test_parts_have_their_homes(tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    write_parts(PartitionJob("synthetic:tiny", parts, num_parts=3, method="random"))
    config = build_config({"data": {"source": str(parts), "batch_size": 90}})

    def predicted(**more: object) -> RanksComparison:
        question = RankPredictionRequest(**{"ranks": 3, "network_name": "1gbit", **more})  # type: ignore[arg-type]
        return predict_on_ranks(H200, TRAINING, config, question)

    found, given = predicted(), predicted(homes=parts / "graph" / "home.npy")
    assert found.to_json() == given.to_json()
    assert found.assumptions[-1].endswith(
        "counted with the partition in " + str(parts / "graph" / "home.npy")
    )
    assert "specify --locality" not in " ".join(found.assumptions)
    assert predicted(locality=0.5).assumptions[-1].startswith("50% of the input rows")
    assert predicted(ranks=2).assumptions[-2:] == [
        f"{parts} has 3 parts, so its partition does not apply to 2 ranks",
        "the partition is random, so 1 of 2 rows of a mini-batch is local: specify --locality for a better "
        "partition",
    ]


def test_newer_samplers_are_counted_under_the_strategies_that_they_go_with(tmp_path: Path) -> None:
    homes = np.random.default_rng(1).integers(0, 3, 2000).astype(np.uint8)
    np.save(tmp_path / "home.npy", homes)

    def found_of(sampler: dict[str, object], **more: object) -> RanksComparison:
        config = build_config(
            {"data": {"source": "synthetic:tiny"}, "sampler": sampler, "model": {"layers": 2}, **more}
        )
        question = RankPredictionRequest(ranks=3, network_name="1gbit", homes=tmp_path / "home.npy")
        return predict_on_ranks(H200, configured_workload(config), config, question)

    ladies = found_of({"kind": "ladies", "layer_size": 64})
    assert [each.strategy for each in ladies.predictions] == [name for name in STRATEGIES if name != "local"]
    assert any(
        said.startswith("not local: distributed.strategy=local does not support sampler.kind=ladies")
        for said in ladies.assumptions
    )
    with pytest.raises(ConfigError, match=r"a step of 1 group of parts cannot .* raise sampler\.groups"):
        found_of({"kind": "cluster", "parts": 20, "parts_per_group": 2})
    cluster = found_of({"kind": "cluster", "parts": 18, "parts_per_group": 2, "groups": 3})
    assert [each.strategy for each in cluster.predictions] == ["model-centric"]
    # Whole parts with all of their vertices, two thirds of them elsewhere: every vertex of them once.
    rows = cluster.predictions[0].epoch_bytes["rows"] / 64
    assert rows == pytest.approx(2000 * 2 / 3, rel=0.1)
    with pytest.raises(
        ConfigError, match=r"distributed.cache requires sampler.kind=neighbor .* sampler.kind is ladi"
    ):
        found_of({"kind": "ladies", "layer_size": 64}, distributed={"cache": "20%"})


def test_the_rows_of_a_sampler_of_layers_are_those_of_its_steps() -> None:
    config = build_config({"sampler": {"kind": "ladies", "layer_size": 30}, "model": {"layers": 2}})
    config = config.model_copy(update={"data": config.data.model_copy(update={"batch_size": BATCH})})
    sampler = build_sampler(config, GRAPH, GRAPH.split("train"))
    found = configured_steps(config, GRAPH, HOMES, RANKS, sampler).traffic(
        create_strategy("model-centric"), WORK
    )
    again, sent = build_sampler(config, GRAPH, GRAPH.split("train")), np.zeros((RANKS, RANKS))
    with Workers(1, "test") as workers:
        for step in range(4):
            units = again.units(step)
            for rank in range(RANKS):
                block = again.sample(
                    step, units[10 * rank : 10 * (rank + 1)], workers, in_place=False
                ).blocks[0]
                assert block.sources is not None
                for vertex in block.sources:
                    sent[HOMES[vertex], rank] += 400 / 4 * (HOMES[vertex] != rank)
    np.testing.assert_allclose(found.purposes["rows"].sent, sent)


def test_split_edges_travel_and_do_not_even_roots_out(tmp_path: Path) -> None:
    found = {}
    for topology in ("replicated", "split"):
        parts = tmp_path / topology
        write_parts(PartitionJob("synthetic:tiny", parts, num_parts=3, method="random", topology=topology))
        config = build_config({"data": {"source": str(parts), "batch_size": 90}})
        question = RankPredictionRequest(ranks=3, network_name="1mbit")
        comparison = predict_on_ranks(H200, configured_workload(config), config, question)
        found[topology] = {each.strategy: each for each in comparison.predictions}
    assert set(found["replicated"]) - set(found["split"]) == {"p3", "naive-migration"}
    assert any(said.startswith("not p3: ") for said in comparison.assumptions)
    for name, split in found["split"].items():
        whole = found["replicated"][name]
        assert whole.epoch_bytes.get("edges", 0) == 0 < split.epoch_bytes["edges"]
        assert split.stages_s["sample"] > whole.stages_s["sample"] + 0.5 * split.communication_s["edges"]
        assert split.stages_s["load"] >= whole.stages_s["load"] * 0.9
    # Roots stay at home, however many those are.
    homes = np.load(parts / "graph" / "home.npy")
    steps = configured_steps(config, open_graph(str(parts)), homes, 3, None, edges_are_split=True)
    sent = [
        steps.traffic(each, WORK).purposes["rows"].sent for each in (HomeStrategy(), HopGnnStrategy(True, 3))
    ]
    np.testing.assert_array_equal(*sent)
    cached = config.model_copy(update={"distributed": config.distributed.model_copy(update={"cache": 0.2})})
    with pytest.raises(ConfigError, match=r"but edges are split: remove distributed\.cache"):
        predict_on_ranks(H200, TRAINING, cached, question)
    with pytest.raises(ConfigError, match="--topology replicated"):
        predict_on_ranks(H200, TRAINING, config, replace(question, strategy_name="p3"))


def test_work_that_cannot_be_divided_is_refused() -> None:
    question = RankPredictionRequest(ranks=500, network_name="1gbit")
    with pytest.raises(ConfigError, match="a step of 400 targets cannot be divided among 500 ranks"):
        predict_on_ranks(H200, TRAINING, Config(), question)
    with pytest.raises(ConfigError, match="remove --full-graph"):
        predict_on_ranks(H200, replace(TRAINING, resident=True), None, question)
