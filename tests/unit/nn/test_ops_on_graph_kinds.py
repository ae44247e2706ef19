"""Every operator of `hyrt.ops` on every kind of graph, against dense float64 matrices and finite steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from full_graphs import KINDS, topology
from torch import Tensor
from torch.nn import functional

from hyrt import ops
from hyrt.graph.topology import Topology
from hyrt.nn.full_graph import gradients
from hyrt.nn.full_graph import torch_operators as on_devices

V = 12
PLACES = ("source", "destination", "edge")


class Ends(NamedTuple):
    """[E, V] matrices: entry (e, i) is one where vertex i is the source, or the destination, of edge e."""

    source: Tensor
    destination: Tensor


class Case(NamedTuple):
    """A call of an operator, what it is of dense matrices, and the shapes of its inputs."""

    name: str
    call: Callable[..., Tensor]
    exact: Callable[..., Tensor]
    shapes: list[tuple[int, ...]]


def ends(of: Topology) -> Ends:
    out = torch.zeros(2, of.num_edges, V, dtype=torch.float64)
    for i in range(V):
        for e in range(of.indptr[i], of.indptr[i + 1]):
            out[0, e, of.indices[e]] = out[1, e, i] = 1
    return Ends(*out)


def gathered(matrix: Tensor, x: Tensor) -> Tensor:
    return torch.einsum("ev,v...->e...", matrix, x)


def summed(matrix: Tensor, along: Tensor) -> Tensor:
    return torch.einsum("ev,e...->v...", matrix, along)


def mean_of(matrix: Tensor, along: Tensor) -> Tensor:
    return summed(matrix / matrix.sum(0).clamp(min=1), along)


def largest_of(matrix: Tensor, along: Tensor) -> Tensor:
    """[V, ...]; zero where there is no edge."""
    parts = [along[matrix[:, i] > 0] for i in range(V)]
    return torch.stack([part.amax(0) if len(part) else 0 * along.sum(0) for part in parts])


REDUCTIONS: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": summed,
    "mean": mean_of,
    "max": largest_of,
}


def softmax_of(matrix: Tensor, scores: Tensor) -> Tensor:
    weights = (scores - scores.detach().amax()).exp()
    return weights / gathered(matrix, summed(matrix, weights))


def sums(of: Topology) -> list[Case]:
    at, cases = ends(of), []
    # Each with each of the two others; all three together are those of test_spmm.
    for transposed, reduce, heads in (
        (False, "sum", 0),
        (True, "mean", 0),
        (False, "mean", 1),
        (True, "sum", 1),
        (False, "sum", 3),
        (True, "mean", 3),
    ):
        into, out_of = (at.source, at.destination) if transposed else (at.destination, at.source)
        options: dict[str, Any] = {"reduce": reduce, "transposed": transposed}
        shape = (V, 3, 2) if heads == 3 else (V, 2)
        values = {0: [], 1: [(of.num_edges,)], 3: [(of.num_edges, 3)]}[heads]

        def call(x: Tensor, w: Tensor | None = None, options: dict[str, Any] = options) -> Tensor:
            return ops.spmm(of, x, w, **options)

        def exact(
            x: Tensor, w: Tensor | None = None, into: Any = into, out_of: Any = out_of, how: Any = reduce
        ) -> Tensor:
            along = gathered(out_of, x)
            return REDUCTIONS[how](into, along if w is None else along * w[..., None])

        cases.append(Case(f"spmm {options} with {heads} heads of values", call, exact, [shape, *values]))

    def largest(x: Tensor) -> Tensor:
        return ops.spmm(of, x, reduce="max")

    cases.append(
        Case("spmm max", largest, lambda x: largest_of(at.destination, gathered(at.source, x)), [(V, 2)])
    )
    return cases


FORMULAS: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    "dot": lambda a, b: (a * b).sum(-1),
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    # Far from a division by zero.
    "div": lambda a, b: a / (b.square() + 1),
}


def values_of_edges(of: Topology) -> list[Case]:
    at, cases = ends(of), []
    reads = {
        "source": lambda x: gathered(at.source, x),
        "destination": lambda x: gathered(at.destination, x),
        "edge": lambda x: x,
    }
    for op, left_at, right_at in itertools.product(FORMULAS, PLACES, PLACES):
        # One head where both ends are of one kind, several elsewhere.
        tail = (2,) if left_at == right_at else (3, 2)

        def call(
            a: Tensor, b: Tensor, op: Any = op, left_at: Any = left_at, right_at: Any = right_at
        ) -> Tensor:
            right = b.square() + 1 if op == "div" else b
            return ops.sddmm(of, a, right, op, left_at=left_at, right_at=right_at)

        def exact(a: Tensor, b: Tensor, op: Any = op, left: Any = left_at, right: Any = right_at) -> Tensor:
            return FORMULAS[op](reads[left](a), reads[right](b))

        shapes = [(of.num_edges if place == "edge" else V, *tail) for place in (left_at, right_at)]
        cases.append(Case(f"sddmm {op} of {left_at} and {right_at}", call, exact, shapes))
    return cases


def rows_of_edges(of: Topology) -> list[Case]:
    at, cases = ends(of), []
    for reduce, tail in itertools.product(REDUCTIONS, ((), (3, 2))):
        cases.append(
            Case(
                f"edge_reduce {reduce} of {tail}",
                lambda x, reduce=reduce: ops.edge_reduce(of, x, reduce),
                lambda x, reduce=reduce: REDUCTIONS[reduce](at.destination, x),
                [(of.num_edges, *tail)],
            )
        )
    for tail in ((), (3,)):
        cases.append(
            Case(
                f"edge_softmax of {tail}",
                lambda x: ops.edge_softmax(of, x),
                lambda x: softmax_of(at.destination, x),
                [(of.num_edges, *tail)],
            )
        )
    return cases


def attentions(of: Topology) -> list[Case]:
    cases = []
    for loops, heads in itertools.product((True, False), ((), (3,))):
        at = ends(of)
        if loops:
            at = Ends(*(torch.cat([matrix, torch.eye(V, dtype=torch.float64)]) for matrix in at))

        def exact(x: Tensor, source: Tensor, destination: Tensor, at: Ends = at) -> Tensor:
            scores = gathered(at.source, source) + gathered(at.destination, destination)
            weights = softmax_of(at.destination, functional.leaky_relu(scores, 0.2))
            return summed(at.destination, weights[..., None] * gathered(at.source, x))

        cases.append(
            Case(
                f"attention of {heads}, self_loops={loops}",
                lambda x, a, b, loops=loops: ops.attention(of, x, a, b, self_loops=loops),
                exact,
                # Use the heads and columns of test_full_graph_attention: their loops are compiled already.
                [(V, *heads, 16 if heads else 3), (V, *heads), (V, *heads)],
            )
        )
    return cases


OPERATORS = (sums, values_of_edges, rows_of_edges, attentions)


def drawn(shapes: list[tuple[int, ...]], dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(len(shapes))
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


def results(case: Case, inputs: list[Tensor], of: Callable[..., Tensor]) -> list[Tensor]:
    """What it returns, and the gradients of the inputs."""
    out = of(*inputs)
    (along,) = drawn([tuple(out.shape)], torch.bfloat16)
    return [out.detach(), *torch.autograd.grad(out, inputs, along.detach().to(out.dtype))]


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("kind", KINDS)
def test_float64_is_the_dense_result_and_finite_differences_agree(
    kind: str, operator: Callable[[Topology], list[Case]]
) -> None:
    for case in operator(topology(kind, V)):
        inputs = drawn(case.shapes, torch.float64)
        found, wanted = results(case, inputs, case.call), results(case, inputs, case.exact)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12, err_msg=case.name)
        assert torch.autograd.gradcheck(case.call, inputs, fast_mode=True), case.name


@pytest.mark.parametrize("home", [gradients, on_devices])
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_is_the_dense_result_of_the_rounded_inputs_rounded_once(
    kind: str, operator: Callable[[Topology], list[Case]], home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a unit in the last of 8 bits, whatever the number; gradients may be rounded on the way, too."""
    monkeypatch.setattr(ops, "_backend", lambda x: home)
    for case in operator(topology(kind, V)):
        if "div" in case.name:
            continue  # The square before it is rounded, too, and is no part of the operator.
        inputs = drawn(case.shapes, torch.bfloat16)
        wide = [x.detach().double().requires_grad_() for x in inputs]
        found, wanted = results(case, inputs, case.call), results(case, wide, case.exact)
        assert {x.dtype for x in found} == {torch.bfloat16}, case.name
        off = (found[0].double() - wanted[0]).abs()
        half_a_unit = 2.0 ** (torch.frexp(wanted[0]).exponent - 9.0)
        assert (off <= half_a_unit + 1e-6).all(), case.name
        # Those of attention's scores are differences of rounded numbers, as large as the others.
        size = max(b.abs().max() for b in wanted[1:])
        for a, b in zip(found[1:], wanted[1:], strict=True):
            assert (a.double() - b).abs().max() <= 2.0**-7 * size, case.name


@pytest.mark.parametrize("home", [gradients, on_devices])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_long_row_of_16_bits_loses_nothing_and_neither_does_its_gradient(
    dtype: torch.dtype, home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Added up in 8 bits, ones would stay at 256."""
    monkeypatch.setattr(ops, "_backend", lambda x: home)
    edges = 3000
    into = Topology(np.array([0, edges, *[edges] * (V - 1)]), np.arange(edges, dtype=np.int32) % V)
    x = torch.rand(V, 2, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    times = torch.bincount(torch.from_numpy(into.indices), minlength=V).double()
    bound = 2.0 ** -(9 if dtype == torch.bfloat16 else 12)
    total = (times[:, None] * x.detach().double()).sum(0)
    for reduce, wanted in (("sum", total), ("mean", total / edges)):
        found = ops.spmm(into, x, reduce=reduce)
        np.testing.assert_allclose(found[0].detach().double(), wanted, rtol=2 * bound)
    (grad,) = torch.autograd.grad(ops.spmm(into, x), x, torch.ones(V, 2, dtype=dtype))
    np.testing.assert_allclose(grad.double(), times[:, None].expand(V, 2), rtol=bound)
    scores = ops.sddmm(into, x, x, "sub")
    (grad,) = torch.autograd.grad(scores, x, torch.ones_like(scores))
    wanted = times.clone()
    wanted[0] -= edges
    np.testing.assert_allclose(grad.double(), wanted[:, None].expand(V, 2), rtol=2 * bound)
