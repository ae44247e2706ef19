"""Graph attention over a full graph in two passes over its edges, without arrays of |E| rows.

GAT (Velickovic et al., ICLR 2018): out_i is the sum of alpha_ij p_j over the edges j -> i, where alpha_i is
the softmax of leaky(s_ij) over these edges, with s_ij = at_source_j + at_destination_i. The forward pass
reads each p_j once, since it rescales the sums whenever it finds a higher score. It saves the logarithm of
the softmax denominator, from which the backward pass recomputes the weights.

With g the gradient of out and t_i = g_i . out_i, the gradient of s_ij is alpha_ij (g_i . p_j - t_i) times the
slope of leaky at s_ij. A source sums these gradients, and alpha_ij g_i for p_j, over the transpose. The sum
of a destination needs no further pass: alpha_ij (g_i . p_j - t_i) sums to zero over j, so only the difference
between the slopes 1 and `slope` remains, (1 - slope) (g_i . Q_i - t_i q_i). Here Q_i is the sum of alpha_ij
p_j, and q_i the sum of alpha_ij, over the edges with a positive s_ij, which the forward pass computes
together with out_i.

Dropout replaces alpha_ij in out_i by m_ij alpha_ij. The mask m is independent of the scores, and the backward
pass recomputes it. The gradient of s_ij is then alpha_ij (m_ij g_i . p_j - t_i), and Q_i is the sum of m_ij
alpha_ij p_j.
"""

# mypy: disable-error-code="no-untyped-def,call-arg,var-annotated,unreachable"

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.formatting import short_repr
from hyrt.nn.full_graph import simd
from hyrt.nn.full_graph.aggregate import spmm_into
from hyrt.nn.full_graph.traversal import (
    AHEAD,
    cast_row_ids,
    flatten_contiguous,
    head_passes,
    prefetch_edges,
    run_by_edges,
    sum_dtype,
)
from hyrt.nn.operators.attention_dropout import AttentionDropout, mask_edge
from hyrt.runtime.intrinsics import prefetch
from hyrt.runtime.numba_cache import nb
from hyrt.runtime.rng import vertex_stream
from hyrt.runtime.workers import Workers, current_workers

Array = NDArray[Any]

Piece = Callable[[int, tuple[Array, ...]], None]
"""Function that computes piece k of a row, given k and arrays for the results of the operator's loop."""


@dataclass(frozen=True, slots=True)
class SplitRowAttention:
    """Forward pass of a split row; see `hyrt.nn.full_graph.attention.attend_into`."""

    compute: Piece
    row: Sequence[Array | None]
    """The row's `out` and `positive` [H, d], `lse` and `positive_weight` [H], in this order."""
    parts: tuple[Array, ...]
    """Arrays [pieces, ...] with the same results per piece."""

    __repr__ = short_repr

    @classmethod
    def allocate(
        cls, pieces: int, compute: Piece, row: Sequence[Array | None], kind: np.dtype[Any]
    ) -> SplitRowAttention:
        """Allocate the results of `pieces` pieces, whose sums have the dtype `kind`."""
        out = row[0]
        assert out is not None
        heads = len(out)
        shapes = (out.shape, (heads,), out.shape, (heads,))
        return cls(compute, row, tuple(np.empty((pieces, *shape), kind) for shape in shapes))

    def compute_piece(self, number: int) -> None:
        self.compute(number, tuple(part[number].reshape(-1) for part in self.parts))

    def finish(self) -> None:
        (out, lse, positive, positive_weight), parts = self.row, self.parts
        lses = parts[1]
        top = lses.max(0)
        # If all scores of a row are -inf, its softmax is undefined, whether or not the row is split.
        with np.errstate(invalid="ignore"):
            weights = np.exp(lses - top)
            total = weights.sum(0)
            weights /= total
        for part in (parts[0], parts[2]):
            # If all scores of a piece are -inf, its softmax is NaN, but the piece must contribute nothing.
            part[np.isneginf(lses)] = 0
        assert out is not None
        _add_up(parts[0], weights, out)
        if lse is None or positive is None or positive_weight is None:
            return
        _add_up(parts[2], weights, positive)
        np.add(top, np.log(total), out=lse)
        parts[3][np.isneginf(lses)] = 0
        np.sum(weights * parts[3], 0, out=positive_weight)


@dataclass(frozen=True, slots=True)
class SplitRowGradient:
    """Backward pass of a split row; see `hyrt.nn.full_graph.attention.attend_backward_sources_into`."""

    compute: Piece
    p_grad: Array
    source_grad: Array
    """Row's gradients `p_grad` [H, d] and `source_grad` [H]."""
    parts: tuple[Array, ...]
    """Arrays [pieces, ...] with the same gradients per piece."""

    __repr__ = short_repr

    @classmethod
    def allocate(
        cls, pieces: int, compute: Piece, p_grad: Array, source_grad: Array, kind: np.dtype[Any]
    ) -> SplitRowGradient:
        """Allocate the results of `pieces` pieces, whose sums have the dtype `kind`."""
        shapes = (p_grad.shape, source_grad.shape)
        return cls(compute, p_grad, source_grad, tuple(np.empty((pieces, *shape), kind) for shape in shapes))

    def compute_piece(self, number: int) -> None:
        self.compute(number, tuple(part[number].reshape(-1) for part in self.parts))

    def finish(self) -> None:
        rows, scores = self.parts
        _add_up(rows, None, self.p_grad)
        np.sum(scores, 0, out=self.source_grad)


def _add_up(parts: Array, weights: Array | None, out: Array) -> None:
    """Write the sum of the pieces [pieces, H, d] to `out`, weighted by [pieces, H], in their order."""
    pieces = len(parts)
    borders, order = np.array([0, pieces]), np.arange(pieces, dtype=np.int32)
    spmm_into(borders, order, parts.reshape(pieces, -1), out.reshape(1, -1), weights=weights)


# Number of rows per chunk of `attend_backward_destinations_into`.
_GRAIN = 4096
NUM_END_VALUES = 3
"""Values per destination and head that the backward pass reads per edge: score term, lse, g . out."""


@cache
def _forward(heads: int, width: int, lanes: int) -> Any:
    """Compile the loop for `heads` heads of `width` columns each, in vectors of `lanes` lanes.

    `indptr` and the results begin at row `base`, which is 0 if `rows` is given.
    """

    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def attend_rows(
        indptr, columns, rows, p, at_source, at_destination, slope, loops, key, threshold, scale, names,
        num_heads, head, used, out, lse, positive, positive_weight, base, start, stop,
    ):  # fmt: skip
        line = 64 // p.itemsize
        step = num_heads * width
        column = head * width
        # Finite, so that the difference to a score of -inf is defined: such an edge always has weight zero.
        lowest = simd.filled(at_source.dtype.type(np.finfo(at_source.dtype).min), heads)
        one = simd.filled(at_source.dtype.type(1), heads)
        no_weight = simd.filled(at_source.dtype.type(0), heads)
        no_row = simd.filled(at_source.dtype.type(0), lanes)
        factors = np.empty(heads, at_source.dtype)
        stream = np.uint64(0)
        for k in range(start, stop):
            i = np.int64(k) if rows is None else np.int64(rows[k])
            if key is not None:
                stream = vertex_stream(key, np.uint64(i if names is None else np.int64(names[i])))
            first, end = np.int64(indptr[i - base]), np.int64(indptr[i - base + 1])
            # If rows are consecutive, prefetch beyond the end of a row: the edges of the next row follow.
            final = (np.int64(indptr[stop - base]) if rows is None else end) - 1
            if rows is not None:
                prefetch_edges(indptr, columns, rows, k, stop)
                following = np.int64(rows[min(k + 1, stop - 1)])
                begin = np.int64(indptr[following])
                for e in range(begin, min(begin + AHEAD, np.int64(indptr[following + 1]))):
                    later = np.int64(columns[e])
                    for s in range(0, lanes if used is None else used, line):
                        prefetch(p, later * step + column + s)
                    prefetch(at_source, later * num_heads + head)
            offset = simd.load(at_destination, i * num_heads + head, heads, None)
            top = lowest
            total, positive_total = no_row, no_row
            weights, positive_weights = no_weight, no_weight
            # The self-loop of a row precedes its edges.
            for e in range(first - 1 if loops else first, end):
                c = i
                if e >= first:
                    c = np.int64(columns[e])
                    later = np.int64(columns[min(e + AHEAD, final)])
                    for s in range(0, lanes if used is None else used, line):
                        prefetch(p, later * step + column + s)
                    prefetch(at_source, later * num_heads + head)
                raw = simd.add(simd.load(at_source, c * num_heads + head, heads, None), offset)
                score = simd.where_positive(raw, raw, simd.scaled(raw, slope))
                if simd.above(score, top):
                    higher = simd.where_positive(simd.subtract(score, top), score, top)
                    shrink = simd.exp(simd.subtract(top, higher))
                    wide = simd.spread(shrink, width, lanes)
                    top = higher
                    total = simd.multiply(total, wide)
                    weights = simd.multiply(weights, shrink)
                    if positive is not None:
                        positive_total = simd.multiply(positive_total, wide)
                        positive_weights = simd.multiply(positive_weights, shrink)
                weight = simd.exp(simd.subtract(score, top))
                row = simd.load(p, c * step + column, lanes, used)
                weights = simd.add(weights, weight)
                masked = weight
                if key is not None:
                    name = c if names is None else np.int64(names[c])
                    mask_edge(stream, name, head, heads, num_heads, threshold, scale, factors)
                    masked = simd.multiply(weight, simd.load(factors, 0, heads, None))
                total = simd.add(total, simd.multiply(simd.spread(masked, width, lanes), row))
                if positive is not None:
                    masked = simd.where_positive(raw, masked, no_weight)
                    wide = simd.spread(masked, width, lanes)
                    positive_total = simd.add(positive_total, simd.multiply(wide, row))
                    weight = simd.where_positive(raw, weight, no_weight)
                    positive_weights = simd.add(positive_weights, weight)
            inverse = no_weight
            if loops or end > first:
                # If all scores are -inf, `inverse` is infinite and the result is NaN.
                inverse = simd.divide(one, weights)
            wide = simd.spread(inverse, width, lanes)
            target, target_head = (k - base) * step + column, (k - base) * num_heads + head
            simd.store(out, target, simd.multiply(total, wide), used)
            if lse is not None:
                simd.store(lse, target_head, simd.add(top, simd.log(weights)), None)
            if positive is not None:
                simd.store(positive, target, simd.multiply(positive_total, wide), used)
                simd.store(positive_weight, target_head, simd.multiply(positive_weights, inverse), None)

    return attend_rows


@cache
def _destination_loop(heads: int, width: int, lanes: int) -> Any:
    """Compile the loop that computes the destinations' score gradient and prepares the source loop."""

    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def prepare_rows(
        rows, at_destination, slope, num_heads, head, used, out, lse, positive, positive_weight, grad,
        destination_grad, ends, start, stop,
    ):  # fmt: skip
        for k in range(start, stop):
            i = np.int64(k) if rows is None else np.int64(rows[k])
            row, head_index = (k * num_heads + head) * width, k * num_heads + head
            g = simd.load(grad, row, lanes, used)
            mean = simd.sums_of_heads(simd.multiply(g, simd.load(out, row, lanes, used)), width, heads)
            above = simd.sums_of_heads(simd.multiply(g, simd.load(positive, row, lanes, used)), width, heads)
            mean_weight = simd.multiply(mean, simd.load(positive_weight, head_index, heads, None))
            left = simd.scaled(simd.subtract(above, mean_weight), 1 - slope)
            simd.store(destination_grad, head_index, left, None)
            # The three values are interleaved, because they are read together.
            target = 3 * k * num_heads + head
            offset = simd.load(at_destination, i * num_heads + head, heads, None)
            simd.store(ends, target, offset, None)
            simd.store(ends, target + num_heads, simd.load(lse, head_index, heads, None), None)
            simd.store(ends, target + 2 * num_heads, mean, None)

    return prepare_rows


@cache
def _source_loop(heads: int, width: int, lanes: int) -> Any:
    """Compile the loop for source gradients. `indptr` (transposed) and the results begin at row `base`."""

    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def run_backward(
        indptr, columns, rows, positions, p, at_source, slope, loops, key, threshold, scale, names, num_heads,
        head, used, grad, ends, p_grad, source_grad, base, start, stop,
    ):  # fmt: skip
        line = 64 // grad.itemsize
        step = num_heads * width
        column = head * width
        no_weight = simd.filled(at_source.dtype.type(0), heads)
        no_row = simd.filled(at_source.dtype.type(0), lanes)
        final = np.int64(indptr[stop - base]) - 1
        factors = np.empty(heads, at_source.dtype)
        for j in range(start, stop):
            first, end = np.int64(indptr[j - base]), np.int64(indptr[j - base + 1])
            row = simd.load(p, j * step + column, lanes, used)
            offset = simd.load(at_source, j * num_heads + head, heads, None)
            total, scores = no_row, no_weight
            for e in range(first - 1 if loops else first, end):
                i = np.int64(j)
                if e >= first:
                    i = np.int64(columns[e])
                    later = np.int64(columns[min(e + AHEAD, final)])
                    if positions is not None:
                        later = np.int64(positions[later])
                    for s in range(0, lanes if used is None else used, line):
                        prefetch(grad, later * step + column + s)
                    prefetch(ends, 3 * later * num_heads + head)
                if positions is not None:
                    i = np.int64(positions[i])
                if positions is not None:
                    if i < 0:
                        continue
                end_index = 3 * i * num_heads + head
                raw = simd.add(offset, simd.load(ends, end_index, heads, None))
                score = simd.where_positive(raw, raw, simd.scaled(raw, slope))
                lse = simd.load(ends, end_index + num_heads, heads, None)
                weight = simd.exp(simd.subtract(score, lse))
                g = simd.load(grad, i * step + column, lanes, used)
                grad_dot = simd.sums_of_heads(simd.multiply(g, row), width, heads)
                masked = weight
                if key is not None:
                    target = i if rows is None else np.int64(rows[i])
                    stream = vertex_stream(
                        key, np.uint64(target if names is None else np.int64(names[target]))
                    )
                    name = j if names is None else np.int64(names[j])
                    mask_edge(stream, name, head, heads, num_heads, threshold, scale, factors)
                    drawn = simd.load(factors, 0, heads, None)
                    masked = simd.multiply(weight, drawn)
                    grad_dot = simd.multiply(grad_dot, drawn)
                total = simd.add(total, simd.multiply(simd.spread(masked, width, lanes), g))
                mean = simd.load(ends, end_index + 2 * num_heads, heads, None)
                score_grad = simd.multiply(weight, simd.subtract(grad_dot, mean))
                score_grad = simd.where_positive(raw, score_grad, simd.scaled(score_grad, slope))
                scores = simd.add(scores, score_grad)
            simd.store(p_grad, (j - base) * step + column, total, used)
            simd.store(source_grad, (j - base) * num_heads + head, scores, None)

    return run_backward


def attend_into(
    indptr: Array,
    columns: Array,
    p: Array,
    at_source: Array,
    at_destination: Array,
    out: Array,
    lse: Array | None = None,
    positive: Array | None = None,
    positive_weight: Array | None = None,
    *,
    slope: float = 0.2,
    loops: bool = True,
    rows: Array | None = None,
    mask: AttentionDropout | None = None,
    workers: Workers | None = None,
) -> None:
    """Sum the source rows of each row's edges, weighted by attention.

    Per head, out[k] is the sum of alpha[e] * p[c] over the edges e from c into i = rows[k]; alpha is the
    softmax of leaky(at_source[c] + at_destination[i]) over them. It is zero without edges and self-loop.

    `indptr` [V + 1] and `columns` [E] are int32 or int64. `p` [V, H, d] is float32, float64, float16 bits as
    uint16, or bfloat16 bits as int16. The score terms [V, H] are float64 if p is float64, otherwise float32.
    `out` [m, H, d] has the dtype of p or that of the scores.

    `lse` [m, H], `positive` [m, H, d] (dtype of `out`) and `positive_weight` [m, H] receive values for the
    backward pass: pass all or none. `loops` adds a self-loop to each row, and `mask` applies dropout to alpha
    after the softmax. Raises ValueError if shapes or dtypes do not match.
    """
    _, heads, width = _sizes(p)
    vertices = len(indptr) - 1
    number = vertices if rows is None else len(rows)
    kind = sum_dtype(p.dtype)
    source_rows = flatten_contiguous("p", p, (vertices, heads, width))
    scores = (
        _scores("at_source", at_source, (vertices, heads), kind),
        _scores("at_destination", at_destination, (vertices, heads), kind),
    )
    results = flatten_contiguous("out", out, (number, heads, width))
    drops, chosen_rows = _drops(mask, kind), cast_row_ids(rows, columns)
    saved: tuple[Array | None, ...] = (None, None, None)
    if lse is not None and positive is not None and positive_weight is not None:
        saved = (
            _scores("lse", lse, (number, heads), kind),
            flatten_contiguous("positive", positive, (number, heads, width)),
            _scores("positive_weight", positive_weight, (number, heads), kind),
        )
    elif not (lse is positive is positive_weight is None):
        raise ValueError(
            "backward needs lse, positive and positive_weight together: set all three, or none of them"
        )

    def attend(
        borders: Array, chosen: Array | None, self_loops: bool, outputs: tuple[Array | None, ...], base: int,
        start: int, stop: int,
    ) -> None:  # fmt: skip
        for head, pass_heads, lanes, used in head_passes(heads, width):
            _forward(pass_heads, width, lanes)(
                borders, columns, chosen, source_rows, *scores, kind.type(slope), self_loops, *drops, heads,
                head, used, *outputs, base, start, stop,
            )  # fmt: skip

    def work(start: int, stop: int) -> None:
        attend(indptr, chosen_rows, loops, (results, *saved), 0, start, stop)

    def cut(k: int, starts: Array) -> SplitRowAttention:
        i = k if chosen_rows is None else int(chosen_rows[k])

        def piece(number: int, outputs: tuple[Array, ...]) -> None:
            attend(starts[number : number + 2], None, loops and number == 0, outputs, i, i, i + 1)

        row = [None if array is None else array[k] for array in (out, lse, positive, positive_weight)]
        return SplitRowAttention.allocate(len(starts) - 1, piece, row, kind)

    run_by_edges(work, indptr, chosen_rows, workers, cut)


def attend_backward_into(
    t_indptr: Array,
    t_columns: Array,
    p: Array,
    at_source: Array,
    at_destination: Array,
    out: Array,
    lse: Array,
    positive: Array,
    positive_weight: Array,
    grad: Array,
    p_grad: Array,
    source_grad: Array,
    destination_grad: Array,
    *,
    slope: float = 0.2,
    loops: bool = True,
    rows: Array | None = None,
    positions: Array | None = None,
    mask: AttentionDropout | None = None,
    workers: Workers | None = None,
) -> None:
    """Compute the gradients of `attend_into`, in one pass over the transposed edges.

    `grad` [m, H, d] is the gradient of `out`. `p_grad` [V, H, d], `source_grad` [V, H] and `destination_grad`
    [m, H] receive the gradients of p, of at_source, and of at_destination for the computed rows. `grad` and
    `p_grad` have the dtype of p or that of the scores, and the other two have the dtype of the scores.

    `rows` [m] and `positions` are both given or both None. `positions` [V] has the index of each vertex in
    `rows`, negative for other vertices. The other arguments are the arguments and results of `attend_into`.
    Temporary arrays have 3 values per row and head. Raises ValueError if shapes or dtypes do not match.
    """
    heads, kind = p.shape[1], sum_dtype(p.dtype)
    ends = np.empty((len(grad), NUM_END_VALUES * heads), kind)
    attend_backward_destinations_into(
        at_destination, out, lse, positive, positive_weight, grad, ends, destination_grad, slope=slope,
        rows=rows, workers=workers,
    )  # fmt: skip
    attend_backward_sources_into(
        t_indptr, t_columns, p, at_source, ends, grad, p_grad, source_grad, slope=slope, loops=loops,
        rows=rows, positions=positions, mask=mask, workers=workers,
    )  # fmt: skip


def attend_backward_destinations_into(
    at_destination: Array,
    out: Array,
    lse: Array,
    positive: Array,
    positive_weight: Array,
    grad: Array,
    ends: Array,
    destination_grad: Array,
    *,
    slope: float = 0.2,
    rows: Array | None = None,
    workers: Workers | None = None,
) -> None:
    """Compute the row-wise half of `attend_backward_into`. The other half does not read `out` and `positive`.

    `ends` [m, 3 H], with the dtype of the scores, receives the values that edges read at their destinations.
    `destination_grad` and `positive_weight` may be the same array.
    """
    number, heads, width = _sizes(out)
    kind = sum_dtype(out.dtype)
    vertices = number if rows is None else len(at_destination)
    arguments = (
        flatten_contiguous("out", out, (number, heads, width)),
        _scores("lse", lse, (number, heads), kind),
        flatten_contiguous("positive", positive, (number, heads, width)),
        _scores("positive_weight", positive_weight, (number, heads), kind),
        flatten_contiguous("grad", grad, (number, heads, width)),
        _scores("destination_grad", destination_grad, (number, heads), kind),
        _scores("ends", ends, (number, NUM_END_VALUES * heads), kind),
    )
    destination_scores = _scores("at_destination", at_destination, (vertices, heads), kind)
    leaky_slope = kind.type(slope)

    def prepare(start: int, stop: int) -> None:
        for head, pass_heads, lanes, used in head_passes(heads, width):
            _destination_loop(pass_heads, width, lanes)(
                rows, destination_scores, leaky_slope, heads, head, used, *arguments, start, stop
            )

    (workers or current_workers()).run(prepare, number, _GRAIN)


def attend_backward_sources_into(
    t_indptr: Array,
    t_columns: Array,
    p: Array,
    at_source: Array,
    ends: Array,
    grad: Array,
    p_grad: Array,
    source_grad: Array,
    *,
    slope: float = 0.2,
    loops: bool = True,
    rows: Array | None = None,
    positions: Array | None = None,
    mask: AttentionDropout | None = None,
    workers: Workers | None = None,
) -> None:
    """Compute the other half of `attend_backward_into`, along the transposed edges.

    `ends` is the result of `attend_backward_destinations_into`.
    """
    _, heads, width = _sizes(p)
    vertices = len(t_indptr) - 1
    if (rows is None) != (positions is None):
        raise ValueError("rows and positions must be set together: set both or neither")
    number = vertices if rows is None else len(rows)
    kind = sum_dtype(p.dtype)
    source_rows = flatten_contiguous("p", p, (vertices, heads, width))
    source_scores = _scores("at_source", at_source, (vertices, heads), kind)
    g = flatten_contiguous("grad", grad, (number, heads, width))
    end_values = _scores("ends", ends, (number, NUM_END_VALUES * heads), kind)
    gradients = (
        flatten_contiguous("p_grad", p_grad, (vertices, heads, width)),
        _scores("source_grad", source_grad, (vertices, heads), kind),
    )
    leaky_slope, drops = kind.type(slope), _drops(mask, kind)
    # Row ids are only needed for the mask.
    names = None if mask is None else cast_row_ids(rows, t_columns)

    def run_backward(
        borders: Array, self_loops: bool, outputs: tuple[Array, ...], base: int, start: int, stop: int
    ) -> None:
        for head, pass_heads, lanes, used in head_passes(heads, width):
            _source_loop(pass_heads, width, lanes)(
                borders, t_columns, names, positions, source_rows, source_scores, leaky_slope, self_loops,
                *drops, heads, head, used, g, end_values, *outputs, base, start, stop,
            )  # fmt: skip

    def work(start: int, stop: int) -> None:
        run_backward(t_indptr, loops, gradients, 0, start, stop)

    def cut(j: int, starts: Array) -> SplitRowGradient:
        def piece(number: int, outputs: tuple[Array, ...]) -> None:
            run_backward(starts[number : number + 2], loops and number == 0, outputs, j, j, j + 1)

        return SplitRowGradient.allocate(len(starts) - 1, piece, p_grad[j], source_grad[j], kind)

    run_by_edges(work, t_indptr, None, workers, cut)


def _drops(mask: AttentionDropout | None, kind: np.dtype[Any]) -> tuple[Any, Any, Any, Any]:
    """Return a mask's key, threshold, factor and vertex ids as kernel arguments; None for no dropout."""
    if mask is None:
        return (None, None, None, None)
    return (mask.key, mask.threshold, kind.type(mask.scale), mask.vertices)


def _sizes(p: Array) -> tuple[int, int, int]:
    if p.ndim != 3 or not p.shape[1] or not p.shape[2]:
        raise ValueError(f"p has shape {p.shape}: pass [vertices, heads, columns per head]")
    return p.shape[0], p.shape[1], p.shape[2]


def _scores(name: str, x: Array, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
    if x.dtype != kind:
        raise ValueError(f"{name} has dtype {x.dtype}: use {kind}")
    return flatten_contiguous(name, x, shape)
