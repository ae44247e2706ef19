"""pytest plug-in that reports for which processor each library in a process computes.

tools/emulated_processors.py loads it in the processes of the tests.
"""

from __future__ import annotations

import ctypes
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Environment variable with the folder for the reports of test processes; no reports if unset.
REPORTS = "HYRT_PROCESSOR_REPORTS"


def pytest_sessionfinish(session: Any) -> None:
    """Write the report after the tests, because a test may change a library's settings."""
    if REPORTS not in os.environ:
        return
    only_distributes = getattr(session.config.option, "numprocesses", None) and not hasattr(
        session.config, "workerinput"
    )
    if not only_distributes:
        path = Path(os.environ[REPORTS]) / f"{os.getpid()}.json"
        path.write_text(json.dumps(report_libraries()), encoding="utf-8")


def report_libraries() -> dict[str, str]:
    """Return the processor for which each library in this process computes, as the library reports it."""
    import numpy
    import torch
    from numba.core.registry import cpu_target

    _, name, features = cpu_target.target_context.codegen().magic_tuple()
    report = {
        "ATen": torch.backends.cpu.get_cpu_capability(),
        "numba": f"{name} with {features or 'no other features'}",
        "numpy": " ".join(numpy.show_config(mode="dicts")["SIMD Extensions"].get("found", [])),
    }
    ones = torch.ones(8, 8)
    if torch.backends.mkl.is_available():
        with capture_output() as lines, torch.backends.mkl.verbose(torch.backends.mkl.VERBOSE_ON):
            ones @ ones
        report["MKL"] = " ".join(lines)
    if torch.backends.mkldnn.is_available():
        with capture_output() as lines, torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
            torch.ops.mkldnn._linear_pointwise(ones, ones, None, "none", [], "")
        report["oneDNN"] = next((line.partition("isa:")[2] for line in lines if ",isa:" in line), "nothing")
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return report
    for library in threadpool_info():
        if library["internal_api"] == "openblas":
            report["OpenBLAS"] = library["architecture"]
    return report


@contextmanager
def capture_output() -> Iterator[list[str]]:
    """Yield a list that receives the lines that libraries print to standard output in the block."""
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
