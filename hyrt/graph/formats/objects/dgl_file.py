"""Files of `dgl.save_graphs` of DGL 0.5 and later, read as plain arrays without dgl."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, system_error_text

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
# A sparse format is a bit flag if the upper half of the number is 1; older files count formats from 1.
_FORMATS = {(1, 1): "coo", (1, 2): "csr", (1, 4): "csc", (0, 1): "coo", (0, 2): "csr", (0, 3): "csc"}
_KINDS = {0: "i", 1: "u", 2: "f"}
_MAX_DIMENSIONS = 8


def is_dgl_file(path: Path) -> bool:
    """Return whether a file starts like a file of `dgl.save_graphs`; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(8) == _FILE.to_bytes(8, "little")
    except OSError:
        return False


def read_dgl_file(path: Path, source: str) -> Any:
    """Read a file's single graph, as an object with the DGL attributes that hyrt uses.

    Raises DataError if the file is damaged or unreadable, has several graphs, or is of an older DGL.
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
            f"{self.source}: damaged at byte {self.at:,} ({reason}): copy it again, or save it again with "
            "dgl.save_graphs"
        )

    def skip_to(self, position: int) -> None:
        if not self.at <= position <= len(self._data):
            raise self.damaged(f"what follows would be at byte {position:,}")
        self.at = position

    def raw(self, count: int) -> bytes:
        if not 0 <= count <= len(self._data) - self.at:
            raise self.damaged(f"{count:,} bytes were announced, and {len(self._data) - self.at:,} are left")
        part = self._data[self.at : self.at + count]
        self.at += count
        return part

    def number(self, num_bytes: int = 8, *, signed: bool = False) -> int:
        return int.from_bytes(self.raw(num_bytes), "little", signed=signed)

    def expect(self, number: int, kind: str) -> None:
        if self.number() != number:
            raise self.damaged(f"this is no {kind}")

    def text(self) -> str:
        try:
            return self.raw(self.number()).decode()
        except UnicodeDecodeError as error:
            raise self.damaged("a name is not text") from error

    def several(self, one: Callable[[], Any]) -> list[Any]:
        """Read a count and call `one` that many times; raise DataError if the count exceeds the file."""
        count = self.number()
        if count > len(self._data):
            raise self.damaged(f"{count:,} entries were announced")
        return [one() for _ in range(count)]

    def tensor(self) -> Array:
        self.expect(_TENSOR, "tensor")
        self.raw(8 + 8)  # Skip reserved bytes and the device, always the CPU.
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
        # Copy, because numbers in the file are not aligned.
        return np.frombuffer(self.raw(num_bytes), dtype).reshape(shape).copy()

    def named_tensors(self) -> dict[str, Array]:
        return dict(self.several(lambda: (self.text(), self.tensor())))


def _graph(saved: _SavedBytes) -> Any:
    """Read the graph of a file with a single graph.

    The file has a header page of numbers, tensors that belong to no graph, then per graph its relations as
    CSR or COO matrices, vertex tensors, edge tensors, and the names of both.
    """
    saved.expect(_FILE, "file of dgl.save_graphs")
    version, kind, count = (saved.number() for _ in range(3))
    if (version, kind) != (_VERSION, _OF_TYPES):
        raise saved.damaged(f"form {kind} of version {version}, and hyrt reads those of DGL 0.5 and later")
    if count != 1:
        raise DataError(
            f"{saved.source} has {count:,} graphs, and hyrt trains on one: save it by itself, "
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
        raise saved.damaged("the numbers of types and relations differ")
    triples = [
        (vertex_types[first], name, vertex_types[last])
        for first, name, last in zip(from_types, edge_types, to_types, strict=True)
    ]
    return _as_dgl(vertex_types, triples, counts, of_vertices, of_edges, ends)


def _meta_graph(saved: _SavedBytes) -> tuple[list[int], list[int]]:
    """Read the source type and the destination type of each relation."""
    saved.expect(_META_GRAPH, "graph of types")
    rows, columns, numbers = _csr(saved)
    order = np.argsort(numbers, kind="stable") if len(numbers) == len(rows) else np.arange(len(rows))
    return rows[order].tolist(), columns[order].tolist()


def _csr(saved: _SavedBytes) -> tuple[Array, Array, Array]:
    """Read a CSR matrix; return the row, column and edge number of each entry."""
    saved.expect(_CSR, "CSR matrix")
    saved.raw(16)
    indptr, columns, numbers = saved.tensor(), saved.tensor(), saved.tensor()
    saved.raw(1)
    lengths = np.diff(indptr)
    if indptr.ndim != 1 or columns.ndim != 1 or (lengths < 0).any() or lengths.sum() != len(columns):
        raise saved.damaged("row pointers do not fit their matrix")
    return np.repeat(np.arange(len(lengths), dtype=np.int64), lengths), columns, numbers


def _relation(saved: _SavedBytes) -> tuple[Array, Array]:
    """Read a relation's sources and destinations, ordered by edge number."""
    saved.expect(_RELATION, "relation")
    code, _ = saved.number(), saved.number()
    form = _FORMATS.get((code >> 32, code & 0xFFFFFFFF))
    if form is None:
        raise saved.damaged(f"a sparse matrix of form {code}")
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
    # Edge tensors are ordered by edge number.
    if numbers.shape != sources.shape or not (np.sort(numbers) == np.arange(len(numbers))).all():
        raise saved.damaged("the numbers of edges do not fit their matrix")
    order = np.argsort(numbers)
    return sources[order], destinations[order]


class _Edges:
    """Stand-in for `g.edges`: a call returns the endpoints, indexing returns the tensors."""

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
