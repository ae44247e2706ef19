"""Emulated processors: which ones can be emulated, and how an emulation without effect is noticed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))

import emulated_processors
from emulated_processors import LEVELS, PROCESSORS, check_reports, find_obstacle, marked_files

EVERY_LEVEL = frozenset().union(*LEVELS)
HASWELL = {
    "ATen": "AVX2",
    "MKL": "MKL_VERBOSE oneMKL 2024.0 for Intel(R) Advanced Vector Extensions 2 (Intel(R) AVX2) enabled "
    "processors, Lnx SGEMM(N,N,8,8,8) CNR:OFF",
    "oneDNN": "Intel AVX2",
    "numba": "haswell with no other features",
    "numpy": "X86_V3",
    "OpenBLAS": "Haswell",
}


@pytest.mark.parametrize(
    ("vendor", "level", "emulated"),
    [
        ("Intel", 5, ["haswell", "skylake-avx512", "generic", "zen2", "westmere"]),
        ("Intel", 4, ["haswell", "generic", "zen2", "westmere"]),
        ("Intel", 3, ["generic", "zen2", "westmere"]),
        ("AMD", 4, ["haswell", "skylake-avx512", "generic", "zen2", "westmere"]),
        ("AMD", 3, ["haswell", "generic", "westmere"]),
        ("another", 3, ["haswell", "generic", "zen2", "westmere"]),
        ("AMD", 2, ["generic", "westmere"]),
    ],
)
def test_at_least_three_others_are_emulated_on_every_processor_with_avx2(
    monkeypatch: pytest.MonkeyPatch, vendor: str, level: int, emulated: list[str]
) -> None:
    features = frozenset().union(*LEVELS[:level])
    monkeypatch.setattr(emulated_processors, "host_features", lambda: features)
    monkeypatch.setattr(emulated_processors, "host_vendor", lambda: vendor)
    reasons = {name: find_obstacle(processor) for name, processor in PROCESSORS.items()}
    assert [name for name, reason in reasons.items() if reason is None] == emulated
    if level < 4:
        assert "avx512bw, avx512cd, avx512dq" in str(reasons["skylake-avx512"])


def test_an_emulation_with_effect_is_no_problem() -> None:
    assert not check_reports(PROCESSORS["haswell"], [HASWELL, HASWELL])
    assert check_reports(PROCESSORS["haswell"], []) == [
        "no process of the tests wrote a report of its libraries"
    ]


@pytest.mark.parametrize(
    ("library", "report"),
    [
        ("ATen", "AVX512"),
        ("MKL", "Intel(R) Architecture processors, Lnx SGEMM(N,N,8,8,8) CNR:OFF"),
        (
            "MKL",
            "(Intel(R) AVX-512) with support of other instructions enabled processors CNR:OFF",
        ),
        ("oneDNN", "Intel AVX2 with Intel DL Boost"),
        ("numba", "haswell with +avx512f"),
        ("numpy", "X86_V3 X86_V4"),
        ("numpy", "AVX2 FMA3 AVX512_ICL"),
        ("OpenBLAS", "SkylakeX"),
    ],
)
def test_an_emulation_without_effect_is_an_error(library: str, report: str) -> None:
    (problem,) = check_reports(PROCESSORS["haswell"], [HASWELL, HASWELL | {library: report}])
    assert problem.startswith(library)
    assert "the emulation had no effect on it" in problem


@pytest.mark.parametrize("is_intel", [True, False])
def test_mkl_gets_another_vendor(tmp_path: Path, is_intel: bool) -> None:
    library = emulated_processors._compile_vendor_library(is_intel, tmp_path)
    code = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).mkl_serv_intel_cpu_true())"
    command = [sys.executable, "-S", "-c", code, str(library)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == f"{int(is_intel)}\n"


def test_features_of_numpy_that_a_processor_lacks_are_disabled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import numpy

    found = ["SSE42", "AVX2", "X86_V3", "X86_V4", "AVX512_SKX", "AVX512_ICL"]
    monkeypatch.setattr(numpy, "show_config", lambda mode: {"SIMD Extensions": {"found": found}})

    def disabled(level: int) -> list[str]:
        processor = replace(PROCESSORS["generic"], level=level)
        return emulated_processors.emulation_environment(processor, tmp_path)[
            "NPY_DISABLE_CPU_FEATURES"
        ].split()

    assert [emulated_processors._numpy_level(name) for name in found] == [2, 3, 3, 4, 4, 5]
    assert disabled(4) == ["AVX512_ICL"]
    assert disabled(3) == ["X86_V4", "AVX512_SKX", "AVX512_ICL"]
    assert disabled(1) == found


def test_only_files_with_marked_tests_are_run() -> None:
    files = marked_files()
    assert "tests/unit/nn/test_product.py" in files
    assert str(Path(__file__).relative_to(emulated_processors.ROOT)) not in files


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["emulated_processors.py", *arguments])
    return emulated_processors.main()


def test_the_exit_code_says_whether_all_passed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (output := tmp_path / "output.txt").write_text("FAILED test_one")
    outcomes: dict[str, Any] = {"failed": 0, "problems": []}

    def run_tests(name: str, arguments: list[str]) -> emulated_processors.ProcessorOutcome:
        return emulated_processors.ProcessorOutcome(
            passed=1, skipped=0, wall_s=2.0, cpu_s=1.0, output=output, **outcomes
        )

    monkeypatch.setattr(emulated_processors, "run_tests", run_tests)
    monkeypatch.setattr(emulated_processors, "host_features", lambda: EVERY_LEVEL)
    assert run_main(monkeypatch, "test_one.py") == 0
    assert "haswell: 1 passed, 0 failed, 0 skipped, 2 s" in capsys.readouterr().out
    outcomes["failed"] = 1
    assert run_main(monkeypatch, "--only", "generic", "test_one.py") == 1
    assert "FAILED test_one" in capsys.readouterr().out
    outcomes |= {"failed": 0, "problems": ["ATen reports 'AVX512'"]}
    assert run_main(monkeypatch, "--short") == 1
    outcomes["problems"] = []
    monkeypatch.setattr(emulated_processors, "host_features", lambda: LEVELS[0])
    assert run_main(monkeypatch) == 1
    assert "only 0 processors can be emulated on this one, but at least 3" in capsys.readouterr().out
