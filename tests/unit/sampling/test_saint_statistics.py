"""What the normalisations are for: sampled aggregates and losses have the full graph's as expectation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from scipy import stats
from small_graphs import random_graph, row

from hyrt.nn.architecture import Aggregation, Reduce, SelfPath
from hyrt.nn.operators.aggregate import aggregate
from hyrt.runtime.workers import Workers
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.saint_sampler import SaintSampler

VERTICES = 60
UNITS = 40
STEPS = 50
GRAPH = random_graph(VERTICES, 6, seed=5)
TARGETS = np.arange(0, VERTICES, 2)


@pytest.fixture(scope="module")
def sampler() -> SaintSampler:
    # Vertices get into few subgraphs, and each pair of neighbours is often torn apart.
    return SaintSampler(GRAPH, TARGETS, 2, 5, 2, UNITS, seed=11, coverage=400)


def steps(sampler: SaintSampler) -> Iterator[MiniBatch]:
    workers = Workers(1, "test")
    for step in range(STEPS):
        batch = sampler.sample(step, sampler.units(step), workers)
        yield batch
        batch.release()


def full_aggregate(x: np.ndarray, aggregation: Aggregation) -> np.ndarray:
    """Over the full graph, in float64, by its rows."""
    out = np.zeros_like(x)
    degrees = np.array([len(row(GRAPH, v)) for v in range(VERTICES)])
    for v in range(VERTICES):
        for u in row(GRAPH, v):
            if aggregation.reduce == "gcn":
                out[v] += x[u] / np.sqrt((degrees[v] + 1) * (degrees[u] + 1))
            else:
                out[v] += x[u] / (degrees[v] if aggregation.reduce == "mean" else 1)
        if aggregation.self_path == "add":
            out[v] += x[v] / (degrees[v] + 1)
    return out


@pytest.mark.parametrize(("reduce", "self_path"), [("mean", "none"), ("sum", "none"), ("gcn", "add")])
def test_expected_aggregate_is_the_full_one(
    sampler: SaintSampler, reduce: Reduce, self_path: SelfPath
) -> None:
    aggregation = Aggregation(reduce, self_path)
    x = np.random.default_rng(0).normal(1, 1, (VERTICES, 1))
    full = full_aggregate(x, aggregation)[:, 0]
    samples: list[list[float]] = [[] for _ in range(VERTICES)]
    for batch in steps(sampler):
        block = batch.blocks[0]
        assert block.sources is not None
        out = aggregate(block, torch.from_numpy(x[block.sources]), aggregation).numpy()[:, 0]
        for vertex, value in zip(block.destinations, out, strict=True):
            samples[vertex].append(float(value))
    z = []
    for v in range(VERTICES):
        values = np.array(samples[v])
        spread = values.std()
        if len(values) < 30 or spread < 1e-9:
            # Met too rarely to tell, or never torn from its neighbours.
            continue
        # The pre-sampled counts stray as much as a mean over as many subgraphs does.
        error = spread * np.sqrt(1 / len(values) + 1 / sampler._vertex_counts[v])
        z.append((values.mean() - full[v]) / error)
    assert len(z) > VERTICES // 2
    assert np.abs(z).max() < 4.5
    assert abs(np.mean(z)) < 3 / np.sqrt(len(z))
    # Without weights (or with wrong ones) the mean is off by many standard errors.
    assert np.mean(np.square(z)) < 2


def test_expected_loss_is_the_mean_over_the_targets(sampler: SaintSampler) -> None:
    losses = np.random.default_rng(1).exponential(1.0, VERTICES)
    estimates = []
    for batch in steps(sampler):
        assert batch.target_weights is not None
        total = (batch.target_weights * losses[batch.targets]).sum()
        estimates.append(total / batch.normalizer)
    error = np.std(estimates) / np.sqrt(STEPS) * np.sqrt(1 + STEPS * UNITS / sampler.num_presampled)
    assert abs(np.mean(estimates) - losses[TARGETS].mean()) < 3.5 * error


def test_each_targets_expected_weight_is_one_nth(sampler: SaintSampler) -> None:
    sums = np.zeros(VERTICES)
    counts = np.zeros(VERTICES)
    for batch in steps(sampler):
        np.add.at(sums, batch.targets, batch.target_weights)
        np.add.at(counts, batch.targets, 1)
    num = STEPS * UNITS
    assert not sums[1::2].any()
    p = counts[TARGETS] / num
    relative_error = np.sqrt((1 - p) / p * (1 / num + 1 / sampler.num_presampled))
    z = (sums[TARGETS] * len(TARGETS) / num - 1) / relative_error
    assert np.abs(z).max() < 4.5
    # Targets of one subgraph are correlated: a generous bound on the sum of squares.
    assert stats.chi2.sf((z**2).sum() / 1.5, len(z)) > 1e-3


def test_the_estimate_of_one_over_p_is_nearly_unbiased() -> None:
    """(n + 1) / (b + 1) for a binomial b, against n / b with a floor of one."""
    for n, p in [(50, 0.05), (50, 0.3), (400, 0.01)]:
        b = np.arange(n + 1)
        probability = stats.binom.pmf(b, n, p)
        ours = p * (probability * (n + 1) / (b + 1)).sum()
        floored = p * (probability * n / np.maximum(b, 1)).sum()
        assert ours == pytest.approx(1 - (1 - p) ** (n + 1), rel=1e-9)
        assert abs(ours - 1) < 0.08
        assert abs(floored - 1) > abs(ours - 1)
