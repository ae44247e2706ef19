"""Sparse operators over full graphs for user-defined models: exact, differentiable and memory-efficient.

    from hyrt import ops

    out = ops.spmm(graph, x, reduce="mean")
    out = ops.attention(graph, x, at_source, at_destination)

`graph` is a `hyrt.Graph` or its `Topology`: CSR over incoming edges, so row i has the edges into vertex i.
Edge tensors use the same order. An operator takes and returns either numpy arrays or tensors on one device.
With tensors, it is differentiable: once on the CPU, and any number of times on other devices. On the CPU, it
runs compiled loops on as many threads as `threads` sets. On other devices, it uses torch operators, which
need arrays with one row per edge. Rows are float32, float64, float16 or (tensors) bfloat16. Sums of 16-bit
rows are computed in float32 and rounded once. Results are bit-equal for any number of threads.

The docstrings give the names of the operators in GraphPy (Gong et al., 2024, sections 2 and 6.1), in which a
final v or e stands for a vertex or edge tensor as operand. Storage is as in GraphPy: V + E integers, E more
for the transpose of edge tensors, and another V + E only if a graph is not symmetric.
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

from hyrt.checks import check_choice, check_flag, check_int, check_number
from hyrt.graph.graph import Graph
from hyrt.graph.topology import Topology
from hyrt.nn.full_graph import gradients
from hyrt.nn.full_graph import torch_operators as on_devices
from hyrt.nn.full_graph.edge_operators import EdgePosition
from hyrt.nn.full_graph.gradients import SumScales
from hyrt.runtime.workers import Workers, use_workers

__all__ = ["Topology", "attention", "edge_reduce", "edge_softmax", "sddmm", "spmm", "threads"]

Rows = TypeVar("Rows", NDArray[Any], Tensor)
Reduce = Literal["sum", "mean", "max"]
Combine = Literal["dot", "add", "sub", "mul", "div"]

_REDUCTIONS = ("sum", "mean", "max")
_KINDS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@contextmanager
def threads(count: int) -> Iterator[Workers]:
    """Run operators on CPU tensors and arrays within the `with` block on a team of `count` threads.

    The backward pass of a loss must be in the block too, because `torch.autograd` runs it in the calling
    thread.

    Raises
    ------
    ValueError
        If `count` is not an integer of at least 1.
    """
    with Workers(check_int("count", count, 1), "ops") as workers, use_workers(workers):
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

    out[i] = self_scale[i] * x[i] + row_scale[i] * (reduction of edge_values[e] * source_scale[c] * x[c] over
    the edges e from c into i). For the normalization of GCN, use `row_scale=s, source_scale=s, self_scale=s *
    s` with `s = graph.topology.gcn_scale`.

    Parameters
    ----------
    graph
        Graph or topology.
    x
        Vertex rows [V, ...], or [V, H, d] for H heads.
    edge_values
        Edge weights [E], or [E, H] if x is [V, H, d], with the dtype of x (float32 if x has 16 bits). By
        default, edges are unweighted, and no weights are stored.
    reduce
        "sum", "mean" (the sum divided by the number of edges), or "max", which does not allow edge values and
        scales. Without edges, a maximum is zero. The first source of a tie gets the gradient.
    transposed
        Whether to aggregate along outgoing edges: gSpMMv^T, or gSpMMve^T, which reads edge values by edge id.
    row_scale, source_scale, self_scale
        Constants [V] without gradient; None adds no cost.

    Returns
    -------
    Rows [V, ...] with the shape and dtype of x, differentiable with respect to x and the edge values.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not match.
    """
    edges = _topology(graph)
    rows = _tensor("x", x)
    _check_rows("x", rows, edges, "source")
    check_flag("transposed", transposed)
    check_choice("reduce", reduce, _REDUCTIONS)
    flat = _flat(rows)
    values = None
    if edge_values is not None:
        values = _values(_tensor("edge_values", edge_values), rows, edges)
    scales = [
        None if scale is None else _scale(label, scale, edges, rows)
        for label, scale in (
            ("row_scale", row_scale),
            ("source_scale", source_scale),
            ("self_scale", self_scale),
        )
    ]
    if reduce == "max":
        if transposed or values is not None or any(scale is not None for scale in scales):
            raise ValueError(
                'reduce="max" does not support edge_values, scales or transposed=True: remove them; to scale '
                "the sources, multiply x before the call"
            )
        return _like_input(x, _backend(rows).max_aggregate(edges, flat).view(rows.shape))
    if reduce == "mean":
        counts = np.diff((edges.transposed if transposed else edges).indptr)
        inverse = (1 / np.maximum(counts, 1)).astype(_sum_dtype(rows))
        scales[0] = inverse if scales[0] is None else scales[0] * inverse
    out = _backend(rows).sum_aggregate(edges, flat, values, SumScales(*scales), transposed=transposed)
    return _like_input(x, out.view(rows.shape))


def sddmm(
    graph: Graph | Topology,
    left: Rows,
    right: Rows,
    op: Combine = "dot",
    *,
    left_at: EdgePosition = "source",
    right_at: EdgePosition = "destination",
) -> Rows:
    """Compute a value per edge from its endpoints: gSDDMMvv, or gSDDMMve if an operand is an edge tensor.

    Parameters
    ----------
    graph
        Graph or topology.
    left, right
        Vertex rows [V, ...], or edge tensors [E, ...], with equal dtypes, and equal shapes except for the
        first axis. For "dot", the shape is [., d], or [., H, d] for H heads.
    op
        "dot" (over the last axis), or an element-wise operation: "add", "sub", "mul" or "div".
    left_at, right_at
        Row that an edge reads: that of its "source", of its "destination", or of the "edge" itself.

    Returns
    -------
    Edge tensor [E], or [E, H] for "dot" with heads; otherwise [E, ...]. Differentiable with respect to both
    operands.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not match.
    """
    edges = _topology(graph)
    a, b = _tensor("left", left), _tensor("right", right)
    _check_rows("left", a, edges, left_at)
    _check_rows("right", b, edges, right_at)
    if a.shape[1:] != b.shape[1:] or a.dtype != b.dtype or a.device != b.device:
        raise ValueError(
            f"left (rows of shape {tuple(a.shape[1:])}, {a.dtype}, {a.device}) and right (rows of shape "
            f"{tuple(b.shape[1:])}, {b.dtype}, {b.device}) do not match: use the same row shape, dtype and "
            "device"
        )
    backend = _backend(a)
    check_choice("op", op, ("dot", "add", "sub", "mul", "div"))
    if op == "dot":
        if a.ndim not in (2, 3):
            raise ValueError(
                f"left has shape {tuple(a.shape)}: pass [rows, d] or [rows, heads, d] for a dot product"
            )
        _check_heads("left", a)
        heads = 1 if a.ndim == 2 else a.shape[1]
        split = [t.reshape(len(t), heads, t.shape[-1]) for t in (a, b)]
        out = backend.dot(edges, *split, left_at, right_at)
        return _like_input(left, out[:, 0] if a.ndim == 2 else out)
    if op not in ("add", "sub", "mul", "div"):
        raise ValueError(f'op is {op!r}: choose "dot", "add", "sub", "mul" or "div"')
    flat = [_flat(t) for t in (a, b)]
    out = backend.combine(edges, *flat, op, left_at, right_at)
    return _like_input(left, out.view(edges.num_edges, *a.shape[1:]))


def edge_reduce(graph: Graph | Topology, values: Rows, reduce: Reduce = "sum") -> Rows:
    """Reduce an edge tensor over the edges into each vertex: gSpMMe.

    Parameters
    ----------
    graph
        Graph or topology.
    values
        Edge tensor [E, ...].
    reduce
        "sum", "mean" or "max". The first edge of a tie gets the gradient.

    Returns
    -------
    Rows [V, ...] with the dtype of the values, zero for vertices without edges; differentiable.

    Raises
    ------
    ValueError
        If shapes or dtypes do not match.
    """
    edges = _topology(graph)
    rows = _tensor("values", values)
    _check_rows("values", rows, edges, "edge")
    check_choice("reduce", reduce, _REDUCTIONS)
    flat = _flat(rows)
    # Round a mean only after the division, so accumulate in the dtype of sums.
    dtype = _accumulation_dtype(rows) if reduce == "mean" else rows.dtype
    out = _backend(rows).reduce_edges(edges, flat, largest=reduce == "max", dtype=dtype)
    if reduce == "mean":
        counts = torch.from_numpy(edges.in_degrees).to(out.device).clamp(min=1)
        out = (out / counts[:, None].to(out.dtype)).to(rows.dtype)
    return _like_input(values, out.view(edges.num_vertices, *rows.shape[1:]))


def edge_softmax(graph: Graph | Topology, scores: Rows) -> Rows:
    """Compute the softmax of an edge tensor over the edges into each vertex: gSpMMe and gSDDMMve combined.

    Parameters
    ----------
    graph
        Graph or topology.
    scores
        Edge tensor [E], or [E, H] for H heads.

    Returns
    -------
    Weights with the shape and dtype of the scores; differentiable. The weight of a score of -inf is zero. If
    a vertex has only such scores, its weights are NaN, as in `torch.softmax`.

    Raises
    ------
    ValueError
        If shapes or dtypes do not match.
    """
    edges = _topology(graph)
    rows = _tensor("scores", scores)
    _check_rows("scores", rows, edges, "edge")
    flat = _flat(rows)
    out = _backend(rows).softmax_edges(edges, flat.to(_accumulation_dtype(rows)))
    return _like_input(scores, out.to(rows.dtype).view(rows.shape))


def attention(
    graph: Graph | Topology,
    x: Rows,
    at_source: Rows,
    at_destination: Rows,
    *,
    negative_slope: float = 0.2,
    self_loops: bool = True,
) -> Rows:
    """Sum the neighbours' rows weighted by attention, as in GAT, without an edge tensor.

    out[i] = sum of alpha[e] * x[c] over the edges e from c into i and the self-loop, where alpha is the
    softmax of LeakyReLU(at_source[c] + at_destination[i]) over these edges. It fuses `sddmm`, `edge_softmax`
    and `spmm` into one forward and one backward pass. Tensors saved for backward have V rows.

    Parameters
    ----------
    graph
        Graph or topology.
    x
        Vertex rows [V, d], or [V, H, d] for H heads.
    at_source, at_destination
        Terms of the scores, [V] or [V, H], with the dtype of x (float32 if x has 16 bits).
    negative_slope
        Slope of the LeakyReLU for negative inputs.
    self_loops
        Whether each vertex also attends to itself once. A self-loop in the graph is an additional edge.

    Returns
    -------
    Rows [V, d] or [V, H, d] with the dtype of x, zero without edges and self-loop, and differentiable with
    respect to all three inputs. A score of -inf excludes its edge. If a vertex has only such edges, its row
    is NaN.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not match.
    """
    edges = _topology(graph)
    tensor = _tensor("x", x)
    _check_rows("x", tensor, edges, "source")
    if tensor.ndim not in (2, 3):
        raise ValueError(f"x has shape {tuple(tensor.shape)}: pass [vertices, d] or [vertices, heads, d]")
    _check_heads("x", tensor)
    check_flag("self_loops", self_loops)
    slope = check_number("negative_slope", negative_slope)
    parts = []
    for label, part in (("at_source", at_source), ("at_destination", at_destination)):
        score = _tensor(label, part)
        if score.shape != tensor.shape[:-1] or score.dtype not in (tensor.dtype, _accumulation_dtype(tensor)):
            raise ValueError(
                f"{label} has shape {tuple(score.shape)} and dtype {score.dtype}, but x has shape "
                f"{tuple(tensor.shape)}: pass shape {tuple(tensor.shape[:-1])} and dtype {tensor.dtype}"
            )
        _check_device(label, score, tensor)
        parts.append(_flat(score).to(_accumulation_dtype(tensor)))
    rows = tensor.reshape(len(tensor), parts[0].shape[1], tensor.shape[-1])
    backend = _backend(tensor)
    out = backend.attend_all(edges, rows, *parts, slope=slope, loops=self_loops)
    return _like_input(x, out.view(tensor.shape))


def _topology(graph: Graph | Topology) -> Topology:
    if isinstance(graph, Graph):
        return graph.topology
    if isinstance(graph, Topology):
        return graph.checked
    raise ValueError(f"graph is of type {type(graph).__name__}: pass a hyrt.Graph or its topology")


def _tensor(name: str, x: NDArray[Any] | Tensor) -> Tensor:
    if isinstance(x, Tensor):
        tensor = x
    else:
        with warnings.catch_warnings():
            # torch warns about read-only arrays, such as mapped files, but this array is never written.
            warnings.simplefilter("ignore", UserWarning)
            array = np.ascontiguousarray(_array(name, x))
            if array.dtype not in (np.float16, np.float32, np.float64):
                raise ValueError(f"{name} has dtype {array.dtype}: use 16-, 32- or 64-bit floats")
            tensor = torch.from_numpy(array)
    if tensor.dtype not in _KINDS:
        raise ValueError(f"{name} has dtype {tensor.dtype}: use 16-, 32- or 64-bit floats")
    if tensor.is_nested or tensor.layout != torch.strided or tensor.device.type == "meta":
        problem = "is on the meta device" if tensor.device.type == "meta" else f"has layout {tensor.layout}"
        problem = "is nested" if tensor.is_nested else problem
        raise ValueError(f"{name} {problem}: pass a dense tensor with values")
    return tensor


def _array(name: str, x: Any) -> NDArray[Any]:
    try:
        return np.asarray(x)
    except ValueError as error:
        raise ValueError(
            f"{name} is not an array of numbers ({error}): pass a numpy array or a tensor"
        ) from error


def _flat(rows: Tensor) -> Tensor:
    """Flatten rows to [rows, product of other axes]; without rows, `reshape` cannot infer the width."""
    return rows.reshape(len(rows), rows.shape[1:].numel())


def _check_rows(name: str, x: Tensor, edges: Topology, at: EdgePosition) -> None:
    check_choice(f"{name}_at", at, ("source", "destination", "edge"))
    rows = edges.num_edges if at == "edge" else edges.num_vertices
    if x.ndim < 1 or len(x) != rows:
        noun = "edge" if at == "edge" else "vertex"
        raise ValueError(f"{name} has shape {tuple(x.shape)}: pass {rows:,} rows, one per {noun}")


def _check_heads(name: str, x: Tensor) -> None:
    if not x.shape[1:].numel():
        raise ValueError(f"{name} has shape {tuple(x.shape)}: use at least one column and one head")


def _check_device(name: str, x: Tensor, reference: Tensor) -> None:
    if x.device != reference.device:
        raise ValueError(
            f"{name} is on {x.device}, but x is on {reference.device}: move them to the same device"
        )


def _values(values: Tensor, x: Tensor, edges: Topology) -> Tensor:
    """Return the checked edge values [E, H] in the dtype of the sums."""
    _check_rows("edge_values", values, edges, "edge")
    _check_device("edge_values", values, x)
    if values.ndim not in (1, 2) or (values.ndim == 2 and (x.ndim < 3 or values.shape[1] != x.shape[1])):
        raise ValueError(
            f"edge_values has shape {tuple(values.shape)}, but x has shape {tuple(x.shape)}: pass [edges], "
            "or [edges, heads] if x is [vertices, heads, d]"
        )
    if values.ndim == 2 and not values.shape[1]:
        raise ValueError(f"edge_values has shape {tuple(values.shape)}: use at least one head")
    if values.dtype not in (x.dtype, _accumulation_dtype(x)):
        raise ValueError(
            f"edge_values has dtype {values.dtype}, but x has dtype {x.dtype}: use the same dtype"
        )
    return _flat(values).to(_accumulation_dtype(x))


def _scale(name: str, scale: NDArray[Any] | Tensor, edges: Topology, x: Tensor) -> NDArray[Any]:
    if isinstance(scale, Tensor):
        if scale.requires_grad:
            raise ValueError(
                f"{name} requires a gradient, but scales are constants: multiply x or the result by it "
                "instead"
            )
        scale = _tensor(name, scale).to("cpu", _accumulation_dtype(x)).numpy()
    array = _array(name, scale)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name} has dtype {array.dtype}: pass one number per vertex")
    array = array.astype(_sum_dtype(x), copy=False)
    if array.shape != (edges.num_vertices,):
        raise ValueError(f"{name} has shape {array.shape}: pass one number per vertex")
    return array


def _accumulation_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of sums of rows with the dtype of x."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _sum_dtype(x: Tensor) -> type[np.floating[Any]]:
    return np.float64 if x.dtype == torch.float64 else np.float32


def _backend(x: Tensor) -> Any:
    """Return the module that implements the operators on the device of x."""
    return gradients if x.device.type == "cpu" else on_devices


def _like_input(like: Rows, out: Tensor) -> Rows:
    """Return the result as an array or a tensor, whichever the input is."""
    if isinstance(like, Tensor):
        return out
    if out.requires_grad:
        raise ValueError(
            "an array was passed together with a tensor that requires a gradient: pass only tensors"
        )
    return out.numpy()
