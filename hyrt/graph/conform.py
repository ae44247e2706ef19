"""Conversion of a graph into the form that a run was trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.formatting import pluralize, short_repr
from hyrt.graph.formats.schema import LARGE_BYTES, Dataset, FeatureRows, from_graph, to_graph
from hyrt.graph.graph import Graph
from hyrt.graph.hetero.dataset import HeteroDatasetParts, assemble_dataset, stream_relation_edges
from hyrt.graph.hetero.graph_types import GraphTypes, Relation
from hyrt.graph.labels import is_labelled
from hyrt.graph.metadata import Scaling, describe_scaling, remaining_steps
from hyrt.graph.normalize import apply_scaling
from hyrt.graph.quantized.features import is_in_memory
from hyrt.graph.row_source import DenseFeatures, HeteroRows, RowSource
from hyrt.graph.run_schema import RunSchema, TableSchema, read_type_ids
from hyrt.graph.topology import Topology
from hyrt.runtime.workers import Workers


@dataclass(frozen=True, slots=True, eq=False)
class ScaledRows:
    """Row source that selects and scales the columns of another row source on read, without copying it."""

    source: RowSource
    columns: NDArray[np.int64] | None
    """[F] columns to select, in order; None selects all columns."""
    steps: Sequence[Scaling]
    """Scalings in the order of application."""
    dtype: np.dtype[Any]
    """Dtype to which each scaling rounds."""

    __repr__ = short_repr

    @property
    def width(self) -> int:
        return self.source.width if self.columns is None else len(self.columns)

    @property
    def value_bytes(self) -> int:
        return self.source.value_bytes

    @property
    def nbytes(self) -> int:
        return self.source.nbytes

    @property
    def matrix(self) -> None:
        return None

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        stored = np.empty((len(ids), self.source.width), np.float32)
        self.source.rows(ids, stored, workers)
        block = (stored if self.columns is None else stored[:, self.columns]).astype(self.dtype, copy=False)
        for step in self.steps:
            block = step.apply(block)
        out[:] = block


Array = NDArray[Any]
ReportLine = Callable[[str], None]

_SHOWN = 5


def _ignore(line: str) -> None:
    """No-op report callback."""


def conform(
    graph: Graph, schema: RunSchema, report: ReportLine = _ignore, *, uses_labels: bool = True
) -> Graph:
    """Convert a graph into the form that a run was trained on.

    Feature and edge columns are put into the run's order by name, features are scaled with the run's fitted
    statistics, and classes and edge types are numbered as in the run. Converting the training graph itself
    restores exactly its form in training.

    `report` receives one line for each item that is left out; if `uses_labels`, this includes labels. Raises
    DataError with the differences if the graph lacks data that the model reads.
    """
    graph = _with_types(graph, schema, report)
    topology = _conformed_edges(graph, schema, report)
    graph = _relabelled(replace(graph, topology=topology), schema, report if uses_labels else _ignore)
    data = from_graph(graph)
    changed: dict[str, Dataset] = {}
    for name, table in schema.tables.items():
        if table.width is None:
            continue
        table_data = data if data.tables is None else data.tables.get(name)
        if table_data is None:
            raise DataError(
                f"{graph.name}: type {name!r} has no features, but the run was trained with "
                f"{pluralize(table.width, 'feature')}: add them"
            )
        where = f"{graph.name}: type {name!r}" if name else graph.name
        changed[name] = _conformed_rows(table_data, table, graph.names.columns.get(name), where, report)
    if all(changed[name] is (data if data.tables is None else data.tables[name]) for name in changed):
        return graph
    if data.tables is None:
        made = to_graph(changed[""])
    else:
        made = to_graph(replace(data, tables={**data.tables, **changed}))
    # Keep the cached properties of topology and vertices.
    features = made.vertices.features
    return replace(graph.with_features(features), scalings=made.scalings)


def find_embedding_rows(
    graph: Graph, schema: RunSchema, *, has_run_edges: bool = False
) -> dict[int, NDArray[np.int64]]:
    """Return the learned row index of each vertex, as an array per index of a type without features.

    Vertices are matched by id, or by original number if they have no ids. If neither the run nor the graph
    has ids or was reordered, the vertices are assumed to be the training vertices in the same order.
    `has_run_edges` says that the edges are those of the training, and thus the order of the vertices, which
    earlier versions did not store. Raises DataError for a vertex that was not in the training graph.
    """
    found: dict[int, NDArray[np.int64]] = {}
    if graph.types is None:
        return found
    for number, (name, table) in enumerate(schema.tables.items()):
        if table.width is not None:
            continue
        count = graph.types.count(name)
        ids, known = read_type_ids(graph, name), table.ids
        is_in_run_order = known is None and has_run_edges and not graph.names.has_ids
        if (ids is None and known is None) or is_in_run_order:
            if count != table.count:
                raise DataError(
                    f"{graph.name} has {count:,} vertices of type {name!r}, which has no features, but the "
                    f"run learned embeddings for {table.count:,}: use the same vertices, or train with "
                    "features of this type"
                )
            found[number] = np.arange(count)
            continue
        # Vertices without ids are identified by their numbers.
        ids = tuple(map(str, range(count))) if ids is None else ids
        known = tuple(map(str, range(table.count or 0))) if known is None else known
        places = {each: place for place, each in enumerate(known)}
        unknown = [each for each in ids if each not in places]
        if unknown:
            raise DataError(
                f"{graph.name} has {pluralize(len(unknown), 'vertex', 'vertices')} of type {name!r} without "
                f"features or a learned embedding ({_some(unknown)}), because the training graph did not "
                "have them: remove them, or train again"
            )
        found[number] = np.array([places[each] for each in ids], np.int64)
    return found


def _with_types(graph: Graph, schema: RunSchema, say: ReportLine) -> Graph:
    """Put types and relations into the run's order; a missing relation gets no edges."""
    types = graph.types
    if (types is not None) != schema.is_hetero:
        kind, run_kind = (
            ("heterogeneous", "homogeneous") if types is not None else ("homogeneous", "heterogeneous")
        )
        raise DataError(
            f"{graph.name} is {kind}, but the run was trained on a {run_kind} graph: use a {run_kind} graph"
        )
    if types is None:
        return graph
    assert isinstance(graph.features, HeteroRows)
    run_types, graph_types = list(schema.tables), list(types.vertex_types)
    known = [Relation(*names) for names in schema.relations]
    new = [relation for relation in types.relations if relation not in known]
    if set(run_types) != set(graph_types) or new or types.target != schema.target:
        differences = [_differences(run_types, graph_types)] * (set(run_types) != set(graph_types))
        differences += [f"new relations: {_some([str(relation) for relation in new])}"] * bool(new)
        differences += [f"labels of type {types.target!r}"] * (types.target != schema.target)
        raise DataError(
            f"{graph.name}: the types differ from those that the run was trained on "
            f"({'; '.join(differences)}): use the types {', '.join(run_types)}, with labels of "
            f"{schema.target!r}, and no other relations"
        )
    for name, rows in zip(graph_types, graph.features.tables, strict=True):
        if rows is not None and schema.tables[name].width is None:
            raise DataError(
                f"{graph.name}: type {name!r} has features, but the run was trained without any and learned "
                "an embedding per vertex: remove the features"
            )
    if missing := [relation for relation in known if relation not in types.relations]:
        say(
            f"{graph.name} has no edges of some relations that the run was trained on: "
            f"{_some(list(map(str, missing)))}"
        )
    if run_types == graph_types and known == list(types.relations):
        return graph
    return _in_type_order(graph, types, run_types, known)


def _in_type_order(graph: Graph, types: GraphTypes, type_order: list[str], known: list[Relation]) -> Graph:
    """Reorder types and relations; vertices keep their original numbers."""
    if graph.topology.edge_features is not None or graph.topology.edge_times is not None:
        raise DataError(
            f"{graph.name}: the edges have features or times, but the types or relations are not in the "
            f"run's order: use the types {', '.join(type_order)} and the relations "
            f"{', '.join(map(str, known))}, in this order"
        )
    data = from_graph(graph)
    counts = [types.count(name) for name in type_order]
    ordered = GraphTypes(
        tuple(type_order),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        tuple(known),
        types.target,
    )
    low, high = types.interval(types.target)
    edges = stream_relation_edges(data.arrays, types)
    numbers = [known.index(relation) for relation in types.relations]
    parts = HeteroDatasetParts(
        ordered,
        lambda: (piece._replace(relation=numbers[piece.relation]) for piece in edges()),
        data.tables or {},
        graph.labels[low:high],
        {key: array[low:high] for key, array in data.arrays.items() if "_mask" in key},
        weighted=graph.topology.edge_weights is not None,
    )
    made = to_graph(replace(assemble_dataset(graph.name, parts, None)[0], names=graph.names))
    places = np.concatenate([np.arange(*types.interval(name)) for name in type_order])
    ids = graph.vertices.vertex_ids
    vertices = replace(made.vertices, vertex_ids=places if ids is None else ids[places])
    return replace(made, vertices=vertices)


def _conformed_edges(graph: Graph, schema: RunSchema, say: ReportLine) -> Topology:
    """Keep only the edge weights, types and features that the run was trained on."""
    topology, name = graph.topology, graph.name
    weights, features, types = topology.edge_weights, topology.edge_features, topology.edge_types
    if schema.has_edge_weights and weights is None:
        raise DataError(
            f"{name}: the edges have no weights, but the run was trained with edge weights: add edge_weight"
        )
    if schema.edge_width and features is None:
        raise DataError(
            f"{name}: the edges have no features, but the run was trained with "
            f"{pluralize(schema.edge_width, 'feature')} per edge: add edge_features"
        )
    if weights is not None and not schema.has_edge_weights:
        say(f"{name}: edge weights are ignored, because the run was trained without them")
        weights = None
    if features is not None and not schema.edge_width:
        say(f"{name}: edge features are ignored, because the run was trained without them")
        features = None
    if features is not None:
        of_edges = f"{name}: edge features"
        known = graph.names.edge_columns
        order = _column_order(schema.edge_columns, known, schema.edge_width, features.shape[1], of_edges, say)
        features = features if order is None else np.ascontiguousarray(features[:, order])
    if not schema.is_hetero:
        types = _conformed_edge_types(graph, schema, say)
    before = (topology.edge_types, topology.edge_weights, topology.edge_features)
    if all(new is old for new, old in zip((types, weights, features), before, strict=True)):
        return topology
    changed = replace(topology, edge_types=types, edge_weights=weights, edge_features=features)
    if "is_symmetric" in topology.__dict__:
        changed.__dict__["is_symmetric"] = topology.__dict__["is_symmetric"]
    return changed


def _conformed_edge_types(graph: Graph, schema: RunSchema, say: ReportLine) -> Array | None:
    types, known, edge_type_names = graph.topology.edge_types, schema.edge_types, graph.names.edge_types
    if types is None and schema.has_edge_types:
        raise DataError(
            f"{graph.name}: the edges have no types, but the run was trained with edge types: add edge_type"
        )
    if types is None:
        return None
    if not schema.has_edge_types:
        say(f"{graph.name}: edge types are ignored, because the run was trained without them")
        return None
    if (known is None) != (edge_type_names is None):
        names = known if known is not None else edge_type_names or ()
        read_as = [f"{number} as {name}" for number, name in enumerate(names)]
        if known is None:
            read_as = [f"{name} as {number}" for number, name in enumerate(names)]
        which = "the data's" if edge_type_names is None else "the run's"
        say(
            f"{graph.name}: {which} edge types have no names, so they are matched by number: {_some(read_as)}"
        )
    if known is None or edge_type_names is None or known == edge_type_names:
        return types
    new = [name for name in edge_type_names if name not in known]
    if new:
        raise DataError(
            f"{graph.name}: the run was not trained with edges of type {_some(new)} (only "
            f"{', '.join(known)}): remove them, or train again"
        )
    places = np.array([known.index(name) for name in edge_type_names], types.dtype)
    renumbered: Array = places[types]
    return renumbered


def _conformed_rows(
    data: Dataset, table: TableSchema, names: Sequence[str] | None, where: str, say: ReportLine
) -> Dataset:
    """Return one type's features with the run's columns and scaling."""
    assert table.width is not None
    width = data.rows.shape[1] if data.rows is not None else int(data.arrays["feat_shape"][1])
    order = _column_order(table.columns, names, table.width, width, where, say)
    stored = data.rows
    if order is not None:
        data = _with_columns(data, order, where)
    steps = remaining_steps(data.scaling, table.scaling)
    if steps is None:
        raise DataError(
            f"{where}: features were scaled by {describe_scaling(data.scaling)}, but the run's features by "
            f"{describe_scaling(table.scaling)} with the statistics of its own data: use unscaled features, "
            "which hyrt scales as in training"
        )
    for step in steps:
        if not step.is_known:
            raise DataError(
                f"{where}: the run's features were scaled by 'standard' in a version of hyrt that did not "
                "store the statistics: train again"
            )
        if step.mean is not None and data.rows is None:
            raise DataError(
                f"{where}: features are sparse, but the run was trained with dense features: use dense "
                "features"
            )
    if stored is not None and (steps or order is not None):
        source = stored.source or DenseFeatures(stored.whole())
        if source.nbytes > LARGE_BYTES and not is_in_memory(source):
            scaled = ScaledRows(source, order, steps, np.dtype(stored.dtype))
            rows = FeatureRows.from_source(scaled, stored.shape[0])
            return replace(data, rows=rows, scaling=(*data.scaling, *steps))
    return apply_scaling(data, steps) if steps else data


def _column_order(
    known: Sequence[str] | None,
    columns: Sequence[str] | None,
    width: int,
    num_columns: int,
    where: str,
    say: ReportLine,
) -> NDArray[np.int64] | None:
    """Return the [width] positions of the run's columns in the data; None if the order is the same."""
    if known is None or columns is None or len(columns) != num_columns:
        if num_columns != width:
            raise DataError(
                f"{where}: found {pluralize(num_columns, 'column')}, but the run was trained with "
                f"{width:,}: use the same columns in the same order"
            )
        whose, names = ("the run's", columns) if known is None else ("the data's", known)
        if names and len(names) > 1 and (known is None or columns is None):
            say(
                f"{where}: {whose} columns have no names, so they are assumed to be {_some(names)}, in "
                "this order"
            )
        return None
    if tuple(known) == tuple(columns):
        return None
    places = {name: place for place, name in enumerate(columns)}
    if len(places) != len(columns):
        raise DataError(f"{where}: two columns have the same name: rename one of them")
    missing = [name for name in known if name not in places]
    if missing:
        raise DataError(
            f"{where}: the columns differ from those that the run was trained with "
            f"({_differences(known, columns)}): add the missing columns"
        )
    if more := [name for name in columns if name not in known]:
        say(f"{where}: columns that the run was not trained with are ignored: {_some(more)}")
    return np.array([places[name] for name in known], np.int64)


def _with_columns(data: Dataset, order: NDArray[np.int64], where: str) -> Dataset:
    """Select and reorder the feature columns of one table."""
    scaling = tuple(step.take(order) for step in data.scaling)
    rows = data.rows
    if rows is not None:
        shape = (rows.shape[0], len(order))
        picked = FeatureRows.from_blocks(
            shape, rows.dtype, lambda: (np.ascontiguousarray(block[:, order]) for block in rows.blocks())
        )
        return replace(data, rows=picked, scaling=scaling)
    places = np.full(int(data.arrays["feat_shape"][1]), -1, np.int32)
    places[order] = np.arange(len(order), dtype=np.int32)
    indptr, columns = data.arrays["feat_indptr"], places[data.arrays["feat_indices"]]
    vertices = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    entries = np.flatnonzero(columns >= 0)
    entries = entries[np.lexsort((columns[entries], vertices[entries]))]
    counts = np.bincount(vertices[entries], minlength=len(indptr) - 1)
    arrays: dict[str, Array] = {
        "feat_indptr": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        "feat_indices": columns[entries],
        "feat_values": data.arrays["feat_values"][entries],
        "feat_shape": np.array([len(indptr) - 1, len(order)], np.int64),
    }
    return replace(data, arrays=data.arrays | arrays, scaling=scaling)


def _relabelled(graph: Graph, schema: RunSchema, say: ReportLine) -> Graph:
    """Convert labels to the run's numbering; vertices with values that the run cannot predict become
    unlabelled.
    """
    if schema.predicts_links:
        return graph
    vertices, label_kind = graph.vertices, graph.vertices.label_kind
    labels = vertices.labels
    known = is_labelled(labels)
    if not known.any() or (label_kind == "classes" and not schema.outputs):
        labels = _no_labels(len(labels), schema)
    elif label_kind != schema.labels:
        say(
            f"{graph.name}: labels ({vertices.label_description}) are ignored, because the run predicts "
            f"{schema.label_description}"
        )
        labels = _no_labels(len(labels), schema)
    elif label_kind == "classes":
        labels = _renumbered(graph, schema, say)
    else:
        labels = _with_label_columns(graph, schema, say)
    masks = vertices.masks
    if labels is not vertices.labels:
        left = is_labelled(labels)
        masks = {
            name: mask & (left if mask.ndim == 1 else left[:, None]) for name, mask in vertices.masks.items()
        }
    if labels is vertices.labels and vertices.num_outputs == schema.outputs:
        return graph
    return replace(graph, vertices=replace(vertices, labels=labels, masks=masks, outputs=schema.outputs))


def _no_labels(count: int, schema: RunSchema) -> Array:
    match schema.labels:
        case "classes":
            return np.full(count, -1, np.int16)
        case "flags":
            return np.full((count, schema.outputs), -1, np.int8)
        case _:
            return np.full((count, schema.outputs) if schema.outputs > 1 else count, np.nan, np.float32)


def _renumbered(graph: Graph, schema: RunSchema, say: ReportLine) -> Array:
    """Return the class labels with the run's numbers, matched by class name, or by number if there are no
    names.
    """
    labels, names = graph.labels, graph.names.classes
    highest = int(labels.max())
    known = tuple(schema.class_name(number) for number in range(schema.outputs))
    class_names = [str(number) for number in range(highest + 1)] if names is None else list(names)
    if names is None and schema.classes is not None:
        used = [class_names[number] for number in np.unique(labels[labels >= 0]).tolist()]
        if not set(used) <= set(known):
            # The run's class names are not numbers, so match by number.
            known = tuple(map(str, range(schema.outputs)))
        read_as = [f"{number} as {schema.classes[at]}" for at, number in enumerate(known)]
        say(f"{graph.name}: the classes have no names, so they are matched by number: {_some(read_as)}")
    if len(class_names) <= highest:
        class_names += [str(number) for number in range(len(class_names), highest + 1)]
    places = {name: place for place, name in enumerate(known)}
    table = np.array([places.get(name, -1) for name in class_names] or [-1], np.int64)
    if (table[: highest + 1] == np.arange(highest + 1)).all():
        return labels
    renumbered = np.where(labels < 0, -1, table[labels.clip(0)])
    unknown = (labels >= 0) & (renumbered < 0)
    if unknown.any():
        new = [class_names[number] for number in np.unique(labels[unknown]).tolist()]
        say(
            f"{graph.name}: {pluralize(int(unknown.sum()), 'vertex has a class', 'vertices have classes')} "
            f"that the run was not trained with ({_some(new)}), so they are treated as unlabelled and not "
            "counted in any metric"
        )
    return renumbered.astype(np.int32)


def _with_label_columns(graph: Graph, schema: RunSchema, say: ReportLine) -> Array:
    """Return multi-label or numeric labels with the run's columns, matched by name; no labels if names
    differ.
    """
    labels, width = graph.labels, graph.vertices.num_outputs
    try:
        known, where = graph.names.classes, f"{graph.name}: labels"
        order = _column_order(schema.classes, known, schema.outputs, width, where, say)
    except DataError as error:
        say(f"{error}; the labels are ignored")
        return _no_labels(len(labels), schema)
    return labels if order is None else np.ascontiguousarray(labels.reshape(len(labels), -1)[:, order])


def _differences(known: Sequence[str], names: Sequence[str]) -> str:
    """List missing and additional names."""
    missing = [name for name in known if name not in names]
    more = [name for name in names if name not in known]
    parts = [f"missing: {_some(missing)}"] * bool(missing) + [f"new: {_some(more)}"] * bool(more)
    return "; ".join(parts)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else "")
