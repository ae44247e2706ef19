"""Location, download and file formats of OGB datasets: gzipped CSV tables, splits and torch files."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import itertools
import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hyrt_perfmodel.user_cache import user_cache_dir
from numpy.typing import NDArray

from hyrt.errors import DataError, one_line
from hyrt.graph.check import convert_classes, convert_targets

OGB_ROOT = Path("dataset")
"""Folder to which ogb downloads datasets, relative to the current folder."""


def find_ogb_folder(name: str) -> Path:
    """Return the folder of a dataset, downloaded or not; `name` is a name or a folder.

    `dataset/` in the current folder, which ogb uses, has precedence over the cache of the user.
    """
    folder = Path(os.path.expanduser(name))
    if folder.is_dir():
        return folder
    folder_name = "mag240m_kddcup2021" if name == "mag240m" else name.replace("-", "_")
    local_folder = OGB_ROOT / folder_name
    return local_folder if local_folder.is_dir() else user_cache_dir() / "hyrt" / "ogb" / folder_name


def download_ogb(name: str, folder: Path) -> None:
    """Download a dataset into a folder with the ogb package.

    Raises DataError if the package is missing, does not know the dataset or cannot download it, or if the
    dataset is multi-label.
    """
    try:
        from ogb.utils.url import decide_download, download_url, extract_zip
    except ImportError as error:
        raise DataError(
            f"{name} was found neither in {OGB_ROOT}/ nor in {folder}, and downloading it needs the ogb "
            'package: pip install "hyrt[ogb]"'
        ) from error
    url, unpacked = _origin(name)
    root = folder.parent
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"{name}: {root} cannot be created for the download ({error.strerror}): set XDG_CACHE_HOME to a "
            "writable folder"
        ) from error
    try:
        if not decide_download(url):
            raise DataError(
                f"{name} was not downloaded: answer y to download it, or use a folder downloaded by ogb"
            )
        archive = Path(download_url(url, str(root)))
        extract_zip(str(archive), str(root))
        archive.unlink()
    except EOFError as error:
        raise DataError(
            f"{name}: the ogb package asks before it downloads large datasets: run this in a terminal"
        ) from error
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"{name} could not be downloaded from {url} ({error}): try again, or copy its folder here"
        ) from error
    if root / unpacked != folder:
        shutil.move(root / unpacked, folder)


def _origin(name: str) -> tuple[str, str]:
    """Return the URL of a dataset and the folder name in its archive, according to the installed ogb."""
    if name == "mag240m":
        from ogb.lsc import MAG240MDataset

        return str(MAG240MDataset.url), "mag240m_kddcup2021"
    spec = importlib.util.find_spec("ogb.nodeproppred")
    assert spec is not None
    assert spec.origin is not None
    with (Path(spec.origin).parent / "master.csv").open(newline="", encoding="utf-8") as file:
        table = {row[0]: row[1:] for row in csv.reader(file)}
    names = table[""]
    if name not in names:
        raise DataError(
            f"{name} is not a dataset of the installed ogb: use one of {', '.join(names)} and mag240m"
        )
    column = names.index(name)
    if int(table["num tasks"][column]) > 1:
        raise DataError(
            f"{name} is multi-label, which hyrt cannot read from ogb: convert it to a .npz file yourself"
        )
    return table["url"][column], table["download_name"][column]


Array = NDArray[Any]

MAX_EDGES_IN_MEMORY = 500_000_000
_LINES = 1 << 16


def convert_labels(values: Array, folder: Path) -> Array:
    """Convert labels to the dtypes that hyrt uses; `folder` is for messages."""
    if values.ndim == 2 and values.shape[1] > 1:
        return convert_targets(values, str(folder), "node label")
    return convert_classes(values.reshape(-1), str(folder), "node label")


def read_csv_splits(folder: Path, vertex_type: str = "") -> dict[str, NDArray[np.int64]]:
    """Read the vertices in `train`, `val` and `test`; `vertex_type` is for heterogeneous datasets.

    Raises DataError unless there is exactly one split scheme, or if a file is damaged.
    """
    schemes = sorted(path for path in (folder / "split").glob("*") if path.is_dir())
    if len(schemes) != 1:
        raise DataError(
            f"{folder / 'split'} has {len(schemes)} schemes, expected one folder: remove the others, or "
            "download it again"
        )
    files = {"train": "train", "val": "valid", "test": "test"}
    return {
        split: read_csv_table(schemes[0] / vertex_type / f"{file}.csv.gz", np.int64)
        .reshape(-1)
        .astype(np.int64)
        for split, file in files.items()
    }


def iter_csv_blocks(file: Path, dtype: type[np.generic]) -> Iterator[Array]:
    """Yield tables [n, columns] with consecutive lines of a gzipped CSV file without header.

    Raises DataError with the line number if the file is missing or damaged.
    """
    line = 0
    try:
        with gzip.open(file, "rt", encoding="ascii") as handle:
            while lines := list(itertools.islice(handle, _LINES)):
                try:
                    yield np.loadtxt(lines, dtype=dtype, delimiter=",", ndmin=2, comments=None)
                except ValueError as error:
                    raise DataError(
                        f"{file} is damaged from line {line + 1} ({error}): download it again"
                    ) from error
                line += len(lines)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{file} is missing, damaged or truncated ({error}): download it again") from error


def read_csv_table(file: Path, dtype: type[np.generic]) -> Array:
    """Read a whole gzipped CSV file without header as a table [n, columns]."""
    blocks = list(iter_csv_blocks(file, dtype))
    return np.concatenate(blocks) if blocks else np.empty((0, 1), dtype)


def load_tensors(file: Path) -> Any:
    """Load a torch file of numbers and arrays; raise DataError if it is missing, damaged, or has other
    contents.
    """
    from _codecs import encode

    import torch

    reconstruct: Any = np.empty(0).__reduce__()[0]
    scalar: Any = np.int64(0).__reduce__()[0]
    allowed: list[Any] = [np.ndarray, np.dtype, encode, type(np.dtype(np.int64)), type(np.dtype(np.int32))]
    # numpy has moved these functions. A file contains their module name in the numpy version that wrote it.
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
        allowed += [(reconstruct, f"{module}._reconstruct"), (scalar, f"{module}.scalar")]
    try:
        with torch.serialization.safe_globals(allowed):
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch may raise any exception for damaged data.
        raise DataError(
            f"{file} is missing, damaged or not made of plain arrays ({one_line(str(error))}): download it "
            "again"
        ) from error
