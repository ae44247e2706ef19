"""Terms of steps over sparse rows: the first layer's sparse product, and the step without it."""

from __future__ import annotations

from dataclasses import replace

from hyrt_perfmodel.workloads.workload import Workload


def sparse_entries(workload: Workload) -> float:
    """Return the stored values that the first layer multiplies, including the vertices' own rows if used."""
    sparse = workload.sparse
    if sparse is None:
        return 0.0
    rows = workload.vertices[0] + (workload.vertices[1] if sparse.own_rows else 0.0)
    return rows * sparse.row_entries


def sparse_macs(workload: Workload) -> float:
    """Return the multiply-accumulates of the sparse product: forward, and for the weight gradient.

    There is one per stored value and product column; the input needs no gradient.
    """
    return 2 * sparse_entries(workload) * (0 if workload.sparse is None else workload.sparse.product_width)


def sparse_weights(workload: Workload) -> float:
    """Return the number of weights in the sparse product: f^0 times its columns, doubled for own rows."""
    sparse = workload.sparse
    if sparse is None:
        return 0.0
    return workload.features[0] * sparse.product_width * (2 if sparse.own_rows else 1)


def multiplied_first(workload: Workload) -> Workload:
    """Return the step without the product of its sparse rows.

    The first layer then aggregates the products forward and, since these have a gradient, backward: one
    aggregation with twice the edges over rows of the product's width. A product after the aggregation has
    `SparseInput.width_in` inputs.
    """
    sparse = workload.sparse
    if sparse is None:
        return workload
    widths = [workload.f_in(layer) for layer in range(1, workload.layers + 1)]
    return replace(
        workload,
        features=(round(sparse.product_width / workload.rows_per_edge), *workload.features[1:]),
        edges=(2 * workload.edges[0], *workload.edges[1:]),
        widths_in=(sparse.width_in, *widths[1:]),
        widths_between=None if workload.widths_between is None else (0.0, *workload.widths_between[1:]),
        sparse=None,
    )
