"""The public operators, with gradients, on the CPU and as other devices run them, against plain formulas."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph
from torch import Tensor

import hyrt
from hyrt import ops
from hyrt.errors import DataError
from hyrt.graph.topology import Topology
from hyrt.nn.full_graph import gradients
from hyrt.nn.full_graph import torch_operators as on_devices

# Row 0 has two edges from 2, row 3 none, and row 4 a loop.
ROWS = [[1, 2, 2], [0, 4], [0, 0, 1, 3], [], [1, 2, 4]]
V, E = 5, 12


@pytest.fixture
def graph() -> Topology:
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in ROWS])])
    return Topology(indptr, np.concatenate([np.array(row, np.int32) for row in ROWS]))


@pytest.fixture
def symmetric() -> Topology:
    return random_graph(30, 5).topology


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def ends(graph: Topology) -> tuple[Tensor, Tensor]:
    """Each edge's destination and source."""
    rows = torch.arange(graph.num_vertices).repeat_interleave(torch.from_numpy(np.diff(graph.indptr)))
    return rows, torch.from_numpy(graph.indices).long()


def summed(graph: Topology, along: Tensor, *, transposed: bool = False) -> Tensor:
    """Sums of an edge tensor by destination, or by source."""
    rows, columns = ends(graph)
    zero = torch.zeros(graph.num_vertices, *along.shape[1:], dtype=along.dtype)
    return zero.index_add(0, columns if transposed else rows, along)


def off(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return float((a.detach() - b.detach()).abs().max() / b.detach().abs().max())


def same(
    found: Callable[..., Tensor],
    exact: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Values and gradients are those of a plain formula, in loops and in torch's operators."""
    wanted = exact(*inputs)
    along = drawn(*wanted.shape, seed=9).detach()
    gradients = torch.autograd.grad(wanted, inputs, along)
    for home in (None, on_devices):
        with monkeypatch.context() as patch:
            if home is not None:
                patch.setattr(ops, "_backend", lambda x: on_devices)
            out = found(*inputs)
            assert off(out, wanted) < 1e-13
            for a, b in zip(torch.autograd.grad(out, inputs, along), gradients, strict=True):
                assert off(a, b) < 1e-13


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", ["graph", "symmetric"])
def test_sums(
    kind: str, transposed: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    of: Topology = request.getfixturevalue(kind)
    rows, columns = ends(of)[::-1] if transposed else ends(of)
    size = of.num_vertices
    x, w = drawn(size, 3, 2), drawn(of.num_edges, 3, seed=1)
    row, source, own = (drawn(size, seed=s).detach() for s in (2, 3, 4))
    scales = {"row_scale": row.numpy(), "source_scale": source.numpy(), "self_scale": own.numpy()}
    degrees = torch.bincount(rows, minlength=size).clamp(min=1)[:, None, None]

    def exact(x: Tensor, w: Tensor, counts: Tensor | int = 1) -> Tensor:
        along = w[:, :, None] * (source[:, None, None] * x)[columns]
        total = row[:, None, None] * summed(of, along, transposed=transposed)
        return total / counts + own[:, None, None] * x

    def found(x: Tensor, w: Tensor, reduce: Any) -> Tensor:
        return ops.spmm(of, x, w, reduce=reduce, transposed=transposed, **scales)

    same(lambda x, w: found(x, w, "sum"), exact, (x, w), monkeypatch)
    same(lambda x, w: found(x, w, "mean"), lambda x, w: exact(x, w, degrees), (x, w), monkeypatch)
    same(
        lambda x: ops.spmm(of, x, transposed=transposed),
        lambda x: summed(of, x[columns], transposed=transposed),
        (x,),
        monkeypatch,
    )


def largest(of: Topology, along: Tensor) -> Tensor:
    parts = torch.split(along, np.diff(of.indptr).tolist())
    return torch.stack([p.max(0).values if len(p) else 0 * along.sum(0) for p in parts])


@pytest.mark.parametrize("kind", ["graph", "symmetric"])
def test_maxima(kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    of: Topology = request.getfixturevalue(kind)
    x, along = drawn(of.num_vertices, 4), drawn(of.num_edges, 2)
    columns = ends(of)[1]
    same(lambda x: ops.spmm(of, x, reduce="max"), lambda x: largest(of, x[columns]), (x,), monkeypatch)
    same(lambda s: ops.edge_reduce(of, s, "max"), lambda s: largest(of, s), (along,), monkeypatch)


def test_of_equal_ones_the_first_takes_the_gradient_and_what_is_no_number_is_seen(
    graph: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among edges that repeat each other, and in 16 bits; against a loop over the edges."""
    for home, dtype in itertools.product(
        (gradients, on_devices), (torch.float64, torch.bfloat16, torch.float16)
    ):
        monkeypatch.setattr(ops, "_backend", lambda x, home=home: home)
        for of_edges in (False, True):
            size = E if of_edges else V
            x = drawn(size, 20).detach().round().to(dtype).requires_grad_()
            found = ops.edge_reduce(graph, x, "max") if of_edges else ops.spmm(graph, x, reduce="max")
            along = drawn(V, 20, seed=1).detach().to(dtype)
            numbers = x.detach().double().numpy()
            wanted, gradient = torch.zeros(V, 20), torch.zeros(size, 20, dtype=torch.float64)
            for i, k in itertools.product(range(V), range(20)):
                edges = range(graph.indptr[i], graph.indptr[i + 1])
                places = list(edges) if of_edges else graph.indices[list(edges)].tolist()
                if places:
                    best = places[int(numbers[places, k].argmax())]
                    wanted[i, k] = numbers[best, k]
                    gradient[best, k] += along[i, k].double()
            assert torch.equal(found.detach().float(), wanted)
            (back,) = torch.autograd.grad(found, x, along)
            assert back.dtype == dtype
            # Sums of few numbers, rounded once.
            torch.testing.assert_close(back.double(), gradient, rtol=2.0**-8, atol=1e-12)
    x = torch.ones(V, 2)
    x[4, 0] = np.nan
    reached = [4 in graph.indices[graph.indptr[i] : graph.indptr[i + 1]] for i in range(V)]
    for home in (gradients, on_devices):
        monkeypatch.setattr(ops, "_backend", lambda x, home=home: home)
        for found in (ops.spmm(graph, x, reduce="max"), ops.edge_reduce(graph, x[graph.indices], "max")):
            assert found[:, 0].isnan().tolist() == reached
            assert not found[:, 1].isnan().any()


FORMULAS: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    "dot": lambda a, b: (a * b).sum(2),
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
}


@pytest.mark.parametrize("op", FORMULAS)
@pytest.mark.parametrize(
    ("left_at", "right_at"),
    [("source", "destination"), ("destination", "source"), ("edge", "destination"), ("source", "edge")],
)
def test_values_of_edges(
    graph: Topology, left_at: Any, right_at: Any, op: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, columns = ends(graph)
    at = {"source": columns, "destination": rows, "edge": torch.arange(E)}
    size = {"source": V, "destination": V, "edge": E}
    left = drawn(size[left_at], 2, 3)
    right = (drawn(size[right_at], 2, 3, seed=1).detach().abs() + 1).requires_grad_()
    same(
        lambda a, b: ops.sddmm(graph, a, b, op, left_at=left_at, right_at=right_at),
        lambda a, b: FORMULAS[op](a[at[left_at]], b[at[right_at]]),
        (left, right),
        monkeypatch,
    )


def test_reductions_of_edges(graph: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    degrees = torch.from_numpy(graph.in_degrees).clamp(min=1)[:, None, None]
    values = drawn(E, 2, 3)
    same(lambda x: ops.edge_reduce(graph, x), lambda x: summed(graph, x), (values,), monkeypatch)
    same(
        lambda x: ops.edge_reduce(graph, x, "mean"),
        lambda x: summed(graph, x) / degrees,
        (values,),
        monkeypatch,
    )
    same(
        lambda s: ops.edge_softmax(graph, s),
        lambda s: torch.cat([p.softmax(0) for p in torch.split(s, graph.in_degrees.tolist())]),
        (drawn(E, 2),),
        monkeypatch,
    )


@pytest.mark.parametrize("loops", [True, False])
def test_attention_is_its_parts(graph: Topology, loops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, columns = ends(graph)
    if loops:
        rows, columns = (torch.cat([end, torch.arange(V)]) for end in (rows, columns))

    def exact(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        weights = torch.nn.functional.leaky_relu(a[columns] + b[rows], 0.1).exp()
        zero = torch.zeros(V, 3, dtype=torch.float64)
        total = zero.index_add(0, rows, weights)
        alpha = weights / total[rows]
        return torch.zeros(V, 3, 2, dtype=torch.float64).index_add(0, rows, alpha[:, :, None] * x[columns])

    inputs = drawn(V, 3, 2), drawn(V, 3, seed=1), drawn(V, 3, seed=2)
    options: dict[str, Any] = {"negative_slope": 0.1, "self_loops": loops}
    same(lambda x, a, b: ops.attention(graph, x, a, b, **options), exact, inputs, monkeypatch)


def test_16_bits_and_one_head(symmetric: Topology) -> None:
    size = symmetric.num_vertices
    x = drawn(size, 2).detach().bfloat16().requires_grad_()
    w = drawn(symmetric.num_edges, seed=1).detach().float().requires_grad_()
    scores = [drawn(size, seed=s).detach().bfloat16().requires_grad_() for s in (2, 3)]
    calls: list[tuple[Callable[..., Tensor], list[Tensor]]] = [
        (lambda x, w: ops.spmm(symmetric, x, w), [x, w]),
        (lambda x, a, b: ops.attention(symmetric, x, a, b), [x, *scores]),
        (lambda x: ops.sddmm(symmetric, x, x), [x]),
        (lambda a: ops.edge_softmax(symmetric, a), [ops.sddmm(symmetric, *scores, "add").detach()]),
    ]
    for call, given in calls:
        wide = [t.detach().double().requires_grad_() for t in given]
        for t in given:
            t.requires_grad_()
        found, wanted = call(*given), call(*wide)
        assert found.dtype == torch.bfloat16
        assert off(found.double(), wanted) < 1e-2
        along = drawn(*wanted.shape, seed=5).detach().bfloat16()
        gradients = torch.autograd.grad(wanted, wide, along.double())
        for a, b in zip(torch.autograd.grad(found, given, along), gradients, strict=True):
            assert off(a.double(), b) < 2e-2


def test_arrays_are_taken_and_returned() -> None:
    graph = random_graph(40, 4)
    x = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    x.flags.writeable = False
    with ops.threads(2):
        found = ops.spmm(graph, x, reduce="mean")
    assert isinstance(found, np.ndarray)
    tensors = ops.spmm(graph, torch.from_numpy(x.copy()), reduce="mean")
    assert found.tobytes() == tensors.numpy().tobytes()
    halves = ops.spmm(graph, x.astype(np.float16))
    assert halves.dtype == np.float16
    assert ops.sddmm(graph, x, x).shape == (graph.num_edges,)
    weights = torch.ones(graph.num_edges, requires_grad=True)
    mixed: Any = weights
    with pytest.raises(ValueError, match="pass only tensors"):
        ops.spmm(graph, x, mixed)


X, W = torch.ones(V, 2), torch.ones(E)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: ops.spmm(g, X[1:]), r"x has shape \(4, 2\): pass 5 rows, one per vertex"),
        (lambda g: ops.spmm(g, X.long()), "x has dtype torch.int64: use .* floats"),
        (lambda g: ops.spmm(g, X, W[1:]), "pass 12 rows, one per edge"),
        (lambda g: ops.spmm(g, X, W[:, None].expand(E, 2)), r"pass \[edges\], or \[edges, heads\]"),
        (
            lambda g: ops.spmm(g, X, W.double()),
            "edge_values has dtype torch.float64, but x has dtype torch.float32",
        ),
        (lambda g: ops.spmm(g, X, W, reduce="max"), "does not support edge_values"),
        (lambda g: ops.spmm(g, X, reduce="min"), "reduce must be"),
        (lambda g: ops.spmm(g, X, row_scale=np.ones(4)), r"row_scale has shape \(4,\)"),
        (lambda g: ops.spmm("cora", X), "graph is of type str: pass a hyrt.Graph"),
        (lambda g: ops.sddmm(g, X, X[:, :1]), "use the same row shape"),
        (lambda g: ops.sddmm(g, X, X, "pow"), "op must be one of .*, got 'pow'"),
        (lambda g: ops.sddmm(g, X, X, left_at="src"), "left_at must be one of .*, got 'src'"),
        (lambda g: ops.sddmm(g, W[:V], W[:V]), r"\[rows, heads, d\]"),
        (lambda g: ops.edge_softmax(g, X), "pass 12 rows, one per edge"),
        (lambda g: ops.edge_reduce(g, W, "min"), "reduce must be one of .*, got 'min'"),
        (
            lambda g: ops.attention(g, X, W[:V], W[:4]),
            r"at_destination has shape \(4,\) .* pass shape \(5,\)",
        ),
        (lambda g: ops.attention(g, W[:V], W[:V], W[:V]), r"\[vertices, heads, d\]"),
        (lambda g: ops.spmm(g, X, W.to("meta")), "edge_values is on the meta device: pass a dense tensor"),
        (lambda g: ops.spmm(g, X.to("meta")), "x is on the meta device: pass a dense tensor with values"),
        (lambda g: ops.spmm(g, X.to_sparse()), "x has layout torch.sparse_coo: pass a dense tensor"),
        (lambda g: ops.spmm(g, np.array(["a"] * V)), "x has dtype <U1: use .* floats"),
        (lambda g: ops.spmm(g, np.ones((V, 2), ">f4")), "x has dtype >f4: use .* floats"),
        (lambda g: ops.spmm(g, None), "x has dtype object: use .* floats"),
        (
            lambda g: ops.spmm(g, X, row_scale=torch.ones(V, requires_grad=True)),
            "row_scale requires a gradient, but scales are constants: multiply x or the result",
        ),
        (lambda g: ops.spmm(g, X, row_scale=torch.ones(V, device="meta")), "row_scale is on the meta device"),
        (lambda g: ops.spmm(g, X[:, None, :0], W[:, None][:, :0]), r"\[edges\], or \[edges, heads\]"),
        (lambda g: ops.spmm(g, torch.ones(V, 0, 2), torch.ones(E, 0)), "use at least one head"),
        (lambda g: ops.sddmm(g, X[:, :0], X[:, :0]), r"left has shape \(5, 0\): use at least one column"),
        (lambda g: ops.attention(g, X[:, :0], W[:V], W[:V]), r"x has shape \(5, 0\): use at least one"),
        (lambda g: ops.spmm(g, [[1.0], [1.0, 2.0]]), "x is not an array of numbers .*inhomogeneous"),
        (lambda g: ops.spmm(g, torch.nested.nested_tensor([X], layout=torch.jagged)), "x is nested: pass"),
        (
            lambda g: ops.spmm(g, X, row_scale=np.ones(V, complex)),
            "row_scale has dtype complex128: pass one number",
        ),
        (lambda g: ops.spmm(g, X, row_scale="two"), "row_scale has dtype <U3: pass one number"),
        (lambda g: ops.spmm(g, X, transposed="no"), "transposed must be True or False, got 'no'"),
        (lambda g: ops.attention(g, X, W[:V], W[:V], self_loops="no"), "self_loops must be True or False"),
        (
            lambda g: ops.attention(g, X, W[:V], W[:V], negative_slope=None),
            "negative_slope must be a finite number, got None",
        ),
        (
            lambda g: ops.attention(g, X, W[:V], W[:V], negative_slope=np.nan),
            "negative_slope must be a finite number, got nan",
        ),
        (
            lambda g: ops.attention(g, X, W[:V], W[:V], negative_slope="0.2"),
            "negative_slope must be a finite number, got '0.2'",
        ),
    ],
)
def test_what_does_not_go_together_is_said(graph: Topology, call: Callable[..., Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(graph)


@pytest.mark.parametrize("count", [1.5, "2", None, True])
def test_threads_are_counted_in_whole_numbers(count: Any) -> None:
    with pytest.raises(ValueError, match=r"count must be .*, got "), ops.threads(count):
        pass


def test_rows_without_columns_have_sums_and_gradients(
    graph: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    for home in (gradients, on_devices):
        monkeypatch.setattr(ops, "_backend", lambda x, home=home: home)
        for tail in ((0,), (2, 0)):
            x, w = drawn(V, *tail), drawn(E, *tail[:-1], seed=1)
            out = ops.spmm(graph, x, w)
            by_x, by_w = torch.autograd.grad(out, (x, w), torch.zeros_like(out))
            assert out.shape == by_x.shape == x.shape
            assert torch.equal(by_w, torch.zeros_like(w))


@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        (lambda g, x, w: ops.spmm(g, x, w), [(V, 3, 2), (E, 3)]),
        (lambda g, x, w: ops.spmm(g, x, w, transposed=True), [(V, 3, 2), (E, 3)]),
        (lambda g, x: ops.spmm(g, x, reduce="max"), [(V, 3)]),
        (lambda g, a, b: ops.sddmm(g, a, b), [(V, 3), (V, 3)]),
        (lambda g, a, b: ops.sddmm(g, a, b, left_at="edge"), [(E, 3, 2), (V, 3, 2)]),
        (lambda g, a, b: ops.sddmm(g, a, b, "div"), [(V, 3), (V, 3)]),
        (lambda g, s: ops.edge_reduce(g, s, "max"), [(E, 3)]),
        (lambda g, s: ops.edge_softmax(g, s), [(E, 3)]),
        (lambda g, x, a, b: ops.attention(g, x, a, b), [(V, 3, 2), (V, 3), (V, 3)]),
    ],
)
def test_gradients_do_not_depend_on_how_tensors_lie_in_memory(
    graph: Topology, call: Callable[..., Tensor], shapes: list[tuple[int, ...]]
) -> None:
    rows = [drawn(*shape, seed=seed).detach() for seed, shape in enumerate(shapes)]
    by_columns = [x.transpose(0, -1).contiguous().transpose(0, -1) for x in rows]
    assert not any(x.is_contiguous() for x in by_columns)
    wanted, found = (
        torch.autograd.grad((out := call(graph, *given)), given, drawn(*out.shape, seed=9).detach())
        for given in ([x.requires_grad_() for x in rows], [x.requires_grad_() for x in by_columns])
    )
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_a_scale_may_be_a_tensor_that_takes_no_gradient(graph: Topology) -> None:
    x, scale = drawn(V, 2).detach(), drawn(V, seed=1).detach()
    found = ops.spmm(graph, x, row_scale=scale)
    assert off(found, scale[:, None] * ops.spmm(graph, x)) < 1e-13


def test_it_belongs_to_the_package_and_waits_for_its_first_use() -> None:
    assert "ops" in dir(hyrt)
    assert hyrt.ops is ops


def test_the_pages_examples_run() -> None:
    page = (Path(__file__).parents[2] / "docs" / "ops.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
            exec(code, names)
    assert names["loss"].requires_grad


@pytest.mark.parametrize("tail", [(), (2,)])
def test_a_graph_without_edges_has_sums_of_zero_and_gradients(tail: tuple[int, ...]) -> None:
    edgeless = Topology(np.zeros(V + 1, np.int64), np.zeros(0, np.int32))
    x, values = drawn(V, *tail, 3), drawn(0, *tail)

    zero = ops.spmm(edgeless, x, values)
    reduced = [ops.edge_reduce(edgeless, values, reduce) for reduce in ("sum", "mean", "max")]
    softmax = ops.edge_softmax(edgeless, values)
    scores = ops.sddmm(edgeless, values, values, "mul", left_at="edge", right_at="edge")
    (zero.sum() + sum(out.sum() for out in reduced) + softmax.sum() + scores.sum()).backward()

    assert zero.shape == x.shape
    assert not zero.any()
    assert all(out.shape == (V, *tail) and not out.any() for out in reduced)
    assert softmax.shape == scores.shape == values.shape
    assert x.grad is not None
    assert not x.grad.any()


@pytest.mark.parametrize(
    ("indptr", "indices", "says"),
    [
        (
            np.array([0, 1, 1]),
            np.array([7]),
            "'indices'.* value 7 at position 0 is out of range for 2 vertices",
        ),
        (np.array([0, 1, 1]), np.array([-1]), "'indices'.* value -1 at position 0 is negative"),
        (np.array([0, 2, 1]), np.array([0]), "'indptr'.* is less than the previous value"),
        (np.array([0, 1, 2]), np.array([0]), "'indptr'.* differs from the length of 'indices'"),
        (
            np.array([0, 1, 1]),
            np.array([1.0]),
            "'indices' is float64 \\[1\\]: use a numpy array .* of int32 or int64",
        ),
        ([0, 1, 1], np.array([1]), "'indptr' is of type list: use a numpy array .* of int64"),
    ],
)
def test_a_topology_that_would_be_read_outside_is_refused(indptr: Any, indices: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        ops.spmm(Topology(indptr, indices), torch.ones(2, 3))


@pytest.mark.parametrize("through_values", [False, True])
def test_a_second_derivative_is_refused_instead_of_taken_for_zero(
    graph: Topology, through_values: bool
) -> None:
    """Also where the first one depends on what was given, and not on the gradient that arrives."""
    x, w = drawn(V, 2), drawn(E, seed=1)
    loss = ops.spmm(graph, x, w).sum() if through_values else ops.spmm(graph, x).square().sum()
    with pytest.raises(RuntimeError, match="remove create_graph=True"):
        torch.autograd.grad(loss, x, create_graph=True)


def test_on_other_devices_a_second_derivative_is_exact(
    graph: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "_backend", lambda x: on_devices)
    x = drawn(V, 2)
    assert torch.autograd.gradgradcheck(lambda x: ops.spmm(graph, x).sin(), (x,))
