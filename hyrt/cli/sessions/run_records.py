"""What a process leaves in the folder of a run, and says of it, when the run has ended."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hyrt.errors import HyrtError, describe
from hyrt.observe.events import RunEnded
from hyrt.report.records.run_folder import RunFolder
from hyrt.report.terminal.printed_lines import shell_word
from hyrt.training.checkpoint import has_checkpoint


def write_report(folder: Path, warn: Callable[[str], None]) -> Path | None:
    """The page of the run so far; a run that went well does not fail for it, but `warn` is told why."""
    from hyrt.report.html.page import REPORT, page_of
    from hyrt.report.html.render import write_page
    from hyrt.report.records.run_record import read_run

    path = folder / REPORT
    try:
        later = f"Free space, then write it with: hyrt report {shell_word(folder)}"
        write_page(path, page_of(read_run(folder)), later)
    except Exception as error:
        warn(f"the report could not be written: {describe(error)}")
        return None
    return path


def record_failure(
    folder: RunFolder, error: BaseException, known: Mapping[str, Any], warn: Callable[[str], None]
) -> None:
    """Write the summary and the report of a run that has failed.

    Parameters
    ----------
    folder
        The run folder.
    error
        Why it failed; gets a note where that cannot be written.
    known
        What else is known of the run, for the summary.
    warn
        Told why there is no report.
    """
    try:
        summary = {"error": f"{type(error).__name__}: {error}", **known}
        folder.handle(RunEnded(status="failed", summary=summary))
        write_report(folder.path, warn)
    except HyrtError as second:
        # A full disk takes no record of itself; what the user needs to know most is the first error.
        error.add_note(f"the failure could not be recorded: {second}")


def tell_how_to_go_on(folder: RunFolder, resumes: Path | None = None) -> None:
    """Print how to resume a run that has failed, where it has a checkpoint; arguments of `how_to_go_on`."""
    if can_go_on(folder):
        with contextlib.suppress(OSError):
            print(how_to_go_on(folder, resumes), file=sys.stderr)


def how_to_go_on(folder: RunFolder, resumes: Path | None = None) -> str:
    """How to resume a run.

    Parameters
    ----------
    folder
        The run folder.
    resumes
        The folder to name, that of the run's series; None for its own.
    """
    command = f"hyrt run --resume {shell_word(resumes or folder.path)}"
    if resumes is None and not can_go_on(folder):
        return f"The run has no checkpoint yet. Start it again from step 0 with: {command}"
    return f"Resume with: {command}"


def can_go_on(folder: RunFolder) -> bool:
    """Whether there is a checkpoint."""
    try:
        return has_checkpoint(folder.checkpoints)
    except OSError:
        return False
