"""What samplers, blocks and mini-batches refuse, for compiled loops do not look where they read and write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fuzz_samplers import FuzzHops

import hyrt
from hyrt.errors import ArgumentError, DataError
from hyrt.graph.graph import Graph
from hyrt.nn.operators.aggregate import aggregate
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.neighbor_sampler import NeighborSampler
from hyrt.sampling.sampler_settings import SAMPLERS

ALONE = Workers(1, "test")
GRAPH: Graph = hyrt.load("synthetic:tiny,vertices=300")
V = GRAPH.num_vertices
TARGETS = GRAPH.split("train")
OF_TARGETS = {
    "neighbor": {"fanout": [3, 2]},
    "labor": {"fanout": [3, 2]},
    "fastgcn": {"layer_size": 32},
    "shadow": {"hops": 2, "hop_neighbors": 3},
}
OF_SUBGRAPHS = {
    "saint": {"roots": 4, "walk_length": 2, "units": 2},
    "cluster": {"parts": 6, "parts_per_group": 2, "groups": 2, "method": "random"},
}
KINDS = {**OF_TARGETS, **OF_SUBGRAPHS, "ladies": {"layer_size": 32}, "full": {}}


def sampler_of(kind: str, graph: Any = GRAPH, targets: Any = TARGETS, **given: Any) -> Any:
    settings = SAMPLERS.load(kind)(kind=kind, **KINDS[kind])
    return settings.build(graph, targets, **{"layers": 2, "batch_size": 16, "seed": 1} | given)


def same(one: MiniBatch, other: MiniBatch) -> bool:
    pairs = zip(one.blocks, other.blocks, strict=True)
    return all(
        np.array_equal(a.columns, b.columns) and np.array_equal(a.sources, b.sources) for a, b in pairs
    )


WRONG_UNITS = [
    (lambda units: np.resize(units[:2], 8), "twice"),
    (lambda units: np.append(units, -5), r"is -5, but there are only"),
    (lambda units: np.append(units, 2**62), "but there are only"),
    (lambda units: units.astype(np.float32), "pass ids of"),
    (lambda units: units[:, None], "pass ids of"),
    (lambda units: units.tolist(), "pass ids of"),
    (lambda units: None, "pass ids of"),
]


@pytest.mark.parametrize("kind", [*OF_TARGETS, *OF_SUBGRAPHS])
@pytest.mark.parametrize("in_place", [False, True])
def test_wrong_units_are_refused(kind: str, in_place: bool) -> None:
    sampler = sampler_of(kind)
    units = sampler.units(0)
    for change, message in WRONG_UNITS:
        with pytest.raises(ArgumentError, match=rf"^units.*{message}"):
            sampler.sample(0, change(units), ALONE, in_place=in_place)
    # What was refused has left nothing behind.
    after, fresh = sampler.sample(0, units, ALONE, in_place=False), sampler_of(kind)
    assert same(after, fresh.sample(0, units, ALONE, in_place=False))


@pytest.mark.parametrize("kind", OF_TARGETS)
def test_a_vertex_beyond_the_last_is_refused(kind: str) -> None:
    with pytest.raises(ArgumentError, match=rf"^units\[0\] is {V}, .*: use numbers from 0 to {V - 1}$"):
        sampler_of(kind).sample(0, np.array([V]), ALONE, in_place=False)


@pytest.mark.parametrize("kind", OF_TARGETS)
def test_units_of_any_form_are_the_same_vertices(kind: str) -> None:
    sampler = sampler_of(kind)
    units = np.sort(sampler.units(0))
    expected = sampler.sample(0, units, ALONE, in_place=False)
    wide = np.zeros(2 * len(units), units.dtype)
    wide[::2] = units
    fixed = units.copy()
    fixed.flags.writeable = False
    for form in (wide[::2], fixed, units.astype(np.int16), units.astype(np.uint64)):
        assert same(sampler.sample(0, form, ALONE, in_place=False), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_arguments_of_build_are_refused(kind: str) -> None:
    for targets in (np.append(TARGETS, V), np.append(TARGETS, -1), np.append(TARGETS, TARGETS[0])):
        with pytest.raises(ArgumentError, match=r"^targets.*: (give|pass|use|list) "):
            sampler_of(kind, targets=targets)
    if kind not in ("neighbor", "full"):
        # Those also make the mini-batches of evaluations, of which there may be none.
        with pytest.raises(ArgumentError, match=r"^targets is empty: pass "):
            sampler_of(kind, targets=TARGETS[:0])
    for targets in (None, TARGETS.tolist(), TARGETS.astype(np.float64)):
        with pytest.raises(ArgumentError, match=r"^targets is .*: (give|pass) "):
            sampler_of(kind, targets=targets)
    with pytest.raises(ArgumentError, match=r"^seed must be .*, got "):
        sampler_of(kind, seed="a")
    with pytest.raises(ArgumentError, match=r"^graph is .*: pass a graph"):
        sampler_of(kind, graph=3)
    with pytest.raises(ArgumentError, match=r"^class_weights is .*: pass one factor per class"):
        sampler_of(kind, class_weights=np.ones(GRAPH.num_classes - 1, np.float32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("key", "bad"), [("indices", V), ("indices", -5), ("indptr", 10**9)])
def test_a_graph_of_wrong_edges_is_refused(kind: str, key: str, bad: int) -> None:
    array = getattr(GRAPH.topology, key).copy()
    array[len(array) // 2] = bad
    graph = replace(GRAPH, topology=replace(GRAPH.topology, **{key: array}))
    with pytest.raises(DataError, match=key):
        sampler_of(kind, graph=graph)
    with pytest.raises(DataError, match=key):
        hyrt.load(graph)


@pytest.mark.parametrize("step", [-1, "a", None, 1.0])
def test_a_wrong_step_is_refused(step: Any) -> None:
    for kind in OF_SUBGRAPHS | OF_TARGETS:
        with pytest.raises(ArgumentError, match=r"^step must be "):
            sampler_of(kind).units(step)


def _with(at: int, bad: int) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        changed = array.copy()
        changed[at] = bad
        return changed

    return change


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {"neighbors": _with(3, V)},
        {"neighbors": _with(3, -1)},
        {"neighbors": lambda a: a[:-1]},
        {"neighbors": lambda a: a.astype(np.float32)},
        {"offsets": _with(2, 0)},
        {"offsets": lambda a: a[:-1]},
        {"degrees": lambda a: a[:-1]},
        {"weights": lambda a: np.ones(1, np.float32)},
    ],
)
def test_wrong_neighbours_of_a_device_are_refused(fields: dict[str, Any], in_place: bool) -> None:
    sampler = NeighborSampler(GRAPH, TARGETS, [2, 2], 8, 1)
    units = sampler.units(0)
    assert sampler.sample(0, units, ALONE, in_place=in_place, hops=FuzzHops()).num_edges
    with pytest.raises(ArgumentError, match=r"^(neighbors|offsets|degrees|weights) of a Hop"):
        sampler.sample(0, units, ALONE, in_place=in_place, hops=FuzzHops(**fields))


HALVES: Any = "float16"


def batch_of_user() -> MiniBatch:
    """A mini-batch whose arrays a user may have made."""
    sampler = NeighborSampler(GRAPH, TARGETS, [3, 2], 8, 1)
    batch = sampler.sample(0, sampler.units(0), ALONE, in_place=False)
    return batch.distrusted()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("columns", _with(2, -1)),
        ("columns", _with(2, 10**6)),
        ("columns", lambda a: a[:-1]),
        ("columns", lambda a: a.astype(np.float32)),
        ("indptr", _with(1, 10**6)),
        ("indptr", _with(0, 1)),
        ("indptr", lambda a: a[:-1]),
        ("num_src", lambda n: n + 10**6),
        ("num_src", lambda n: "3"),
        ("sources", lambda a: a[::-1].copy()),
        ("degrees", lambda a: a[:1]),
        ("source_degrees", lambda a: a[:1]),
        ("weights", lambda a: np.ones(1, np.float32)),
        ("edge_features", lambda a: np.ones((1, 2), np.float32)),
        ("edge_weights", lambda a: np.ones(1, np.float32)),
        ("layer", lambda n: "a"),
        *((name, HALVES) for name in ("weights", "edge_weights", "run_weights", "weighted_degrees")),
    ],
)
def test_a_wrong_block_is_refused_by_whatever_reads_it(name: str, change: Any) -> None:
    def block() -> Block:
        made = batch_of_user().blocks[0]
        count = made.num_dst if name == "weighted_degrees" else made.num_edges
        # Compiled loops do not read numbers of 16 bits.
        wrong = np.ones(count, np.float16) if change is HALVES else change(getattr(made, name))
        setattr(made, name, wrong)
        return made

    x = torch.ones(batch_of_user().blocks[0].num_src, 4)
    for read in (Block.transposed, Block.edge_index, lambda block: aggregate(block, x, "sum")):
        assert read(batch_of_user().blocks[0]) is not None
        with pytest.raises(
            ArgumentError, match=r"block.*(: (give|pass|put|use|set|list|number)| give | must )"
        ):
            read(block())


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("targets", lambda a: a[:-1]),
        ("labels", lambda a: a[:-1]),
        ("labels", lambda a: a - 100),
        ("labels", lambda a: None),
        ("target_weights", lambda a: np.ones(1, np.float32)),
        ("target_rows", lambda a: np.array([10**6])),
        ("blocks", lambda a: a[::-1]),
        ("blocks", lambda a: []),
        ("blocks", lambda a: None),
        ("normalizer", lambda a: float("nan")),
        ("inputs", lambda a: torch.ones(3, 4)),
    ],
)
def test_a_wrong_mini_batch_is_refused(name: str, change: Any) -> None:
    batch = batch_of_user()
    assert batch.checked is batch
    setattr(batch, name, change(getattr(batch, name)))
    with pytest.raises(ArgumentError, match=r"(: (give|pass|use|set|list)|, or set| must) "):
        _ = batch.distrusted().checked
