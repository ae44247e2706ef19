"""Run the tests on emulated processors, with the instructions and the library code of these processors.

    python tools/emulated_processors.py                  the whole suite, on one processor after the other
    python tools/emulated_processors.py --short          tests that compare bits or references: CI runs these
    python tools/emulated_processors.py --only haswell tests/unit/nn -- -x
    python tools/emulated_processors.py --list           the processors, and whether each can be emulated here

Libraries choose the code of a matrix product, a sum or a loop by the processor's instructions and vendor, and
each choice rounds differently. Environment variables restrict the choice. An emulated processor is a set of
such variables, which are set before a process starts. After the tests, each library must report the requested
code: an emulation without effect is an error.

MKL has kernels for Intel's processors, some for AMD's, and slower ones for all others, regardless of their
instructions. A small library, compiled by this tool and loaded before MKL, reports another vendor to MKL.

A processor cannot be emulated on one that lacks its instructions, and need not be emulated on one of the same
kind. PoCL of the system is restricted too; PoCL from pip has no such variable. g++ always compiles the
simulated FPGA kernels for the real processor. The exit code is 1 if a test or an emulation failed, or if
fewer than three processors can be emulated. The output of pytest is in build/emulated-processors.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import library_reports

ROOT = Path(__file__).resolve().parents[1]
MARKER = "bits"
# Environment variable with the name of the emulated processor, for other tools.
EMULATED = "HYRT_EMULATED_PROCESSOR"
MIN_PROCESSORS = 3
# Folder for the output of pytest, with one file per processor.
OUTPUTS = ROOT / "build" / "emulated-processors"

# Instructions that each vector level adds, by LLVM's names: SSE2 (on every x86-64 processor), SSE4.2, AVX2,
# AVX-512 and AMX.
LEVELS = (
    {"sse2"},
    {"sse4.2", "popcnt"},
    {"avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe"},
    {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"},
    {"amx-tile"},
)


@dataclass(frozen=True)
class LevelSettings:
    """Environment variables that restrict libraries to a vector level, and the expected reports.

    Parameters
    ----------
    mkl
        Variable of MKL, and its value.
    mkl_report
        Regular expression for MKL's report on an Intel processor.
    aten, onednn, pocl
        Values of the variables of ATen, oneDNN and PoCL.
    onednn_report
        Report of oneDNN.
    """

    mkl: tuple[str, str]
    mkl_report: str
    aten: str
    onednn: str
    onednn_report: str
    pocl: str


# Settings of each level, from level 1.
LEVEL_SETTINGS = {
    1: LevelSettings(
        mkl=("MKL_CBWR", "COMPATIBLE"),
        mkl_report=r".*CNR:COMPATIBLE.*",
        aten="default",
        onednn="SSE41",
        onednn_report="Intel SSE4.1",
        pocl="sse2",
    ),
    2: LevelSettings(
        mkl=("MKL_ENABLE_INSTRUCTIONS", "SSE4_2"),
        mkl_report=r".*\(Intel\(R\) SSE4\.2\) enabled.*",
        aten="default",
        onednn="SSE41",
        onednn_report="Intel SSE4.1",
        pocl="sse41",
    ),
    3: LevelSettings(
        mkl=("MKL_ENABLE_INSTRUCTIONS", "AVX2"),
        mkl_report=r".*\(Intel\(R\) AVX2\) enabled.*",
        aten="avx2",
        onednn="AVX2",
        onednn_report="Intel AVX2",
        pocl="avx2",
    ),
    4: LevelSettings(
        mkl=("MKL_ENABLE_INSTRUCTIONS", "AVX512"),
        mkl_report=r".*\(Intel\(R\) AVX-512\) enabled.*",
        aten="avx512",
        onednn="AVX512_CORE",
        onednn_report="Intel AVX-512 with AVX512BW, AVX512VL, and AVX512DQ extensions",
        pocl="avx512",
    ),
}


@dataclass(frozen=True)
class Processor:
    """Processor to emulate.

    Parameters
    ----------
    level
        Vector level of the processor, from 1: the index in `LEVELS` plus one.
    vendor
        Vendor that MKL sees, or None if it is irrelevant.
    numba, openblas
        Names of the processor in numba and OpenBLAS.
    openblas_report
        Alternative name that OpenBLAS may report for the same kernels.
    """

    about: str
    level: int
    vendor: str | None
    numba: str
    openblas: str
    openblas_report: str = ""

    def environment(self) -> dict[str, str]:
        """Return the environment variables that restrict all libraries except numpy."""
        settings = LEVEL_SETTINGS[self.level]
        return {
            settings.mkl[0]: settings.mkl[1],
            "ATEN_CPU_CAPABILITY": settings.aten,
            "DNNL_MAX_CPU_ISA": settings.onednn,
            "NUMBA_CPU_NAME": self.numba,
            # Add no features beyond those that LLVM assumes for the named processor.
            "NUMBA_CPU_FEATURES": "",
            "OPENBLAS_CORETYPE": self.openblas,
            "POCL_KERNELLIB_NAME": settings.pocl,
        }

    def expected_reports(self) -> dict[str, str]:
        """Return a regular expression for the report of each library."""
        settings = LEVEL_SETTINGS[self.level]
        is_amd = self.vendor == "AMD"
        return {
            "ATen": re.escape(settings.aten.upper()),
            "MKL": r".*Intel\(R\) Architecture processors.*" if is_amd else settings.mkl_report,
            "oneDNN": re.escape(settings.onednn_report),
            "numba": re.escape(f"{self.numba} with no other features"),
            "OpenBLAS": "|".join(filter(None, (self.openblas, self.openblas_report))),
        }


PROCESSORS = {
    "haswell": Processor("Intel's with AVX2, without AVX-512", 3, "Intel", "haswell", "Haswell"),
    "skylake-avx512": Processor(
        "Intel's with AVX-512, without AMX", 4, "Intel", "skylake-avx512", "SkylakeX"
    ),
    "generic": Processor("any x86-64, with no vectors beyond SSE2", 1, None, "generic", "Prescott", "Katmai"),
    "zen2": Processor("AMD's with AVX2, without AVX-512", 3, "AMD", "znver2", "Zen"),
    "westmere": Processor("Intel's with SSE4.2, without AVX", 2, "Intel", "westmere", "Nehalem"),
}


@functools.cache
def host_features() -> frozenset[str]:
    from llvmlite import binding

    return frozenset(name for name, is_there in binding.get_host_cpu_features().items() if is_there)


@functools.cache
def host_vendor() -> str:
    match = re.search(r"vendor_id\s*:\s*(\S+)", Path("/proc/cpuinfo").read_text())
    return {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}.get(match[1] if match else "", "another")


def host_level() -> int:
    """Return the highest vector level up to which this processor has all instructions."""
    incomplete = (index for index, names in enumerate(LEVELS) if not names <= host_features())
    return next(incomplete, len(LEVELS))


def find_obstacle(processor: Processor) -> str | None:
    """Return the reason why a processor cannot or need not be emulated on this one, or None."""
    missing = set().union(*LEVELS[: processor.level]) - host_features()
    if missing:
        return f"this processor has no {', '.join(sorted(missing))}"
    if processor.level == host_level() and processor.vendor in (None, host_vendor()):
        return "this processor is of this kind: run the tests without emulation"
    return None


def emulation_environment(processor: Processor, folder: Path) -> dict[str, str]:
    """Return the environment of a process on an emulated processor.

    Parameters
    ----------
    processor
        Processor that can be emulated on this one.
    folder
        Folder for the library that reports the vendor to MKL.
    """
    import numpy

    names = numpy.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    environment = {
        **os.environ,
        **processor.environment(),
        # numpy warns about names that the real processor or the build of numpy lacks.
        "NPY_DISABLE_CPU_FEATURES": " ".join(name for name in names if _numpy_level(name) > processor.level),
    }
    if processor.vendor not in (None, host_vendor()):
        library = _compile_vendor_library(processor.vendor == "Intel", folder)
        environment["LD_PRELOAD"] = " ".join(filter(None, (str(library), os.environ.get("LD_PRELOAD"))))
    return environment


def _numpy_level(name: str) -> int:
    """Return the vector level that a feature of numpy requires."""
    if name in ("AVX512F", "AVX512CD", "AVX512_SKX", "X86_V4"):
        return 4
    if name.startswith("AVX512"):
        return 5
    return 2 if name.startswith(("SS", "POPCNT", "X86_V2")) else 3


def _compile_vendor_library(is_intel: bool, folder: Path) -> Path:
    """Compile the library that reports a vendor to MKL, and return its path.

    Raises
    ------
    SystemExit
        If there is no C compiler.
    """
    results = {"intel_cpu": is_intel, "intel_cpu_true": is_intel, "cpuiszen": not is_intel}
    library = folder / "vendor.so"
    functions = "".join(
        f"int mkl_serv_{name}(void) {{ return {int(result)}; }}\n" for name, result in results.items()
    )
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-o", str(library), "-"]
    try:
        subprocess.run(command, input=functions, text=True, check=True)
    except FileNotFoundError:
        raise SystemExit("gcc, which compiles the library for MKL, is missing: install gcc") from None
    return library


@dataclass(frozen=True)
class ProcessorOutcome:
    """Results of the tests on one processor."""

    passed: int
    failed: int
    skipped: int
    wall_s: float
    cpu_s: float
    problems: list[str]
    output: Path

    def __str__(self) -> str:
        counts = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        times = f"{self.wall_s:.0f} s, {self.cpu_s:.0f} s of processor time"
        return "; ".join([f"{counts}, {times}", *self.problems])


def run_tests(name: str, arguments: Sequence[str]) -> ProcessorOutcome:
    """Run pytest with the given arguments on an emulated processor."""
    processor = PROCESSORS[name]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"hyrt-{name}-") as temporary:
        folder = Path(temporary)
        (reports := folder / "reports").mkdir()
        environment = emulation_environment(processor, folder)
        paths = [str(Path(__file__).parent), *filter(None, [environment.get("PYTHONPATH")])]
        environment |= {
            "PYTHONPATH": os.pathsep.join(paths),
            library_reports.REPORTS: str(reports),
            EMULATED: name,
        }
        results, output = folder / "results.xml", OUTPUTS / f"{name}.txt"
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("w") as file:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "pytest", "-q", "-p", library_reports.__name__),
                    *(f"--junit-xml={results}", *arguments),
                ],
                env=environment,
                cwd=ROOT,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            _, status, used = os.wait4(process.pid, 0)
        code = process.returncode = os.waitstatus_to_exitcode(status)
        counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
        if results.exists():
            suite = next(ElementTree.parse(results).iter("testsuite"))
            counts = {count: int(suite.get(count, 0)) for count in counts}
        failed = counts["failures"] + counts["errors"]
        problems = check_reports(processor, [json.loads(file.read_text()) for file in reports.iterdir()])
        # Exit code 5 of pytest (no tests) is a problem too.
        if code and not (code == 1 and failed):
            problems.append(f"pytest ended with {code}")
        return ProcessorOutcome(
            passed=counts["tests"] - failed - counts["skipped"],
            failed=failed,
            skipped=counts["skipped"],
            wall_s=time.monotonic() - started,
            cpu_s=used.ru_utime + used.ru_stime,
            problems=problems,
            output=output,
        )


def check_reports(processor: Processor, reports: Sequence[dict[str, str]]) -> list[str]:
    """Compare the reports of the test processes with the emulated processor, and return the differences."""
    problems = [] if reports else ["no process of the tests wrote a report of its libraries"]
    for report in reports:
        problems += [
            f"{library} reports {report[library][:200]!r}: the emulation had no effect on it"
            for library, pattern in processor.expected_reports().items()
            if library in report and not re.fullmatch(pattern, report[library])
        ]
        beyond = [name for name in report["numpy"].split() if _numpy_level(name) > processor.level]
        if beyond:
            problems.append(f"numpy uses {' '.join(beyond)}: the emulation had no effect on it")
    return sorted(set(problems))


def marked_files() -> list[str]:
    """Return the files with marked tests, so that pytest need not import other files."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [
        str(file.relative_to(ROOT)) for file in files if f"pytest.mark.{MARKER}" in file.read_text("utf-8")
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "arguments", nargs="*", metavar="FILE", help="test files or arguments of pytest; default: all"
    )
    parser.add_argument(
        "--only", action="append", choices=PROCESSORS, help="only this processor; can be repeated"
    )
    parser.add_argument(
        "--short", action="store_true", help=f"{MIN_PROCESSORS} processors, tests marked {MARKER!r}"
    )
    parser.add_argument("--list", action="store_true", help="list the processors, and run nothing")
    options = parser.parse_args()
    if platform.machine() not in ("x86_64", "AMD64") or sys.platform != "linux":
        parser.error("processors can be emulated only on x86-64 Linux")
    chosen = {}
    for name in options.only or PROCESSORS:
        reason = find_obstacle(PROCESSORS[name])
        if options.list:
            print(f"{name}: {PROCESSORS[name].about}: {'can be emulated here' if reason is None else reason}")
        elif reason is not None:
            print(f"{name}: skipped: {reason}")
        else:
            chosen[name] = PROCESSORS[name]
    if options.list:
        return 0
    arguments = options.arguments or ["-n", "2", "--dist", "loadfile"]
    if options.short:
        arguments = ["-m", MARKER, *(options.arguments or marked_files())]
        chosen = dict(list(chosen.items())[:MIN_PROCESSORS])
    at_once = min(len(chosen), len(os.sched_getaffinity(0))) if options.short else 1
    good = 0
    with ThreadPoolExecutor(at_once or 1) as pool:
        for name, outcome in zip(
            chosen, pool.map(lambda name: run_tests(name, arguments), chosen), strict=True
        ):
            print(f"{name}: {outcome}", flush=True)
            if outcome.failed or outcome.problems:
                print(outcome.output.read_text(errors="replace"), flush=True)
            else:
                good += 1
    if not options.only and len(chosen) < MIN_PROCESSORS:
        print(
            f"only {len(chosen)} processors can be emulated on this one, but at least "
            f"{MIN_PROCESSORS} are needed"
        )
        return 1
    return int(good < max(len(chosen), 1))


if __name__ == "__main__":
    sys.exit(main())
