"""Source trees of hyrt, also of other commits, that run without being installed."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The source tree that this file is in."""
_HOMES = ("", "devices", "perfmodel", "hls")


@contextmanager
def source_tree(given: str) -> Iterator[Path]:
    """Give the folder of a source tree, or a temporary one with the files of a commit of this repository."""
    if (Path(given) / "pyproject.toml").is_file():
        yield Path(given).resolve()
        return
    command = ["git", "-C", str(ROOT), "archive", given]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode:
        raise SystemExit(f"{given} is neither a source tree nor a commit: {archive.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory(prefix="hyrt-tree-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
        yield Path(folder)


def declare_entry_points(tree: Path, folder: Path) -> None:
    """Write the entry points that a tree's pyproject.toml names, as an installed distribution has them.

    Parameters
    ----------
    tree
        The root of the source tree.
    folder
        The folder to write to. It must come first on the path, so that no installed hyrt is found before it.
    """
    project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    metadata = folder / "hyrt.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: hyrt\nVersion: {project['version']}\n", encoding="utf-8"
    )
    lines: list[str] = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def environment_of(tree: Path, folder: Path) -> dict[str, str]:
    """The environment of a process that runs a tree's hyrt, whatever else is installed.

    Parameters
    ----------
    tree
        The root of the source tree.
    folder
        The folder in which its entry points are declared.
    """
    declare_entry_points(tree, folder)
    paths = [folder, *(tree / home for home in _HOMES)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
