"""`hyrt report`: the report of a run, and the comparison of several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="The folders of one or more runs.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The file to write. Default: report.html in the run's folder, or here for several runs.",
        ),
    ] = None,
) -> None:
    """Write the report of a run, or compare several runs.

    The report is one HTML page that needs no network and no scripts. Open it with any browser.
    """
    from hyrt.machine.output_file import output_file
    from hyrt.report.html.page import REPORT, page_beside, page_of
    from hyrt.report.html.render import write_page
    from hyrt.report.records.run_record import read_run
    from hyrt.report.terminal.printed_lines import shell_word

    # The same folder twice is one run.
    paths = list({path.resolve(): path for path in runs}.values())
    records = [read_run(path) for path in paths]
    if output is None:
        output = paths[0] / REPORT if len(paths) == 1 else Path(REPORT)
    file = output_file(output, replace=True)
    write_page(file, page_of(records[0], file.parent) if len(records) == 1 else page_beside(records))
    typer.echo(f"report {shell_word(output)}")
