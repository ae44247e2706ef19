"""`python -m hyrt.doctor` works where `hyrt` does not start: it needs nothing but Python."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from hyrt.doctor.diagnose import diagnose
from hyrt.doctor.examine import LIMIT_S
from hyrt.doctor.settings import Asked
from hyrt.errors import Terminated


def main() -> int:
    """Read the command line and examine; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m hyrt.doctor",
        description="Check what a run needs of this machine; as `hyrt doctor`, where that does not start.",
    )
    parser.add_argument("words", nargs="*", metavar="CONFIG.yaml or key.path=value")
    parser.add_argument("--config", metavar="FILE")
    parser.add_argument("--data", metavar="SOURCE")
    parser.add_argument("--model", metavar="KIND")
    parser.add_argument("--devices", metavar="NAMES")
    parser.add_argument("--full-graph", action="store_true")
    parser.add_argument("--output", metavar="FOLDER", type=Path, default=Path("runs"))
    parser.add_argument("--limit", metavar="SECONDS", type=float, default=LIMIT_S)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    words = [*([options.config] if options.config is not None else []), *options.words]
    words += ["sampler.kind=full"] if options.full_graph else []
    asked = Asked(
        words=tuple(words),
        options={"data__source": options.data, "model__kind": options.model, "devices": options.devices},
    )
    return diagnose(asked, options.output, limit_s=options.limit, as_json=options.json)


if __name__ == "__main__":
    # So that the child processes are ended.
    signal.signal(signal.SIGTERM, Terminated.raised)
    try:
        code = main()
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
