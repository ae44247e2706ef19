"""What is built for those who install hyrt: complete, and working without the source tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
HOMES = {
    "hyrt": "hyrt",
    "hyrt_devices": "devices/hyrt_devices",
    "hyrt_hls": "hls/hyrt_hls",
    "hyrt_perfmodel": "perfmodel/hyrt_perfmodel",
}


def tracked(folder: str) -> set[str]:
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(listed.stdout.split())


def offline() -> list[str]:
    """Where what the build needs is there, it is not fetched: that it can be, every `pip install .` shows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for needed in map(Requirement, project["build-system"]["requires"]):
        try:
            if not needed.specifier.contains(version(needed.name)):
                return []
        except PackageNotFoundError:
            return []
    return ["--no-isolation"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution."""
    source = tmp_path_factory.mktemp("source") / "hyrt"
    # A build writes beside the sources.
    for name in tracked("."):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    folder = tmp_path_factory.mktemp("dist")
    # The wheel is built from the source distribution.
    command = [sys.executable, "-m", "build", *offline(), "--outdir", str(folder)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_wheel_has_every_file_of_the_packages_and_no_other(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = {
        name.replace(home, package, 1)
        for package, home in HOMES.items()
        for name in tracked(home)
        if not name.endswith(".gitignore")
    }
    assert inside == wanted
    metadata = zipfile.ZipFile(wheel).read("hyrt-0.1.0.dist-info/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Description-Content-Type: text/markdown" in metadata


def test_the_source_distribution_builds_the_packages(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        inside = {name.partition("/")[2] for name in file.getnames()}
    needed = {"pyproject.toml", "README.md", "LICENSE"}
    for home in HOMES.values():
        needed |= {name for name in tracked(home) if not name.endswith(".gitignore")}
    assert needed <= inside


def test_it_works_where_there_is_no_source_tree(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    environment = {**os.environ, "PYTHONPATH": str(site)}

    def python(*words: str) -> str:
        command = [sys.executable, "-P", *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    homes = python("-c", f"import {', '.join(HOMES)}; print(*({', '.join(HOMES)}), sep='\\n')")
    assert all(f"{site}/{package}" in line for package, line in zip(HOMES, homes.splitlines(), strict=True))
    # A run would compile every kernel anew, and a generated graph some; that all files are there, the test
    # above shows.
    assert python("-m", "hyrt", "--version") == "hyrt 0.1.0\n"
    assert "classes" in python("-m", "hyrt", "data", "info", "cora")
    python("-m", "hyrt", "fpga", "build-files", "files", "--pes", "8", "--macs", "32x64")
    assert list((tmp_path / "files").iterdir())
