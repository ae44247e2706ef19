"""`hyrt report`: the page of a run, and several runs beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, such as runs/2026-11-21-...")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write; by default RUN/report.html of one run, report.html here of several.",
        ),
    ] = None,
) -> None:
    """Write a run's report.html anew, or compare several runs side by side.

    The page needs no network and no scripts: open it with any browser.
    """
    from hyrt.machine.output_file import output_file
    from hyrt.report.html.page import REPORT, page_beside, page_of
    from hyrt.report.html.run_record import read_run
    from hyrt.report.html.write_page import write_page

    # The same folder twice is one run.
    paths = list({path.resolve(): path for path in runs}.values())
    records = [read_run(path) for path in paths]
    if output is None:
        output = paths[0] / REPORT if len(paths) == 1 else Path(REPORT)
    file = output_file(output, replace=True)
    write_page(file, page_of(records[0], file.parent) if len(records) == 1 else page_beside(records))
    typer.echo(f"report {output}")
