"""`hyrt report`: the report of a run, and the comparison of several runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hyrt.report.run_record import RunRecord


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="The folders of one or more runs.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The file to write. Default: report.html, or metrics.csv with --csv, in the run's folder; "
            "for several runs, in the current folder.",
        ),
    ] = None,
    as_csv: Annotated[
        bool,
        typer.Option("--csv", help="Write the metrics as CSV, one row per epoch, instead of an HTML report."),
    ] = False,
) -> None:
    """Write the report of a run, or compare several runs.

    The report is a single HTML page that works offline in any browser. With --csv, the metrics are written
    as CSV; docs/checkpoints.md describes the columns.

    \b
    Examples:
      hyrt report runs/mine
      hyrt report runs/mine runs/other --output compared.html
      hyrt report runs/mine --csv
    """  # noqa: D301
    from hyrt.errors import ConfigError
    from hyrt.report.html.chart import write_page
    from hyrt.report.html.page import REPORT, comparison_page, run_page, unique_names
    from hyrt.report.printed_lines import quote_path
    from hyrt.report.run_record import METRICS, diagnose_damage, metrics_csv, read_run
    from hyrt.runtime.files import resolve_output_file

    for path in runs:
        if path.suffix in (".csv", ".html") and not path.is_dir():
            raise ConfigError(f"{path} is not a run: to write to this file, use --output {quote_path(path)}")
    # Remove duplicates: a folder that is given twice is one run.
    paths = list({path.resolve(): path for path in runs}.values())
    records = [read_run(path) for path in paths]
    if output is None:
        name = METRICS if as_csv else REPORT
        output = paths[0] / name if len(paths) == 1 else Path(name)
    file = resolve_output_file(output, replace=True)

    def content(runs: Sequence[RunRecord]) -> str:
        if as_csv:
            return metrics_csv(runs, unique_names(runs))
        return run_page(runs[0], file.parent) if len(runs) == 1 else comparison_page(runs)

    write_page(file, diagnose_damage(records, content))
    typer.echo(f"{'metrics' if as_csv else 'report'} {quote_path(output)}")
