"""Products of several matrices one below the other, against float64."""

from __future__ import annotations

import pytest
import torch

from hyrt.nn.operators.linear import grouped_linear
from hyrt.runtime.workers import Workers, use_workers


@pytest.mark.parametrize(("low_precision", "bound"), [(False, 1e-5), (True, 2e-2)])
def test_values_and_gradients_equal_those_in_float64(low_precision: bool, bound: float) -> None:
    torch.manual_seed(0)
    shapes = [(2500, 7, True), (1, 3, False), (0, 5, True), (1024, 7, True)]
    parts, exact = [], []
    for rows, width, with_bias in shapes:
        part = (torch.randn(rows, width), torch.randn(6, width), torch.randn(6) if with_bias else None)
        parts.append(tuple(None if each is None else each.requires_grad_() for each in part))
        exact.append(
            tuple(None if each is None else each.detach().double().requires_grad_() for each in part)
        )
    # Features take no gradient.
    parts[3][0].requires_grad_(False)
    with Workers(2, "test") as workers, use_workers(workers):
        found = grouped_linear(parts, low_precision=low_precision)
        factors = torch.randn(found.shape)
        (found * factors).sum().backward()
    wanted = torch.cat([x @ w.T + (0 if b is None else b) for x, w, b in exact])
    (wanted * factors).sum().backward()
    torch.testing.assert_close(
        found.double(), wanted, rtol=bound, atol=bound * float(wanted.detach().abs().max())
    )
    for mine, theirs in zip(parts, exact, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            if a is None or not a.requires_grad:
                continue
            largest = float(b.grad.abs().max()) if b.numel() else 1.0
            torch.testing.assert_close(a.grad.double(), b.grad, rtol=bound, atol=bound * largest + 1e-12)
