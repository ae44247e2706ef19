"""Partitioning of a graph, and atomic writing of its parts in bounded memory."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, join_names
from hyrt.formatting import format_bytes, pluralize
from hyrt.graph.formats.convert import check_on_read, memory_bound
from hyrt.graph.formats.npy import NpyChecksums, NpyWriter, evict_from_page_cache, write_blocks, write_npy
from hyrt.graph.formats.schema import (
    EDGE_FEATURES,
    EDGE_TYPE,
    EDGE_WEIGHT,
    SPARSE_KEYS,
    Dataset,
    FeatureRows,
)
from hyrt.graph.metadata import save_names
from hyrt.graph.normalize import NORMALIZERS, are_bags_of_words, normalize_features
from hyrt.graph.partition.manifest import (
    GRAPH,
    MANIFEST,
    MAX_PARTS,
    EdgeLayout,
    FeatureFormat,
    PartitionManifest,
    choose_part_dtype,
    count_part_sizes,
    is_partition,
    part_folder_name,
    write_manifest,
)
from hyrt.graph.partition.method import PartBounds
from hyrt.graph.partition.partitioned_rows import (
    ENTRIES,
    ENTRY_BYTES,
    build_indptr,
    group_by_part,
    iter_part_rows,
    iter_row_entries,
)
from hyrt.graph.partition.read_parts import EDGE_KEYS, PART_IDS_KEY, VERTICES_KEY
from hyrt.graph.partition.registry import get_partition_method
from hyrt.graph.source import open_dataset
from hyrt.graph.topology import Topology
from hyrt.runtime.files import atomic_output
from hyrt.runtime.hardware import available_cores
from hyrt.runtime.workers import Workers, use_workers

Array = NDArray[Any]

# Maximum number of files to write at once, because many systems limit a process to 1024 open files.
_OPEN_FILES = 256
# Minimum imbalance, because METIS expects it in thousandths.
MIN_IMBALANCE = 0.001
# Memory per vertex for the part indices, their sorted order, local indices and counts, in bytes.
_VERTEX_BYTES = 64


@dataclass(frozen=True, slots=True)
class PartitionJob:
    """Source, settings and destination of a partitioning job."""

    source: str
    """Source of the dataset, as for `open_graph`."""
    destination: Path
    num_parts: int
    """Number of parts, from 1 to 1024."""
    method: str = "metis"
    """Name of the partition method."""
    seed: int = 0
    topology: EdgeLayout = "replicated"
    """Layout of edges: `replicated` writes all edges once for all ranks, `split` each part's in-edges."""
    normalize: str = "none"
    """Normalization, as for `open_graph`."""
    imbalance: float | None = None
    """Maximum excess of a part's weight relative to the mean; None for the default of the method."""
    max_vertices: int | None = None
    """Maximum number of vertices per part; None for no bound."""
    force: bool = False
    """Whether to replace an existing partition at the destination."""


def write_parts(job: PartitionJob, report: Callable[[str], None] = lambda line: None) -> PartitionManifest:
    """Partition a graph and write its parts. The folder is complete or does not appear, even after Ctrl-C.

    `report` gets lines about memory and about the result of the method. Raises DataError if the input is
    invalid, if there are more parts than vertices, if the destination exists (with `force`: if it is not a
    partition) or cannot be written, or if the method fails.
    """
    destination = job.destination.absolute()
    if not 1 <= job.num_parts <= MAX_PARTS:
        raise DataError(f"--parts {job.num_parts} is out of range: use 1 to {MAX_PARTS:,}")
    if job.topology not in get_args(EdgeLayout):
        raise DataError(
            f"--topology {job.topology} is unknown: choose {join_names(get_args(EdgeLayout), 'or')}"
        )
    if job.normalize not in NORMALIZERS:
        raise DataError(f"--normalize {job.normalize} is unknown: choose {join_names(NORMALIZERS, 'or')}")
    method = get_partition_method(job.method)
    if job.imbalance is not None:
        if method.imbalance is None:
            raise DataError(
                f"--imbalance has no effect, because --method {job.method} does not weigh parts: remove it, "
                "or choose metis or volume"
            )
        if not MIN_IMBALANCE <= job.imbalance <= 1:
            raise DataError(f"--imbalance {job.imbalance} is out of range: use {MIN_IMBALANCE} to 1")
    if job.max_vertices is not None and not method.bounds_vertices:
        raise DataError(
            f"--max-vertices has no effect with --method {job.method}, which limits the weight of each "
            "part, but not its number of vertices: use --method volume, which limits both, or --method "
            "random or block, whose parts have equal sizes"
        )
    _check_destination(destination, force=job.force)
    bound = memory_bound(job.source)
    if bound is not None:
        report(f"memory: at most {format_bytes(bound)} to read, not counting the interpreter")
    with atomic_output(destination, "parts") as (result, scratch):
        data = open_dataset(job.source, scratch)
        if data.tables is not None:
            raise DataError(
                f"{data.name} is heterogeneous, which hyrt partition does not support yet: use "
                "the whole dataset on every rank, as a folder, which is memory-mapped"
            )
        values = map(data.arrays.get, (EDGE_TYPE, EDGE_WEIGHT, EDGE_FEATURES))
        topology = Topology(data.arrays["indptr"], data.arrays["indices"], *values)
        count = topology.num_vertices
        if job.num_parts > count:
            raise DataError(
                f"{data.name} has {pluralize(count, 'vertex', 'vertices')}, but --parts {job.num_parts} "
                "needs at least one for each part: use fewer parts"
            )
        if job.max_vertices is not None and job.max_vertices * job.num_parts < count:
            raise DataError(
                f"--max-vertices {job.max_vertices} is too small, because {pluralize(job.num_parts, 'part')} "
                f"of this size cannot contain the {pluralize(count, 'vertex', 'vertices')} of {data.name}: "
                f"use at least {-(-count // job.num_parts)}"
            )
        more = method.memory_bytes(count, topology.num_edges) + _VERTEX_BYTES * count
        report(f"memory: at most {format_bytes(more + ENTRIES * ENTRY_BYTES)} more to partition the graph")
        with Workers(available_cores(), "partition") as workers, use_workers(workers):
            symmetric = topology.is_symmetric if data.symmetric is None else data.symmetric
        topology.__dict__["is_symmetric"] = symmetric
        training = data.arrays["train_mask"]
        training = training[:, 0] if training.ndim == 2 else training
        bounds = PartBounds(job.imbalance, job.max_vertices)
        found = method.homes(topology, training, job.num_parts, job.seed, bounds, report)
        homes = found.astype(choose_part_dtype(job.num_parts))
        normalized = normalize_features(check_on_read(data), job.normalize)
        result.mkdir()
        manifest = _written(job, check_on_read(normalized), topology, training, homes, result)
        save_names(normalized.names, normalized.scalings, result / GRAPH, scratch)
        write_manifest(manifest, result)
    return manifest


def _check_destination(destination: Path, *, force: bool) -> None:
    if not destination.parent.is_dir():
        raise DataError(
            f"{destination} cannot be written, because the folder {destination.parent} does not exist: "
            "create it"
        )
    if not destination.exists():
        return
    if not force:
        raise DataError(f"{destination} already exists: choose another name, or use --force to replace it")
    # The old folder will be deleted, so it must be a partition.
    ours = {MANIFEST, GRAPH, *map(part_folder_name, range(MAX_PARTS))}
    if not is_partition(destination) or any(file.name not in ours for file in destination.iterdir()):
        raise DataError(
            f"{destination} contains files other than graph parts, so --force does not replace it: choose "
            "another name"
        )


def _written(
    job: PartitionJob, data: Dataset, topology: Topology, training: Array, homes: Array, folder: Path
) -> PartitionManifest:
    """Write all files except the manifest."""
    order, bounds = group_by_part(homes, job.num_parts)
    members = [order[first:last] for first, last in itertools.pairwise(bounds)]
    files = dict(_shared(data, homes, folder, whole=job.topology == "replicated"))
    ids = np.int32 if len(homes) < 2**31 else np.int64
    for number, vertices in enumerate(members):
        part = part_folder_name(number)
        (folder / part).mkdir()
        path = f"{part}/{VERTICES_KEY}.npy"
        files[path] = write_npy(folder / path, vertices.astype(ids))
        if job.topology == "split":
            edges = {key: data.arrays[key] for key in EDGE_KEYS if key in data.arrays}
            files |= _rows_of(topology.indptr, edges, "indptr", vertices, folder, part)
        if data.rows is None:
            indptr, columns, values, _ = (data.arrays[key] for key in SPARSE_KEYS)
            entries = dict(zip(SPARSE_KEYS[1:3], (columns, values), strict=True))
            files |= _rows_of(indptr, entries, SPARSE_KEYS[0], vertices, folder, part)
    if data.rows is not None:
        for first in range(0, job.num_parts, _OPEN_FILES):
            served = range(first, min(first + _OPEN_FILES, job.num_parts))
            files |= _dense(data.rows, homes, job.num_parts, served, folder)
    sizes = count_part_sizes(topology.indptr, topology.indices, training, homes, job.num_parts, ENTRIES)
    cut = sum(part.cut for part in sizes)
    return PartitionManifest(
        source=data.name,
        normalize=data.normalization,
        method=job.method,
        seed=job.seed,
        topology=job.topology,
        vertices=topology.num_vertices,
        edges=topology.num_edges,
        features=_form(data),
        symmetric=topology.is_symmetric,
        edges_checksum=topology.checksum,
        parts=sizes,
        cut=cut,
        locality=1 - cut / topology.num_edges if topology.num_edges else 1.0,
        files=dict(sorted(files.items())),
    ).with_id()


def _form(data: Dataset) -> FeatureFormat:
    if data.rows is not None:
        width, dtype = data.rows.shape[1], data.rows.dtype.name
        return FeatureFormat(kind="dense", width=width, dtype=dtype, bags_of_words=False)
    values, shape = data.arrays["feat_values"], data.arrays["feat_shape"]
    bags = are_bags_of_words(values)
    return FeatureFormat(kind="sparse", width=int(shape[1]), dtype=values.dtype.name, bags_of_words=bags)


def _shared(data: Dataset, homes: Array, folder: Path, *, whole: bool) -> Iterator[tuple[str, NpyChecksums]]:
    """Write the files that every rank reads."""
    (folder / GRAPH).mkdir()
    apart = {*SPARSE_KEYS, *(() if whole else ("indptr", *EDGE_KEYS))}
    arrays = {key: array for key, array in data.arrays.items() if key not in apart}
    for key, array in (arrays | {PART_IDS_KEY: homes}).items():
        path = f"{GRAPH}/{key}.npy"
        yield path, write_npy(folder / path, array)


def _rows_of(
    indptr: Array, entries: dict[str, Array], pointer: str, vertices: Array, folder: Path, part: str
) -> dict[str, NpyChecksums]:
    """Write the CSR rows of a part's vertices: row pointers, and a file of entries for each key."""
    starts = build_indptr(indptr[vertices + 1] - indptr[vertices])
    files = {f"{part}/{pointer}.npy": write_npy(folder / part / f"{pointer}.npy", starts)}
    for key, values in entries.items():
        taken = (values[positions] for _, positions in iter_row_entries(indptr, vertices))
        path = f"{part}/{key}.npy"
        files[path] = write_blocks(folder / path, values.dtype, (), taken)
    return files


def _dense(
    rows: FeatureRows, homes: Array, num_parts: int, served: range, folder: Path
) -> dict[str, NpyChecksums]:
    """Write the dense rows of some parts in one pass over all rows."""
    paths = {number: f"{part_folder_name(number)}/features.npy" for number in served}
    with contextlib.ExitStack() as stack:
        writers = {
            number: stack.enter_context(NpyWriter(folder / path, rows.dtype, rows.shape[1:]))
            for number, path in paths.items()
        }
        for number, taken in iter_part_rows(rows.blocks(), homes, num_parts, served):
            writers[number].append(taken)
    for path in paths.values():
        evict_from_page_cache(folder / path)
    return {path: NpyChecksums.from_writer(writers[number]) for number, path in paths.items()}
