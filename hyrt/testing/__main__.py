"""Entry point `python -m hyrt.testing KIND[:INDEX]`, which runs the conformance suite on a backend."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from hyrt.errors import HyrtError
from hyrt.runtime.process_setup import prepare_process
from hyrt.runtime.shutdown import exit_cleanly


def main(arguments: list[str] | None = None) -> int:
    """Run the suite; return 0 if the device conforms to the protocol, 1 if not, 2 if it is not available."""
    parser = argparse.ArgumentParser(
        prog="python -m hyrt.testing", description="Check that a device follows hyrt's device protocol."
    )
    parser.add_argument("device", metavar="KIND[:INDEX]", help="device name, as in `hyrt run --devices`")
    parser.add_argument(
        "--computes-nothing",
        action="store_true",
        help="skip the checks of sums, for a simulated device that computes nothing",
    )
    parser.add_argument(
        "--cycles",
        type=int,
        default=200,
        help="how often to open and close the device in the leak check (default 200)",
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="run only the checks whose names contain TEXT"
    )
    options = parser.parse_args(arguments)
    from hyrt.device.discovery import find_device
    from hyrt.testing.suite import check_device
    from hyrt.testing.trial import ConformanceError, Verdict

    first: dict[str, str] = {}

    def print_verdict(verdict: Verdict) -> None:
        same_as = (
            first.setdefault(verdict.detail, verdict.name) if verdict.outcome == "failed" else verdict.name
        )
        shown = verdict if same_as == verdict.name else replace(verdict, detail=f"same failure as: {same_as}")
        print(shown, flush=True)

    try:
        backend, info = find_device(options.device)
        report = check_device(
            lambda device_options: backend.open(info, device_options),
            computes=not options.computes_nothing,
            cycles=options.cycles,
            only=options.only,
            on_verdict=print_verdict,
        )
    except ConformanceError as error:
        # The failures have already been printed.
        print(str(error).splitlines()[0].rstrip(":"), file=sys.stderr)
        return error.exit_code
    except HyrtError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except ValueError as error:
        parser.error(str(error))
    print(str(report).splitlines()[0])
    return 0


if __name__ == "__main__":
    prepare_process()
    with exit_cleanly():
        sys.exit(main())
