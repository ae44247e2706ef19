"""A package of examples/, really installed into a folder of its own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def installed_package(name: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that finds the package."""
    folder = tmp_path_factory.mktemp("site")
    # A build writes beside the sources.
    source = tmp_path_factory.mktemp("source") / name
    shutil.copytree(
        EXAMPLES / name, source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    )
    # Where setuptools is there, nothing has to be fetched.
    offline = ["--no-build-isolation"] if importlib.util.find_spec("setuptools") else []
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *offline]
    done = subprocess.run(
        [*command, "--target", str(folder), str(source)], capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stderr
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}
