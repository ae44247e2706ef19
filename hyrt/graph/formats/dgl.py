"""DGL graphs, and files of `dgl.save_graphs` (DGL 0.5 and later). Both are read without importing dgl."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, DataWarning, system_error_text, warn_user
from hyrt.graph.check import convert_targets, suggest_name
from hyrt.graph.formats.object_parts import (
    HeteroParts,
    as_array,
    as_edge_features,
    as_mask,
    as_weights,
    build_csr_of_pairs,
    build_hetero_dataset,
    find_csr_order,
)
from hyrt.graph.formats.schema import EDGE_FEATURES, EDGE_TIME, EDGE_WEIGHT, Dataset, FeatureRows
from hyrt.graph.graph import SPLITS
from hyrt.graph.links.edges import TIME_NAMES, TimedEdges, convert_times, order_edge_times
from hyrt.graph.topology import Topology

Array = NDArray[Any]

_FILE = 0xDD2E4FF046B4A13F
_HETERO_GRAPH = 0xDD589FBE35224ABF
_META_GRAPH = 0xDD3C5FFE20046ABF
_RELATION = 0xDD2E60F0F6B4A127
_CSR = 0xDD6CD31205DFF127
_COO = 0xDD61FFD305DFF127
_TENSOR = 0xDD5E40F096B4A13F
_PAGE = 4096
_VERSION, _OF_TYPES = 2, 2
# Sparse formats by code. If the upper half is 1, the lower half is a bit flag; older files count from 1.
_FORMATS = {(1, 1): "coo", (1, 2): "csr", (1, 4): "csc", (0, 1): "coo", (0, 2): "csr", (0, 3): "csc"}
_KINDS = {0: "i", 1: "u", 2: "f"}
_MAX_DIMENSIONS = 8


def is_dgl_file(path: Path) -> bool:
    """Return whether a file begins like one of `dgl.save_graphs`; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(8) == _FILE.to_bytes(8, "little")
    except OSError:
        return False


def read_dgl_file(path: Path, source: str) -> Any:
    """Read the only graph of a file as an object with the DGL attributes that hyrt uses.

    Raises DataError if the file is damaged or unreadable, has several graphs, or was written by an older DGL.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _graph(_SavedBytes(data, source))
    except OSError as error:
        raise DataError(f"{source} cannot be read: {system_error_text(error)}") from error


class _SavedBytes:
    """Reader of consecutive numbers, strings and tensors that never reads beyond the end of the file."""

    def __init__(self, data: mmap.mmap | bytes, source: str) -> None:
        self._data = data
        self.source = source
        self.at = 0

    def damaged(self, reason: str) -> DataError:
        return DataError(
            f"{self.source} is damaged at byte {self.at:,} ({reason}): copy it again, or save it again with "
            "dgl.save_graphs"
        )

    def skip_to(self, position: int) -> None:
        if not self.at <= position <= len(self._data):
            raise self.damaged(f"the next part would start at byte {position:,}")
        self.at = position

    def raw(self, count: int) -> bytes:
        if not 0 <= count <= len(self._data) - self.at:
            raise self.damaged(
                f"{count:,} bytes were announced, but only {len(self._data) - self.at:,} are left"
            )
        part = self._data[self.at : self.at + count]
        self.at += count
        return part

    def number(self, num_bytes: int = 8, *, signed: bool = False) -> int:
        return int.from_bytes(self.raw(num_bytes), "little", signed=signed)

    def expect(self, number: int, kind: str) -> None:
        if self.number() != number:
            raise self.damaged(f"expected a {kind}")

    def text(self) -> str:
        try:
            return self.raw(self.number()).decode()
        except UnicodeDecodeError as error:
            raise self.damaged("a name is not valid UTF-8") from error

    def several(self, one: Callable[[], Any]) -> list[Any]:
        """Read a count, then call `one` that many times; raise DataError if the count exceeds the file."""
        count = self.number()
        if count > len(self._data):
            raise self.damaged(f"{count:,} entries were announced")
        return [one() for _ in range(count)]

    def tensor(self) -> Array:
        self.expect(_TENSOR, "tensor")
        self.raw(8 + 8)  # Skip reserved bytes and the device, which is always the CPU.
        ndim = self.number(4)
        kind, bits, lanes = self.number(1), self.number(1), self.number(2)
        if ndim > _MAX_DIMENSIONS or kind not in _KINDS or bits not in (8, 16, 32, 64) or lanes != 1:
            raise self.damaged(f"a tensor of {ndim} dimensions and kind {kind} with {bits} bits")
        shape = [self.number(signed=True) for _ in range(ndim)]
        num_bytes = self.number(signed=True)
        count = 1
        for length in shape:
            count *= max(length, 0)
        if min(shape, default=0) < 0 or count * (bits // 8) != num_bytes:
            raise self.damaged(f"{num_bytes:,} bytes for a tensor of shape {shape}")
        try:
            dtype = np.dtype(f"<{_KINDS[kind]}{bits // 8}")
        except TypeError as error:
            raise self.damaged(f"a tensor of kind {kind} with {bits} bits") from error
        # Copy the array, because numbers in the file are not aligned.
        return np.frombuffer(self.raw(num_bytes), dtype).reshape(shape).copy()

    def named_tensors(self) -> dict[str, Array]:
        return dict(self.several(lambda: (self.text(), self.tensor())))


def _graph(saved: _SavedBytes) -> Any:
    """Read the graph of a file that has a single graph.

    The file has a header page of numbers and tensors that belong to no graph. Then follow, for each graph,
    its relations as CSR or COO matrices, vertex tensors, edge tensors, and the names of both.
    """
    saved.expect(_FILE, "file of dgl.save_graphs")
    version, kind, count = (saved.number() for _ in range(3))
    if (version, kind) != (_VERSION, _OF_TYPES):
        raise saved.damaged(
            f"format {kind}, version {version}, but hyrt reads only files of DGL 0.5 and later"
        )
    if count != 1:
        raise DataError(
            f"{saved.source} has {count:,} graphs, but hyrt trains on one: save one graph with "
            "dgl.save_graphs(path, [g])"
        )
    saved.skip_to(_PAGE)
    saved.skip_to(saved.number())
    saved.expect(_HETERO_GRAPH, "graph")
    from_types, to_types = _meta_graph(saved)
    ends = saved.several(lambda: _relation(saved))
    counts = saved.several(lambda: saved.number(signed=True))
    of_vertices = saved.several(saved.named_tensors)
    of_edges = saved.several(saved.named_tensors)
    vertex_types = saved.several(saved.text)
    edge_types = saved.several(saved.text)
    sizes = {len(counts), len(of_vertices), len(vertex_types)}
    relations = {len(ends), len(of_edges), len(edge_types), len(from_types)}
    highest, lowest = max([*from_types, *to_types], default=-1), min([*from_types, *to_types], default=0)
    if len(sizes) != 1 or len(relations) != 1 or highest >= len(counts) or lowest < 0:
        raise saved.damaged("the counts of types and relations are inconsistent")
    triples = [
        (vertex_types[first], name, vertex_types[last])
        for first, name, last in zip(from_types, edge_types, to_types, strict=True)
    ]
    return _as_dgl(vertex_types, triples, counts, of_vertices, of_edges, ends)


def _meta_graph(saved: _SavedBytes) -> tuple[list[int], list[int]]:
    """Read the source and destination types of all relations."""
    saved.expect(_META_GRAPH, "type graph")
    rows, columns, numbers = _csr(saved)
    order = np.argsort(numbers, kind="stable") if len(numbers) == len(rows) else np.arange(len(rows))
    return rows[order].tolist(), columns[order].tolist()


def _csr(saved: _SavedBytes) -> tuple[Array, Array, Array]:
    """Read a CSR matrix; return row, column and edge number of each entry."""
    saved.expect(_CSR, "CSR matrix")
    saved.raw(16)
    indptr, columns, numbers = saved.tensor(), saved.tensor(), saved.tensor()
    saved.raw(1)
    lengths = np.diff(indptr)
    if indptr.ndim != 1 or columns.ndim != 1 or (lengths < 0).any() or lengths.sum() != len(columns):
        raise saved.damaged("row pointers do not match their matrix")
    return np.repeat(np.arange(len(lengths), dtype=np.int64), lengths), columns, numbers


def _relation(saved: _SavedBytes) -> tuple[Array, Array]:
    """Read the sources and destinations of a relation in the order of edge numbers."""
    saved.expect(_RELATION, "relation")
    code, _ = saved.number(), saved.number()
    form = _FORMATS.get((code >> 32, code & 0xFFFFFFFF))
    if form is None:
        raise saved.damaged(f"unknown sparse format {code}")
    _meta_graph(saved)
    if form == "coo":
        saved.expect(_COO, "COO matrix")
        saved.raw(16)
        sources, destinations, numbers = saved.tensor(), saved.tensor(), saved.tensor()
        saved.raw(2)
    else:
        rows, columns, numbers = _csr(saved)
        sources, destinations = (columns, rows) if form == "csc" else (rows, columns)
    if not len(numbers):
        return sources, destinations
    # Edge tensors are in the order of edge numbers.
    if numbers.shape != sources.shape or not (np.sort(numbers) == np.arange(len(numbers))).all():
        raise saved.damaged("edge numbers do not match their matrix")
    order = np.argsort(numbers)
    return sources[order], destinations[order]


class _Edges:
    """Replacement of `g.edges`: a call returns the endpoints, and indexing returns the tensors."""

    def __init__(self, ends: dict[Any, tuple[Array, Array]], data: dict[Any, dict[str, Array]]) -> None:
        self._ends = ends
        self._data = data

    def __call__(self, etype: Any = None) -> tuple[Array, Array]:
        return self._ends[etype if etype is not None else next(iter(self._ends))]

    def __getitem__(self, etype: Any) -> Any:
        return SimpleNamespace(data=self._data[etype])


def _as_dgl(
    vertex_types: list[str],
    triples: list[tuple[str, str, str]],
    counts: list[int],
    of_vertices: list[dict[str, Array]],
    of_edges: list[dict[str, Array]],
    ends: list[tuple[Array, Array]],
) -> Any:
    one = len(vertex_types) == 1 and len(triples) == 1
    return SimpleNamespace(
        ndata=of_vertices[0] if one else {},
        edata=of_edges[0] if one else {},
        ntypes=vertex_types,
        etypes=[triple[1] for triple in triples],
        canonical_etypes=triples,
        nodes={
            name: SimpleNamespace(data=data) for name, data in zip(vertex_types, of_vertices, strict=True)
        },
        num_nodes=dict(zip(vertex_types, counts, strict=True)).__getitem__,
        edges=_Edges(dict(zip(triples, ends, strict=True)), dict(zip(triples, of_edges, strict=True))),
        is_block=False,
    )


_READ = ("feat", "label", *(f"{split}_mask" for split in SPLITS))
# Keys that DGL adds to subgraphs, with the vertex and edge ids of the parent graph.
_SUBGRAPH_KEYS = ("_ID", "_TYPE")
WEIGHT_NAMES = ("weight", "w", "edge_weight")
_FEATURES = "feat"


def read_heterograph(graph: Any, name: str) -> Dataset:
    """Build a dataset from a DGL graph with several types of vertices or edges.

    Vertex types have features `feat` (a model learns embeddings for types without them), and one type has
    `label` and the three masks. For relations, `weight` (or `w`, or `edge_weight`) is the edge weight, `feat`
    are the edge features, and `edge_time` (or `time`, or `timestamp`) is the edge time. Edges stay directed.
    Equal edges are merged: their weights are summed, and the earliest time is used.

    Raises DataError if something is missing or malformed, or if other edge values would be ignored.
    """
    counts: dict[str, int] = {}
    features: dict[str, Array] = {}
    labels: dict[str, Array] = {}
    masks: dict[str, dict[str, Array]] = {}
    for vertex_type in graph.ntypes:
        data = graph.nodes[vertex_type].data
        location = f"g.nodes['{vertex_type}'].data"
        for key in data:
            if key not in _READ and key not in _SUBGRAPH_KEYS:
                hint = suggest_name(key, _READ, cutoff=0.75)
                warn_user(f"{name}: {location}[{key!r}] is not read{hint}", DataWarning)
        counts[vertex_type] = int(graph.num_nodes(vertex_type))
        if "feat" in data:
            features[vertex_type] = as_array(data["feat"], f"{name}: {location}['feat']")
        if "label" in data:
            labels[vertex_type] = as_array(data["label"], f"{name}: {location}['label']")
        masks[vertex_type] = {
            split: as_mask(as_array(data[f"{split}_mask"], label), label)
            for split in SPLITS
            for label in (f"{name}: {location}['{split}_mask']",)
            if f"{split}_mask" in data
        }
    edges: dict[tuple[str, str, str], tuple[Array, Array]] = {}
    weights: dict[tuple[str, str, str], Array] = {}
    of_relations: dict[tuple[str, str, str], Array] = {}
    times: dict[tuple[str, str, str], Array] = {}
    for triple in graph.canonical_etypes:
        data = graph.edges[triple].data
        location = f"g.edges[{', '.join(map(repr, triple))}].data"
        time = [key for key in TIME_NAMES if key in data][:1]
        of_edges = sorted(
            (key for key in data if key not in (*_SUBGRAPH_KEYS, *time)),
            key=lambda key: key not in WEIGHT_NAMES,
        )
        # Only the first weight is read. Other weights would be ignored.
        read = [key for i, key in enumerate(of_edges) if key == _FEATURES or (not i and key in WEIGHT_NAMES)]
        dropped = [key for key in of_edges if key not in read]
        if dropped:
            raise DataError(
                f"{name}: hyrt cannot use {location}[{dropped[0]!r}], because it reads only one edge weight "
                "(weight, w or edge_weight), feat and one time: to train without it, run "
                f"`{location}.pop({dropped[0]!r})`"
            )
        sources, destinations = (as_array(ends, f"{name}: {location}") for ends in graph.edges(etype=triple))
        edges[tuple(triple)] = (sources, destinations)
        for key in read:
            target, made = (of_relations, as_edge_features) if key == _FEATURES else (weights, as_weights)
            remedy = f"`{location}.pop({key!r})`"
            label = f"{name}: {location}[{key!r}]"
            target[tuple(triple)] = made(as_array(data[key], label), len(sources), label, remedy)
        for key in time:
            label, remedy = f"{name}: {location}[{key!r}]", f"`{location}.pop({key!r})`"
            times[tuple(triple)] = convert_times(as_array(data[key], label), len(sources), label, remedy)
    return build_hetero_dataset(
        HeteroParts(
            name,
            counts,
            features,
            labels,
            masks,
            edges,
            weights,
            of_relations,
            "g.nodes['{}'].data['label']",
            "g.nodes['{}'].data['{}_mask']",
            times,
        )
    )


NAME = "DGL graph"


def is_dgl(source: Any) -> bool:
    """Return whether an object looks like a DGL graph."""
    return hasattr(source, "ndata") and hasattr(source, "edata")


def read_dgl(graph: Any, name: str = NAME) -> Dataset:
    """Build a dataset from a DGL graph with `feat`, `label` and the three masks in `ndata`.

    In `edata`, `weight` (or `w`, or `edge_weight`) is the edge weight, and `feat` [E, d] are the edge
    features; with one of these, duplicate edges are an error. `edge_time` (or `time`, or `timestamp`) is the
    edge time; equal edges get the earliest time.

    Edges stay directed, and equal edges are merged. Labels are converted by `convert_targets`, and features
    other than float16 to float32. Graphs with several vertex or edge types are read by `read_heterograph`.
    Raises DataError if something is missing or malformed, or if other edge values would be ignored.
    """
    if getattr(graph, "is_block", False):
        raise DataError(f"{name} is a block of a mini-batch: use the whole graph, which hyrt samples itself")
    vertex_types, edge_types = (list(getattr(graph, key, [None])) for key in ("ntypes", "etypes"))
    if len(vertex_types) != 1 or len(edge_types) != 1:
        return read_heterograph(graph, name)
    weights, time = ([key for key in names if key in graph.edata][:1] for names in (WEIGHT_NAMES, TIME_NAMES))
    for key in graph.edata:
        if key not in (*weights, *time, _FEATURES, *_SUBGRAPH_KEYS):
            raise DataError(
                f"{name}: hyrt cannot use edata[{key!r}], because it reads only one edge weight (weight, w "
                f"or edge_weight), feat and one time: to train without it, run `g.edata.pop({key!r})`"
            )
    masks = tuple(f"{split}_mask" for split in SPLITS)
    is_bare = not any(key in graph.ndata for key in masks)
    read = [key for key in _READ if key in graph.ndata or not is_bare]
    arrays = {key: _array(graph.ndata, key, name) for key in read}
    for key in graph.ndata:
        if key not in _READ and key not in _SUBGRAPH_KEYS:
            warn_user(
                f"{name}: ndata[{key!r}] is not read{suggest_name(key, _READ, cutoff=0.75)}", DataWarning
            )
    count = len(arrays["feat"]) if "feat" in arrays else int(graph.num_nodes(vertex_types[0]))
    x, y = arrays.get("feat"), arrays.get("label", np.full(count, -1, np.int8))
    if x is not None and x.ndim != 2:
        raise DataError(f"{name}: ndata['feat'] has shape {list(x.shape)}, expected [V, F]: reshape it")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim not in (1, 2):
        raise DataError(
            f"{name}: ndata['label'] has shape {list(y.shape)}, expected [V] or [V, K]: reshape it"
        )
    sources, destinations = (as_array(ends, f"{name}: edges") for ends in graph.edges())
    indptr, indices = build_csr_of_pairs(sources, destinations, count, name)
    edge_data = {key: graph.edata[key] for key in graph.edata if key not in (*_SUBGRAPH_KEYS, *time)}
    of_edges = _read_edge_data(edge_data, (sources, destinations), len(indices), name)
    left_out = len(sources) - len(indices)
    if left_out:
        warn_user(
            f"{name}: {left_out:,} of {len(sources):,} edges are duplicates and were merged",
            DataWarning,
        )
    dataset: dict[str, Array] = {
        "indptr": indptr,
        "indices": indices,
        "labels": convert_targets(y, name, "label"),
    }
    dataset |= of_edges
    for key in time:
        location, remedy = f"{name}: edata[{key!r}]", f"`g.edata.pop({key!r})`"
        times = convert_times(as_array(graph.edata[key], location), len(sources), location, remedy)
        listed_edges = [TimedEdges(np.stack([sources, destinations], axis=1), times)]
        dataset[EDGE_TIME] = order_edge_times(Topology(indptr, indices), listed_edges, times.dtype)
    dataset |= {
        key: as_mask(arrays[key], f"{name}: ndata[{key!r}]") for key in arrays if key.endswith("_mask")
    }
    if is_bare:
        dataset |= {key: np.zeros(count, np.bool_) for key in masks}
        if "label" in arrays:
            warn_user(
                f"{name} has no masks, so vertices are in no split and only links can be "
                f"predicted{_remedy(masks[0])}",
                DataWarning,
            )
    if x is None:
        warn_user(
            f"{name} has no ndata['feat']: using the logarithm of each vertex's degree as its feature",
            DataWarning,
        )
        x = np.log1p(np.diff(indptr))[:, None]
    if x.dtype != np.float16:
        x = x.astype(np.float32, copy=False)
    return Dataset(name, dataset, FeatureRows.from_array(np.ascontiguousarray(x)))


def _read_edge_data(
    edge_data: Mapping[str, Any], pairs: tuple[Array, Array], num_edges: int, name: str
) -> dict[str, Array]:
    """Return edge weights and features by schema key, in the order of rows."""
    values_by_key: dict[str, Array] = {}
    if not edge_data:
        return values_by_key
    remedy = "dgl.to_simple(g, copy_edata=True, aggregator='sum')"
    order = find_csr_order(*pairs, num_edges, name, f"edata[{next(iter(edge_data))!r}]", remedy)
    for key, tensor in edge_data.items():
        location, values = f"edata[{key!r}]", as_array(tensor, f"{name}: edata[{key!r}]")
        if key != _FEATURES:
            remedy_without = f"`g.edata.pop({key!r})`"
            weights = as_weights(values, len(pairs[0]), f"{name}: {location}", remedy_without)
            values_by_key[EDGE_WEIGHT] = weights[order]
            continue
        if values.ndim > 2 or len(values) != len(pairs[0]) or values.dtype.kind not in "iufb":
            raise DataError(
                f"{name}: {location} is {values.dtype.name} of shape {list(values.shape)}, expected numbers "
                f"[{len(pairs[0])}, d]: convert it"
            )
        values_by_key[EDGE_FEATURES] = np.ascontiguousarray(
            values.reshape(len(values), -1)[order], np.float32
        )
    return values_by_key


def _array(data: Mapping[str, Any], key: str, name: str) -> Array:
    if key not in data:
        raise DataError(f"{name}: ndata[{key!r}] is missing{suggest_name(key, data) or _remedy(key)}")
    return as_array(data[key], f"{name}: ndata[{key!r}]")


def _remedy(key: str) -> str:
    """Return an instruction for adding a missing key."""
    if not key.endswith("_mask"):
        return f": set g.ndata[{key!r}] = ..."
    return (
        ": create masks with dgl.data.utils.add_nodepred_split(dataset, (0.6, 0.2, 0.2)), or set "
        f"g.ndata[{key!r}] to a bool for each vertex"
    )
