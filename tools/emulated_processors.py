"""Run the tests as on other processors: with their instructions and the code that libraries have for them.

    python tools/emulated_processors.py                  the whole suite, on one processor after the other
    python tools/emulated_processors.py --short          tests that compare bits or references: CI runs these
    python tools/emulated_processors.py --only haswell tests/unit/nn -- -x
    python tools/emulated_processors.py --list           the processors, and whether each can be emulated here

Libraries choose the code of a product, a sum or a loop by the processor's instructions and by its maker, and
each choice rounds in its own way. They also let the environment choose. Each processor here is such an
environment, set before a process of its own starts. What the libraries say at the end of the tests has to be
what the environment demanded: an emulation without effect is an error.

MKL has kernels for processors of Intel, some for those of AMD, and slower ones for all others, whatever they
can compute. A small library, compiled here and loaded before MKL, answers its question for the maker.

A processor cannot be emulated on one that lacks its instructions, and need not be on one of its own kind.
The system's PoCL follows, too; the PoCL of pip has no such variable. The FPGA kernels that g++ compiles for
the simulation are always for the real processor. The exit code is 1 if a test or an emulation failed, or if
fewer than three processors can be emulated. build/emulated-processors has what pytest printed.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
MARKER = "bits"
# Where each process of the tests writes, at its end, what the libraries in it say.
REPORTS = "HYRT_PROCESSOR_REPORTS"
# Says to other tools on which processor they believe to be.
EMULATED = "HYRT_EMULATED_PROCESSOR"
LEAST = 3
# What pytest printed for each processor.
OUTPUTS = ROOT / "build" / "emulated-processors"


@dataclass(frozen=True)
class Processor:
    """A processor that the libraries are to believe in.

    Parameters
    ----------
    level
        Its vectors: 1 is SSE2, which every x86-64 processor has, 2 SSE4.2, 3 AVX2, 4 AVX-512, 5 AMX.
    maker
        Whose processor MKL is to see; None where that makes no difference.
    environment
        The variables that the libraries read.
    says
        A regular expression for what each library then says of itself.
    """

    about: str
    level: int
    maker: str | None
    environment: dict[str, str]
    says: dict[str, str]


# Instructions that tell the levels apart, as LLVM names them.
LEVELS = (
    {"sse2"},
    {"sse4.2", "popcnt"},
    {"avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe"},
    {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"},
    {"amx-tile"},
)


def _processor(
    about: str,
    level: int,
    maker: str | None,
    mkl: str,
    aten: str,
    onednn: str,
    numba: str,
    blas: str,
    pocl: str,
) -> Processor:
    variable, mkl_setting, mkl_says = mkl.split("|")
    onednn_setting, onednn_says = onednn.split("|")
    blas_setting, _, blas_says = blas.partition("|")
    environment = {
        variable: mkl_setting,
        "ATEN_CPU_CAPABILITY": aten,
        "DNNL_MAX_CPU_ISA": onednn_setting,
        "NUMBA_CPU_NAME": numba,
        # None beyond what LLVM takes the named processor to have.
        "NUMBA_CPU_FEATURES": "",
        "OPENBLAS_CORETYPE": blas_setting,
        "POCL_KERNELLIB_NAME": pocl,
    }
    says = {
        "ATen": re.escape(aten.upper()),
        "MKL": mkl_says,
        "oneDNN": re.escape(onednn_says),
        "numba": re.escape(f"{numba} with no other features"),
        "OpenBLAS": blas_says or blas_setting,
    }
    return Processor(about, level, maker, environment, says)


PROCESSORS = {
    "haswell": _processor(
        about="Intel's with AVX2, without AVX-512",
        level=3,
        maker="Intel",
        mkl=r"MKL_ENABLE_INSTRUCTIONS|AVX2|.*\(Intel\(R\) AVX2\) enabled.*",
        aten="avx2",
        onednn="AVX2|Intel AVX2",
        numba="haswell",
        blas="Haswell",
        pocl="avx2",
    ),
    "skylake-avx512": _processor(
        about="Intel's with AVX-512, without AMX",
        level=4,
        maker="Intel",
        mkl=r"MKL_ENABLE_INSTRUCTIONS|AVX512|.*\(Intel\(R\) AVX-512\) enabled.*",
        aten="avx512",
        onednn="AVX512_CORE|Intel AVX-512 with AVX512BW, AVX512VL, and AVX512DQ extensions",
        numba="skylake-avx512",
        blas="SkylakeX",
        pocl="avx512",
    ),
    "generic": _processor(
        about="any x86-64: loops without vectors beyond SSE2",
        level=1,
        maker=None,
        mkl=r"MKL_CBWR|COMPATIBLE|.*CNR:COMPATIBLE.*",
        aten="default",
        onednn="SSE41|Intel SSE4.1",
        numba="generic",
        blas="Prescott|Katmai|Prescott",
        pocl="sse2",
    ),
    "zen2": _processor(
        about="AMD's with AVX2, without AVX-512",
        level=3,
        maker="AMD",
        mkl=r"MKL_ENABLE_INSTRUCTIONS|AVX2|.*Intel\(R\) Architecture processors.*",
        aten="avx2",
        onednn="AVX2|Intel AVX2",
        numba="znver2",
        blas="Zen",
        pocl="avx2",
    ),
    "westmere": _processor(
        about="Intel's with SSE4.2, without AVX",
        level=2,
        maker="Intel",
        mkl=r"MKL_ENABLE_INSTRUCTIONS|SSE4_2|.*\(Intel\(R\) SSE4\.2\) enabled.*",
        aten="default",
        onednn="SSE41|Intel SSE4.1",
        numba="westmere",
        blas="Nehalem",
        pocl="sse41",
    ),
}


@functools.cache
def host_features() -> frozenset[str]:
    from llvmlite import binding

    return frozenset(name for name, there in binding.get_host_cpu_features().items() if there)


@functools.cache
def host_maker() -> str:
    found = re.search(r"vendor_id\s*:\s*(\S+)", Path("/proc/cpuinfo").read_text())
    return {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}.get(found[1] if found else "", "another")


def host_level() -> int:
    """The highest level of vectors up to which this processor has all instructions."""
    lacking = (number for number, names in enumerate(LEVELS) if not names <= host_features())
    return next(lacking, len(LEVELS))


def why_not(processor: Processor) -> str | None:
    """Why a processor cannot be emulated on this one, or need not be; None if it is to be."""
    lacking = set().union(*LEVELS[: processor.level]) - host_features()
    if lacking:
        return f"this processor has no {', '.join(sorted(lacking))}"
    if processor.level == host_level() and processor.maker in (None, host_maker()):
        return "this processor is of this kind: the tests without emulation are the ones for it"
    return None


def environment_of(processor: Processor, folder: Path) -> dict[str, str]:
    """The environment of a process that is to believe in a processor.

    Parameters
    ----------
    processor
        The processor, which this one can emulate.
    folder
        The folder for the library that answers MKL.
    """
    import numpy

    found = numpy.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    environment = {
        **os.environ,
        **processor.environment,
        # numpy warns of names that the real processor or its own build lacks.
        "NPY_DISABLE_CPU_FEATURES": " ".join(name for name in found if _numpy_level(name) > processor.level),
    }
    if processor.maker not in (None, host_maker()):
        library = _library_for_mkl(processor.maker == "Intel", folder)
        environment["LD_PRELOAD"] = " ".join(filter(None, (str(library), os.environ.get("LD_PRELOAD"))))
    return environment


def _numpy_level(name: str) -> int:
    """The level of vectors that one of numpy's features needs."""
    if name in ("AVX512F", "AVX512CD", "AVX512_SKX", "X86_V4"):
        return 4
    if name.startswith("AVX512"):
        return 5
    return 2 if name.startswith(("SS", "POPCNT", "X86_V2")) else 3


def _library_for_mkl(is_intel: bool, folder: Path) -> Path:
    """Compile the library that tells MKL whose processor it runs on; its path.

    Raises
    ------
    SystemExit
        If there is no C compiler.
    """
    answers = {"intel_cpu": is_intel, "intel_cpu_true": is_intel, "cpuiszen": not is_intel}
    library = folder / "maker.so"
    functions = "".join(
        f"int mkl_serv_{name}(void) {{ return {int(answer)}; }}\n" for name, answer in answers.items()
    )
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-o", str(library), "-"]
    try:
        subprocess.run(command, input=functions, text=True, check=True)
    except FileNotFoundError:
        raise SystemExit("gcc is missing, which compiles what answers MKL: install it") from None
    return library


# Within the processes of the tests: this module is loaded there as a plug-in of pytest.


def pytest_sessionfinish(session: Any) -> None:
    """Write what the libraries say after the tests, which may have changed it."""
    if REPORTS not in os.environ:
        return
    only_distributes = getattr(session.config.option, "numprocesses", None) and not hasattr(
        session.config, "workerinput"
    )
    if not only_distributes:
        report = Path(os.environ[REPORTS]) / f"{os.getpid()}.json"
        report.write_text(json.dumps(what_libraries_say()), encoding="utf-8")


def what_libraries_say() -> dict[str, str]:
    """What each library in this process says of the processor that it computes for."""
    import numpy
    import torch
    from numba.core.registry import cpu_target

    _, name, features = cpu_target.target_context.codegen().magic_tuple()
    says = {
        "ATen": torch.backends.cpu.get_cpu_capability(),
        "numba": f"{name} with {features or 'no other features'}",
        "numpy": " ".join(numpy.show_config(mode="dicts")["SIMD Extensions"].get("found", [])),
    }
    ones = torch.ones(8, 8)
    if torch.backends.mkl.is_available():
        with printed() as lines, torch.backends.mkl.verbose(torch.backends.mkl.VERBOSE_ON):
            ones @ ones
        says["MKL"] = " ".join(lines)
    if torch.backends.mkldnn.is_available():
        with printed() as lines, torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
            torch.ops.mkldnn._linear_pointwise(ones, ones, None, "none", [], "")
        says["oneDNN"] = next((line.partition("isa:")[2] for line in lines if ",isa:" in line), "nothing")
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return says
    for library in threadpool_info():
        if library["internal_api"] == "openblas":
            says["OpenBLAS"] = library["architecture"]
    return says


@contextmanager
def printed() -> Iterator[list[str]]:
    """Collect the lines that libraries print to standard output in the block."""
    lines: list[str] = []
    library = ctypes.CDLL(None)
    library.fflush(None)
    with tempfile.TemporaryFile() as file:
        output = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            yield lines
        finally:
            library.fflush(None)
            os.dup2(output, 1)
            os.close(output)
        file.seek(0)
        lines += file.read().decode().splitlines()


@dataclass(frozen=True)
class ProcessorOutcome:
    """What came of the tests on one processor."""

    passed: int
    failed: int
    skipped: int
    wall_s: float
    cpu_s: float
    problems: list[str]
    output: Path

    def __str__(self) -> str:
        words = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        words += f", {self.wall_s:.0f} s, {self.cpu_s:.0f} s of processor time"
        return "; ".join([words, *self.problems])


def run_tests(name: str, words: Sequence[str]) -> ProcessorOutcome:
    """Run pytest with these words on an emulated processor."""
    processor = PROCESSORS[name]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"hyrt-{name}-") as temporary:
        folder = Path(temporary)
        (reports := folder / "reports").mkdir()
        environment = environment_of(processor, folder)
        paths = [str(Path(__file__).parent), *filter(None, [environment.get("PYTHONPATH")])]
        environment |= {"PYTHONPATH": os.pathsep.join(paths), REPORTS: str(reports), EMULATED: name}
        plugin, results, output = Path(__file__).stem, folder / "results.xml", OUTPUTS / f"{name}.txt"
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", "-q", "-p", plugin, f"--junit-xml={results}", *words],
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
        # 5 is pytest's code for no test, which is no proof either.
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
    """What libraries in the processes of the tests say that a processor does not have."""
    problems = [] if reports else ["no process of the tests wrote what its libraries say"]
    for report in reports:
        problems += [
            f"{library} says {report[library][:200]!r}: the emulation had no effect on it"
            for library, pattern in processor.says.items()
            if library in report and not re.fullmatch(pattern, report[library])
        ]
        beyond = [name for name in report["numpy"].split() if _numpy_level(name) > processor.level]
        if beyond:
            problems.append(f"numpy uses {' '.join(beyond)}: the emulation had no effect on it")
    return sorted(set(problems))


def marked_files() -> list[str]:
    """The files that `--short` runs: pytest would import all others to see that no test in them is marked."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [
        str(file.relative_to(ROOT)) for file in files if f"pytest.mark.{MARKER}" in file.read_text("utf-8")
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "words", nargs="*", metavar="FILE", help="test files or words of pytest; default: all"
    )
    parser.add_argument(
        "--only", action="append", choices=PROCESSORS, help="only this processor; can be repeated"
    )
    parser.add_argument("--short", action="store_true", help=f"{LEAST} processors, tests marked {MARKER!r}")
    parser.add_argument("--list", action="store_true", help="list the processors, and run nothing")
    arguments = parser.parse_args()
    if platform.machine() not in ("x86_64", "AMD64") or sys.platform != "linux":
        parser.error("processors are emulated on x86-64 and Linux only")
    chosen = {}
    for name in arguments.only or PROCESSORS:
        reason = why_not(PROCESSORS[name])
        if arguments.list:
            print(f"{name}: {PROCESSORS[name].about}: {'can be emulated here' if reason is None else reason}")
        elif reason is not None:
            print(f"{name}: skipped: {reason}")
        else:
            chosen[name] = PROCESSORS[name]
    if arguments.list:
        return 0
    words = arguments.words or ["-n", "2", "--dist", "loadfile"]
    if arguments.short:
        words = ["-m", MARKER, *(arguments.words or marked_files())]
        chosen = dict(list(chosen.items())[:LEAST])
    at_once = min(len(chosen), len(os.sched_getaffinity(0))) if arguments.short else 1
    good = 0
    with ThreadPoolExecutor(at_once or 1) as pool:
        for name, outcome in zip(chosen, pool.map(lambda name: run_tests(name, words), chosen), strict=True):
            print(f"{name}: {outcome}", flush=True)
            if outcome.failed or outcome.problems:
                print(outcome.output.read_text(errors="replace"), flush=True)
            else:
                good += 1
    if not arguments.only and len(chosen) < LEAST:
        print(f"only {len(chosen)} processors can be emulated on this one: the rule is {LEAST}")
        return 1
    return int(good < max(len(chosen), 1))


if __name__ == "__main__":
    sys.exit(main())
