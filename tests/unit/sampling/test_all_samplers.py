"""What every kind of sampler keeps: a step is the same for any split, threads, ranks and form of its
blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_graphs import assert_equal_blocks, random_graph, sampled_rows

from hyrt.config import build_config
from hyrt.graph.graph import Graph
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.sampler import Sampler

ALONE = Workers(1, "test")
KINDS: dict[str, dict[str, Any]] = {
    "neighbor": {"kind": "neighbor", "fanout": [4, 3]},
    "labor": {"kind": "labor", "fanout": [4, 3]},
    "labor 2": {"kind": "labor", "fanout": [4, 3], "iterations": 2},
    "fastgcn": {"kind": "fastgcn", "layer_size": 90},
    "ladies": {"kind": "ladies", "layer_size": 90},
    "weighted": {"kind": "weighted", "fanout": [4, 3]},
    "with replacement": {"kind": "weighted", "fanout": [4, 3], "replacement": True},
    "cluster": {"kind": "cluster", "parts": 12, "groups": 4, "method": "random"},
    "shadow": {"kind": "shadow", "hop_neighbors": 3},
}


def sampler_of(kind: str, graph: Graph, seed: int = 5, batch_size: int = 300) -> Sampler:
    targets = np.arange(0, graph.num_vertices, 2)
    settings = build_config({"sampler": KINDS[kind]}).sampler
    if settings.reads_edge_weights:
        weights = np.random.default_rng(0).lognormal(0, 1, graph.num_edges).astype(np.float32)
        graph = replace(graph, topology=replace(graph.topology, edge_weights=weights))
    return settings.build(graph, targets, layers=2, batch_size=batch_size, seed=seed)


def edges_of(blocks: list[Block]) -> dict[int, tuple[list[int], list[float]]]:
    """Neighbours and weights by destination; equal wherever one is in several blocks."""
    found: dict[int, tuple[list[int], list[float]]] = {}
    for block in blocks:
        weights = np.ones(block.num_edges) if block.weights is None else block.weights
        for i, (vertex, row) in enumerate(zip(block.destinations, sampled_rows(block), strict=True)):
            here = (row, weights[block.indptr[i] : block.indptr[i + 1]].tolist())
            assert found.setdefault(int(vertex), here) == here
    return found


def targets_of(batch: MiniBatch) -> list[int]:
    return [int(v) for v in batch.targets]


@pytest.mark.parametrize("kind", KINDS)
def test_content_is_equal_for_any_number_of_threads(kind: str) -> None:
    graph = random_graph(3000, 12, seed=1)
    batches = []
    for threads in (1, 2, 4):
        with Workers(threads, "test") as workers:
            sampler = sampler_of(kind, graph, batch_size=1400)
            batches.append(sampler.sample(1, sampler.units(1)[:1300], workers, in_place=False))
    for other in batches[1:]:
        for one, same in zip(batches[0].blocks, other.blocks, strict=True):
            assert_equal_blocks(one, same)


# A vertex has a row for each of the subgraphs of `shadow` that it is in; test_subgraph_samplers.py cuts
# these.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "shadow"])
def test_any_split_of_the_units_samples_the_same(kind: str) -> None:
    """The pieces are those of one process, in any order, and of ranks with samplers of their own."""
    graph = random_graph(700, 9, seed=2)
    sampler = sampler_of(kind, graph)
    units = sampler.units(2)
    whole = sampler.sample(2, units, ALONE, in_place=False)
    sampler.sample(3, sampler.units(3), ALONE, in_place=False)
    cuts = [len(units) // 7, len(units) // 2]
    pieces = [
        of.sample(2, piece, ALONE, in_place=False)
        for of, piece in zip((sampler, sampler_of(kind, graph), sampler), np.split(units, cuts), strict=True)
        if len(piece)
    ]
    assert sum(piece.normalizer for piece in pieces) == whole.normalizer
    assert sorted(v for piece in pieces for v in targets_of(piece)) == sorted(targets_of(whole))
    for layer in range(2):
        expected = edges_of([whole.blocks[layer]])
        assert edges_of([piece.blocks[layer] for piece in pieces]) == expected
        # All of them, but in another order.
        turned = sampler.sample(2, units[::-1].copy(), ALONE, in_place=False)
        assert edges_of([turned.blocks[layer]]) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_read_in_place_hold_the_same(kind: str) -> None:
    graph = random_graph(500, 9, seed=3)
    sampler = sampler_of(kind, graph)
    units = sampler.units(0)[:100]
    numbered, read = (sampler.sample(0, units, ALONE, in_place=each) for each in (False, True))
    assert read.blocks[0].sources is None
    assert sampled_rows(numbered.blocks[0]) == sampled_rows(read.blocks[0])
    assert_equal_blocks(numbered.blocks[1], read.blocks[1])
    lower = numbered.blocks[0]
    np.testing.assert_array_equal(lower.sources[: lower.num_dst], lower.destinations)
    np.testing.assert_array_equal(lower.source_degrees, read.blocks[0].source_degrees[lower.sources])


@pytest.mark.parametrize("kind", KINDS)
def test_mini_batches_in_flight_share_no_memory_that_changes(kind: str) -> None:
    graph = random_graph(600, 9, seed=4)
    sampler, fresh = sampler_of(kind, graph), sampler_of(kind, graph)

    def halves(of: Sampler, step: int) -> list[MiniBatch]:
        units = of.units(step)
        pieces = np.split(units, [len(units) // 3])
        return [of.sample(step, piece, ALONE, in_place=False) for piece in pieces if len(piece)]

    held = [batch for step in range(3) for batch in halves(sampler, step)]
    again = [batch for step in (2, 1, 0) for batch in halves(fresh, step)[::-1]][::-1]
    for batch, other in zip(held, again, strict=True):
        for one, same in zip(batch.blocks, other.blocks, strict=True):
            assert_equal_blocks(one, same)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_differ_and_seeds_do(kind: str) -> None:
    graph = random_graph(600, 14, seed=6)
    sampler, other = sampler_of(kind, graph), sampler_of(kind, graph, seed=6)

    def rows(of: Sampler, step: int) -> list[list[int]]:
        return sampled_rows(of.sample(step, of.units(step), ALONE, in_place=False).blocks[1])

    first = rows(sampler, 0)
    assert rows(other, 0) != first
    assert rows(sampler, sampler.steps_per_epoch()) != first
    assert rows(sampler, 0) == first


@pytest.mark.parametrize("kind", ["labor 2", "ladies"])
def test_a_target_of_another_step_is_named(kind: str) -> None:
    graph = random_graph(600, 9, seed=7)
    sampler = sampler_of(kind, graph, batch_size=50)
    stranger = np.setdiff1d(sampler.units(1), sampler.units(0))[:1]
    with pytest.raises(ValueError, match=f"vertex {stranger[0]} is not part of step 0"):
        sampler.sample(0, stranger, ALONE, in_place=False)
