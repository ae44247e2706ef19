"""Communication terms against formulas worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hyrt_perfmodel.distributed_epoch import (
    BlockVolumes,
    DistributedPrediction,
    FullGraphWork,
    algorithm_epoch,
    explain_choice,
    fastest_algorithm,
    predict_distributed,
)
from hyrt_perfmodel.network import NETWORKS, Network, find_network
from hyrt_perfmodel.platform import Accelerator, Host, Platform
from hyrt_perfmodel.prediction.stages import PAPER_TERMS
from hyrt_perfmodel.traffic import (
    EXPECTED,
    WorkDistribution,
    all_reduce_bytes,
    all_reduce_s,
    all_to_all_v_s,
    busiest_link_bytes,
    expected_traffic,
)
from hyrt_perfmodel.workload import TrainingWorkload, Workload, proportional_workload

# 1 MB/s, and 10 ms a message.
SLOW = Network(name="slow", latency_s=0.01, gb_s=0.001)
FAST = Network(name="fast", latency_s=0.0, gb_s=1e9)
# Of 100 targets: 30,000 inputs of 400 bytes; f_in^1 of 2 x 100; 16 hidden; (200 x 16 + 32 x 8) weights.
WORK = Workload(vertices=(30_000, 4_000, 100), edges=(36_000, 4_500), features=(100, 16, 8), concat=True)
ROW, HIDDEN, PARTIAL, WEIGHTS = 400, 64, 800, 4 * (200 * 16 + 32 * 8)
TRAINING = TrainingWorkload(at=proportional_workload(WORK, 100), targets_per_epoch=10_000, batch_size=400)
SPREAD = WorkDistribution(ranks=4, locality=0.7)
MACHINE = Platform(
    name="m",
    host=Host(memory_gb_s=40, macs_per_s=2e11, trains=False),
    accelerators=(Accelerator(kind="a", memory_gb_s=300, macs_per_s=9e11, link_gb_s=8),),
)


def test_an_all_to_all_takes_its_busiest_link_and_a_message_a_peer() -> None:
    # Rank 0 sends 3 MB and receives 5; rank 1 sends 1 and receives 2; rank 2 sends 4 and receives 1.
    sent = 1e6 * np.array([[9, 2, 1], [1, 9, 0], [4, 0, 9]])
    assert busiest_link_bytes(sent) == 5e6
    # The busiest direction may be that of what a rank sends, too.
    assert busiest_link_bytes(sent.T) == 5e6
    assert all_to_all_v_s(sent, SLOW) == pytest.approx(2 * 0.01 + 5.0)
    assert all_to_all_v_s(sent[:1, :1], SLOW) == 0
    # The busiest link reaches 85 % of the rate.
    ethernet = find_network("200mbit")
    assert all_to_all_v_s(sent, ethernet) == pytest.approx(2 * 5e-5 + 5e6 / (25e6 * 1460 / 1538 * 0.85))
    assert all_reduce_s(2e6, 3, ethernet) == pytest.approx(4 * 5e-5 + 4 / 3 * 2e6 / (25e6 * 1460 / 1538))


def test_an_all_reduce_sends_two_parts_less_one() -> None:
    # In four parts of 0.25 MB: three to add, three to hand out.
    assert all_reduce_bytes(1e6, 4) == pytest.approx(6 * 0.25e6)
    assert all_reduce_s(1e6, 4, SLOW) == pytest.approx(6 * (0.01 + 0.25))
    assert all_reduce_s(1e6, 1, SLOW) == 0


def test_a_message_takes_its_latency_and_its_bytes() -> None:
    assert SLOW.seconds(2e6) == pytest.approx(0.01 + 2.0)


def test_networks_have_names_or_rates() -> None:
    # 10 Gbit/s are 1.25 GB/s, of which 1460 of 1538 bytes are the message's.
    assert find_network("10gbit").gb_s == pytest.approx(1.25 * 1460 / 1538)
    assert find_network("200mbit").gb_s == pytest.approx(0.025 * 1460 / 1538)
    assert {"1gbit", "10gbit", "25gbit", "100gbit", "slingshot-11", "loopback"} == set(NETWORKS)
    with pytest.raises(ValueError, match="did you mean '10gbit'"):
        find_network("10gbits")
    for wrong in ("0mbit", "fast"):
        with pytest.raises(ValueError, match=f"unknown network '{wrong}'"):
            find_network(wrong)
    with pytest.raises(ValueError, match="latency_s must be a number of at least 0, got -1"):
        replace(SLOW, latency_s=-1)


def by_purpose(strategy: str, spread: WorkDistribution = SPREAD) -> dict[str, float]:
    found = expected_traffic(strategy, TRAINING, spread).bytes_by_purpose()
    return {name: num_bytes for name, num_bytes in found.items() if num_bytes and name != "gradients"}


def test_expected_bytes_of_each_strategy() -> None:
    # Each of four ranks has 100 targets.
    assert by_purpose("model-centric") == pytest.approx({"rows": 4 * 0.75 * 30_000 * ROW})
    for at_home in ("home", "local"):
        assert by_purpose(at_home) == pytest.approx({"rows": 4 * 0.3 * 30_000 * ROW})
    assert by_purpose("hopgnn") == pytest.approx(
        {"rows": 4 * 0.3 * 30_000 * ROW, "models": 4 * 3 * 2 * WEIGHTS}
    )
    assert by_purpose("p3") == pytest.approx({"hidden": 2 * 4 * 3 * 4_000 * HIDDEN})
    # A destination has itself and nine others; after one stop of four it has met none with chance .75^10.
    met = sum(1 - (1 - stops / 4) ** 10 for stops in (1, 2, 3, 4))
    assert by_purpose("naive-migration") == pytest.approx(
        {"partials": 4 * met * 4_000 * PARTIAL, "models": 4 * 4 * 2 * WEIGHTS}
    )


def test_merging_brings_models_to_rows_less_often() -> None:
    # Of the roots half stay at home; of the others' rows, another rank has a third of the 30 % elsewhere.
    halved = by_purpose("hopgnn", replace(SPREAD, time_steps=2))
    local = 0.5 * 0.7 + 0.5 * 0.1
    assert halved == pytest.approx({"rows": 4 * (1 - local) * 30_000 * ROW, "models": 4 * 1 * 2 * WEIGHTS})
    assert by_purpose("hopgnn", replace(SPREAD, time_steps=1)) == by_purpose("model-centric")
    with pytest.raises(ValueError, match="time_steps must be from 1 to the 4 ranks, got 5"):
        replace(SPREAD, time_steps=5)


def test_every_strategy_adds_up_its_gradients() -> None:
    for strategy in EXPECTED:
        found = expected_traffic(strategy, TRAINING, SPREAD).bytes_by_purpose()
        assert found["gradients"] == pytest.approx(2 * 3 * WEIGHTS), strategy


def test_one_rank_sends_nothing() -> None:
    alone = WorkDistribution(ranks=1, locality=1.0)
    for strategy in EXPECTED:
        traffic = expected_traffic(strategy, TRAINING, alone)
        assert sum(traffic.bytes_by_purpose().values()) == 0, strategy
        assert predicted(strategy, SLOW, alone).iteration_s == predicted("home", FAST, alone).iteration_s


def predicted(strategy: str, network: Network, spread: WorkDistribution = SPREAD) -> DistributedPrediction:
    traffic = expected_traffic(strategy, TRAINING, spread)
    return predict_distributed(strategy, MACHINE, TRAINING, traffic, network, terms=PAPER_TERMS)


def test_a_slow_network_bounds_the_step_with_its_rows() -> None:
    found = predicted("model-centric", SLOW)
    load_s = 30_000 * ROW / 40e9 + 3 * 0.01 + 0.75 * 30_000 * ROW / 1e6
    assert found.stages_s["load"] == pytest.approx(load_s)
    assert found.iteration_s == pytest.approx(load_s)
    assert found.bottleneck == "network (rows)"
    assert found.iterations == 25
    assert found.epoch_s == pytest.approx(25 * load_s)
    assert found.epoch_bytes["rows"] == pytest.approx(25 * 4 * 0.75 * 30_000 * ROW)


def test_a_short_last_step_sends_whole_gradients_and_models() -> None:
    spread = replace(SPREAD, time_steps=3)
    short = replace(TRAINING, targets_per_epoch=9 * TRAINING.batch_size // 4)
    traffic = expected_traffic("hopgnn", short, spread)
    found = predict_distributed("hopgnn", MACHINE, short, traffic, SLOW, terms=PAPER_TERMS)
    of_step = traffic.bytes_by_purpose()
    assert found.iterations == 3
    steps = {"rows": 2.25, "gradients": 3, "models": 3}
    assert {name: num for name, num in found.epoch_bytes.items() if num} == pytest.approx(
        {name: count * of_step[name] for name, count in steps.items()}
    )
    weights_s = found.communication_s["gradients"] + found.communication_s["models"]
    assert found.epoch_s >= 2 * found.iteration_s + weights_s
    assert found.epoch_s < 3 * found.iteration_s
    whole = replace(short, targets_per_epoch=2 * TRAINING.batch_size)
    even = predict_distributed("hopgnn", MACHINE, whole, traffic, SLOW, terms=PAPER_TERMS)
    assert even.epoch_s == pytest.approx(2 * even.iteration_s)


def test_rows_travel_beside_other_steps_and_gradients_do_not() -> None:
    found, alone = predicted("home", SLOW), predicted("home", FAST)
    all_reduce_s = 6 * (0.01 + WEIGHTS / 4 / 1e6)
    assert found.stages_s["propagate"] - alone.stages_s["propagate"] == pytest.approx(all_reduce_s)
    assert found.iteration_s == pytest.approx(max(found.stages_s.values()))
    in_turn = predict_distributed(
        "home",
        MACHINE,
        TRAINING,
        expected_traffic("home", TRAINING, SPREAD),
        SLOW,
        terms=replace(PAPER_TERMS, overlap="nothing"),
    )
    assert in_turn.iteration_s == pytest.approx(sum(found.stages_s.values()))


def test_hidden_vectors_are_waited_for_while_propagating() -> None:
    found, alone = predicted("p3", SLOW), predicted("p3", FAST)
    travel_s = 6 * 0.01 + 2 * 3 * 4_000 * HIDDEN / 1e6 + 6 * (0.01 + WEIGHTS / 4 / 1e6)
    assert found.stages_s["propagate"] - alone.stages_s["propagate"] == pytest.approx(travel_s)
    assert found.stages_s["load"] == pytest.approx(alone.stages_s["load"])
    assert found.bottleneck == "network (hidden)"


def test_a_link_is_busy_with_all_purposes() -> None:
    traffic = expected_traffic("hopgnn", TRAINING, SPREAD)
    busy_s = 0.3 * 30_000 * ROW / 1e6 + 3 * 2 * WEIGHTS / 1e6 + 1.5 * WEIGHTS / 1e6
    assert traffic.link_s(SLOW) == pytest.approx(busy_s)
    # Four time steps of 25 targets are loaded and propagated; sizes here are in proportion.
    assert predicted("hopgnn", FAST).stages_s["load"] == pytest.approx(
        predicted("home", FAST).stages_s["load"]
    )


def test_a_fast_network_leaves_a_rank_its_own_bottleneck() -> None:
    found = predicted("home", FAST)
    assert found.bottleneck in ("load", "transfer", "propagate")
    assert found.iteration_s == pytest.approx(max(found.stages_s.values()))


@given(st.integers(1, 32), st.floats(0, 1), st.sampled_from(sorted(EXPECTED)))
def test_more_locality_never_sends_more(ranks: int, locality: float, strategy: str) -> None:
    less = expected_traffic(strategy, TRAINING, WorkDistribution(ranks=ranks, locality=locality))
    more = expected_traffic(
        strategy, TRAINING, WorkDistribution(ranks=ranks, locality=min(1.0, locality + 0.1))
    )
    assert sum(more.bytes_by_purpose().values()) <= sum(less.bytes_by_purpose().values()) * (1 + 1e-12)
    for traffic in less.purposes.values():
        assert (traffic.sent >= 0).all()
        assert np.trace(traffic.sent) == 0 or ranks == 1


def test_impossible_spreads_are_refused() -> None:
    with pytest.raises(ValueError, match="ranks must be at least 1, got 0"):
        WorkDistribution(ranks=0, locality=0.5)
    with pytest.raises(ValueError, match="locality must be a fraction from 0 to 1, got 2"):
        WorkDistribution(ranks=2, locality=2)


def test_json_has_bytes_as_whole_numbers() -> None:
    found = predicted("home", SLOW).to_json()
    assert isinstance(found["epoch_bytes"]["rows"], int)
    assert found["strategy"] == "home"


def blocks(rows: list[int], needed: list[list[int]], edges: list[list[int]]) -> BlockVolumes:
    return BlockVolumes(rows=np.array(rows), needed=np.array(needed), edges=np.array(edges))


# 4 blocks of 100 rows; block 0 needs most. 1,000 edges, 700 of them within blocks.
FOUR = blocks(
    [100] * 4,
    [[0, 40, 30, 20], [10, 0, 10, 10], [10, 10, 0, 10], [10, 10, 10, 0]],
    [[100, 50, 40, 30], [20, 200, 20, 20], [20, 20, 200, 20], [20, 20, 20, 200]],
)
GRAPH = FullGraphWork(
    forward_widths=(16, 8),
    backward_widths=(16,),
    has_only_sums=True,
    edges_s=4.0,
    rows_s=0.4,
    gradient_bytes=4_000.0,
    matrix_bytes=1_000.0,
    feature_bytes=800.0,
    graph_bytes=50.0,
)
QUIET = Network(name="quiet", latency_s=0.001, gb_s=0.001, uneven_part=0.5)


def test_a_product_is_as_long_as_at_the_rank_that_ends_last() -> None:
    found = algorithm_epoch("1d", FOUR, 4, GRAPH, QUIET)
    # Of each rank the rows of the direction that has more, at half of 1 MB/s, and 3 messages of 1 ms.
    rows, edges = [90, 60, 50, 40], FOUR.edges.sum()
    travel = compute = 0.0
    for width in (16, 8, 16):
        edge_s = 4.0 * width / 40 / edges
        ranks = []
        for i in range(4):
            exchange = 0.003 + rows[i] * width * 4 / 0.5e6
            # The own block hides the exchange, or is hidden by it; the other edges come after both.
            left = max(0.0, edge_s * FOUR.edges[i, i] - exchange)
            others = edge_s * (FOUR.edges[i].sum() - FOUR.edges[i, i])
            ranks.append((exchange + left + others, exchange))
        travel += max(ranks)[1]
        compute += max(ranks)[0] - max(ranks)[1]
    assert found.products_s == pytest.approx(travel)
    assert found.compute_s == pytest.approx(compute + 0.4 / 4)
    # And 16 numbers, the loss and counts, before them.
    assert found.gradients_s == pytest.approx(12 * 0.001 + 1.5 * (4_000 + 128) / 1e6)
    assert found.epoch_s == pytest.approx(found.products_s + found.compute_s + found.gradients_s)
    assert found.epoch_bytes == FOUR.needed.sum() * 160 + 4 * 1.5 * 4_000
    assert found.most_bytes == 90 * 160
    assert found.memory_bytes == 1_000 * 190 / 400 + 800 / 4 + 50


def test_a_grid_sends_less_in_a_column_and_adds_partial_sums_up() -> None:
    found = algorithm_epoch("1.5d", FOUR, 8, replace(GRAPH, edges_s=0.0, rows_s=0.0), QUIET)
    # In the first column, block 1 gives 40, 10 and 10 rows; in the second, block 0 takes 50.
    exchange = [0.003 + 60 * width * 4 / 0.5e6 for width in (16, 8, 16)]
    summed = [2 * (0.001 + 100 * width * 4 / 2 / 1e6) for width in (16, 8, 16)]
    assert found.products_s == pytest.approx(sum(exchange) + sum(summed))
    # Rows in both columns; 400 rows to add up and to hand out, forward, and to hand out, backward.
    grid = FOUR.needed.sum() * 160 + 4 * 400 * (2 * (16 + 8) + 16)
    assert found.epoch_bytes == pytest.approx(grid + 8 * 2 * 7 / 8 * 4_000)
    assert found.replication == 2
    assert found.compute_s == 0


def test_broadcasts_send_every_row_along_trees() -> None:
    found = algorithm_epoch("1d-oblivious", FOUR, 4, GRAPH, QUIET)
    # Two levels; sums that go back take a message from each of the four to the next, and one to the end.
    each = [rounds * 0.001 + 2 * 100 * width * 4 / 1e6 for width, rounds in ((16, 2), (8, 2), (16, 4))]
    assert found.products_s == pytest.approx(sum(4 * seconds for seconds in each) / 1.5)
    # The sums of 16 columns go around a ring, and a quarter more is gathered.
    assert found.epoch_bytes == 4 * 3 * 100 * (160 + 64 / 4) + 4 * 1.5 * 4_000
    # Where own blocks do not take longer than all that travels:
    quick = replace(GRAPH, edges_s=0.01)
    found, best = (algorithm_epoch(each, FOUR, 4, quick, QUIET) for each in ("1d-oblivious", "1d"))
    assert fastest_algorithm([found, best]) is best
    assert explain_choice([found, best]).startswith("1d is the fastest by the cost model")


def test_ranks_that_the_blocks_do_not_divide_are_refused() -> None:
    for algorithm, ranks in (("1d", 8), ("1.5d", 6)):
        with pytest.raises(ValueError, match=f"cannot divide 4 blocks among {ranks} ranks"):
            algorithm_epoch(algorithm, FOUR, ranks, GRAPH, QUIET)


# Two blocks of 100 rows that need 50 of each other; 60 of 100 edges are from own rows. A row of 25 columns
# has 100 bytes, so 5 kB travel: 6 ms. An edge takes 10 us with both cores, and all else 10 ms.
TWO = blocks([100, 100], [[0, 50], [50, 0]], [[60, 40], [40, 60]])
PRODUCT = FullGraphWork(
    forward_widths=(25,),
    backward_widths=(),
    has_only_sums=True,
    edges_s=0.002,
    rows_s=0.01,
    rank_s=0.003,
    cores=2,
    chunk_rows=100,
    max_rounds=4,
    gradient_bytes=0.0,
    matrix_bytes=0.0,
    feature_bytes=0.0,
    graph_bytes=0.0,
)
# 2 ms of a core for a message, and 2 ms for 5 kB.
BUSY = Network(name="busy", latency_s=0.001, gb_s=0.001, message_core_s=0.002, gb_core_s=400.0)


def test_ranks_with_cores_of_their_own_hide_what_they_multiply() -> None:
    found = algorithm_epoch("1d", TWO, 2, PRODUCT, BUSY)
    assert found.products_s == pytest.approx(0.006)
    # The other 40 edges; 5 ms of rows in one chunk, which one of two cores computes; and the rank's own 3 ms.
    assert found.compute_s == pytest.approx(0.0004 + 2 * 0.005 + 0.003)
    # Two messages each, for 128 bytes and for no gradients.
    assert found.gradients_s == pytest.approx(0.004 + 128e-6)


def test_ranks_that_share_cores_compute_one_after_the_other() -> None:
    shared = replace(BUSY, machines=1)
    found = algorithm_epoch("1d", TWO, 2, PRODUCT, shared)
    # 0.6 ms of own edges and 2 ms of both cores for what travels, twice, are less than the 6 ms of the link.
    assert found.products_s == pytest.approx(0.006)
    assert found.compute_s == pytest.approx(2 * 0.0004 + 0.01 + 0.003)
    # With messages that cost twice as much they are more, and that cannot be hidden.
    costly = algorithm_epoch("1d", TWO, 2, PRODUCT, replace(shared, message_core_s=0.004))
    assert costly.compute_s == pytest.approx(2 * (0.0006 + 0.003) - 0.006 + 2 * 0.0004 + 0.01 + 0.003)
    # On one core, each also waits for what the other one does for itself.
    one = algorithm_epoch("1d", TWO, 2, replace(PRODUCT, cores=1), shared)
    assert one.compute_s == pytest.approx(2 * (0.0006 + 0.004) - 0.006 + 2 * 0.0004 + 0.01 + 2 * 0.003)
    # As said by whoever has started the ranks, for a network that does not say it.
    assert algorithm_epoch("1d", TWO, 2, PRODUCT, BUSY, ranks_per_machine=2) == found


def test_broadcasts_cost_the_cores_of_whoever_sends() -> None:
    found = algorithm_epoch("1d-oblivious", TWO, 2, PRODUCT, replace(BUSY, message_core_s=0.02))
    # Two blocks of 10 kB, of which each takes 11 ms, at the rate of one and a half at once.
    travel = 2 * 0.011 / 1.5
    assert found.products_s == pytest.approx(travel)
    # A message for each block, and 4 ms for 10 kB: 22 ms of both cores, beside 0.6 ms of own edges.
    alone = 0.0004 + 2 * 0.005 + 0.003
    assert found.compute_s == pytest.approx(0.0006 + 0.022 - travel + alone)
    # Sums that go back take each block a round more, and each rank three messages.
    back = replace(PRODUCT, forward_widths=(), backward_widths=(25,))
    found = algorithm_epoch("1d-oblivious", TWO, 2, back, replace(BUSY, message_core_s=0.008))
    travel = 2 * 0.012 / 1.5
    assert found.products_s == pytest.approx(travel)
    assert found.compute_s == pytest.approx(0.0006 + (6 * 0.008 + 0.006) / 2 - travel + alone)


def test_every_exchange_of_a_product_is_one_of_all_ranks() -> None:
    calm = replace(GRAPH, edges_s=0.0, rows_s=0.0, backward_widths=(), forward_widths=(16,))
    one, three, many = (
        algorithm_epoch("1d", FOUR, 4, replace(calm, max_rounds=rounds), QUIET).products_s
        for rounds in (1, 3, 9)
    )
    # Four ranks have three others, so three exchanges at most, with a message to each rank.
    assert three - one == pytest.approx(6 * 0.001)
    assert many == three


def test_a_network_says_how_many_ranks_share_a_machine() -> None:
    assert [replace(BUSY, machines=2).ranks_per_machine(ranks) for ranks in (1, 2, 5)] == [1, 1, 3]
    assert BUSY.ranks_per_machine(64) == 1
    assert find_network("loopback").ranks_per_machine(8) == 8
    assert BUSY.core_s(5_000, 3) == pytest.approx(3 * 0.002 + 0.002)
