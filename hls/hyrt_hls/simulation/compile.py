"""Builds the kernels' simulation with g++ into a library that ctypes loads."""

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

from hyrt_hls.simulation.compiler_process import run_compiler
from hyrt_hls.simulation.library_file import find_library, publish_library

# Vitis HLS's headers, for simulation.
HEADERS = Path(__file__).parents[1] / "include"

# A product is rounded before it is added, as the separate multipliers and adders of hardware do. Without
# unique symbols two libraries of other designs in one process share no thread-local state.
FLAGS = (
    *("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-pthread"),
    *("-ffp-contract=off", "-fno-gnu-unique", "-Wall", "-Wextra", "-Wno-unknown-pragmas"),
)
_SHOWN_ERRORS = 5
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*(?:include|include_next|import)\b[ \t]*(.*)$", re.MULTILINE)
_NAMED = re.compile(r'"([^"]+)"|<([^>]+)>')


def compile_library(
    sources: Sequence[Path | str],
    *,
    defines: Mapping[str, int | str] | None = None,
    bounded: bool = False,
    include: Sequence[Path | str] = (),
) -> Path:
    """Compile C++ sources into a shared library, or find the one that an earlier call compiled.

    The library lies in ``HYRT_HLS_CACHE_DIR``, else in hyrt/hls of the user's cache folder
    (``XDG_CACHE_HOME``, else ``~/.cache``), named by all it is made of: the sources, the headers they
    include, the flags, the compiler and the processor; and by its own checksum, since loading what was cut
    short kills the process. A damaged one is compiled anew, with a warning. Where that folder cannot be
    written it lies in a temporary one, which goes with the process. Several processes may compile the same
    library at once.

    Parameters
    ----------
    sources
        C++17 files, compiled together.
    defines
        Macros and their values.
    bounded
        Whether streams have their depth and processes are threads (``-DHYRT_BOUNDED``; see
        include/process.h).
    include
        Folders of headers, searched before those of this package.

    Raises
    ------
    ValueError
        There is no g++, it refuses the sources, a source cannot be read or names its header by a macro, or a
        macro's name is none.
    OSError
        The library cannot be written, or one that is there cannot be read.
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
    arguments = [*FLAGS, *_macros(defines or {}, bounded), *(f"-I{folder}" for folder in folders)]
    key = _key(_described(compiler), arguments, _texts(files, folders))
    name, folder = f"{files[0].stem}-{key}", _cache_folder()
    library = find_library(folder, name)
    if library is not None:
        return library
    return publish_library(
        folder, name, lambda partial: _compile([compiler, *arguments, *map(str, files)], partial)
    )


def _macros(defines: Mapping[str, int | str], bounded: bool) -> list[str]:
    for name in defines:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ValueError(f"{name!r} is not the name of a macro")
    return [f"-D{name}={value}" for name, value in defines.items()] + ["-DHYRT_BOUNDED"] * bounded


def _described(compiler: str) -> str:
    """The compiler's version and what -march=native means here: a cache folder may be shared by machines."""
    shown = run_compiler([compiler, "-march=native", "-###", "-E", "-x", "c++", os.devnull])
    if shown.returncode != 0:
        raise ValueError(f"{compiler} does not work: {_errors(shown.stderr)}")
    return shown.stderr


def _texts(files: list[Path], folders: list[Path]) -> Iterator[tuple[Path, bytes]]:
    """Every source and every header it includes that is not the compiler's own, each once."""
    waiting, seen = list(reversed(files)), set(files)
    while waiting:
        path = waiting.pop()
        try:
            text = path.read_bytes()
        except OSError as error:
            raise ValueError(f"{path} cannot be compiled: {error.strerror}") from error
        yield path, text
        for header in _headers(path, text.decode(errors="replace"), folders):
            if header not in seen:
                seen.add(header)
                waiting.append(header)


def _headers(path: Path, text: str, folders: list[Path]) -> Iterator[Path]:
    for included in _INCLUDE.findall(text):
        named = _NAMED.match(included)
        if named is None:
            raise ValueError(
                f"{path} includes {included.strip()!r}: name the header itself, so that a change to it "
                "triggers a recompilation"
            )
        places = [path.parent, *folders] if named[1] else folders
        headers = [(place / (named[1] or named[2])).resolve() for place in places]
        # All of that name, not only the first: include_next takes the second.
        yield from (header for header in headers if header.is_file())


def _key(compiler: str, arguments: list[str], texts: Iterator[tuple[Path, bytes]]) -> str:
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
        raise ValueError(f"g++ cannot compile {command[-1]}: {_errors(result.stderr)}")


def _errors(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line] or lines
    return "\n".join(errors[:_SHOWN_ERRORS]) or "it printed no error"


def _cache_folder() -> Path:
    folder = Path(os.environ.get("HYRT_HLS_CACHE_DIR") or user_cache() / "hyrt" / "hls")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Permissions do not tell: the disk may be full or read-only.
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return _temporary_folder(folder)


@functools.cache
def _temporary_folder(unwritable: Path) -> Path:
    """One a process, new and private: what is read back from it is run."""
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
