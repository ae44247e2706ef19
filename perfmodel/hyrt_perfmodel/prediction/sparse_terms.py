"""A step over sparse rows: what its first layer does to them, and what is left of the layer afterwards."""

from __future__ import annotations

from dataclasses import replace

from hyrt_perfmodel.workloads.workload import Workload


def sparse_entries(workload: Workload) -> float:
    """Stored values that the first layer multiplies: of all sources, and of the own rows where they count."""
    sparse = workload.sparse
    if sparse is None:
        return 0.0
    rows = workload.vertices[0] + (workload.vertices[1] if sparse.own_rows else 0.0)
    return rows * sparse.row_entries


def sparse_macs(workload: Workload) -> float:
    """Multiply-accumulates of the product: one a stored value and column, forward and for the weights'
    gradient. The input takes no gradient.
    """
    return 2 * sparse_entries(workload) * (0 if workload.sparse is None else workload.sparse.product_width)


def sparse_weights(workload: Workload) -> float:
    """Weights of the product: f^0 times its columns, once more for own rows."""
    sparse = workload.sparse
    if sparse is None:
        return 0.0
    return workload.features[0] * sparse.product_width * (2 if sparse.own_rows else 1)


def multiplied_first(workload: Workload) -> Workload:
    """The step without the product of its sparse rows.

    The first layer aggregates the products, forward and backward, since these take a gradient: as one
    aggregation of twice the edges, over rows of the product's width. What it multiplies afterwards has
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
