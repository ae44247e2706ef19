"""Every CUDA kernel, compiled by NVRTC for every generation of GPUs that torch supports; it needs no GPU."""

from __future__ import annotations

import re
import struct
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hyrt_devices.cuda import launch as nvrtc
from hyrt_devices.cuda.launch import FOLDER, checked, compiled, has_bindings

FILES = sorted(path.stem for path in FOLDER.glob("*.cu"))
VALUES = {"HYRT_FORMAT": ("0", "1", "2", "3")}
IDS = ("int", "long long")
NVIDIA = 190


def why_no_nvrtc() -> str:
    """Empty where it compiles."""
    if not has_bindings():
        return "cuda-bindings is not installed"
    from cuda.bindings import nvrtc

    try:
        checked(nvrtc.nvrtcVersion()[:2])
    except Exception as error:  # Each version says in its own way that there is no libnvrtc.
        return f"NVRTC is not installed: pip install nvidia-cuda-nvrtc: {error}"
    return ""


needs_nvrtc = pytest.mark.skipif(bool(why_no_nvrtc()), reason=why_no_nvrtc() or "NVRTC is there")


def defines_of(name: str) -> list[tuple[tuple[str, str], ...]]:
    """What the devices compile a file with, in all combinations."""
    wanted = re.findall(r"\bHYRT_\w+", (FOLDER / f"{name}.cu").read_text(encoding="utf-8"))
    found: list[tuple[tuple[str, str], ...]] = [()]
    for key in sorted(set(wanted)):
        found = [(*each, (key, value)) for each in found for value in VALUES.get(key, IDS)]
    return found


def architecture(cubin: bytes) -> int:
    """The compute capability that a cubin, an ELF file of NVIDIA's, is for; it is in its flags."""
    assert cubin[:4] == b"\x7fELF"
    (machine,) = struct.unpack_from("<H", cubin, 18)
    assert machine == NVIDIA
    (flags,) = struct.unpack_from("<I", cubin, 48)
    return flags >> 8 & 0xFF if cubin[8] > 7 else flags & 0xFF


@needs_nvrtc
@pytest.mark.parametrize("capability", [75, 80, 90, 100])
@pytest.mark.parametrize("name", FILES)
def test_nvrtc_compiles_each_file(name: str, capability: int) -> None:
    source = (FOLDER / f"{name}.cu").read_text(encoding="utf-8")
    kernels = re.findall(r'extern "C" __global__ void (\w+)\(', source)
    assert kernels
    # What a source means is the same for all: the newer ones take one of its combinations.
    for defines in defines_of(name)[: None if capability == 75 else 1]:
        cubin = compiled(name, defines, capability)
        assert architecture(cubin) == capability
        assert all(f".text.{kernel}\0".encode() in cubin for kernel in kernels)


@needs_nvrtc
def test_a_gpu_newer_than_the_compiler_gets_ptx() -> None:
    code = compiled("rows", (("HYRT_ID", "int"), ("HYRT_FORMAT", "1")), 999)
    assert b".target sm_" in code
    assert b".entry widen_rows" in code


@needs_nvrtc
def test_what_nvrtc_refuses_is_said_in_its_words() -> None:
    with pytest.raises(RuntimeError, match=r"NVRTC cannot compile rows\.cu for sm_90 \(.*\): .*nonsense"):
        compiled("rows", (("HYRT_ID", "nonsense"), ("HYRT_FORMAT", "0")), 90)


def test_a_status_that_is_an_error_is_raised_by_its_name() -> None:
    class Status:
        def __init__(self, number: int, name: str) -> None:
            self.number, self.name = number, name

        def __bool__(self) -> bool:
            return self.number != 0

    assert checked((Status(0, "OK"), 3)) == 3
    assert checked((Status(0, "OK"),)) is None
    with pytest.raises(RuntimeError, match="Status NO_DEVICE"):
        checked((Status(100, "NO_DEVICE"), None))


def test_without_the_bindings_pycuda_compiles_with_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def by_nvcc(source: str, **options: Any) -> bytes:
        asked.update(options, source=source)
        return b"code"

    monkeypatch.setattr(nvrtc, "has_bindings", lambda: False)
    monkeypatch.setitem(sys.modules, "pycuda", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "pycuda.compiler", SimpleNamespace(compile=by_nvcc))
    assert compiled.__wrapped__("rows", (("HYRT_ID", "int"),), 86) == b"code"
    assert "widen_rows" in asked["source"]
    assert asked["options"] == ["-std=c++17", "-DHYRT_ID=int"]
    assert (asked["no_extern_c"], asked["arch"]) == (True, "sm_86")
