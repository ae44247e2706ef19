"""Datasets in a `.npz` file, or in a folder of memory-mapped `.npy` files with checksums in meta.json."""

from __future__ import annotations

import contextlib
import math
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from hyrt.errors import DataError, system_error_text
from hyrt.graph.check import iter_row_blocks, reject
from hyrt.graph.formats.npy import (
    CHUNK_BYTES,
    NpyChecksums,
    NpyHeader,
    NpyWriter,
    header_bytes,
    map_npy,
    map_with_header,
    read_header,
    read_npy_shape,
    rows_per_chunk,
    write_blocks,
    write_npy,
)
from hyrt.graph.formats.schema import (
    LARGE_BYTES,
    Dataset,
    FeatureRows,
    assemble_hetero_dataset,
    check_header,
    check_unused_keys,
    feature_tables,
    select_keys,
)
from hyrt.graph.hetero.graph_types import TEXT_KEYS, VERTEX_TYPES, strip_type
from hyrt.graph.metadata import NAME_FILES
from hyrt.graph.quantized.dataset import (
    QuantizedRowWriter,
    check_no_scales,
    is_quantized_dtype,
    read_quantized_rows,
)
from hyrt.graph.topology import Topology
from hyrt.runtime.buffer_pool import empty_aligned
from hyrt.runtime.files import ARCHIVE_ERRORS
from hyrt.runtime.hardware import available_cores
from hyrt.runtime.workers import Workers, use_workers

Array = NDArray[Any]

# Maximum expansion of deflate. A header that claims a larger size is damaged, and must be refused before
# memory is allocated.
_MAX_EXPANSION = 1032
_READ_BYTES = 8 << 20
_NPY = b"\x93NUMPY"


@contextlib.contextmanager
def _damage_named(where: str) -> Iterator[None]:
    """Convert the errors that zipfile raises for damaged archives to DataError."""
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{where} cannot be read: {system_error_text(error)}") from error
    except ARCHIVE_ERRORS as error:
        raise DataError(
            f"{where} is damaged or truncated ({error or type(error).__name__}): copy or download it again"
        ) from error


class NpzMember:
    """Array in a `.npz` file that is read as a whole or in pieces.

    When it is opened, only the header is read. The sizes in archive, header and file are compared before
    memory is allocated. All methods raise DataError if the array is damaged or contains pickles. `source` is
    the name of the file in messages.
    """

    def __init__(self, path: Path, key: str, source: str) -> None:
        self._path = path
        self._member = f"{key}.npy"
        self._where = f"{source}: key '{key}'"
        self._texts = key in TEXT_KEYS
        with self._open() as (_, header):
            self.header: NpyHeader = header

    @contextlib.contextmanager
    def _open(self) -> Iterator[tuple[IO[bytes], NpyHeader]]:
        location = self._where
        with _damage_named(location), zipfile.ZipFile(self._path) as archive:
            info = archive.getinfo(self._member)
            if info.compress_size > self._path.stat().st_size or info.file_size > _expanded(
                info.compress_size
            ):
                raise DataError(
                    f"{location} claims {info.file_size:,} bytes, more than the file can contain, so it is "
                    "damaged: copy or download it again"
                )
            with archive.open(info) as file:
                header = read_header(file, location, is_text=self._texts)
                if header.offset + header.data_bytes != info.file_size:
                    raise DataError(
                        f"{location}: {header.dtype.name} of shape {list(header.shape)} needs "
                        f"{header.data_bytes:,} bytes, but the file has {info.file_size - header.offset:,}, "
                        "so it is damaged: copy or download it again"
                    )
                yield file, header

    def _fill(self, file: IO[bytes], values: Array) -> None:
        target = values.reshape(-1).view(np.uint8).data
        done = 0
        while done < len(target):
            data = file.read(min(_READ_BYTES, len(target) - done))
            if not data:
                raise DataError(
                    f"{self._where} ends early, at byte {done:,} of {len(target):,}: copy or download it "
                    "again"
                )
            target[done : done + len(data)] = data
            done += len(data)

    def _end(self, file: IO[bytes]) -> None:
        # zipfile verifies the checksum when the end of the member is read.
        if file.read(1):
            raise DataError(
                f"{self._where} has bytes after its end, so it is damaged: copy or download it again"
            )

    def read(self) -> Array:
        """Return the whole array in row-major order."""
        with self._open() as (file, header):
            shape = header.shape[::-1] if header.fortran else header.shape
            try:
                values = empty_aligned(shape, header.dtype)
            except MemoryError as error:
                raise DataError(
                    f"{self._where} does not fit into memory: convert the file to a memory-mapped folder "
                    "with hyrt data convert"
                ) from error
            self._fill(file, values)
            self._end(file)
        return np.ascontiguousarray(values.T) if header.fortran else values

    def pieces(self, count: int) -> Iterator[Array]:
        """Yield the elements in their stored order, `count` at a time."""
        with self._open() as (file, header):
            total = math.prod(header.shape)
            for start in range(0, total, count):
                piece = np.empty(min(count, total - start), header.dtype)
                self._fill(file, piece)
                yield piece
            self._end(file)

    def rows(self, scratch: Path | None = None) -> FeatureRows:
        """Return a matrix as feature rows, which stay in the file until they are read.

        A matrix stored by columns is unpacked into `scratch`, so that its rows can be read without having it
        in memory. Without `scratch`, each pass reads the whole matrix.
        """
        header = self.header
        shape = (header.shape[0], header.shape[1])
        if header.fortran:
            if scratch is None:
                return FeatureRows(shape, header.dtype, lambda: iter_row_blocks(self.read()), self.read)
            return self._transposed_rows(scratch / f"columns-{self._member}")
        count = max(1, shape[1]) * rows_per_chunk(shape[1:], header.dtype)
        return FeatureRows(
            shape,
            header.dtype,
            lambda: (piece.reshape(-1, shape[1]) for piece in self.pieces(count)),
            self.read,
        )

    def _transposed_rows(self, file: Path) -> FeatureRows:
        height, width = self.header.shape
        dtype = self.header.dtype
        with NpyWriter(file, dtype) as writer:
            for piece in self.pieces(_READ_BYTES // dtype.itemsize):
                writer.append(piece)
        columns = map_npy(file).reshape(width, height)
        step = rows_per_chunk((width,), dtype)

        def blocks() -> Iterator[Array]:
            for start in range(0, height, step):
                yield np.ascontiguousarray(columns[:, start : start + step].T)

        return FeatureRows.from_blocks((height, width), dtype, blocks)


def _expanded(compressed: int) -> int:
    return _MAX_EXPANSION * compressed + 1024


def read_npz(path: Path, source: str, scratch: Path | None = None) -> Dataset:
    """Read a dataset from a `.npz` file. Dense features stay in the file until they are read.

    `scratch` is for `NpzMember.rows`. Raises DataError if the file is invalid or damaged, or lacks a key.
    """
    _check_kind(path, source)
    with _damage_named(source), zipfile.ZipFile(path) as archive:
        files = [info.filename for info in archive.infolist() if info.filename not in NAME_FILES]
        names = [name.removesuffix(".npy") for name in files]
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"{source} has the key '{name}' twice, so the file is damaged: write it again")
    arrays: dict[str, Array] = {}
    keys = select_keys(source, names)
    check_unused_keys(source, {name: _shape(path, name, source) for name in names}, keys)
    for key in keys:
        member = NpzMember(path, key, source)
        check_header(source, key, member.header.dtype, member.header.shape)
        if strip_type(key) != "features":
            arrays[key] = member.read()

    def rows_of(key: str, name: str, arrays: dict[str, Array]) -> FeatureRows | None:
        if key not in keys:
            return None
        member = NpzMember(path, key, source)
        if is_quantized_dtype(member.header.dtype):
            return read_quantized_rows(name, member.read(), arrays)
        check_no_scales(name, member.header.dtype, arrays)
        return member.rows(scratch)

    if VERTEX_TYPES in arrays:
        return assemble_hetero_dataset(source, keys, arrays, rows_of)
    return Dataset(source, arrays, rows_of("features", source, arrays))


def _check_kind(path: Path, source: str) -> None:
    """Reject a file that is not a `.npz` file. Damaged archives are detected later."""
    with _damage_named(source), path.open("rb") as file:
        start = file.read(len(_NPY))
    if not start:
        raise DataError(f"{source} is empty: copy or download it again")
    if start == _NPY:
        raise DataError(
            f"{source} is a single array: use a .npz file, or a folder with one .npy file per key"
        )
    if not start.startswith(b"PK"):
        import_first = ""
        if path.suffix.lower() in (".csv", ".tsv", ".txt", ".parquet", ".gz"):
            import_first = ", or import tables with `hyrt data import`"
        raise DataError(
            f"{source} is not a .npz file: use a .npz file (numpy.savez) or a folder of .npy "
            f"files{import_first}"
        )


def _shape(path: Path, key: str, source: str) -> tuple[int, ...] | None:
    try:
        return NpzMember(path, key, source).header.shape
    except DataError:
        return None  # The call only checks for unused keys. Opening a used key raises the error.


def member_sizes(path: Path, source: str) -> dict[str, int]:
    """Return the size of each array in bytes by key, from the archive's directory. Raises DataError if it is
    damaged.
    """
    with _damage_named(source), zipfile.ZipFile(path) as archive:
        return {info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()}


def write_npz(data: Dataset, path: Path) -> None:
    """Write a checked dataset to a compressed `.npz` file, with features block by block; not atomic."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for key, array in data.arrays.items():
            _write_array(archive, key, array)
        for suffix, table in feature_tables(data).items():
            for key, array in table.arrays.items():
                if suffix:
                    _write_array(archive, f"{key}{suffix}", array)
            if table.rows is not None:
                rows = QuantizedRowWriter.from_rows(table.rows, table.name)
                _write_member(archive, f"features{suffix}", rows.dtype, table.rows.shape, rows.blocks)
                for key, array in rows.scales.items():
                    _write_member(archive, f"{key}{suffix}", array.dtype, array.shape, iter([array]))


def _write_array(archive: zipfile.ZipFile, key: str, array: Array) -> None:
    _write_member(
        archive, key, array.dtype, array.shape, iter_row_blocks(array, rows_per_chunk((), array.dtype))
    )


def _write_member(
    archive: zipfile.ZipFile,
    key: str,
    dtype: np.dtype[np.generic],
    shape: tuple[int, ...],
    blocks: Iterator[Array],
) -> None:
    # A fixed date makes the files of equal graphs equal.
    info = zipfile.ZipInfo(f"{key}.npy", date_time=(1980, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    written = 0
    with archive.open(info, "w", force_zip64=True) as file:
        file.write(header_bytes(np.dtype(dtype), shape))
        for block in blocks:
            file.write(np.ascontiguousarray(block, dtype=dtype).reshape(-1).view(np.uint8).data)
            written += len(block)
    if written != shape[0]:
        raise reject(archive.filename or "", key, f"got {written:,} rows, expected {shape[0]:,}")


META = "meta.json"
FORMAT = 1


def read_folder(path: Path, source: str, *, check: bool = False) -> Dataset:
    """Map a folder of `.npy` files, and verify the files against meta.json if it exists.

    The arrays are private, writable views: writing to them never changes the files. Features larger than
    `LARGE_BYTES` are read and verified only with `check`. Raises DataError if a key is missing or a file is
    damaged; the message gives the rows of the first chunk that differs.
    """
    files = sorted(path.glob("*.npy"))
    if not files:
        hint = " (did you mean one of its .npz files?)" if any(path.glob("*.npz")) else ""
        raise DataError(f"{source} has no .npy files: use a folder with one .npy file per key{hint}")
    for file in (*files, path / META):
        # Opening a pipe would block until another process writes to it.
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise DataError(f"{file} is a pipe or a device: replace it with the dataset's file")
    keys = select_keys(source, [file.stem for file in files])
    check_unused_keys(source, {file.stem: read_npy_shape(file) for file in files}, keys)
    meta = _read_meta(path)
    entries = {} if meta is None else meta.keys
    for key in entries:
        if key not in keys:
            raise DataError(
                f"{source}: key '{key}' is in {META} but has no file: put {key}.npy back, or "
                "write the folder again"
            )
    arrays: dict[str, Array] = {}
    features: dict[str, Array] = {}
    for key in keys:
        location = f"{source}: key '{key}'"
        array, header = map_with_header(path / f"{key}.npy", location, is_text=key in TEXT_KEYS)
        check_header(source, key, header.dtype, header.shape)
        if meta is not None:
            if key not in entries:
                raise DataError(
                    f"{location} is not in {META}, so the folder was changed after it was written: "
                    "write the folder again"
                )
            entries[key].check_header(header, location, META)
            if check or strip_type(key) != "features" or array.nbytes <= LARGE_BYTES:
                entries[key].verify(array, location, META, f" (without {META}, the folder opens unverified)")
        (features if strip_type(key) == "features" else arrays)[key] = array
    symmetric = None if meta is None else meta.symmetric

    def rows_of(key: str, name: str, arrays: dict[str, Array]) -> FeatureRows | None:
        if key not in features:
            return None
        if is_quantized_dtype(features[key].dtype):
            return read_quantized_rows(name, features[key], arrays)
        check_no_scales(name, features[key].dtype, arrays)
        return FeatureRows.from_array(features[key], mapped=True)

    if VERTEX_TYPES in arrays:
        return replace(assemble_hetero_dataset(source, keys, arrays, rows_of), symmetric=symmetric)
    return Dataset(source, arrays, rows_of("features", source, arrays), symmetric)


class _Meta(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: int
    crc32_chunk_bytes: int | None = None
    symmetric: bool | None = None
    """Whether the topology equals its transpose; None in folders of older versions."""
    keys: dict[str, NpyChecksums]


def _read_meta(path: Path) -> _Meta | None:
    """Read meta.json; return None if it does not exist. Raises DataError if it is damaged or its format is
    unknown.
    """
    file = path / META
    if not file.exists():
        return None
    remedy = "write the folder again, or remove this file to open the folder unverified"
    try:
        meta = _Meta.model_validate_json(file.read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "hyrt did not write it"
        raise DataError(f"{file} is damaged ({reason}): {remedy}") from error
    if meta.format != FORMAT:
        raise DataError(
            f"{file}: format {meta.format} is unknown (known: {FORMAT}), so a newer hyrt may have written "
            "it: update hyrt"
        )
    if meta.crc32_chunk_bytes != CHUNK_BYTES:
        raise DataError(f"{file} is damaged (crc32_chunk_bytes {meta.crc32_chunk_bytes}): {remedy}")
    return meta


def write_folder(data: Dataset, path: Path) -> None:
    """Write a checked dataset to an empty folder, with features block by block; not atomic."""
    entries = {key: write_npy(path / f"{key}.npy", array) for key, array in data.arrays.items()}
    for suffix, table in feature_tables(data).items():
        arrays = dict(table.arrays) if suffix else {}
        if table.rows is not None:
            rows, key = QuantizedRowWriter.from_rows(table.rows, table.name), f"features{suffix}"
            entries[key] = write_blocks(path / f"{key}.npy", rows.dtype, table.rows.shape[1:], rows.blocks)
            arrays |= rows.scales
        for name, array in arrays.items():
            entries[f"{name}{suffix}"] = write_npy(path / f"{name}{suffix}.npy", array)
    symmetric = data.symmetric
    if symmetric is None:
        with Workers(available_cores(), "symmetry") as workers, use_workers(workers):
            symmetric = Topology(data.arrays["indptr"], data.arrays["indices"]).is_symmetric
    meta = _Meta(format=FORMAT, crc32_chunk_bytes=CHUNK_BYTES, symmetric=symmetric, keys=entries)
    (path / META).write_text(meta.model_dump_json(indent=1) + "\n", encoding="utf-8")
