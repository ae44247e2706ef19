"""Location and download of the ogb package's datasets."""

from __future__ import annotations

import csv
import importlib.util
import os
import shutil
from pathlib import Path

from hyrt_perfmodel.user_cache import user_cache

from hyrt.errors import DataError

OGB_ROOT = Path("dataset")
"""Folder, relative to the current one, into which ogb itself downloads datasets."""


def find_folder(name: str) -> Path:
    """Return the folder of a dataset, or the folder into which it will be downloaded.

    Parameters
    ----------
    name
        A folder, or the name of a dataset. `dataset/` in the current folder, which ogb uses, has precedence;
        otherwise the dataset is in the user's cache, which can be found from any folder.
    """
    folder = Path(os.path.expanduser(name))
    if folder.is_dir():
        return folder
    folder_name = "mag240m_kddcup2021" if name == "mag240m" else name.replace("-", "_")
    local_folder = OGB_ROOT / folder_name
    return local_folder if local_folder.is_dir() else user_cache() / "hyrt" / "ogb" / folder_name


def download(name: str, folder: Path) -> None:
    """Download a dataset into a folder by the ogb package.

    Raises
    ------
    DataError
        If the package is missing, does not know the dataset, or cannot download it, or if the dataset is
        multi-label.
    """
    try:
        from ogb.utils.url import decide_download, download_url, extract_zip
    except ImportError as error:
        raise DataError(
            f"{name}: found neither in {OGB_ROOT}/ nor in {folder}, and downloading it needs the ogb "
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
                f"{name}: not downloaded: answer y to download it, or give a folder that ogb downloaded"
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
            f"{name}: could not be downloaded from {url} ({error}): try again, or copy its folder here"
        ) from error
    if root / unpacked != folder:
        shutil.move(root / unpacked, folder)


def _origin(name: str) -> tuple[str, str]:
    """Return the URL of a dataset and the folder name inside its archive, as defined by the installed ogb."""
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
            f"{name}: the installed ogb has no such dataset: it has {', '.join(names)} and mag240m"
        )
    column = names.index(name)
    if int(table["num tasks"][column]) > 1:
        raise DataError(f"{name}: multi-label, which hyrt does not read from ogb: convert it by yourself")
    return table["url"][column], table["download_name"][column]
