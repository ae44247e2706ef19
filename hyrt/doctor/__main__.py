"""Entry point `python -m hyrt.doctor`, which needs only Python, so it runs even if `hyrt` does not start."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from hyrt.doctor.diagnose import TIME_LIMIT_S, DoctorRequest, diagnose
from hyrt.errors import Terminated


def main() -> int:
    """Parse the command line, run the checks and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m hyrt.doctor",
        description="Check that this machine has what a run needs; use this if `hyrt doctor` does not start.",
    )
    parser.add_argument("words", nargs="*", metavar="CONFIG.yaml or key.path=value")
    parser.add_argument("--config", metavar="FILE")
    parser.add_argument("--data", metavar="SOURCE")
    parser.add_argument("--model", metavar="KIND")
    parser.add_argument("--devices", metavar="NAMES")
    parser.add_argument("--full-graph", action="store_true")
    parser.add_argument("--output", metavar="FOLDER", type=Path, default=Path("runs"))
    parser.add_argument("--limit", metavar="SECONDS", type=float, default=TIME_LIMIT_S)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    arguments = [*([options.config] if options.config is not None else []), *options.words]
    arguments += ["sampler.kind=full"] if options.full_graph else []
    request = DoctorRequest(
        words=tuple(arguments),
        options={"data__source": options.data, "model__kind": options.model, "devices": options.devices},
    )
    return diagnose(request, options.output, limit_s=options.limit, as_json=options.json)


if __name__ == "__main__":
    # Convert SIGTERM to an exception, so that the worker process is stopped as well.
    signal.signal(signal.SIGTERM, Terminated.handle_signal)
    try:
        code = main()
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
