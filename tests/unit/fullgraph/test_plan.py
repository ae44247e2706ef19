"""How a model over a whole graph is planned."""

from __future__ import annotations

import pytest

from hyrt.fullgraph.plan import FullGraphPlan, plan_full_graph
from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN


def plan_of(
    features: int, hidden: int, *, kind: str = "gcn", vertices: int = 1000, edges: int = 50_000, **more: float
) -> FullGraphPlan:
    memory = int(more.pop("memory_bytes", 1 << 30))
    sparse = bool(more.pop("is_sparse", False))
    architecture = Architecture(
        kind=kind, in_features=features, hidden=hidden, num_classes=7, heads=1, layers=2, **more
    )  # type: ignore[arg-type]
    return plan_full_graph(GNN(architecture), vertices, edges, is_sparse=sparse, memory_bytes=memory)


@pytest.mark.parametrize(
    ("plan", "keeps", "multiplies"),
    [
        (plan_of(100, 16), True, (False, True)),
        # It does not fit, or the features change with every step.
        (plan_of(100, 16, memory_bytes=399_999), False, (True, True)),
        (plan_of(100, 16, input_dropout=0.1), False, (True, True)),
        # 801 numbers a vertex are more than the 16 of its 50 neighbours.
        (plan_of(801, 16), False, (True, True)),
        (plan_of(800, 16), True, (False, True)),
        (plan_of(801, 801), True, (False, True)),
        (plan_of(100, 16, is_sparse=True), False, (True, True)),
        (plan_of(16, 100), True, (False, True)),
        (plan_of(16, 100, memory_bytes=0), False, (False, True)),
        (plan_of(16, 4), True, (False, False)),
        (plan_of(100, 16, kind="gat"), False, (True, True)),
    ],
)
def test_what_is_multiplied_before_it_is_gathered(
    plan: FullGraphPlan, keeps: bool, multiplies: tuple[bool, bool]
) -> None:
    assert plan.caches_first_gather == keeps
    assert tuple(parts.scatter is not None for parts in plan.parts) == multiplies
    assert plan.reads_in_place == (not keeps and not multiplies[0])


@pytest.mark.parametrize(
    ("features", "vertices", "rows"), [(16, 100, 16384), (16, 10**6, 16384), (8415, 10**6, 498)]
)
def test_chunks_have_few_rows_where_rows_are_wide(features: int, vertices: int, rows: int) -> None:
    assert plan_of(features, 16, vertices=vertices).chunk_rows == rows


@pytest.mark.parametrize(
    ("features", "vertices", "keeps"),
    # 16,384 vertices are one chunk; 2^22 numbers are 4 for each of the 16 + 7 columns of 45,590 vertices.
    [(16, 45_590, True), (16, 45_591, False), (8415, 45_590, True), (16, 10**6, False)],
)
def test_what_is_little_is_kept_instead_of_computed_again(features: int, vertices: int, keeps: bool) -> None:
    assert plan_of(features, 16, vertices=vertices).saves_activations == keeps
