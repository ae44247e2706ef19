"""From a kind of model for typed graphs and the sizes of its mini-batches to their workload.

What a layer multiplies goes by relation: a mean, or a weighted sum, has a row for each run, which is the
edges of one relation into one vertex, and it is multiplied by the relation's matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

from hyrt_perfmodel.sizes.relations.relation_sizes import RelationSizes
from hyrt_perfmodel.workloads.workload import Workload

TYPED_KINDS = ("rgcn", "rsage", "rgat", "hgt")
"""The models for typed graphs whose work is known."""

FIRST_COMBINED = ("rgcn", "rsage")
"""Those whose layers combine rows before they multiply them."""
_FLOAT_BYTES = 4
# Multiplications that take as long as reading a number of a row somewhere in memory: relation_sums.py has
# the same number.
_READ = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedWidths:
    """What the work of a typed graph's mini-batches follows from, beside their sizes."""

    widths: tuple[int, ...]
    """[T] the columns of the feature rows of each type; 0 where it has none, and its rows are learned."""
    value_bytes: tuple[int, ...]
    """[T] bytes of a value of these, as they are stored."""
    relations: tuple[tuple[int, int], ...]
    """[R] the numbers of the types that each relation goes from and to."""
    edge_value_bytes: float = 0.0
    """Bytes of the weight and the features of an edge."""


@dataclass(frozen=True, slots=True)
class _LayerWork:
    """What one layer does."""

    macs: float
    """Multiply-accumulates, forward."""
    edge_bytes: float
    """Mean bytes of a row that an edge reads."""
    weights: float
    calls: float
    """For how many layers of a graph of one type its operators are called."""


def typed_workload(
    kind: str,
    sizes: RelationSizes,
    graph: TypedWidths,
    *,
    hidden: int,
    classes: int,
    heads: int = 1,
    products: tuple[float, float] | None = None,
) -> Workload:
    """The workload of one mini-batch of a typed graph.

    R-GCN and R-GraphSAGE sum raw rows in their first layer, and multiply by the product of the type's map and
    the relation's matrix. All others map the rows of all input vertices first: that is a layer of its own
    here, without edges.

    Parameters
    ----------
    kind
        One of `TYPED_KINDS`; any other is of layers that tell relations apart by their numbers.
    sizes, graph
        The sizes of the mini-batch, and the widths of its rows.
    hidden, classes, heads
        The model's widths, and its heads of attention.
    products
        The products of each source's row and of each destination's, in a layer of another kind.

    Raises
    ------
    ValueError
        If the kind is none of these, and no products are given.
    """
    if kind not in TYPED_KINDS and products is None:
        raise ValueError(f"model {kind!r} is not one of {', '.join(TYPED_KINDS)}: give its products")
    widths = [hidden, *[hidden] * (sizes.layers - 1), classes]
    per_edge = {"rgat": heads, "hgt": 2}.get(kind, 1)
    made, vertices = [], [sum(of_type) for of_type in sizes.vertices]
    edges = [sum(of_relation) for of_relation in sizes.edges]
    for layer in range(1, sizes.layers + 1):
        ends = widths[layer - 1], widths[layer]
        if products is not None:
            made.append(_of_sources(sizes, layer, *ends, products))
        elif kind in FIRST_COMBINED:
            own = 1 if kind == "rgcn" else len(graph.widths)
            made.append(_sums(sizes, graph, layer, *ends, own=own))
        elif kind == "rgat":
            columns = graph.edge_value_bytes / _FLOAT_BYTES
            made.append(_rgat(sizes, layer, *ends, heads, columns, last=layer == sizes.layers))
        else:
            made.append(_hgt(sizes, layer, *ends, heads, last=layer == sizes.layers))
    maps = sum(width * hidden for width in graph.widths)
    if kind not in FIRST_COMBINED:
        mapped = sum(n * width for n, width in zip(sizes.vertices[0], graph.widths, strict=True))
        made.insert(0, _LayerWork(mapped * hidden, 0.0, 0.0, 1.0))
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
            for layer, rows, width in zip(made, vertices[1:], widths[1:], strict=True)
        ),
        weights=sum(layer.weights for layer in made) + maps + learned * hidden,
        rows_per_edge=per_edge,
        edge_bytes=tuple(layer.edge_bytes for layer in made),
        calls=sum(layer.calls for layer in made),
    )


def _present(sizes: RelationSizes, layer: int) -> float:
    """How many relations have edges in a layer (1..L)."""
    return sum(min(1.0, edges) for edges in sizes.edges[layer - 1])


def _sums(
    sizes: RelationSizes, graph: TypedWidths, layer: int, width: int, out: int, *, own: int
) -> _LayerWork:
    """Means of a relation's neighbours, times its matrix; the own row times one of `own` matrices."""
    first = layer == 1
    sources, ends = sum(sizes.vertices[layer - 1]), sizes.vertices[layer]

    def of_type(number: int) -> int:
        return (graph.widths[number] or width) if first else width

    def joined(count: float, number: int) -> float:
        """Multiply-accumulates that make one matrix of the type's map and another, if anything needs it."""
        return min(1.0, count) * graph.widths[number] * width * out if first else 0.0

    macs = sum(rows * of_type(number) * out + joined(rows, number) for number, rows in enumerate(ends))
    read_bytes = 0.0
    each = zip(graph.relations, sizes.runs[layer - 1], sizes.edges[layer - 1], strict=True)
    for (source, _), runs, edges in each:
        columns, before = of_type(source), runs * of_type(source) * out
        if first:
            macs += before + joined(edges, source)
            # Learned rows take a gradient.
            read_bytes += edges * columns * _FLOAT_BYTES * (1 if graph.widths[source] else 2)
            continue
        after = sources * width * out
        if out < width and after < before + _READ * edges * (width - out):
            macs, columns = macs + after, out
        else:
            macs += before
        read_bytes += edges * columns * _FLOAT_BYTES
    total = max(sum(sizes.edges[layer - 1]), 1e-30)
    weights = (len(graph.relations) + own) * width * out
    return _LayerWork(macs, read_bytes / total, weights, 1 + _present(sizes, layer))


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
    """Scores of sources, ends and edges by relation and head; sums of rows a head, times its matrix."""
    sources, ends = sum(sizes.vertices[layer - 1]), sum(sizes.vertices[layer])
    relations, runs = len(sizes.edges[layer - 1]), sum(sizes.runs[layer - 1])
    columns = out * heads if last else out
    scores = (sources + ends) * width * relations * heads
    scores += sum(sizes.edges[layer - 1]) * edge_columns * heads
    macs = scores + runs * width * columns + ends * width * out
    weights = relations * width * columns + width * out
    return _LayerWork(macs, width * _FLOAT_BYTES, weights, 1 + _present(sizes, layer))


def _hgt(sizes: RelationSizes, layer: int, width: int, out: int, heads: int, *, last: bool) -> _LayerWork:
    """Keys and values of sources, queries of destinations, two products of runs, and the result's."""
    sources, ends = sum(sizes.vertices[layer - 1]), sum(sizes.vertices[layer])
    hidden, runs = (width if last else out), sum(sizes.runs[layer - 1])
    macs = (2 * sources + ends) * width * hidden + 2 * runs * hidden * hidden + ends * hidden * out
    types, relations = len(sizes.vertices[0]), len(sizes.edges[layer - 1])
    # Of relations, each head has two matrices of its own width; runs are multiplied by all heads' at once.
    weights = types * (3 * width * hidden + hidden * out) + 2 * relations * hidden * hidden / heads
    return _LayerWork(macs, hidden * _FLOAT_BYTES, weights, 1 + _present(sizes, layer))


def _of_sources(
    sizes: RelationSizes, layer: int, width: int, out: int, products: tuple[float, float]
) -> _LayerWork:
    """So many products of each source's row and of each destination's."""
    sources, ends = sum(sizes.vertices[layer - 1]), sum(sizes.vertices[layer])
    macs = (sources * products[0] + ends * products[1]) * width * out
    return _LayerWork(macs, out * _FLOAT_BYTES, sum(products) * width * out, 1.0)
