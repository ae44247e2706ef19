"""Masks of dropout: what they are a function of, and their statistics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from block_cases import sparse_of
from scipy import stats

from hyrt.nn.operators.dropout import dropout
from hyrt.runtime.workers import Workers, use_workers

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mixed(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def kept(seed: int, step: int, layer: int, vertex: int, column: int, rate: float) -> bool:
    """The mask's definition in plain integers: 16 bits a column of the vertex's stream (purpose 2)."""
    key = mixed((seed + _GOLDEN) & _MASK)
    for part in (2, step, layer):
        key = mixed((key + (part + 1) * _GOLDEN) & _MASK)
    stream = mixed((key + (vertex + 1) * _GOLDEN) & _MASK)
    bits = mixed((stream + (column // 4 + 1) * _GOLDEN) & _MASK)
    return (bits >> (16 * (column % 4))) & 0xFFFF >= round(rate * 65536)


def ones(num: int, width: int, vertices: np.ndarray | None = None, **key: float) -> np.ndarray:
    """Dropout of ones."""
    ids = np.arange(num, dtype=np.int32) if vertices is None else vertices
    settings = {"rate": 0.3, "seed": 1, "step": 2, "layer": 1} | key
    out = dropout(torch.ones(num, width, dtype=torch.float64), ids, **settings)  # type: ignore[arg-type]
    assert isinstance(out, torch.Tensor)
    return out.numpy()


@pytest.mark.parametrize("width", [1, 3, 4, 7, 8])
def test_masks_follow_their_definition(width: int) -> None:
    vertices = np.array([0, 5, 2**31 - 1, 17], np.int32)
    out = ones(4, width, vertices, rate=0.4, seed=9, step=1000, layer=2)
    for i, vertex in enumerate(vertices):
        for column in range(width):
            assert (out[i, column] != 0) == kept(9, 1000, 2, int(vertex), column, 0.4)


def test_a_vertex_has_one_mask_in_every_mini_batch_and_id_width() -> None:
    rng = np.random.default_rng(0)
    everyone = ones(500, 13)
    for ids in (np.int32, np.int64):
        some = rng.permutation(500)[:77].astype(ids)
        assert np.array_equal(ones(77, 13, some), everyone[some])


@pytest.mark.parametrize("changed", [{"seed": 2}, {"step": 3}, {"layer": 2}])
def test_seed_step_and_layer_each_change_the_mask(changed: dict[str, int]) -> None:
    a, b = ones(400, 50) != 0, ones(400, 50, **changed) != 0
    agreement = float((a == b).mean())
    assert abs(agreement - (0.7**2 + 0.3**2)) < 5 * 0.5 / np.sqrt(a.size)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_rates_hold_by_column_by_row_and_for_pairs_of_columns(rate: float) -> None:
    rows, width = 4000, 16
    dropped = ones(rows, width, rate=rate) == 0
    expected = np.array([rate, 1 - rate])

    def p_of(counts: np.ndarray, total: int) -> float:
        observed = np.stack([counts, total - counts], -1).astype(float)
        statistic = ((observed - total * expected) ** 2 / (total * expected)).sum()
        return float(stats.chi2.sf(statistic, counts.size))

    assert p_of(dropped.sum(0), rows) > 1e-4
    assert p_of(dropped.reshape(-1, 40 * width).sum(1), 40 * width) > 1e-4
    for a in range(4):
        for b in range(a + 1, 8):
            table = np.bincount(2 * dropped[:, a] + dropped[:, b], minlength=4)
            assert (
                stats.chisquare(table, rows * np.outer(expected[::-1], expected[::-1]).ravel()).pvalue > 1e-5
            )


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.75, 0.999])
def test_the_scale_keeps_the_expectation(rate: float) -> None:
    out = ones(4000, 64, rate=rate)
    scale = out.max()
    assert set(np.unique(out)) <= {0.0, scale}
    assert scale == pytest.approx(1 / (1 - round(rate * 65536) / 65536), rel=1e-12)
    error = scale * np.sqrt(rate * (1 - rate) / out.size)
    assert abs(out.mean() - 1) < 5 * error


def test_sparse_rows_have_the_masks_of_their_dense_form() -> None:
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((90, 31)).astype(np.float32)
    dense[rng.random(dense.shape) < 0.7] = 0
    vertices = rng.permutation(1000)[:90].astype(np.int32)
    key = {"rate": 0.6, "seed": 3, "step": 4, "layer": 0}
    rows = sparse_of(dense)
    before = rows.values.copy()
    from_sparse = dropout(rows, vertices, **key)  # type: ignore[arg-type]
    from_dense = dropout(torch.from_numpy(dense), vertices, **key)  # type: ignore[arg-type]
    assert not isinstance(from_sparse, torch.Tensor)
    assert torch.equal(from_sparse.to_dense(), from_dense)  # type: ignore[arg-type]
    assert np.array_equal(rows.values, before)


def test_gradcheck() -> None:
    vertices = np.array([4, 0, 9], np.int32)
    x = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda rows: dropout(rows, vertices, rate=0.4, seed=1, step=2, layer=3), (x,)
    )


def test_any_number_of_workers_gives_equal_bits() -> None:
    results = []
    for count in (1, 2, 4):
        team = Workers(count, "hyrt.test")
        with use_workers(team):
            results.append(ones(5000, 9))
        team.close()
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


def test_rate_zero_is_the_input_itself_and_a_rate_close_to_one_is_finite() -> None:
    x = torch.ones(2, 3)
    vertices = np.arange(2, dtype=np.int32)
    assert dropout(x, vertices, rate=0.0, seed=0, step=0, layer=0) is x
    assert np.isfinite(ones(200, 50, rate=0.999999)).all()


def test_a_bad_rate_or_number_of_vertices_is_named() -> None:
    for rate in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match=r"is not in \[0, 1\)"):
            ones(2, 3, rate=rate)
    with pytest.raises(ValueError, match="2 rows but 1 vertices"):
        ones(2, 3, np.zeros(1, np.int32))
