"""Sizes of mini-batches that are sampled ahead are those of the run's steps."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest
from graphs import random_graph

from hyrt.config import build_config
from hyrt.predict.dataset_sizes import sampled_block_sizes
from hyrt.runtime.workers import Workers


def test_steps_that_are_drawn_whole_keep_their_numbers_after_a_shorter_one() -> None:
    graph, workers = random_graph(90), Workers(1, "test")
    settings = build_config({"sampler": {"kind": "ladies", "layer_size": 20}}).sampler
    sampler = settings.build(graph, np.arange(48, dtype=np.int32), layers=2, batch_size=32, seed=3)
    assert [len(sampler.units(step)) for step in range(4)] == [32, 16, 32, 16]
    expected = [
        sampler.sample(step, sampler.units(step), workers, in_place=False).blocks[0].num_edges
        for step in (0, 2)
    ]
    assert sampled_block_sizes(settings, sampler, workers).at(32).edges[0] == pytest.approx(fmean(expected))
