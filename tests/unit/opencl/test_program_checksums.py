"""PoCL's cache: only programs with damaged files are removed and compiled again."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hyrt_devices.opencl_host.driver_workarounds import remove_damaged, save_checksums

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut at 20 bytes": lambda content: content[:20],
    "cut at its last byte": lambda content: content[:-1],
    "zeros": lambda content: bytes(len(content)),
    "text": lambda content: b"not a program",
}


def bitcode() -> bytes:
    """Return blocks of 3 and 5 words in LLVM's format: the word that starts a block, its length, words."""
    blocks = [
        struct.pack(f"<II{words}I", (kind << 2) | 1, words, *range(words))
        for kind, words in ((13, 3), (8, 5))
    ]
    return b"BC\xc0\xde" + b"".join(blocks)


def machine_code() -> bytes:
    """Return an ELF file that ends with the headers of two sections."""
    header = bytearray(b"\x7fELF" + bytes(60))
    struct.pack_into("<Q", header, 40, 80)
    struct.pack_into("<HH", header, 58, 64, 2)
    return bytes(header) + bytes(16 + 2 * 64)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    for program in ("AA/WHOLE", "BB/DAMAGED"):
        folder = tmp_path / program
        (folder / "kernel" / "1-1-1").mkdir(parents=True)
        (folder / "program.bc").write_bytes(bitcode())
        (folder / "kernel" / "1-1-1" / "kernel.so").write_bytes(machine_code())
    return tmp_path


@pytest.mark.parametrize("has_checksums", [False, True])
@pytest.mark.parametrize("name", ["program.bc", "kernel/1-1-1/kernel.so"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_program_is_removed(damage: str, name: str, has_checksums: bool, cache: Path) -> None:
    if has_checksums:
        save_checksums(cache)
    file = cache / "BB" / "DAMAGED" / name
    file.write_bytes(DAMAGE[damage](file.read_bytes()))
    assert remove_damaged(cache) == 1
    assert [path.name for path in cache.glob("??/*")] == ["WHOLE"]
    assert remove_damaged(cache) == 0


def test_a_flipped_bit_is_found_by_the_checksum(cache: Path) -> None:
    save_checksums(cache)
    file = cache / "BB" / "DAMAGED" / "program.bc"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert remove_damaged(cache) == 1


def test_a_missing_cache_and_damaged_checksums_remove_nothing(cache: Path) -> None:
    save_checksums(cache)
    (cache / "hyrt-checksums.json").write_text("{")
    assert remove_damaged(cache) == 0
    assert remove_damaged(cache / "none") == 0
    save_checksums(cache / "none")
    assert not (cache / "none").exists()


BUILD = """
import warnings; warnings.simplefilter("always")
from hyrt_devices.opencl_host.driver_workarounds import ensure_driver_cache
ensure_driver_cache()
import pyopencl as cl, numpy as np
pocl = next(platform for platform in cl.get_platforms() if "Portable" in platform.name)
context = cl.Context([pocl.get_devices()[0]]); queue = cl.CommandQueue(context)
program = cl.Program(context, "kernel void f(global int *x) { x[0] = 7; }").build()
x = np.zeros(1, np.int32); buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4)
program.f(queue, (1,), None, buffer); cl.enqueue_copy(queue, x, buffer); print(x[0])
"""


def test_pocl_compiles_damaged_programs_again(tmp_path: Path) -> None:
    cl = pytest.importorskip("pyopencl")
    try:
        has_pocl = any("Portable" in platform.name for platform in cl.get_platforms())
    except cl.Error:
        has_pocl = False
    if not has_pocl:
        pytest.skip("no PoCL: see hyrt devices")
    environment = {**os.environ, "POCL_CACHE_DIR": str(tmp_path / "cache"), "PYOPENCL_NO_CACHE": "1"}

    def built() -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", BUILD], env=environment, capture_output=True, text=True)

    assert built().stdout == "7\n"
    damaged = [*(tmp_path / "cache").glob("??/*/**/*.bc")]
    assert damaged
    for file in damaged:
        file.write_bytes(file.read_bytes()[:20])
    again = built()
    assert again.stdout == "7\n", again.stderr
    assert "compiled OpenCL kernels in" in again.stderr
    assert "are damaged, so they are compiled again" in again.stderr
    shutil.rmtree(tmp_path / "cache")
