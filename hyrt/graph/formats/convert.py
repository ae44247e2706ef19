"""Conversion of any source to a dataset file or folder, block by block and atomically."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, join_names
from hyrt.formatting import format_bytes
from hyrt.graph.bundled import resolve_source
from hyrt.graph.check import iter_finite_blocks, reject
from hyrt.graph.csr import RANGE_ENTRIES as CSR_ENTRIES
from hyrt.graph.formats.dataset_files import META, NpzMember, member_sizes, write_folder, write_npz
from hyrt.graph.formats.dgl import is_dgl_file
from hyrt.graph.formats.npy import CHUNK_BYTES, map_npy
from hyrt.graph.formats.ogb_dataset import HETERO_SUFFIX, count_vertices
from hyrt.graph.formats.ogb_files import find_ogb_folder
from hyrt.graph.formats.reorder import (
    ENTRY_BYTES,
    POINTERS,
    RANGE_ENTRIES,
    check_order,
    find_order,
    order_bytes,
    reorder_vertices,
)
from hyrt.graph.formats.schema import EDGE_WEIGHT, Dataset, FeatureRows, feature_tables
from hyrt.graph.hetero.dataset import BUILD_ENTRIES, add_reverse_to_dataset, build_bytes
from hyrt.graph.hetero.graph_types import strip_type
from hyrt.graph.metadata import NAME_FILES, save_names
from hyrt.graph.normalize import NORMALIZERS, normalize_features
from hyrt.graph.quantized.row_format import FLOAT16, FLOAT32, ROW_FORMATS, RowFormat
from hyrt.graph.quantized.rows import Quantizer, compute_column_scales
from hyrt.graph.source import SYNTHETIC, open_dataset
from hyrt.runtime.files import atomic_output

Array = NDArray[Any]

ROUNDINGS = ("nearest", "stochastic")
_BLOCKS_BYTES = 12 * CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class Conversion:
    """Parameters of a dataset conversion."""

    source: Any
    """Source, as for `open_graph`."""
    destination: Path
    """Path of the new `.npz` file, or of a folder if its name does not end in `.npz`."""
    feature_dtype: str | None = None
    """Format of dense features, one of `ROW_FORMATS`; None for the format of the source."""
    rounding: str = "nearest"
    """Rounding to int8: `nearest` or `stochastic`."""
    seed: int | None = None
    """Seed of stochastic rounding; None for 0."""
    normalize: str = "none"
    """Normalization, as for `open_graph`."""
    force: bool = False
    """Whether to replace an existing dataset at the destination."""
    reverse: bool = False
    """Whether to add reverse relations; see `hyrt.graph.hetero.dataset.add_reverse_relations`."""
    sort: bool = False
    unique: bool = False
    """Whether to merge equal edges; `sort` sorts rows (see `hyrt.graph.formats.reorder.order_rows`)."""
    order: str | None = None
    """Name of a vertex order for `hyrt.graph.formats.reorder.find_order`; None for the source's order."""


def convert(job: Conversion, report: Callable[[str], None] = lambda line: None) -> None:
    """Convert a source to a dataset; the destination appears complete or not at all, even after Ctrl-C.

    Before the work starts, `report` is called with a line about the required memory. Raises DataError if the
    input is invalid, if the destination exists (with `force`: if it is not a dataset) or cannot be written,
    or if a value does not fit the dtype.
    """
    destination = job.destination.absolute()
    if job.feature_dtype is not None and job.feature_dtype not in ROW_FORMATS:
        raise DataError(
            f"--feature-dtype {job.feature_dtype} is unknown: use {join_names(ROW_FORMATS, 'or')}"
        )
    if job.rounding not in ROUNDINGS:
        raise DataError(f"--rounding {job.rounding} is unknown: use {join_names(ROUNDINGS, 'or')}")
    if job.rounding == "stochastic" and not (job.feature_dtype or "").startswith("int8"):
        raise DataError(
            "--rounding stochastic applies only to int8 features: set --feature-dtype to int8 or "
            "int8-columns, or remove --rounding"
        )
    if job.seed is not None and job.rounding != "stochastic":
        raise DataError("--seed applies only to --rounding stochastic: use both, or remove --seed")
    if job.normalize not in NORMALIZERS:
        raise DataError(f"--normalize {job.normalize} is unknown: use {join_names(NORMALIZERS, 'or')}")
    check_destination(destination, job.force)
    if job.order is not None:
        check_order(job.order)
    bound = memory_bound(job.source, reorder=job.sort or job.unique)
    if bound is not None:
        report(f"memory: at most {format_bytes(bound)}, not counting the interpreter")
    with atomic_output(destination, "dataset") as (result, scratch):
        data = open_dataset(job.source, scratch, sort=job.sort, unique=job.unique)
        formats = {table.name: _row_format(table, job) for table in feature_tables(data).values()}
        if job.reverse:
            report(f"reverse: at most {format_bytes(_reversing_bytes(data))} more")
            data = add_reverse_to_dataset(data, _folder(scratch, "reverse"))
        if job.order is not None:
            report(f"order: at most {format_bytes(order_bytes(data, job.order))} more")
            data = reorder_vertices(data, find_order(data, job.order), scratch)
        data = check_on_read(normalize_features(check_on_read(data), job.normalize))
        seed = (job.seed or 0) if job.rounding == "stochastic" else None
        if job.feature_dtype is not None and not any(table.rows for table in feature_tables(data).values()):
            raise DataError(f"{data.name}: sparse features are always float32: remove --feature-dtype")
        data = data.with_features(lambda table: _in_format(table, formats[table.name], seed))
        write_dataset(data, destination, result)
        save_names(data.names, data.scalings, result, scratch)


def _folder(scratch: Path, name: str) -> Path:
    folder = scratch / name
    folder.mkdir()
    return folder


def _reversing_bytes(data: Dataset) -> int:
    """Return an upper bound of the memory for reversing relations, in bytes."""
    entries = build_bytes(2 * len(data.arrays["indices"]), weighted=EDGE_WEIGHT in data.arrays)
    return 40 * len(data.arrays["indptr"]) + entries + _BLOCKS_BYTES


def _row_format(table: Dataset, job: Conversion) -> RowFormat | None:
    """Return the requested format of dense features, which is their stored format by default."""
    quantized = None if table.rows is None else table.rows.quantized
    if job.feature_dtype is not None:
        return ROW_FORMATS[job.feature_dtype]
    return None if quantized is None else quantized.format


def write_dataset(data: Dataset, destination: Path, result: Path) -> None:
    """Write a dataset to `result`, as a file or a folder depending on the name of `destination`."""
    if destination.suffix == ".npz":
        write_npz(data, result)
    else:
        result.mkdir()
        write_folder(data, result)


def check_destination(destination: Path, force: bool) -> None:
    """Raise DataError if no dataset may be written to an absolute path. `force` permits the replacement of a
    dataset.
    """
    if destination.name == "-":
        raise DataError(
            "-: hyrt cannot write a dataset to standard output: use the name of a file or a folder"
        )
    # A folder name may contain a version number, such as products-v1.2.
    if destination.suffix[1:2].isalpha() and destination.suffix != ".npz" and not destination.is_dir():
        raise DataError(
            f"{destination}: hyrt writes .npz files and folders of .npy files: use a name that ends in "
            f".npz, or one without {destination.suffix!r} for a folder"
        )
    if not destination.parent.is_dir():
        raise DataError(f"{destination}: the folder {destination.parent} does not exist: create it")
    if not destination.exists():
        return
    # The old destination will be deleted, so it must be a dataset.
    if destination.is_dir():
        files = list(destination.iterdir())
        is_dataset = all(file.suffix == ".npy" or file.name in (META, *NAME_FILES) for file in files)
    else:
        is_dataset = destination.suffix == ".npz"
    if not is_dataset:
        raise DataError(
            f"{destination} already exists and is not a dataset, and --force replaces only datasets: choose "
            "another name"
        )
    if not force:
        raise DataError(f"{destination} already exists: choose another name, or use --force to replace it")


def memory_bound(source: Any, *, reorder: bool = False) -> int | None:
    """Return an upper bound of the memory for converting a source, in bytes, without the memory of the
    interpreter.

    The result is None for sources that must be downloaded first, are not datasets, or are graphs in memory.
    Mapped files do not count, because the operating system can evict their pages. `reorder` is whether the
    rows of a file or folder are sorted or deduplicated. Raises DataError for an invalid source.
    """
    if not isinstance(source, str | Path):
        return None
    source = str(source)
    if source.startswith(SYNTHETIC):
        from hyrt.graph.synthetic import parse_spec

        spec = parse_spec(source)
        if spec.is_hetero:
            return 80 * spec.vertices + 13 * min(2 * spec.edges, BUILD_ENTRIES) + _BLOCKS_BYTES + (64 << 20)
        return 80 * spec.vertices + 4 * min(2 * spec.edges, CSR_ENTRIES) + _BLOCKS_BYTES + (64 << 20)
    path = resolve_source(source)
    if is_dgl_file(path):
        # Count the tensors of the file, and the arrays that are built from tensors.
        return 4 * path.stat().st_size + _BLOCKS_BYTES
    if path.is_file():
        sizes = member_sizes(path, source)
        sizes = {key: bound for key, bound in sizes.items() if strip_type(key) != "features"}
        # One array may exist twice: sparse values (read and scaled), or masks (stored by columns and by
        # rows).
        bound = _BLOCKS_BYTES + sum(sizes.values()) + max(sizes.values(), default=0)
        pointers = [key for key in sizes if reorder and strip_type(key) in POINTERS]
        return bound + _reordering_bytes([NpzMember(path, key, source).read() for key in pointers])
    ogb = find_ogb_folder(source.removesuffix(HETERO_SUFFIX))
    if (ogb / "raw").is_dir() or (ogb / "processed").is_dir():
        bound = 13 * BUILD_ENTRIES if source.endswith(HETERO_SUFFIX) else 4 * CSR_ENTRIES
        return 64 * count_vertices(ogb, all_types=source.endswith(HETERO_SUFFIX)) + bound + _BLOCKS_BYTES
    if path.is_dir():
        stored = {file.stem: file for file in path.glob("*.npy")}
        files = [file for key, file in stored.items() if reorder and strip_type(key) in POINTERS]
        scaled_values = [
            file.stat().st_size for key, file in stored.items() if strip_type(key) == "feat_values"
        ]
        bound = _BLOCKS_BYTES + sum(scaled_values)
        return bound + _reordering_bytes([map_npy(file) for file in files])
    return None


def _reordering_bytes(pointers: list[Array]) -> int:
    """Return the memory in bytes for rows that are sorted at once, and for new row pointers."""
    if not pointers:
        return 0
    rows = max((int(np.diff(pointer).max(initial=0)) for pointer in pointers), default=0)
    return sum(3 * pointer.nbytes for pointer in pointers) + ENTRY_BYTES * (rows + RANGE_ENTRIES)


def check_on_read(data: Dataset) -> Dataset:
    """Return the dataset with dense features that are checked for finite values whenever they are read."""
    if data.tables is not None:
        return data.with_features(check_on_read)
    rows = data.rows
    if rows is None:
        return data
    checked_rows = replace(rows, blocks=lambda: iter_finite_blocks(data.name, "features", rows.blocks()))
    return replace(data, rows=checked_rows)


def _in_format(data: Dataset, row_format: RowFormat | None, seed: int | None) -> Dataset:
    """Convert the dense features of one table to a format. Sparse features stay float32."""
    rows = data.rows
    if rows is None or row_format is None:
        return data
    if rows.quantized is not None and rows.quantized.format == row_format:
        return data
    if row_format in (FLOAT32, FLOAT16):
        return replace(data, rows=_cast(data.name, rows, np.dtype(row_format.name)))
    scales = None
    if row_format.scales == "column":
        scales = compute_column_scales(rows.blocks(), rows.shape[1], data.name)
    return replace(data, rows=replace(rows, source=None, rounding=Quantizer(row_format, seed, scales)))


def _cast(name: str, rows: FeatureRows, dtype: np.dtype[Any]) -> FeatureRows:
    def blocks() -> Iterator[Array]:
        first_row = 0
        limit = float(np.finfo(dtype.name).max)
        for block in rows.blocks():
            beyond = np.abs(block) > limit if dtype.itemsize < block.itemsize else np.zeros(0, np.bool_)
            if beyond.any():
                i, j = np.unravel_index(int(beyond.argmax()), beyond.shape)
                raise reject(
                    name,
                    "features",
                    f"value {block[i, j]} at row {first_row + i}, column {j} is beyond {dtype.name}'s "
                    f"{limit:,}: keep float32",
                )
            first_row += len(block)
            yield block.astype(dtype, copy=False)

    return FeatureRows.from_blocks(rows.shape, dtype, blocks)
