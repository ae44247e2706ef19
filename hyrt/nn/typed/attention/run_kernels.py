"""Compiled loops of attention over runs. All release the interpreter lock and write disjoint rows.

A run is the edges of one relation into one destination. Sums run in the order of the edges, so that equal
rows give equal bits for any number of threads.
"""

# mypy: disable-error-code="no-untyped-def,call-arg"
from __future__ import annotations

import numpy as np

from hyrt.machine.kernels.kept_kernels import nb

_compile = nb.njit(
    nogil=True,
    cache=True,
    error_model="numpy",
    boundscheck=False,
    fastmath={"contract", "reassoc", "nsz"},
)


@_compile
def dots(indptr, columns, q, k, out, start, stop):
    """out[e, h] = q[p, h] . k[columns[e], h] of the edges e of runs start:stop, [P, H, d] and [S, H, d]."""
    heads, width = q.shape[1], q.shape[2]
    for p in range(start, stop):
        for e in range(indptr[p], indptr[p + 1]):
            row = k[columns[e]]
            for h in range(heads):
                total = out.dtype.type(0)
                for i in range(width):
                    total += q[p, h, i] * row[h, i]
                out[e, h] = total


@_compile
def weighted(indptr, columns, weights, x, out, start, stop):
    """out[p, h] = sum_e weights[e, h] x[columns[e], h] of runs start:stop; heads may share rows of x."""
    heads, width = out.shape[1], out.shape[2]
    shared = x.shape[1] == 1
    for p in range(start, stop):
        for h in range(heads):
            for i in range(width):
                out[p, h, i] = 0
        for e in range(indptr[p], indptr[p + 1]):
            row = x[columns[e]]
            for h in range(heads):
                a = row[0] if shared else row[h]
                weight = weights[e, h]
                for i in range(width):
                    out[p, h, i] += weight * a[i]


@_compile
def weighted_of_sources(t_indptr, t_runs, t_edges, weights, grad, out, start, stop):
    """The transpose of `weighted`: out[j, h] = sum_e weights[e, h] grad[run of e, h] of sources start:stop.

    Where heads share the rows of sources, their sums are added up.
    """
    heads, width = grad.shape[1], grad.shape[2]
    shared = out.shape[1] == 1
    for j in range(start, stop):
        for h in range(out.shape[1]):
            for i in range(width):
                out[j, h, i] = 0
        for t in range(t_indptr[j], t_indptr[j + 1]):
            e, g = t_edges[t], grad[t_runs[t]]
            for h in range(heads):
                o = out[j, 0] if shared else out[j, h]
                weight = weights[e, h]
                for i in range(width):
                    o[i] += weight * g[h, i]


@_compile
def dots_of_sums(indptr, columns, grad, x, out, start, stop):
    """out[e, h] = grad[p, h] . x[columns[e], h] of runs start:stop; heads may share rows of x."""
    heads, width = grad.shape[1], grad.shape[2]
    shared = x.shape[1] == 1
    for p in range(start, stop):
        for e in range(indptr[p], indptr[p + 1]):
            row = x[columns[e]]
            for h in range(heads):
                a = row[0] if shared else row[h]
                total = out.dtype.type(0)
                for i in range(width):
                    total += grad[p, h, i] * a[i]
                out[e, h] = total


@_compile
def pair_sums(indptr, columns, at, of_runs, of_sources, out, start, stop):
    """out[e, h] = of_runs[p, h] + of_sources[columns[e], at[p] + h] of the edges of runs start:stop."""
    heads = of_runs.shape[1]
    for p in range(start, stop):
        for e in range(indptr[p], indptr[p + 1]):
            row = of_sources[columns[e]]
            for h in range(heads):
                out[e, h] = of_runs[p, h] + row[at[p] + h]


@_compile
def run_totals(indptr, values, out, start, stop):
    """out[p, h] = sum_e values[e, h] of runs start:stop."""
    for p in range(start, stop):
        for h in range(out.shape[1]):
            out[p, h] = 0
        for e in range(indptr[p], indptr[p + 1]):
            for h in range(out.shape[1]):
                out[p, h] += values[e, h]


@_compile
def source_totals(t_indptr, t_runs, t_edges, at, values, out, start, stop):
    """out[j, at[p] + h] = sum_e values[e, h] over the edges e of sources start:stop, each of a run p."""
    for j in range(start, stop):
        for c in range(out.shape[1]):
            out[j, c] = 0
        for t in range(t_indptr[j], t_indptr[j + 1]):
            first = at[t_runs[t]]
            for h in range(values.shape[1]):
                out[j, first + h] += values[t_edges[t], h]


@_compile
def softmax(row_indptr, runs_of_row, run_indptr, scores, out, start, stop):
    """The softmax of scores [E, H] over the edges of all runs of rows start:stop."""
    heads = scores.shape[1]
    for i in range(start, stop):
        for h in range(heads):
            top = -np.inf
            for r in range(row_indptr[i], row_indptr[i + 1]):
                p = runs_of_row[r]
                for e in range(run_indptr[p], run_indptr[p + 1]):
                    top = max(top, scores[e, h])
            total = scores.dtype.type(0)
            for r in range(row_indptr[i], row_indptr[i + 1]):
                p = runs_of_row[r]
                for e in range(run_indptr[p], run_indptr[p + 1]):
                    out[e, h] = np.exp(scores[e, h] - top)
                    total += out[e, h]
            for r in range(row_indptr[i], row_indptr[i + 1]):
                p = runs_of_row[r]
                for e in range(run_indptr[p], run_indptr[p + 1]):
                    out[e, h] /= total


@_compile
def softmax_backward(row_indptr, runs_of_row, run_indptr, weights, grad, out, start, stop):
    """The gradient of `softmax` with respect to the scores."""
    heads = weights.shape[1]
    for i in range(start, stop):
        for h in range(heads):
            mean = weights.dtype.type(0)
            for r in range(row_indptr[i], row_indptr[i + 1]):
                p = runs_of_row[r]
                for e in range(run_indptr[p], run_indptr[p + 1]):
                    mean += weights[e, h] * grad[e, h]
            for r in range(row_indptr[i], row_indptr[i + 1]):
                p = runs_of_row[r]
                for e in range(run_indptr[p], run_indptr[p + 1]):
                    out[e, h] = weights[e, h] * (grad[e, h] - mean)
