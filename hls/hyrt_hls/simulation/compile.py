"""Compiles the kernel simulation with g++ into a shared library for ctypes."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hyrt_perfmodel.user_cache import user_cache

import hyrt_hls
from hyrt_hls.simulation.compiler_process import run_compiler
from hyrt_hls.simulation.library_file import find_library, publish_library

# Vitis HLS's headers, for simulation.
HEADERS = Path(hyrt_hls.__file__).parent / "include"

# No fused multiply-add: the hardware has separate multipliers and adders, so it rounds the product first.
# Without unique symbols, libraries of different designs in one process do not share thread-local state.
FLAGS = (
    *("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-pthread"),
    *("-ffp-contract=off", "-fno-gnu-unique", "-Wall", "-Wextra", "-Wno-unknown-pragmas"),
)
_MAX_ERRORS = 5
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*(?:include|include_next|import)\b[ \t]*(.*)$", re.MULTILINE)
_HEADER_NAME = re.compile(r'"([^"]+)"|<([^>]+)>')


def compile_library(
    sources: Sequence[Path | str],
    *,
    defines: Mapping[str, int | str] | None = None,
    bounded: bool = False,
    include: Sequence[Path | str] = (),
) -> Path:
    """Compile C++ sources into a shared library, or return the library from an earlier call.

    The library is stored in ``HYRT_HLS_CACHE_DIR``, or else in hyrt/hls of the user's cache folder
    (``XDG_CACHE_HOME``, else ``~/.cache``). Its name contains a hash of the sources, the included headers,
    the flags, the compiler and the processor, and its checksum, because loading a truncated library kills the
    process. A damaged library is recompiled with a warning. If the cache folder is not writable, a temporary
    folder is used, which is deleted at exit. Several processes may compile the same library concurrently.

    Parameters
    ----------
    sources
        C++17 files, compiled together.
    defines
        Macros and their values.
    bounded
        Whether streams have limited depth and processes are threads (``-DHYRT_BOUNDED``; see
        include/process.h).
    include
        Header folders, searched before those of this package.

    Raises
    ------
    ValueError
        If g++ is missing or rejects the sources, a source cannot be read or includes a header through a
        macro, or a macro name is invalid.
    OSError
        If the library cannot be written, or an existing library cannot be read.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise ValueError(
            "the simulation of the FPGA kernels needs g++, which is not on PATH: install it (Debian: "
            "apt install g++)"
        )
    files = [Path(source).resolve() for source in sources]
    if not files:
        raise ValueError("there is nothing to compile: give at least one source")
    folders = [*(Path(folder).resolve() for folder in include), HEADERS]
    arguments = [*FLAGS, *_macro_flags(defines or {}, bounded), *(f"-I{folder}" for folder in folders)]
    digest = _hash_inputs(_describe_compiler(compiler), arguments, _iter_texts(files, folders))
    name, folder = f"{files[0].stem}-{digest}", _cache_folder()
    library = find_library(folder, name)
    if library is not None:
        return library
    return publish_library(
        folder, name, lambda partial: _compile([compiler, *arguments, *map(str, files)], partial)
    )


def _macro_flags(defines: Mapping[str, int | str], bounded: bool) -> list[str]:
    for name in defines:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ValueError(f"{name!r} is not the name of a macro")
    return [f"-D{name}={value}" for name, value in defines.items()] + ["-DHYRT_BOUNDED"] * bounded


def _describe_compiler(compiler: str) -> str:
    """Return the compiler's version and the meaning of -march=native; machines may share a cache folder."""
    result = run_compiler([compiler, "-march=native", "-###", "-E", "-x", "c++", os.devnull])
    if result.returncode != 0:
        raise ValueError(f"{compiler} does not work: {_first_errors(result.stderr)}")
    return result.stderr


def _iter_texts(files: list[Path], folders: list[Path]) -> Iterator[tuple[Path, bytes]]:
    """Iterate over all sources and their included headers (except system headers), each once."""
    pending, seen = list(reversed(files)), set(files)
    while pending:
        path = pending.pop()
        try:
            text = path.read_bytes()
        except OSError as error:
            raise ValueError(f"{path} cannot be compiled: {error.strerror}") from error
        yield path, text
        for header in _iter_headers(path, text.decode(errors="replace"), folders):
            if header not in seen:
                seen.add(header)
                pending.append(header)


def _iter_headers(path: Path, text: str, folders: list[Path]) -> Iterator[Path]:
    for included in _INCLUDE.findall(text):
        header_name = _HEADER_NAME.match(included)
        if header_name is None:
            raise ValueError(
                f"{path} includes {included.strip()!r}: name the header itself, so that a change to it "
                "triggers a recompilation"
            )
        search_folders = [path.parent, *folders] if header_name[1] else folders
        headers = [
            (search_folder / (header_name[1] or header_name[2])).resolve() for search_folder in search_folders
        ]
        # All headers of that name, not only the first: include_next uses the second.
        yield from (header for header in headers if header.is_file())


def _hash_inputs(compiler: str, arguments: list[str], texts: Iterator[tuple[Path, bytes]]) -> str:
    digest = hashlib.sha256()
    for part in (compiler, *arguments):
        digest.update(f"{len(part)}:{part}\n".encode())
    for path, text in texts:
        digest.update(f"{len(text)}:{path}\n".encode())
        digest.update(text)
    return digest.hexdigest()[:32]


def _compile(command: list[str], partial: Path) -> None:
    result = run_compiler([*command, "-o", str(partial)], output=partial)
    if result.returncode != 0:
        raise ValueError(f"g++ cannot compile {command[-1]}: {_first_errors(result.stderr)}")


def _first_errors(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line] or lines
    return "\n".join(errors[:_MAX_ERRORS]) or "it printed no error"


def _cache_folder() -> Path:
    folder = Path(os.environ.get("HYRT_HLS_CACHE_DIR") or user_cache() / "hyrt" / "hls")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A write test, because permission bits do not reveal full or read-only disks.
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return _temporary_folder(folder)


@functools.cache
def _temporary_folder(unwritable: Path) -> Path:
    """Make a private temporary folder, once per process: libraries that are loaded from it are executed."""
    import atexit
    import warnings

    folder = tempfile.mkdtemp(prefix="hyrt-hls-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    warnings.warn(
        f"{unwritable} is not writable, so every process recompiles the simulation of the FPGA "
        "kernels: set HYRT_HLS_CACHE_DIR to a writable folder",
        RuntimeWarning,
        stacklevel=4,
    )
    return Path(folder)
