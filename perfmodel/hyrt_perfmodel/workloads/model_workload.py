"""Workload of a mini-batch, from a kind of model and its widths."""

from __future__ import annotations

from collections.abc import Sequence

from hyrt_perfmodel.workloads.workload import SparseInput, Workload

KINDS = ("graphsage", "gcn", "gin", "gat")
"""Models with known costs."""


def model_workload(
    kind: str,
    vertices: Sequence[float],
    edges: Sequence[float],
    features: Sequence[int],
    *,
    heads: int = 1,
    bytes_per_value: int = 4,
    row_entries: float | None = None,
    hidden: int | None = None,
) -> Workload:
    """Return the workload of one mini-batch for one of hyrt's models.

    GraphSAGE concatenates; GCN multiplies the aggregate once; GIN multiplies twice, with a hidden layer
    between; GAT aggregates the rows of every head and multiplies each, and its last layer averages `heads`
    products of full width.

    Parameters
    ----------
    kind
        `graphsage`, `gcn`, `gin` or `gat`.
    vertices, edges, features
        Sizes as in `Workload`.
    heads
        Attention heads of GAT.
    bytes_per_value
        Bytes per value, S.
    hidden
        Width of the hidden layer in GIN's updates; by default the width of the first layer's result.
    row_entries
        Mean number of stored values per input row, if rows are sparse.

    Raises
    ------
    ValueError
        If the kind is unknown.
    """
    if kind not in KINDS:
        raise ValueError(f"model {kind!r} is not one of {', '.join(KINDS)}")
    widths_in: tuple[float, ...] | None = None
    layers = range(1, len(edges) + 1)
    inner = features[1] if hidden is None else hidden
    sparse = None
    if row_entries is not None:
        averages = kind == "gat" and len(edges) == 1
        sparse = SparseInput(
            row_entries=row_entries,
            product_width=inner if kind == "gin" else features[1] * (heads if averages else 1),
            own_rows=kind == "graphsage",
            width_in=inner if kind == "gin" else 0.0,
        )
    if kind == "gat":
        widths_in = tuple(
            float(features[layer - 1] * (heads if layer == len(edges) else 1)) for layer in layers
        )
    return Workload(
        vertices=tuple(vertices),
        edges=tuple(edges),
        features=tuple(features),
        concat=kind == "graphsage",
        bytes_per_value=bytes_per_value,
        widths_in=widths_in,
        widths_between=(float(inner),) * len(edges) if kind == "gin" else None,
        rows_per_edge=heads if kind == "gat" else 1,
        sparse=sparse,
    )
