"""Workloads of mini-batches, given a kind of model and its widths, for all kinds of graphs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from hyrt_perfmodel.workload import SparseInput, Workload

KINDS = ("graphsage", "gcn", "gin", "gat")
"""Kinds of models with known costs."""


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
    """Return the workload of one mini-batch of a model. Sizes are those of `Workload`.

    GraphSAGE concatenates. GCN multiplies the aggregate once. GIN multiplies twice, with a hidden layer
    between. GAT aggregates the rows of every head and multiplies each, and its last layer averages `heads`
    products of full width. `hidden` is the width of the hidden layer in GIN's updates, by default that of the
    first layer's result. `row_entries` is the mean number of stored values per input row if rows are sparse.
    Raises ValueError if `kind` is not one of `KINDS`.
    """
    if kind not in KINDS:
        raise ValueError(f"the model kind must be one of {', '.join(KINDS)}, got {kind!r}")
    widths_in: tuple[float, ...] | None = None
    layers = range(1, len(edges) + 1)
    inner = features[1] if hidden is None else hidden
    sparse = None
    if row_entries is not None:
        averages = kind == "gat" and len(edges) == 1
        sparse = SparseInput(
            row_entries=row_entries,
            product_width=inner if kind == "gin" else features[1] * (heads if averages else 1),
            has_self_rows=kind == "graphsage",
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
        hidden_widths=(float(inner),) * len(edges) if kind == "gin" else None,
        rows_per_edge=heads if kind == "gat" else 1,
        sparse=sparse,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationSizes:
    """Sizes of a mini-batch by vertex type and by relation."""

    vertices: tuple[tuple[float, ...], ...]
    """Number of vertices of each type in V^0 .. V^L, targets last: [L+1][T]."""
    segments: tuple[tuple[float, ...], ...]
    """Number of destinations with an edge, by layer and relation: [L][R]."""
    edges: tuple[tuple[float, ...], ...]
    """Number of edges by layer and relation: [L][R]."""

    def __post_init__(self) -> None:
        if not len(self.vertices) - 1 == len(self.segments) == len(self.edges):
            raise ValueError(
                f"sizes of relations: vertices has {len(self.vertices)} entries, segments "
                f"{len(self.segments)} and edges {len(self.edges)}, expected one more in vertices than in "
                "each of the others"
            )

    @property
    def layers(self) -> int:
        return len(self.edges)

    @property
    def row(self) -> tuple[float, ...]:
        """All sizes as one sequence; `from_row` is the inverse."""
        return tuple(itertools.chain(*self.vertices, *self.segments, *self.edges))

    @classmethod
    def from_row(cls, row: Sequence[float], layers: int, types: int) -> RelationSizes:
        """Create sizes from one sequence in the order of the property `row`."""
        split = (layers + 1) * types
        relations = (len(row) - split) // (2 * layers)
        tables = [tuple(row[start : start + relations]) for start in range(split, len(row), relations)]
        return cls(
            vertices=tuple(tuple(row[start : start + types]) for start in range(0, split, types)),
            segments=tuple(tables[:layers]),
            edges=tuple(tables[layers:]),
        )


HETERO_KINDS = ("rgcn", "rsage", "rgat", "hgt")
"""Kinds of heterogeneous models with known costs."""

AGGREGATE_FIRST_KINDS = ("rgcn", "rsage")
"""Kinds of models whose layers aggregate rows before the product."""
_FLOAT_BYTES = 4
# Number of multiplications that take as long as one random read of a value from memory. Keep equal to the
# constant in hyrt.nn.hetero.relation_sums.
_READ = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class HeteroWidths:
    """Widths and types of a heterogeneous graph, which with mini-batch sizes determine the work."""

    widths: tuple[int, ...]
    """Number of feature columns of each type, or 0 if the type has learned embeddings: [T]."""
    value_bytes: tuple[int, ...]
    """Number of bytes per stored feature value of each type: [T]."""
    relations: tuple[tuple[int, int], ...]
    """Source and destination type number of each relation: [R]."""
    edge_value_bytes: float = 0.0
    """Number of bytes of an edge's weight and features."""


@dataclass(frozen=True, slots=True)
class _LayerWork:
    """Work of one layer of a heterogeneous model."""

    macs: float
    """Number of multiply-accumulates in the forward pass."""
    edge_bytes: float
    """Mean number of bytes of a row that an edge reads."""
    weights: float
    calls: float
    """Operator calls, in multiples of those of a layer on a homogeneous graph."""


def hetero_workload(
    kind: str,
    sizes: RelationSizes,
    graph: HeteroWidths,
    *,
    hidden: int,
    classes: int,
    heads: int = 1,
    products: tuple[float, float] | None = None,
) -> Workload:
    """Return the workload of one heterogeneous mini-batch.

    The products of a layer depend on the relation: a mean or a weighted sum yields one row per segment (the
    edges of one relation into one vertex), which is multiplied by the relation's matrix.

    R-GCN and R-GraphSAGE sum raw rows in their first layer and multiply the sums by the product of the type's
    projection and the relation's matrix. All other kinds first project the rows of all input vertices, which
    is represented here as an additional layer without edges.

    For a kind that is not one of `HETERO_KINDS`, `products` must contain the products per source row and per
    destination row in a layer; otherwise ValueError is raised.
    """
    if kind not in HETERO_KINDS and products is None:
        raise ValueError(
            f"the products of model kind {kind!r} are unknown: pass products, or use one of "
            f"{', '.join(HETERO_KINDS)}"
        )
    widths = [hidden, *[hidden] * (sizes.layers - 1), classes]
    per_edge = {"rgat": heads, "hgt": 2}.get(kind, 1)
    layers, vertices = [], [sum(of_type) for of_type in sizes.vertices]
    edges = [sum(of_relation) for of_relation in sizes.edges]
    for layer in range(1, sizes.layers + 1):
        ends = widths[layer - 1], widths[layer]
        if products is not None:
            layers.append(_source_products(sizes, layer, *ends, products))
        elif kind in AGGREGATE_FIRST_KINDS:
            root_matrices = 1 if kind == "rgcn" else len(graph.widths)
            layers.append(_relation_means(sizes, graph, layer, *ends, root_matrices=root_matrices))
        elif kind == "rgat":
            columns = graph.edge_value_bytes / _FLOAT_BYTES
            layers.append(_rgat(sizes, layer, *ends, heads, columns, last=layer == sizes.layers))
        else:
            layers.append(_hgt(sizes, layer, *ends, heads, last=layer == sizes.layers))
    maps = sum(width * hidden for width in graph.widths)
    if kind not in AGGREGATE_FIRST_KINDS:
        mapped = sum(n * width for n, width in zip(sizes.vertices[0], graph.widths, strict=True))
        layers.insert(0, _LayerWork(mapped * hidden, 0.0, 0.0, 1.0))
        vertices, edges, widths = [vertices[0], *vertices], [0.0, *edges], [hidden, *widths]
    learned = sum(n for n, width in zip(sizes.vertices[0], graph.widths, strict=True) if not width)
    stored = [
        n * w * size for n, w, size in zip(sizes.vertices[0], graph.widths, graph.value_bytes, strict=True)
    ]
    return Workload(
        vertices=tuple(vertices),
        edges=tuple(edges),
        features=tuple(widths),
        concat=False,
        input_bytes=sum(stored) / max(vertices[0], 1e-30),
        edge_value_bytes=graph.edge_value_bytes,
        widths_in=tuple(
            layer.macs / max(rows * width, 1e-30)
            for layer, rows, width in zip(layers, vertices[1:], widths[1:], strict=True)
        ),
        weights=sum(layer.weights for layer in layers) + maps + learned * hidden,
        rows_per_edge=per_edge,
        edge_bytes=tuple(layer.edge_bytes for layer in layers),
        calls=sum(layer.calls for layer in layers),
    )


def _num_active_relations(sizes: RelationSizes, layer: int) -> float:
    """Return the expected number of relations that have edges in a layer (1..L)."""
    return sum(min(1.0, edges) for edges in sizes.edges[layer - 1])


def _relation_means(
    sizes: RelationSizes, graph: HeteroWidths, layer: int, width: int, out: int, *, root_matrices: int
) -> _LayerWork:
    """Return the work of a mean per relation, with `root_matrices` matrices for destination rows."""
    first = layer == 1
    sources, ends = sum(sizes.vertices[layer - 1]), sizes.vertices[layer]

    def columns_of(number: int) -> int:
        return (graph.widths[number] or width) if first else width

    def merge_macs(count: float, number: int) -> float:
        """Return the multiply-accumulates to merge a type's projection with other matrices, if necessary."""
        return min(1.0, count) * graph.widths[number] * width * out if first else 0.0

    macs = sum(rows * columns_of(number) * out + merge_macs(rows, number) for number, rows in enumerate(ends))
    read_bytes = 0.0
    relations = zip(graph.relations, sizes.segments[layer - 1], sizes.edges[layer - 1], strict=True)
    for (source, _), runs, edges in relations:
        columns, before = columns_of(source), runs * columns_of(source) * out
        if first:
            macs += before + merge_macs(edges, source)
            # Learned rows also receive gradients.
            read_bytes += edges * columns * _FLOAT_BYTES * (1 if graph.widths[source] else 2)
            continue
        after = sources * width * out
        if out < width and after < before + _READ * edges * (width - out):
            macs, columns = macs + after, out
        else:
            macs += before
        read_bytes += edges * columns * _FLOAT_BYTES
    total = max(sum(sizes.edges[layer - 1]), 1e-30)
    weights = (len(graph.relations) + root_matrices) * width * out
    return _LayerWork(macs, read_bytes / total, weights, 1 + _num_active_relations(sizes, layer))


def _rgat(
    sizes: RelationSizes,
    layer: int,
    width: int,
    out: int,
    heads: int,
    edge_columns: float,
    *,
    last: bool,
) -> _LayerWork:
    """Return the work of R-GAT: attention scores by relation and head, and a product of each head's sums."""
    sources, ends = sum(sizes.vertices[layer - 1]), sum(sizes.vertices[layer])
    relations, runs = len(sizes.edges[layer - 1]), sum(sizes.segments[layer - 1])
    columns = out * heads if last else out
    scores = (sources + ends) * width * relations * heads
    scores += sum(sizes.edges[layer - 1]) * edge_columns * heads
    macs = scores + runs * width * columns + ends * width * out
    weights = relations * width * columns + width * out
    return _LayerWork(macs, width * _FLOAT_BYTES, weights, 1 + _num_active_relations(sizes, layer))


def _hgt(sizes: RelationSizes, layer: int, width: int, out: int, heads: int, *, last: bool) -> _LayerWork:
    """Return the work of HGT: keys, values, queries, two products per segment, and the output product."""
    sources, ends = sum(sizes.vertices[layer - 1]), sum(sizes.vertices[layer])
    hidden, runs = (width if last else out), sum(sizes.segments[layer - 1])
    macs = (2 * sources + ends) * width * hidden + 2 * runs * hidden * hidden + ends * hidden * out
    types, relations = len(sizes.vertices[0]), len(sizes.edges[layer - 1])
    # Each head has two matrices of its width per relation, but a segment is multiplied by those of all heads
    # at once.
    weights = types * (3 * width * hidden + hidden * out) + 2 * relations * hidden * hidden / heads
    return _LayerWork(macs, hidden * _FLOAT_BYTES, weights, 1 + _num_active_relations(sizes, layer))


def _source_products(
    sizes: RelationSizes, layer: int, width: int, out: int, products: tuple[float, float]
) -> _LayerWork:
    """Return the work of a layer with `products` products per source row and per destination row."""
    sources, ends = sum(sizes.vertices[layer - 1]), sum(sizes.vertices[layer])
    macs = (sources * products[0] + ends * products[1]) * width * out
    return _LayerWork(macs, out * _FLOAT_BYTES, sum(products) * width * out, 1.0)
