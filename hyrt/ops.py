"""Sparse operators over whole graphs, for models of your own: exact, differentiable, with little memory.

    from hyrt import ops
    out = ops.spmm(graph, x, reduce="mean")
    out = ops.attention(graph, x, at_source, at_destination)

`graph` is a `hyrt.Graph`, or the `Topology` of one: CSR over incoming edges, row i has the edges into vertex
i. Edge tensors are in its order. An operator takes numpy arrays and returns one, or tensors, all on one
device, and is differentiable then, once on the CPU and any number of times elsewhere. On the CPU it runs in
compiled loops, by as many threads as `threads` says; on other devices torch's own operators do it, which need
arrays with a row for each edge. Rows are float32, float64, float16 or (tensors) bfloat16; sums of 16-bit rows
are float32 and rounded once. Results are equal, bit for bit, for any number of threads.

The names in GraphPy (Gong et al., 2024, sections 2 and 6.1) are in the docstrings; a last v or e says whether
an operand is a tensor of vertices or of edges. Storage is as there: V + E integers, E more for the transpose
of edge tensors, and a second V + E only where a graph is not symmetric.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyrt.checks import check_flag, check_number, check_whole, check_word
from hyrt.graph.graph import Graph
from hyrt.graph.topology import Topology
from hyrt.machine.workers import Workers, working
from hyrt.nn.whole_graph import gradients, on_devices
from hyrt.nn.whole_graph.edges import At
from hyrt.nn.whole_graph.gradients import SumScales

__all__ = ["Topology", "attention", "edge_reduce", "edge_softmax", "sddmm", "spmm", "threads"]

Rows = TypeVar("Rows", NDArray[Any], Tensor)
Reduce = Literal["sum", "mean", "max"]
Combine = Literal["dot", "add", "sub", "mul", "div"]

_REDUCTIONS = ("sum", "mean", "max")
_KINDS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@contextmanager
def threads(count: int) -> Iterator[Workers]:
    """Let the operators inside the block, on CPU tensors and arrays, share `count` threads.

    The backward pass of a loss must be in the block, too: `torch.autograd` runs it in the calling thread.

    Raises
    ------
    ValueError
        If `count` is no whole number, or below one.
    """
    with Workers(check_whole("count", count, 1), "ops") as workers, working(workers):
        yield workers


def spmm(
    graph: Graph | Topology,
    x: Rows,
    edge_values: Rows | None = None,
    *,
    reduce: Reduce = "sum",
    transposed: bool = False,
    row_scale: NDArray[Any] | Tensor | None = None,
    source_scale: NDArray[Any] | Tensor | None = None,
    self_scale: NDArray[Any] | Tensor | None = None,
) -> Rows:
    """Aggregate the rows of each vertex's neighbours: gSpMMv, or gSpMMve with edge values.

    out[i] = row_scale[i] * reduce of edge_values[e] * source_scale[c] * x[c] over the edges e from c into i,
    + self_scale[i] * x[i]. GCN's normalisation is `row_scale=s, source_scale=s, self_scale=s * s`, where s is
    `graph.topology.gcn_scale`.

    Parameters
    ----------
    graph
        The edges: a graph or its topology.
    x
        [V, ...] rows of the vertices; [V, H, d] for H heads.
    edge_values
        [E], or [E, H] where x is [V, H, d]: factors of the edges, of x's dtype, or float32 where x has 16
        bits. Without them nothing is stored for them.
    reduce
        "sum", "mean" (the sum over the number of edges), or "max" (without values and scales; zero without
        edges, and the gradient of a tie goes to its first source).
    transposed
        Aggregate along outgoing edges: gSpMMv^T, or gSpMMve^T, which reads edge values by the edges' numbers.
    row_scale, source_scale, self_scale
        [V] constants, which cost nothing if not given, and take no gradient.

    Returns
    -------
    [V, ...], of the shape and dtype of x; differentiable with respect to x and the edge values.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not go together.
    """
    edges = _topology(graph)
    given = _tensor("x", x)
    _check_rows("x", given, edges, "source")
    check_flag("transposed", transposed)
    check_word("reduce", reduce, _REDUCTIONS)
    flat = _flat(given)
    values = None
    if edge_values is not None:
        values = _values(_tensor("edge_values", edge_values), given, edges)
    scales = [
        None if scale is None else _scale(what, scale, edges, given)
        for what, scale in (
            ("row_scale", row_scale),
            ("source_scale", source_scale),
            ("self_scale", self_scale),
        )
    ]
    if reduce == "max":
        if transposed or values is not None or any(scale is not None for scale in scales):
            raise ValueError(
                'reduce="max" takes rows as they are: leave out edge values, scales and transposed, and '
                "multiply x before"
            )
        return _back(x, _home(given).largest_of_sources(edges, flat).view(given.shape))
    if reduce == "mean":
        counts = np.diff((edges.transposed if transposed else edges).indptr)
        inverse = (1 / np.maximum(counts, 1)).astype(_sum_dtype(given))
        scales[0] = inverse if scales[0] is None else scales[0] * inverse
    out = _home(given).sum_of_sources(edges, flat, values, SumScales(*scales), transposed=transposed)
    return _back(x, out.view(given.shape))


def sddmm(
    graph: Graph | Topology,
    left: Rows,
    right: Rows,
    op: Combine = "dot",
    *,
    left_at: At = "source",
    right_at: At = "destination",
) -> Rows:
    """Compute a value of each edge from its ends: gSDDMMvv, or gSDDMMve where an operand is an edge tensor.

    Parameters
    ----------
    graph
        The edges: a graph or its topology.
    left, right
        [V, ...], or [E, ...] where they are edge tensors: of equal dtype, and equal shape but for the first
        axis. For "dot" [., d], or [., H, d] for H heads.
    op
        "dot" (over the last axis), or "add", "sub", "mul" or "div", element by element.
    left_at, right_at
        Where an edge finds its row: at its "source", its "destination", or, for an edge tensor, the "edge"
        itself.

    Returns
    -------
    For "dot" [E], or [E, H]; else [E, ...]. Differentiable with respect to both operands.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not go together.
    """
    edges = _topology(graph)
    a, b = _tensor("left", left), _tensor("right", right)
    _check_rows("left", a, edges, left_at)
    _check_rows("right", b, edges, right_at)
    if a.shape[1:] != b.shape[1:] or a.dtype != b.dtype or a.device != b.device:
        raise ValueError(
            f"left has rows of shape {tuple(a.shape[1:])}, is {a.dtype} and on {a.device}; right "
            f"{tuple(b.shape[1:])}, {b.dtype} and on {b.device}: give equal ones"
        )
    home = _home(a)
    check_word("op", op, ("dot", "add", "sub", "mul", "div"))
    if op == "dot":
        if a.ndim not in (2, 3):
            raise ValueError(
                f"left has shape {tuple(a.shape)}: a dot product takes [rows, d] or [rows, heads, d]"
            )
        _check_heads("left", a)
        heads = 1 if a.ndim == 2 else a.shape[1]
        split = [t.reshape(len(t), heads, t.shape[-1]) for t in (a, b)]
        out = home.dot(edges, *split, left_at, right_at)
        return _back(left, out[:, 0] if a.ndim == 2 else out)
    if op not in ("add", "sub", "mul", "div"):
        raise ValueError(f'op is {op!r}: give "dot", "add", "sub", "mul" or "div"')
    flat = [_flat(t) for t in (a, b)]
    out = home.combine(edges, *flat, op, left_at, right_at)
    return _back(left, out.view(edges.num_edges, *a.shape[1:]))


def edge_reduce(graph: Graph | Topology, values: Rows, reduce: Reduce = "sum") -> Rows:
    """Reduce an edge tensor over the edges into each vertex: gSpMMe.

    Parameters
    ----------
    graph
        The edges: a graph or its topology.
    values
        [E, ...] rows of the edges.
    reduce
        "sum", "mean" or "max"; the gradient of a tie goes to its first edge.

    Returns
    -------
    [V, ...] of the values' dtype, zero for a vertex without edges; differentiable.

    Raises
    ------
    ValueError
        If shapes or dtypes do not go together.
    """
    edges = _topology(graph)
    given = _tensor("values", values)
    _check_rows("values", given, edges, "edge")
    check_word("reduce", reduce, _REDUCTIONS)
    flat = _flat(given)
    # A mean is rounded when it has been divided, not before.
    dtype = _kind(given) if reduce == "mean" else given.dtype
    out = _home(given).reduce_edges(edges, flat, largest=reduce == "max", dtype=dtype)
    if reduce == "mean":
        counts = torch.from_numpy(edges.in_degrees).to(out.device).clamp(min=1)
        out = (out / counts[:, None].to(out.dtype)).to(given.dtype)
    return _back(values, out.view(edges.num_vertices, *given.shape[1:]))


def edge_softmax(graph: Graph | Topology, scores: Rows) -> Rows:
    """The softmax of an edge tensor over the edges into each vertex: gSpMMe and gSDDMMve in one.

    Parameters
    ----------
    graph
        The edges: a graph or its topology.
    scores
        [E], or [E, H] for H heads.

    Returns
    -------
    As the scores; differentiable. A score of -inf gets the weight zero; where a vertex has no other, all of
    its weights are no numbers, as those of `torch.softmax`.

    Raises
    ------
    ValueError
        If shapes or dtypes do not go together.
    """
    edges = _topology(graph)
    given = _tensor("scores", scores)
    _check_rows("scores", given, edges, "edge")
    flat = _flat(given)
    out = _home(given).softmax_edges(edges, flat.to(_kind(given)))
    return _back(scores, out.to(given.dtype).view(given.shape))


def attention(
    graph: Graph | Topology,
    x: Rows,
    at_source: Rows,
    at_destination: Rows,
    *,
    negative_slope: float = 0.2,
    self_loops: bool = True,
) -> Rows:
    """Sum the rows of neighbours weighted by attention, as GAT does, without an edge tensor.

    out[i] = sum of alpha[e] * x[c] over the edges e from c into i, and its loop, with alpha the softmax over
    them of LeakyReLU(at_source[c] + at_destination[i]). It is `sddmm`, `edge_softmax` and `spmm` in one pass
    forward and one backward; what it keeps for backward has V rows.

    Parameters
    ----------
    graph
        The edges: a graph or its topology.
    x
        [V, d], or [V, H, d] for H heads.
    at_source, at_destination
        [V], or [V, H]: the two parts of the scores, of x's dtype, or float32 where x has 16 bits.
    negative_slope
        The slope of the LeakyReLU below zero.
    self_loops
        Whether each vertex also attends to itself, once. An edge from a vertex to itself that the graph has
        is an edge like others.

    Returns
    -------
    [V, d] or [V, H, d] of x's dtype, zero without edges and loop; differentiable with respect to all three. A
    score of -inf leaves its edge out; where a vertex has no other, its row is no number.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not go together.
    """
    edges = _topology(graph)
    given = _tensor("x", x)
    _check_rows("x", given, edges, "source")
    if given.ndim not in (2, 3):
        raise ValueError(f"x has shape {tuple(given.shape)}: give [vertices, d] or [vertices, heads, d]")
    _check_heads("x", given)
    check_flag("self_loops", self_loops)
    slope = check_number("negative_slope", negative_slope)
    parts = []
    for what, part in (("at_source", at_source), ("at_destination", at_destination)):
        score = _tensor(what, part)
        if score.shape != given.shape[:-1] or score.dtype not in (given.dtype, _kind(given)):
            raise ValueError(
                f"{what} has shape {tuple(score.shape)} and is {score.dtype}: give {tuple(given.shape[:-1])} "
                f"and {given.dtype}, for x is {tuple(given.shape)}"
            )
        _check_device(what, score, given)
        parts.append(_flat(score).to(_kind(given)))
    rows = given.reshape(len(given), parts[0].shape[1], given.shape[-1])
    home = _home(given)
    out = home.attend_all(edges, rows, *parts, slope=slope, loops=self_loops)
    return _back(x, out.view(given.shape))


def _topology(graph: Graph | Topology) -> Topology:
    if isinstance(graph, Graph):
        return graph.topology
    if isinstance(graph, Topology):
        return graph.checked
    raise ValueError(f"graph is of type {type(graph).__name__}: give a hyrt.Graph or its topology")


def _tensor(what: str, x: NDArray[Any] | Tensor) -> Tensor:
    if isinstance(x, Tensor):
        given = x
    else:
        with warnings.catch_warnings():
            # torch warns of arrays that must not be written to, such as mapped files: nothing here writes.
            warnings.simplefilter("ignore", UserWarning)
            array = np.ascontiguousarray(_array(what, x))
            if array.dtype not in (np.float16, np.float32, np.float64):
                raise ValueError(f"{what} is {array.dtype}: give floats of 16, 32 or 64 bits")
            given = torch.from_numpy(array)
    if given.dtype not in _KINDS:
        raise ValueError(f"{what} is {given.dtype}: give floats of 16, 32 or 64 bits")
    if given.is_nested or given.layout != torch.strided or given.device.type == "meta":
        where = "is on meta" if given.device.type == "meta" else f"has the layout {given.layout}"
        where = "is nested" if given.is_nested else where
        raise ValueError(f"{what} {where}: give a dense tensor that holds numbers")
    return given


def _array(what: str, x: Any) -> NDArray[Any]:
    try:
        return np.asarray(x)
    except ValueError as error:
        raise ValueError(f"{what} is not an array of numbers: {error}") from error


def _flat(rows: Tensor) -> Tensor:
    """[rows, the product of all other axes]: `reshape` cannot infer a width where there are no rows."""
    return rows.reshape(len(rows), rows.shape[1:].numel())


def _check_rows(what: str, x: Tensor, edges: Topology, at: At) -> None:
    check_word(f"{what}_at", at, ("source", "destination", "edge"))
    rows = edges.num_edges if at == "edge" else edges.num_vertices
    if x.ndim < 1 or len(x) != rows:
        of = "edge" if at == "edge" else "vertex"
        raise ValueError(f"{what} has shape {tuple(x.shape)}: give {rows:,} rows, one for each {of}")


def _check_heads(what: str, x: Tensor) -> None:
    if not x.shape[1:].numel():
        raise ValueError(f"{what} has shape {tuple(x.shape)}: give at least one column, and one head")


def _check_device(what: str, x: Tensor, beside: Tensor) -> None:
    if x.device != beside.device:
        raise ValueError(f"{what} is on {x.device} and x on {beside.device}: bring them to one device")


def _values(values: Tensor, x: Tensor, edges: Topology) -> Tensor:
    """[E, H] of the dtype that is summed in."""
    _check_rows("edge_values", values, edges, "edge")
    _check_device("edge_values", values, x)
    if values.ndim not in (1, 2) or (values.ndim == 2 and (x.ndim < 3 or values.shape[1] != x.shape[1])):
        raise ValueError(
            f"edge_values has shape {tuple(values.shape)} for x of shape {tuple(x.shape)}: give [edges], or "
            "[edges, heads] where x is [vertices, heads, d]"
        )
    if values.ndim == 2 and not values.shape[1]:
        raise ValueError(f"edge_values has shape {tuple(values.shape)}: give at least one head")
    if values.dtype not in (x.dtype, _kind(x)):
        raise ValueError(f"edge_values is {values.dtype} and x {x.dtype}: give equal dtypes")
    return _flat(values).to(_kind(x))


def _scale(what: str, scale: NDArray[Any] | Tensor, edges: Topology, x: Tensor) -> NDArray[Any]:
    if isinstance(scale, Tensor):
        if scale.requires_grad:
            raise ValueError(
                f"{what} takes a gradient, but scales are constants: multiply x or the result by it instead"
            )
        scale = _tensor(what, scale).to("cpu", _kind(x)).numpy()
    array = _array(what, scale)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{what} is {array.dtype}: give one number for each vertex")
    array = array.astype(_sum_dtype(x), copy=False)
    if array.shape != (edges.num_vertices,):
        raise ValueError(f"{what} has shape {array.shape}: give one number for each vertex")
    return array


def _kind(x: Tensor) -> torch.dtype:
    """What rows like x are summed in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _sum_dtype(x: Tensor) -> type[np.floating[Any]]:
    return np.float64 if x.dtype == torch.float64 else np.float32


def _home(x: Tensor) -> Any:
    """Where the operators for x's device are."""
    return gradients if x.device.type == "cpu" else on_devices


def _back(like: Rows, out: Tensor) -> Rows:
    """The result as what the operator was given."""
    if isinstance(like, Tensor):
        return out
    if out.requires_grad:
        raise ValueError("an array was given beside a tensor that takes a gradient: give tensors only")
    return out.numpy()
