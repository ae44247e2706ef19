"""Attention over whole graphs, forward and backward, against dense float64 autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from full_graphs import KINDS, dense, long_rows, topology
from torch.nn import functional

from hyrt import ops
from hyrt.graph.topology import Topology
from hyrt.nn.full_graph import gradients
from hyrt.nn.full_graph import torch_operators as on_devices
from hyrt.nn.full_graph.attention import attend_backward_into, attend_into
from hyrt.runtime.workers import Chunk, Workers

V = 40


def exact(of: Topology, p: Any, at_source: Any, at_destination: Any, slope: float, loops: bool) -> Any:
    """[V, H, d], from matrices of V times V."""
    counts = torch.from_numpy(dense(of)) + (torch.eye(V) if loops else 0)
    scores = functional.leaky_relu(at_destination[:, None] + at_source[None], slope)
    scores = torch.where(counts[:, :, None] > 0, scores, -torch.inf)
    top = scores.max(1, keepdim=True).values.nan_to_num(neginf=0)
    weights = counts[:, :, None] * (scores - top).exp()
    alpha = weights / weights.sum(1, keepdim=True).clamp(min=1e-300)
    return torch.einsum("ich,chd->ihd", alpha, p)


def drawn(heads: int, width: int, scale: float = 1.0) -> list[torch.Tensor]:
    """p, at_source and at_destination, float64."""
    shapes = [(V, heads, width), (V, heads), (V, heads)]
    generator = torch.Generator().manual_seed(heads)
    return [scale * torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]


def computed(
    of: Topology,
    given: list[np.ndarray],
    grad: np.ndarray,
    rows: np.ndarray | None = None,
    **more: Any,
) -> list[np.ndarray]:
    """out and the gradients of p, at_source and at_destination."""
    (_, heads, width), number, kind = given[0].shape, len(grad), given[1].dtype
    out, positive = (np.empty((number, heads, width), kind) for _ in range(2))
    lse, positive_weight, to_destination = (np.empty((number, heads), kind) for _ in range(3))
    kept = (out, lse, positive, positive_weight)
    attend_into(of.indptr, of.indices, *given, *kept, rows=rows, **more)
    p_grad, source_grad = np.empty((V, heads, width), kind), np.empty((V, heads), kind)
    positions = None
    if rows is not None:
        positions = np.full(V, -1, np.int32)
        positions[rows] = np.arange(number)
    turned = of.transposed
    found = (p_grad, source_grad, to_destination)
    more |= {"rows": rows, "positions": positions}
    attend_backward_into(turned.indptr, turned.indices, *given, *kept, grad, *found, **more)
    return [out, *found]


def off(found: np.ndarray, expected: torch.Tensor) -> float:
    difference = torch.from_numpy(found).double() - expected
    return float(difference.abs().max() / expected.abs().max().clamp(min=1e-12))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loops", [True, False])
def test_results_and_gradients(kind: str, loops: bool) -> None:
    of = topology(kind)
    for heads, width, dtype, bound in ((1, 3, np.float32, 3e-6), (3, 16, np.float64, 1e-13)):
        given = [x.requires_grad_() for x in drawn(heads, width)]
        expected = exact(of, *given, 0.2, loops)
        grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        expected.backward(grad)
        arrays = [x.detach().numpy().astype(dtype) for x in given]
        found = computed(of, arrays, grad.numpy().astype(dtype), loops=loops)
        for part, want in zip(found, [expected.detach(), *(x.grad for x in given)], strict=True):
            assert off(part, want) < bound


@pytest.mark.parametrize(("heads", "width"), [(3, 64), (1, 140), (7, 5)])
def test_any_heads_and_widths(heads: int, width: int) -> None:
    """Among them heads that take several passes, and a head wider than a pass."""
    of = topology("multi-edges")
    given = [x.requires_grad_() for x in drawn(heads, width)]
    expected = exact(of, *given, 0.1, True)
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected.backward(grad)
    found = computed(of, [x.detach().float().numpy() for x in given], grad.float().numpy(), slope=0.1)
    for part, want in zip(found, [expected.detach(), *(x.grad for x in given)], strict=True):
        assert off(part, want) < 1e-5


def test_only_some_destinations() -> None:
    of = topology("directed")
    rows = np.array([2, 3, 11, 17, 30], np.int32)
    given = [x.requires_grad_() for x in drawn(3, 16)]
    expected = exact(of, *given, 0.2, True)[rows]
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected.backward(grad)
    out, *grads = computed(of, [x.detach().numpy() for x in given], grad.numpy(), rows)
    to_destination = given[2].grad
    assert to_destination is not None
    wanted = [given[0].grad, given[1].grad, to_destination[rows]]
    assert not to_destination.numpy()[np.setdiff1d(np.arange(V), rows)].any()
    assert off(out, expected.detach()) < 1e-13
    for part, want in zip(grads, wanted, strict=True):
        assert off(part, want) < 1e-13


def test_scores_whose_exponentials_overflow() -> None:
    of = topology("symmetric")
    given = drawn(1, 3, scale=300)
    expected = exact(of, *given, 0.2, True)
    for dtype, bound in ((np.float32, 1e-4), (np.float64, 1e-12)):
        out = np.empty((V, 1, 3), dtype)
        attend_into(of.indptr, of.indices, *(x.numpy().astype(dtype) for x in given), out)
        assert off(out, expected) < bound


@pytest.mark.parametrize("home", [gradients, on_devices])
@pytest.mark.parametrize("loops", [True, False])
def test_a_score_of_minus_infinity_leaves_a_source_out(
    loops: bool, home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it stands in a row; without any other score the softmax is no number, as torch's."""
    monkeypatch.setattr(ops, "_backend", lambda x: home)
    of = topology("multi-edges")
    for dtype, bound in ((torch.float32, 3e-6), (torch.float64, 1e-13)):
        given = drawn(3, 16)
        # Other vertices in each head: their rows' loops come first, their edges anywhere.
        for head in range(3):
            given[1][head::3, head] = -torch.inf
        p, at_source, at_destination = (x.requires_grad_() for x in given)
        counts = torch.from_numpy(dense(of)) + (torch.eye(V) if loops else 0)
        scores = functional.leaky_relu(at_destination[:, None] + at_source[None], 0.2)
        scores = torch.where(counts[:, :, None] > 0, scores + counts.log()[:, :, None], -torch.inf)
        alone = (counts.sum(1)[:, None] > 0) & (scores.detach().amax(1) == -torch.inf)
        # Rows without any score above -inf are compared by themselves.
        alpha = scores.where(scores.isfinite().any(1, keepdim=True), 0).softmax(1)
        alpha = alpha * scores.isfinite().any(1, keepdim=True)
        expected = torch.einsum("ich,chd->ihd", alpha, p)
        along = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        along[alone] = 0
        narrow = [x.detach().to(dtype).requires_grad_() for x in given]
        found = ops.attention(of, *narrow, self_loops=loops)
        assert torch.equal(found.detach().isnan().all(2), alone)
        whole = (~alone)[:, :, None]
        difference = torch.where(whole, found.detach().double() - expected.detach(), 0.0)
        assert float(difference.abs().max()) < bound * float(expected.detach().abs().max())
        if not alone.any():
            gradients_found = torch.autograd.grad(found, narrow, along.to(dtype))
            wanted = torch.autograd.grad(expected, given, along)
            for a, b in zip(gradients_found, wanted, strict=True):
                assert off(a.numpy(), b.nan_to_num()) < bound


def test_what_is_no_number_stays_so() -> None:
    """A loss that has diverged must show it."""
    of = topology("symmetric")
    for part in range(3):
        given = [x.float().numpy() for x in drawn(1, 3)]
        given[part][4] = np.nan
        out = np.empty((V, 1, 3), np.float32)
        attend_into(of.indptr, of.indices, *given, out)
        reached = dense(of)[:, 4] > 0 if part < 2 else np.zeros(V, bool)
        reached[4] = True
        assert np.isnan(out[:, 0, 0]).tolist() == reached.tolist()


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_16_bits(kind: torch.dtype) -> None:
    of = topology("one hub")
    p, *scores = drawn(3, 16)
    p = p.to(kind)
    bits = p.view(torch.uint16 if kind == torch.float16 else torch.int16).numpy()
    expected = exact(of, p.double(), *scores, 0.2, True)
    out = np.empty((V, 3, 16), np.float32)
    attend_into(of.indptr, of.indices, bits, *(x.float().numpy() for x in scores), out)
    assert off(out, expected) < 1e-5


def test_threads_change_no_bit() -> None:
    rng = np.random.default_rng(0)
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 2000, V))])
    of = Topology(indptr, rng.integers(0, V, indptr[-1]).astype(np.int32))
    given = [x.float().numpy() for x in drawn(1, 3)]
    grad = rng.standard_normal((V, 1, 3)).astype(np.float32)
    results = []
    for threads in (1, 3):
        with Workers(threads, "threads") as workers:
            found = computed(of, given, grad, workers=workers)
            results.append(b"".join(part.tobytes() for part in found))
    assert results[0] == results[1]


class _Noting(Workers):
    """A team that notes how many pieces of work it was given each time."""

    def __init__(self, count: int, name: str) -> None:
        super().__init__(count, name)
        self.sizes: list[int] = []

    def run(self, work: Chunk, size: int, grain: int) -> None:
        self.sizes.append(size)
        super().run(work, size, grain)


@pytest.mark.parametrize("rows", [None, np.array([7, 2, 14, 39], np.int32)], ids=["all", "some"])
def test_threads_share_rows_of_very_many_edges(rows: np.ndarray | None) -> None:
    """Their pieces come to the softmax of the whole row, with the same bits for any number of threads."""
    of, chosen = long_rows(), np.arange(V) if rows is None else rows
    given = [x.requires_grad_() for x in drawn(3, 16, scale=3)]
    expected = exact(of, *given, 0.2, True)[chosen]
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected.backward(grad)
    to_destination = given[2].grad
    assert to_destination is not None
    wanted = [expected.detach(), given[0].grad, given[1].grad, to_destination[torch.from_numpy(chosen)]]
    results, long = [], int((np.diff(of.indptr)[chosen] > 9).sum())
    for threads in (1, 2, 3):
        with _Noting(threads, "threads") as workers:
            found = computed(of, [x.detach().numpy() for x in given], grad.numpy(), rows, workers=workers)
        # Each of these rows has at least five pieces, forward.
        assert workers.sizes[0] >= 5 * long
        results.append(b"".join(part.tobytes() for part in found))
        for part, want in zip(found, wanted, strict=True):
            assert off(part, want) < 1e-12
    assert results[0] == results[1] == results[2]


def test_a_piece_of_a_row_without_any_score() -> None:
    """Sources whose scores are -inf fill whole pieces of the row, and change nothing."""
    of, (p, at_source, at_destination) = long_rows(), drawn(3, 16)
    at_source[:20] = -torch.inf
    expected = exact(of, p, at_source, at_destination, 0.2, False)
    out = np.empty((V, 3, 16))
    given = [x.numpy() for x in (p, at_source, at_destination)]
    attend_into(of.indptr, of.indices, *given, out, loops=False)
    long = np.diff(of.indptr) > 9
    assert long.any()
    assert off(out[long], expected[long]) < 1e-12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"p": np.ones((V, 3), np.float32)}, "heads, columns per head"),
        ({"at_source": np.ones((V, 2), np.float32)}, r"at_source has shape \(40, 2\) .* shape \(40, 1\)"),
        ({"at_destination": np.ones((V, 1))}, "at_destination has dtype float64: use float32"),
        ({"out": np.ones((V, 1, 4), np.float32)[:, :, :3]}, "out has shape .* C-contiguous"),
        ({"lse": np.ones((V, 1), np.float32)}, "needs lse, positive"),
    ],
)
def test_what_does_not_go_together_is_said(change: dict[str, Any], message: str) -> None:
    of = topology("directed")
    scores = np.ones((V, 1), np.float32)
    given = {
        "p": np.ones((V, 1, 3), np.float32),
        "at_source": scores,
        "at_destination": scores,
        "out": np.ones((V, 1, 3), np.float32),
    }
    with pytest.raises(ValueError, match=message):
        attend_into(of.indptr, of.indices, **(given | change))
