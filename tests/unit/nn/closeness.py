"""How far apart results are, relative to their size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


def distance(a: Tensor, b: Tensor) -> float:
    """Largest difference over the largest value (at least 1e-12) of b."""
    assert a.shape == b.shape
    if not b.numel():
        return 0.0
    difference = (a.detach().double() - b.detach().double()).abs().max()
    return float(difference / b.detach().double().abs().max().clamp(min=1e-12))


def gradients(parameters: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """The gradients of named parameters, zeros where there is none."""
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in parameters}


def assert_close(a: Mapping[str, Tensor], b: Mapping[str, Tensor], bound: float) -> None:
    """Each tensor of a is within `bound` of its namesake, relative to the largest value of all."""
    assert a.keys() == b.keys()
    scale = max((float(v.detach().abs().max()) for v in b.values() if v.numel()), default=0.0)
    for name in b:
        assert a[name].shape == b[name].shape, name
        if b[name].numel():
            off = float((a[name].detach().double() - b[name].detach().double()).abs().max())
            assert off <= bound * max(scale, 1e-12), f"{name}: {off} off at scale {scale}"
