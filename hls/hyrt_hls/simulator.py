"""Simulation of the trainer kernels: g++ compiles their Vitis HLS code into a cached library, which ctypes
calls. Library names contain a checksum, because loading a truncated library ends the process with SIGBUS.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hyrt_perfmodel.fpga_design import LANES
from hyrt_perfmodel.user_cache import user_cache_dir

import hyrt_hls
from hyrt_hls.resources import KernelDesign
from hyrt_hls.task_layout import ARGUMENTS, Floats, Task

_LIMIT_S = 600.0

# The child processes of g++ survive if this process calls os._exit or is killed. But then the pipe is closed,
# and the watcher sends SIGTERM to the process group and deletes the partial output. SIGTERM lets g++ remove
# its temporary files. The watcher ignores SIGTERM; it is killed when the compiler exits normally.
_WATCH_SCRIPT = """
exec 3<&0 </dev/null
(trap '' TERM; read -r _ <&3; kill -TERM 0; test -z "$0" || rm -f -- "$0") >/dev/null 2>&1 &
"$@" 3<&-
status=$?
exec 2>/dev/null
kill -KILL $!
exit $status
"""


def run_compiler(command: Sequence[str], output: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a compiler command, and delete the file `output` if this process ends before the command.

    Raises ValueError if the command takes too long, or there is no shell that can run it.
    """
    read_end, write_end = os.pipe()
    try:
        # Start a new session, because Ctrl-C should only reach this process and not look like a compiler
        # error.
        return subprocess.run(
            ["/bin/sh", "-c", _WATCH_SCRIPT, "" if output is None else str(output), *command],
            stdin=read_end,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError(
            f"g++ took more than {_LIMIT_S:.0f} s for {' '.join(command)}: try a smaller design"
        ) from error
    except OSError as error:
        raise ValueError(f"{command[0]} cannot be run: {error.strerror}") from error
    finally:
        os.close(read_end)
        os.close(write_end)


_CHECKSUM_DIGITS = 32
# A compilation takes at most ten minutes, so an older partial file belongs to a killed process.
_STALE_S = 3600.0


def find_library(folder: Path, name: str) -> Path | None:
    """Return the path of an intact library, or None. Damaged libraries are deleted with a warning."""
    for library in sorted(folder.glob(f"{glob.escape(name)}.*.so")):
        try:
            checksum = _checksum(library.read_bytes())
        except FileNotFoundError:
            continue  # Another process has already deleted the damaged file.
        if library.name == f"{name}.{checksum}.so":
            return library
        warnings.warn(
            f"the compiled simulation {library} is damaged: hyrt deletes and recompiles it",
            RuntimeWarning,
            stacklevel=3,
        )
        library.unlink(missing_ok=True)
    return None


def publish_library(folder: Path, name: str, write: Callable[[Path], None]) -> Path:
    """Write a library with `write(path)`, flush it to disk, and rename it so that its name has a checksum.

    `name` contains no checksum or suffix. Partial files of killed compilations are deleted from `folder`.
    """
    _remove_stale(folder)
    handle, path = tempfile.mkstemp(prefix=f".{name}-", suffix=".so", dir=folder)
    os.close(handle)
    partial = Path(path)
    try:
        write(partial)
        with partial.open("rb") as file:
            checksum = _checksum(file.read())
            os.fsync(file.fileno())
        library = folder / f"{name}.{checksum}.so"
        partial.replace(library)
    finally:
        partial.unlink(missing_ok=True)
    return library


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_CHECKSUM_DIGITS]


def _remove_stale(folder: Path) -> None:
    for partial in folder.glob(".*.so"):
        try:
            if time.time() - partial.stat().st_mtime > _STALE_S:
                partial.unlink()
        except OSError:
            continue  # It was deleted by another process or belongs to another user: ignore it.


# Headers that replace those of Vitis HLS in the simulation.
HEADERS = Path(hyrt_hls.__file__).parent / "include"

# Disable fused multiply-add: the hardware has separate multipliers and adders and rounds the product. Disable
# unique symbols: the libraries of several designs in a process must not share thread-local state.
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
    """Compile C++17 sources into one shared library, or return the cached library of an earlier call.

    The library is stored in ``HYRT_HLS_CACHE_DIR``, by default hyrt/hls in the user's cache folder
    (``XDG_CACHE_HOME``, or else ``~/.cache``). Its name contains its checksum and a hash of the sources, the
    included headers, the flags, the compiler and the processor. If a library is damaged, it is recompiled
    with a warning. If the cache folder is not writable, a temporary folder is used, which is deleted at exit.
    Several processes may compile the same library concurrently.

    If `bounded`, streams have limited depth and dataflow processes are threads (``-DHYRT_BOUNDED``; see
    include/process.h). Folders in `include` are searched before those of this package. Raises ValueError if
    g++ is missing or rejects the sources, a source cannot be read or includes a header through a macro, or a
    macro name is invalid.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise ValueError(
            "the simulation of the FPGA kernels needs g++, which is not on PATH: install it (Debian: "
            "apt install g++)"
        )
    files = [Path(source).resolve() for source in sources]
    if not files:
        raise ValueError("there is nothing to compile: pass at least one source")
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
            raise ValueError(f"{name!r} is not a valid macro name")
    return [f"-D{name}={value}" for name, value in defines.items()] + ["-DHYRT_BOUNDED"] * bounded


def _describe_compiler(compiler: str) -> str:
    """Return the compiler's version and its flags for this processor: machines may share a cache folder."""
    result = run_compiler([compiler, "-march=native", "-###", "-E", "-x", "c++", os.devnull])
    if result.returncode != 0:
        raise ValueError(f"{compiler} does not work: {_first_errors(result.stderr)}")
    return result.stderr


def _iter_texts(files: list[Path], folders: list[Path]) -> Iterator[tuple[Path, bytes]]:
    """Iterate once over each source and each header that it includes, except system headers."""
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
        # Yield all headers with this name, because include_next uses the second one.
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
    folder = Path(os.environ.get("HYRT_HLS_CACHE_DIR") or user_cache_dir() / "hyrt" / "hls")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Test by writing, because permission bits do not reveal that a disk is full or read-only.
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return _temporary_folder(folder)


@functools.cache
def _temporary_folder(unwritable: Path) -> Path:
    """Make a temporary folder once per process, private because its libraries are loaded and executed."""
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


KERNELS = Path(hyrt_hls.__file__).parent / "kernels"
SOURCE = Path(hyrt_hls.__file__).parent / "csim" / "csim.cpp"
# Number of messages and steps that the streams of a dataflow region can buffer: a few megabytes.
_REGION_WORDS = 16384
_MESSAGE_BYTES = 4096


class Counts(ctypes.Structure):
    """Memory accesses of a launch, counted at the kernel's memory ports.

    Reads of feature rows, feature words, edges and weight words; words written (scores and gradients); and
    repeated writes to a word, which would mean that intermediate values are stored in memory.
    """

    rows_read: int
    feature_words_read: int
    edges: int
    weight_words_read: int
    words_written: int
    intermediate_words_written: int
    _fields_ = [(name, ctypes.c_int64) for name in __annotations__]


@dataclass(frozen=True, slots=True, eq=False)
class TaskOutcome:
    """Results of a launch: scores [targets, out_chunks * LANES], and gradients laid out as `Task.weights`.

    `loss_sum` is the sum of the targets' weighted losses, and `correct` the number of targets whose label has
    the highest score.
    """

    scores: Floats
    gradients: Floats
    loss_sum: float
    correct: int
    counts: Counts


class Simulator:
    """Simulation of the kernels of one design.

    Calls of `train` may overlap: each uses a separate set of memories, which are reused until `close`. If
    `bounded`, streams have limited depth and every dataflow process is a thread. This finds deadlocks, but it
    is slow, and the order of sums varies between runs. Folders in `include` are searched first, so another
    vendor's hls_stream.h can replace that of this package. Raises ValueError if g++ is missing or rejects the
    design.
    """

    def __init__(self, design: KernelDesign, bounded: bool = False, *, include: Sequence[Path] = ()) -> None:
        self.design = design
        library = compile_library(
            [SOURCE],
            defines=macros(design),
            bounded=bounded,
            include=[*include, KERNELS],
        )
        try:
            self._library = ctypes.CDLL(str(library))
        except OSError as error:
            # The file is intact, so the cause is outside it, such as a noexec mount.
            raise ValueError(
                f"the compiled simulation {library} cannot be loaded ({error}): set "
                "HYRT_HLS_CACHE_DIR to a folder whose files may be executed, or delete this file to "
                "have it recompiled"
            ) from error
        self._library.hyrt_open.restype = ctypes.c_void_p
        self._library.hyrt_close.argtypes = [ctypes.c_void_p]
        self._library.hyrt_simulate.argtypes = [
            ctypes.c_void_p,
            ctypes.POINTER(_Arrays),
            ctypes.POINTER(Counts),
            ctypes.c_char_p,
            ctypes.c_int,
        ]
        self._idle: list[int] = []
        self._lock = threading.Lock()

    def train(self, task: Task) -> TaskOutcome:
        """Run one launch of the kernels, without holding the GIL.

        Raises ValueError if the task does not fit the design (`Task.check`) or the simulation finds a kernel
        error such as a deadlock, and MemoryError if the arena cannot be allocated.
        """
        task.check(self.design.arena_words, self.design.pes)
        scores = np.zeros(task.score_shape, np.float32)
        gradients = np.zeros(len(task.weights), np.float32)
        results = np.zeros(2, np.float32)
        outputs = {"scores": scores, "gradients": gradients, "results": results}
        arrays_in_order = [outputs[name] if name in outputs else getattr(task, name) for name in ARGUMENTS]
        arrays = _Arrays(
            *(array.ctypes.data for array in arrays_in_order),
            task.features.size // LANES,
            len(task.edges),
            len(task.weights) // LANES,
            len(task.labels),
            len(task.vertices),
            len(task.task),
            scores.size // LANES,
        )
        counts = Counts()
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        with self._memories() as memories:
            if self._library.hyrt_simulate(memories, arrays, counts, message, _MESSAGE_BYTES):
                raise ValueError(f"simulation of the FPGA trainer: {message.value.decode(errors='replace')}")
        return TaskOutcome(scores, gradients, float(results[0]), int(results[1]), counts)

    def close(self) -> None:
        """Free the memories of earlier launches. The simulator stays usable."""
        with self._lock:
            idle, self._idle = self._idle, []
        for memories in idle:
            self._library.hyrt_close(memories)

    def __del__(self) -> None:
        if hasattr(self, "_idle"):
            self.close()

    @contextmanager
    def _memories(self) -> Iterator[int]:
        with self._lock:
            memories = self._idle.pop() if self._idle else None
        memories = memories or self._library.hyrt_open()
        if not memories:
            raise MemoryError(
                f"not enough memory to simulate an arena of {self.design.pes} x "
                f"{self.design.arena_words} words"
            )
        try:
            yield memories
        finally:
            with self._lock:
                self._idle.append(memories)


def macros(design: KernelDesign) -> dict[str, int]:
    """Return the macros with which the simulation of a design is compiled."""
    return {
        "HYRT_PES": design.pes,
        "HYRT_MAC_ROWS": design.mac_rows,
        "HYRT_MAC_COLS": design.mac_cols,
        "HYRT_ARENA_WORDS": design.arena_words,
        "HYRT_FIFO_DEPTH": design.fifo_depth,
        "HYRT_REGION_WORDS": _REGION_WORDS,
    }


_LENGTHS = (
    *("feature_words", "num_edges", "weight_words", "targets", "num_sources", "task_words"),
    "score_words",
)


class _Arrays(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ARGUMENTS),
        *((name, ctypes.c_int64) for name in _LENGTHS),
    ]
