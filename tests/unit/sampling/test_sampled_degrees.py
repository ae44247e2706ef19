"""GCN over neighbours with the degrees that a layer draws, against its formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_graphs import assert_equal_blocks, random_graph, row, sampled_rows

from hyrt.config import build_config
from hyrt.errors import ConfigError
from hyrt.nn.architecture import Aggregation
from hyrt.nn.operators.aggregate import aggregate
from hyrt.runtime.workers import Workers
from hyrt.sampling.neighbor_sampler import NeighborSampler

ALONE = Workers(1, "test")
GRAPH = random_graph(150, 9, seed=2)
X = np.random.default_rng(0).normal(size=(150, 3))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("fanouts", [[5, 3], [-1, 2], [4, -1]], ids=str)
def test_an_edge_weighs_the_root_of_both_drawn_degrees(fanouts: list[int], in_place: bool) -> None:
    everyone = np.arange(150, dtype=np.int32)
    sampler = NeighborSampler(GRAPH, everyone, fanouts, 40, 1, sampled_degrees=True)
    plain = NeighborSampler(GRAPH, everyone, fanouts, 40, 1)
    batch, same = (of.sample(0, of.units(0), ALONE, in_place=in_place) for of in (sampler, plain))
    for block, other, fanout in zip(batch.blocks, same.blocks, fanouts[::-1], strict=True):
        assert sampled_rows(block) == sampled_rows(other)
        r = np.array([len(row(GRAPH, v)) + 1 for v in range(150)])
        r = r if fanout < 0 else np.minimum(r, fanout + 1)
        wanted = np.array(
            [
                X[v] / r[v] + sum((X[u] / np.sqrt(r[v] * r[u]) for u in neighbors), np.zeros(3))
                for v, neighbors in zip(block.destinations, sampled_rows(block), strict=True)
            ]
        )
        rows = torch.from_numpy(X if block.sources is None else X[block.sources])
        found = aggregate(block, rows.float(), Aggregation("gcn", "add"))
        assert found.numpy() == pytest.approx(wanted, rel=1e-5, abs=1e-6)
        if fanout < 0:
            assert_equal_blocks(block, other)


def test_a_device_that_draws_does_not_know_of_it() -> None:
    with pytest.raises(ConfigError, match=r"sampler\.degrees=sampled does not support sampler\.on_device"):
        build_config({"sampler": {"degrees": "sampled", "on_device": True}})
