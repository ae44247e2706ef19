"""Dataset schema: keys with dtypes and shapes, their checks, and conversion to and from a Graph.

Labels, masks and topology of a dataset are arrays by key. Dense features are `FeatureRows`, which need not be
in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, DataWarning, join_names, warn_user
from hyrt.formatting import short_repr
from hyrt.graph import check
from hyrt.graph.check import check_labels
from hyrt.graph.graph import SPLITS, Graph
from hyrt.graph.hetero.check_types import (
    check_ids_in_types,
    check_relation_edges,
    check_target_labels,
    check_type_names,
    check_types,
)
from hyrt.graph.hetero.graph_types import (
    RELATIONS,
    TARGET_TYPE,
    TEXT_KEYS,
    TYPE_KEYS,
    TYPE_STARTS,
    VERTEX_TYPES,
    get_type,
    strip_type,
    type_key,
    types_from_arrays,
    types_to_arrays,
)
from hyrt.graph.metadata import NO_NAMES, DataNames, Scaling, Scalings, read_data_names, read_scalings
from hyrt.graph.quantized.features import QuantizedFeatures
from hyrt.graph.quantized.rows import QuantizedRows, Quantizer
from hyrt.graph.row_source import DenseFeatures, HeteroRows, RowSource, SparseFeatures
from hyrt.runtime.buffer_pool import empty_aligned
from hyrt.runtime.workers import current_workers

Array = NDArray[Any]

SPARSE_KEYS = ("feat_indptr", "feat_indices", "feat_values", "feat_shape")
SCALE_KEYS = ("row_scales", "column_scales")
VERTEX_IDS = "vertex_ids"
EDGE_TYPE = "edge_type"
EDGE_WEIGHT = "edge_weight"
EDGE_FEATURES = "edge_features"
EDGE_TIME = "edge_time"
EDGE_VALUE_KEYS = (EDGE_TYPE, EDGE_WEIGHT, EDGE_FEATURES, EDGE_TIME)
"""Keys other than `indices` that have one entry per edge."""
BASE_KEYS = ("indptr", "indices", "labels", "train_mask", "val_mask", "test_mask")
LARGE_BYTES = 1 << 30
"""Size above which mapped features are read only on request, because reading them takes long."""

_LAYOUT: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    VERTEX_TYPES: (("text",), (1,)),
    TYPE_STARTS: (("int64",), (1,)),
    RELATIONS: (("text",), (2,)),
    TARGET_TYPE: (("text",), (1,)),
    "indptr": (("int64",), (1,)),
    "indices": (("int32", "int64"), (1,)),
    "labels": (("int8", "int16", "int32", "int64", "float32", "float64"), (1, 2)),
    "flags": (("bool", "int8", "uint8", "int16", "int32", "int64", "float32", "float64"), (2,)),
    "mask": (("bool",), (1, 2)),
    VERTEX_IDS: (("int32", "int64"), (1,)),
    EDGE_TYPE: (("int8", "int16", "int32", "int64"), (1,)),
    EDGE_WEIGHT: (("float32",), (1,)),
    EDGE_FEATURES: (("float32",), (2,)),
    EDGE_TIME: (("int64", "float64", "int32", "float32"), (1,)),
    "features": (("float32", "float16", "int8", "uint16"), (2,)),
    "row_scales": (("float32",), (1,)),
    "column_scales": (("float32",), (1,)),
    "feat_indptr": (("int64",), (1,)),
    "feat_indices": (("int32",), (1,)),
    "feat_values": (("float32",), (1,)),
    "feat_shape": (("int64",), (1,)),
}


@dataclass(frozen=True, slots=True)
class FeatureRows:
    """Dense features [V, F], which can be read block by block in several passes, or as a whole."""

    shape: tuple[int, int]
    """Number of rows and columns (V, F)."""
    dtype: np.dtype[np.generic]
    """Dtype float32 or float16."""
    blocks: Callable[[], Iterator[Array]]
    """Function that starts a pass over the rows: it yields blocks [n, F], each valid until the next request.
    """
    whole: Callable[[], Array]
    """Function that returns the full matrix."""
    mapped: bool = False
    """Whether `whole` returns a view of a file."""
    source: RowSource | None = None
    """Reader of single rows in several files or in quantized codes; None if only `whole` reads rows."""
    rounding: Quantizer | None = None
    """Quantizer for writing; None to write the values unchanged."""

    __repr__ = short_repr

    @property
    def is_file_backed(self) -> bool:
        """Whether single rows can be read without having all rows in memory."""
        return self.mapped or self.source is not None

    @property
    def num_bytes(self) -> int:
        if self.source is not None:
            return self.source.nbytes
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    @property
    def quantized(self) -> QuantizedRows | None:
        """Codes of rows that are stored quantized; otherwise None."""
        return self.source.stored if isinstance(self.source, QuantizedFeatures) else None

    @staticmethod
    def from_array(values: Array, *, mapped: bool = False) -> FeatureRows:
        """Return feature rows of a matrix."""
        shape = (int(values.shape[0]), int(values.shape[1]))
        return FeatureRows(shape, values.dtype, lambda: check.iter_row_blocks(values), lambda: values, mapped)

    @staticmethod
    def from_blocks(
        shape: tuple[int, int], dtype: np.dtype[np.generic], blocks: Callable[[], Iterator[Array]]
    ) -> FeatureRows:
        """Return feature rows that each pass over `blocks` computes again."""

        def whole() -> Array:
            matrix = empty_aligned(shape, dtype)
            first_row = 0
            for block in blocks():
                matrix[first_row : first_row + len(block)] = block
                first_row += len(block)
            return matrix

        return FeatureRows(shape, dtype, blocks, whole)

    @staticmethod
    def from_source(source: RowSource, num_rows: int) -> FeatureRows:
        """Return feature rows that each pass reads from a row source."""
        shape = (num_rows, source.width)
        halves = source.value_bytes == 2 and not isinstance(source, QuantizedFeatures)
        dtype = np.dtype(np.float16 if halves else np.float32)

        def blocks() -> Iterator[Array]:
            step = max(1, check.CHUNK // source.width)
            for start in range(0, num_rows, step):
                ids = np.arange(start, min(start + step, num_rows))
                out = np.empty((len(ids), source.width), np.float32)
                source.rows(ids, out, current_workers())
                # The source returns float32, so float16 rows must be converted back.
                yield out.astype(dtype, copy=False)

        return replace(FeatureRows.from_blocks(shape, dtype, blocks), source=source)


@dataclass(frozen=True, slots=True)
class Dataset:
    """Dataset before its conversion to a Graph: arrays by schema key, and dense features."""

    name: str
    """Source as the user specified it, for messages."""
    arrays: dict[str, Array]
    """Arrays of all keys except `features`."""
    rows: FeatureRows | None
    """Dense features; None if they are sparse (in `arrays`) or in `tables`."""
    symmetric: bool | None = None
    """Value of `hyrt.graph.topology.Topology.is_symmetric` for the edges; None if unknown."""
    scaling: tuple[Scaling, ...] = ()
    """Known scalings of the features in the order in which they were applied."""
    names: DataNames = NO_NAMES
    """Names of classes, columns, edge types and vertex ids."""
    tables: dict[str, Dataset] | None = None
    """Feature-only dataset of each vertex type with features; None in a homogeneous graph."""

    __repr__ = short_repr

    @property
    def normalization(self) -> str:
        """Kind of the last scaling of the features; `none` without scalings."""
        return self.scaling[-1].kind if self.scaling else "none"

    @property
    def scalings(self) -> Scalings:
        """Scalings of all features by vertex type."""
        if self.tables is None:
            return {"": self.scaling}
        return {name: table.scaling for name, table in self.tables.items()}

    def with_metadata_of(self, source: Path) -> Dataset:
        """Return the same data with the names and scalings that are stored in `source`."""
        steps = read_scalings(source)
        named = replace(self, names=read_data_names(source))
        if named.tables is None:
            return replace(named, scaling=steps.get("", ()))
        tables = {name: replace(table, scaling=steps.get(name, ())) for name, table in named.tables.items()}
        return replace(named, tables=tables)

    def with_features(self, change: Callable[[Dataset], Dataset]) -> Dataset:
        """Return the same data with changed features. In a heterogeneous graph, `change` is called for each
        vertex type.
        """
        if self.tables is None:
            return change(self)
        return replace(self, tables={name: change(table) for name, table in self.tables.items()})


def feature_tables(data: Dataset) -> dict[str, Dataset]:
    """Return the datasets that have the features by key suffix: the dataset itself, or its tables."""
    if data.tables is None:
        return {"": data}
    return {type_key("", name): table for name, table in data.tables.items()}


def feature_table_name(source: str, vertex_type: str) -> str:
    """Return the name of a vertex type's features for messages."""
    return f"{source}: type '{vertex_type}'"


def assemble_hetero_dataset(
    source: str,
    keys: list[str],
    arrays: dict[str, Array],
    make_rows: Callable[[str, str, dict[str, Array]], FeatureRows | None],
) -> Dataset:
    """Build the dataset of a heterogeneous graph from stored arrays; remove arrays of single types from
    `arrays`.

    `keys` are all keys of the dataset. `make_rows` gets a feature key, a name for messages, and the arrays of
    the key's vertex type, from which it removes the scales. It returns the dense features, or None if the key
    does not exist.

    Raises DataError if a type name is invalid, or features belong to an unknown type.
    """
    tables: dict[str, Dataset] = {}
    names = check_type_names(source, arrays[VERTEX_TYPES])
    for key in keys:
        if get_type(key) and get_type(key) not in names:
            raise check.reject(
                source,
                key,
                f"names an unknown vertex type{check.suggest_name(get_type(key), names)} (types: "
                f"{join_names(names)})",
            )
    for vertex_type in names:
        type_arrays = {
            base: arrays.pop(type_key(base, vertex_type))
            for base in (*SPARSE_KEYS, *SCALE_KEYS)
            if type_key(base, vertex_type) in arrays
        }
        name = feature_table_name(source, vertex_type)
        rows = make_rows(type_key("features", vertex_type), name, type_arrays)
        if type_arrays or rows is not None:
            tables[vertex_type] = Dataset(name, type_arrays, rows)
    return Dataset(source, arrays, None, tables=tables)


def mask_suffixes(keys: Iterable[str]) -> list[str]:
    """Return the suffixes of a dataset's splits: '' for `train_mask`, and X for each `train_mask_X`."""
    found = {key.partition("_mask")[2] for key in keys if key.split("_mask")[0] in SPLITS and "_mask" in key}
    return sorted(found | {""})


def select_keys(source: str, keys: Iterable[str]) -> list[str]:
    """Return the schema keys of a dataset in the order in which they are checked.

    Raises DataError if a required key is missing, or if there are both dense and sparse features.
    """
    present = list(keys)
    type_keys = [key for key in TYPE_KEYS if key in present]
    required = [*TYPE_KEYS, *BASE_KEYS[:2], EDGE_TYPE] if type_keys else [*BASE_KEYS[:2]]
    other_keys = set(present) - {*BASE_KEYS, *EDGE_VALUE_KEYS, *TYPE_KEYS, VERTEX_IDS, "features"}
    if "labels" in present or check.suggest_name("labels", other_keys):
        required.append("labels")
    scales: list[str] = []
    suffixes = sorted({f":{get_type(key)}" for key in present if get_type(key)}) if type_keys else [""]
    for key in ("features", *SPARSE_KEYS):
        if type_keys and key in present:
            raise check.reject(
                source,
                key,
                f"has no vertex type, but the vertices have types: name it {key}:TYPE, one for each type",
            )
    for suffix in suffixes:
        features = _feature_keys(source, present, suffix)
        required += features
        if f"features{suffix}" in features:
            scales += [f"{key}{suffix}" for key in SCALE_KEYS]
    for suffix in mask_suffixes(present):
        masks = [f"{split}_mask{suffix}" for split in SPLITS]
        if any(key in present or check.suggest_name(key, other_keys, cutoff=0.75) for key in masks):
            required += masks
    for key in required:
        if key not in present:
            hint = check.suggest_name(key, set(present) - set(required))
            hint = hint or f": add it (a dataset requires {', '.join(required)})"
            raise DataError(f"{source}: key '{key}' is missing{hint}")
    optional = [*scales, VERTEX_IDS, *EDGE_VALUE_KEYS]
    return [*required, *(key for key in optional if key in present and key not in required)]


def _feature_keys(source: str, present: list[str], suffix: str) -> list[str]:
    """Return the required keys of the dense or sparse features that have a suffix."""
    sparse = [key for key in SPARSE_KEYS if f"{key}{suffix}" in present]
    if f"features{suffix}" in present and sparse:
        raise DataError(
            f"{source} has both 'features{suffix}' and '{sparse[0]}{suffix}': use either dense or sparse "
            "features"
        )
    return [f"{key}{suffix}" for key in (SPARSE_KEYS if sparse else ("features",))]


def with_labels(data: Dataset) -> Dataset:
    """Return a dataset with missing labels and masks added: no known labels, and empty splits.

    Without labels, masks are ignored, because only labelled vertices can be in a split.
    """
    count = max(0, len(data.arrays["indptr"]) - 1)
    arrays = dict(data.arrays)
    if "labels" not in arrays:
        arrays = {key: array for key, array in arrays.items() if "_mask" not in key}
        arrays["labels"] = np.full(count, -1, np.int8)
    for split in SPLITS:
        arrays.setdefault(f"{split}_mask", np.zeros(count, np.bool_))
    return replace(data, arrays=arrays)


def check_unused_keys(
    source: str, shapes: Mapping[str, tuple[int, ...] | None], used_keys: Collection[str]
) -> None:
    """Warn about unused keys; raise DataError with a remedy if one seems to be edge weights or features.

    `shapes` has the shapes of all keys (None if not a plain array), and `used_keys` is from `select_keys`.
    """
    edges = shapes["indices"]
    for key in sorted(shapes.keys() - set(used_keys)):
        shape = shapes[key]
        if is_edge_key(key) or (shape and edges and shape[0] == edges[0] and shape != shapes.get("labels")):
            raise check.reject(
                source,
                key,
                "looks like edge weights, features or times: name weights [E] edge_weight, features [E, d] "
                "edge_features and times [E] edge_time, or to train without them, write the dataset again "
                "without this key",
            )
        known = (*BASE_KEYS, "features", *SCALE_KEYS, *SPARSE_KEYS, VERTEX_IDS, *EDGE_VALUE_KEYS, *TYPE_KEYS)
        hint = check.suggest_name(key, known, cutoff=0.75)
        warn_user(f"{source}: key '{key}' is not read{hint}", DataWarning)


def is_edge_key(key: str) -> bool:
    """Return whether a key seems to belong to edges, according to the names in PyG, DGL and OGB."""
    return key.lower().startswith(("edge", "weight")) or key.lower().endswith(("weight", "weights"))


def check_header(source: str, key: str, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> None:
    """Raise DataError if the dtype or the number of dimensions of a key differs from the schema."""
    if key == "labels" and len(shape) == 2:
        layout = "flags"
    else:
        layout = "mask" if "_mask" in key else strip_type(key)
    dtypes, ndims = _LAYOUT[layout]
    if ("text" if key in TEXT_KEYS and dtype.kind == "U" else dtype.name) not in dtypes:
        raise check.reject(
            source,
            key,
            f"has dtype {dtype.name}, expected {' or '.join(dtypes)}: convert it, for example with "
            f"array.astype('{'int64' if key == 'labels' else dtypes[0]}')",
        )
    if len(shape) not in ndims:
        expected = " or ".join(map(str, ndims))
        raise check.reject(
            source, key, f"has shape {list(shape)}, expected {expected} dimension(s): reshape it"
        )


FeatureCheck = Literal["none", "small", "all"]
"""Dense features that are checked for finite values: none, all except large ones in files, or all."""


def is_large(data: Dataset) -> bool:
    """Return whether dense features are in files and too large to be read by default."""
    rows = data.rows
    return rows is not None and rows.is_file_backed and rows.num_bytes > LARGE_BYTES


def check_dataset(data: Dataset, *, features: FeatureCheck = "all", ordered: bool = True) -> None:
    """Check a dataset; raise DataError with source, key and position of the first violation.

    If `ordered`, rows must be strictly increasing.
    """
    name, arrays = data.name, data.arrays
    for key, array in arrays.items():
        check_header(name, key, array.dtype, array.shape)
    indptr, indices, labels = arrays["indptr"], arrays["indices"], arrays["labels"]
    check.check_indptr(name, "indptr", indptr, len(indices), "indices")
    count = len(indptr) - 1
    if count == 0:
        raise check.reject(
            name,
            "indptr",
            "is that of a graph without vertices: use at least two entries",
        )
    types = None
    if VERTEX_TYPES in arrays:
        types = check_types(name, arrays)
        check_relation_edges(name, arrays, types, ordered=ordered)
    else:
        check.check_columns(name, "indices", indices, indptr, count, "vertices", ordered=ordered)
        if EDGE_TYPE in arrays:
            check.check_edge_types(name, EDGE_TYPE, arrays[EDGE_TYPE], len(indices))
    if EDGE_WEIGHT in arrays:
        check.check_edge_weights(name, EDGE_WEIGHT, arrays[EDGE_WEIGHT], len(indices))
    if EDGE_FEATURES in arrays:
        check.check_edge_features(name, EDGE_FEATURES, arrays[EDGE_FEATURES], len(indices))
    if EDGE_TIME in arrays:
        check.check_edge_times(name, EDGE_TIME, arrays[EDGE_TIME], len(indices))
    if len(labels) != count:
        raise check.reject(
            name,
            "labels",
            f"has {len(labels):,} rows for {count:,} vertices: use one row per vertex",
        )
    check_labels(name, labels)
    if types is not None:
        check_target_labels(name, labels, types)
    if VERTEX_IDS in arrays:
        check.check_permutation(name, VERTEX_IDS, arrays[VERTEX_IDS], count)
        if types is not None:
            check_ids_in_types(name, VERTEX_IDS, arrays[VERTEX_IDS], types)
    for suffix in mask_suffixes(arrays):
        train, val, test = (f"{split}_mask{suffix}" for split in SPLITS)
        check.check_masks(name, (train, val, test), (arrays[train], arrays[val], arrays[test]), labels)
    if types is None:
        _check_features(data, count, features, name, ordered=ordered)
        return
    for vertex_type, table in (data.tables or {}).items():
        _check_features(table, types.count(vertex_type), features, name, ordered=ordered)


def _check_features(data: Dataset, count: int, features: FeatureCheck, source: str, *, ordered: bool) -> None:
    """Check the features of `count` vertices. `source` is the dataset in the convert command that an error
    suggests.
    """
    rows, name = data.rows, data.name
    if rows is None:
        for key in SPARSE_KEYS:
            check_header(name, key, data.arrays[key].dtype, data.arrays[key].shape)
        _check_sparse(name, data.arrays, count, source, ordered=ordered)
        return
    check_header(name, "features", rows.dtype, rows.shape)
    if rows.shape[0] != count:
        raise check.reject(
            name, "features", f"has {rows.shape[0]:,} rows for {count:,} vertices: use one row per vertex"
        )
    if rows.shape[1] == 0:
        raise check.reject(name, "features", "has no columns: add at least one, such as the degree")
    if features == "all" or (features == "small" and not is_large(data)):
        check.check_finite(name, "features", rows.blocks())


def _check_sparse(name: str, arrays: dict[str, Array], count: int, source: str, *, ordered: bool) -> None:
    indptr, columns, values, shape = (arrays[key] for key in SPARSE_KEYS)
    if shape.shape != (2,) or shape[0] != count or shape[1] < 1:
        raise check.reject(
            name,
            "feat_shape",
            f"is {shape[:4].tolist()}, expected [{count}, F] with F at least 1: correct it",
        )
    if len(indptr) != count + 1:
        raise check.reject(
            name,
            "feat_indptr",
            f"has {len(indptr):,} entries for {count:,} vertices: use one entry more than there are vertices",
        )
    check.check_indptr(name, "feat_indptr", indptr, len(columns), "feat_indices")
    width = int(shape[1])
    check.check_columns(
        name, "feat_indices", columns, indptr, width, "columns", ordered=ordered, dataset=source
    )
    if len(values) != len(columns):
        raise check.reject(
            name,
            "feat_values",
            f"has {len(values):,} entries, but 'feat_indices' has {len(columns):,}: use the same number of "
            "entries",
        )
    check.check_finite(name, "feat_values", check.iter_row_blocks(values))


def to_graph(data: Dataset) -> Graph:
    """Build a Graph from a checked dataset. Dense features become one matrix unless they are in several
    files.
    """
    types = types_from_arrays(data.arrays)
    features: RowSource
    if types is None:
        features = make_row_source(data)
    else:
        tables = data.tables or {}
        rows = tuple(make_row_source(tables[name]) if name in tables else None for name in types.vertex_types)
        features = HeteroRows(types, rows)
    graph = build_graph(data.name, data.arrays, features, data.symmetric)
    return replace(graph, names=data.names, scalings=data.scalings)


def make_row_source(data: Dataset) -> RowSource:
    """Return the row source of a homogeneous dataset or of one vertex type."""
    if data.rows is not None:
        return data.rows.source or DenseFeatures(data.rows.whole())
    indptr, columns, values, shape = (data.arrays[key] for key in SPARSE_KEYS)
    return SparseFeatures(indptr, columns, values, int(shape[1]))


def build_graph(name: str, arrays: Mapping[str, Array], features: RowSource, symmetric: bool | None) -> Graph:
    """Build a Graph from checked arrays by schema key; `indices` become int32 if ids fit."""
    indices = arrays["indices"]
    if indices.dtype == np.int64 and len(arrays["indptr"]) - 1 < 2**31:
        indices = indices.astype(np.int32)
    masks = {
        f"{split}{suffix}": arrays[f"{split}_mask{suffix}"].astype(np.bool_, copy=False)
        for suffix in mask_suffixes(arrays)
        for split in SPLITS
    }
    indptr = arrays["indptr"].astype(np.int64, copy=False)
    graph = Graph.from_arrays(
        name,
        indptr,
        indices,
        features,
        arrays["labels"],
        masks,
        arrays.get(VERTEX_IDS),
        arrays.get(EDGE_TYPE),
        arrays.get(EDGE_WEIGHT),
        arrays.get(EDGE_FEATURES),
        arrays.get(EDGE_TIME),
    )
    types = types_from_arrays(arrays)
    if types is not None:
        graph = replace(graph, types=types)
    # Mark the arrays as checked, so that they are not read again when the graph is checked.
    graph.__dict__["was_checked"], graph.topology.__dict__["checked"] = True, graph.topology
    if symmetric is not None:
        # Known from the dataset, so skip the computation.
        graph.topology.__dict__["is_symmetric"] = symmetric
    return graph


def from_graph(graph: Graph) -> Dataset:
    """Return the arrays of a graph by schema key, without copies."""
    arrays: dict[str, Array] = {
        "indptr": graph.topology.indptr,
        "indices": graph.topology.indices,
        "labels": graph.labels,
    }
    for name, mask in graph.masks.items():
        split, _, suffix = name.partition("_")
        arrays[f"{split}_mask{'_' + suffix if suffix else ''}"] = mask
    if graph.vertices.vertex_ids is not None:
        arrays[VERTEX_IDS] = graph.vertices.vertex_ids
    if graph.topology.edge_types is not None:
        arrays[EDGE_TYPE] = graph.topology.edge_types
    if graph.topology.edge_weights is not None:
        arrays[EDGE_WEIGHT] = graph.topology.edge_weights
    if graph.topology.edge_features is not None:
        arrays[EDGE_FEATURES] = graph.topology.edge_features
    if graph.topology.edge_times is not None:
        arrays[EDGE_TIME] = graph.topology.edge_times
    symmetric = graph.topology.__dict__.get("is_symmetric")
    steps, names = graph.scalings, graph.names
    if graph.types is None:
        of_features = _features_of(graph.name, graph.features, graph.num_vertices)
        arrays |= of_features.arrays
        scaling = steps.get("", ())
        return replace(of_features, arrays=arrays, symmetric=symmetric, scaling=scaling, names=names)
    types, rows = graph.types, graph.features
    assert isinstance(rows, HeteroRows)
    tables = {
        name: replace(
            _features_of(feature_table_name(graph.name, name), table, types.count(name)),
            scaling=steps.get(name, ()),
        )
        for name, table in zip(types.vertex_types, rows.tables, strict=True)
        if table is not None
    }
    return Dataset(graph.name, types_to_arrays(types) | arrays, None, symmetric, names=names, tables=tables)


def _features_of(name: str, features: RowSource, count: int) -> Dataset:
    """Return a dataset that has only the feature rows of `count` vertices."""
    if isinstance(features, DenseFeatures):
        return Dataset(name, {}, FeatureRows.from_array(features.values))
    if not isinstance(features, SparseFeatures):
        return Dataset(name, {}, FeatureRows.from_source(features, count))
    shape = np.array([count, features.width], np.int64)
    values = (features.indptr, features.columns, features.values, shape)
    return Dataset(name, dict(zip(SPARSE_KEYS, values, strict=True)), None)
