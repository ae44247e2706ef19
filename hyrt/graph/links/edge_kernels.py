"""Compiled loops that look edges up in a topology. All release the interpreter lock."""

# mypy: disable-error-code="no-untyped-def", disallow-untyped-decorators=False
from __future__ import annotations

from hyrt.machine.kernels.kept_kernels import nb

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def _first_at_least(indices, start, stop, source):
    """The first position of start..stop whose source is not below `source`; rows are sorted."""
    while start < stop:
        middle = (start + stop) >> 1
        if indices[middle] < source:
            start = middle + 1
        else:
            stop = middle
    return start


@_compile
def find_typed_edges(indptr, indices, types, pairs, relation, firsts, counts):
    """Of each pair, the position of its edge of a relation, and 1 or 0; rows are sorted by relation first."""
    for i in range(len(pairs)):
        start, stop = indptr[pairs[i, 1]], indptr[pairs[i, 1] + 1]
        end = stop
        while start < stop:
            middle = (start + stop) >> 1
            kind = types[middle]
            if kind < relation or (kind == relation and indices[middle] < pairs[i, 0]):
                start = middle + 1
            else:
                stop = middle
        firsts[i] = start
        counts[i] = start < end and types[start] == relation and indices[start] == pairs[i, 0]


@_compile
def find_edges(indptr, indices, pairs, firsts, counts):
    """Of each pair (source, destination), the position of its first edge and how many there are."""
    for i in range(len(pairs)):
        row = pairs[i, 1]
        stop = indptr[row + 1]
        first = _first_at_least(indices, indptr[row], stop, pairs[i, 0])
        firsts[i] = first
        at = first
        while at < stop and indices[at] == pairs[i, 0]:
            at += 1
        counts[i] = at - first
