"""Source trees of hyrt, also of other commits, which run without installation."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
"""Root of the source tree that contains this file."""
_PACKAGE_FOLDERS = ("", "devices", "perfmodel", "hls")


def exclude_installed_modules() -> None:
    """Disable an editable installation, which would supply modules that the tree on the path lacks."""
    sys.meta_path[:] = [
        finder
        for finder in sys.meta_path
        if not str(getattr(finder, "__module__", "")).startswith("__editable__")
    ]


def find_function(name: str) -> Any:
    """Return a function of the hyrt on the path, whose modules may have other names in other commits."""
    for module, text in _modules():
        if f"\ndef {name}(" in text:
            return getattr(import_module(module), name)
    raise SystemExit(f"hyrt has no function {name}: it is {find_spec('hyrt')}")


def declares(name: str) -> bool:
    """Return whether the hyrt on the path has a field, or a key of a dictionary, with this name."""
    pattern = re.compile(rf'^ +"?{name}"?:', re.MULTILINE)
    return any(pattern.search(text) for _, text in _modules())


def _modules() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each module of the hyrt on the path."""
    spec = find_spec("hyrt")
    assert spec is not None
    (folder,) = spec.submodule_search_locations or ()
    for file in sorted(Path(folder).rglob("*.py")):
        module = ".".join(("hyrt", *file.relative_to(folder).with_suffix("").parts))
        yield module, file.read_text(encoding="utf-8")


@contextmanager
def source_tree(source: str) -> Iterator[Path]:
    """Yield a source tree, or a temporary folder with the files of a commit of this repository."""
    if (Path(source) / "pyproject.toml").is_file():
        yield Path(source).resolve()
        return
    command = ["git", "-C", str(ROOT), "archive", source]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode:
        raise SystemExit(f"{source} is neither a source tree nor a commit: {archive.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory(prefix="hyrt-tree-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
        yield Path(folder)


def declare_entry_points(tree: Path, folder: Path) -> None:
    """Write the entry points of a tree's pyproject.toml in the form of an installed distribution.

    Parameters
    ----------
    tree
        Root of the source tree.
    folder
        Folder for the entry points, which must be first on the path, before an installed hyrt.
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
    """Return the environment of a process that runs the hyrt of a tree instead of an installed one.

    Parameters
    ----------
    tree
        Root of the source tree.
    folder
        Folder in which the entry points are declared.
    """
    declare_entry_points(tree, folder)
    paths = [folder, *(tree / home for home in _PACKAGE_FOLDERS)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
