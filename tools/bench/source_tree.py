"""A source tree of hyrt that runs without being installed: its packages and its entry points on the path."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

HOMES = ("", "devices", "perfmodel", "hls")
"""The folders of a tree that hold its import packages."""


def declare_entry_points(tree: Path, folder: Path) -> Path:
    """Write the entry points that a tree's pyproject.toml names, as an installed distribution has them.

    Parameters
    ----------
    tree
        The root of the source tree.
    folder
        Where to write. It must come first on the path, so that no installed hyrt is found before it.

    Returns
    -------
    Path
        The folder.
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
    return folder


def environment_of(tree: Path, folder: Path) -> dict[str, str]:
    """The environment of a process that runs this tree's hyrt, whatever else is installed."""
    paths = [folder, *(tree / home for home in HOMES)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
