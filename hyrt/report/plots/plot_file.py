"""Output files of plots."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hyrt.errors import ConfigError, DataNotWritten, listed
from hyrt.machine.atomic_write import atomic_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# matplotlib supports more formats, but some reject metadata, require TeX or are not images.
_KINDS = (".png", ".svg", ".pdf", ".eps")


def check_plot(path: Path, option: str = "--plot") -> None:
    """Check that a plot can be written, before anything is computed.

    Parameters
    ----------
    path
        Output file; its suffix determines the format.
    option
        Option that names the file, for messages.

    Raises
    ------
    ConfigError
        If matplotlib is missing, or the format is not supported.
    """
    try:
        import matplotlib.backends.backend_agg  # noqa: F401
    except ImportError:
        raise ConfigError(f'{option} needs matplotlib: pip install "hyrt[plot]"') from None
    if path.suffix.lower() not in _KINDS:
        raise ConfigError(
            f"{option} {path}: unknown file type: give a name that ends in {listed(_KINDS, 'or')}"
        )


def save_plot(figure: Figure, path: Path) -> None:
    """Write a figure atomically.

    Raises
    ------
    DataNotWritten
        If the file cannot be written.
    """
    from matplotlib import rc_context

    try:
        with (
            # Keep text as text, for papers and search: in SVG, and as TrueType in PDF.
            rc_context({"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "hyrt"}),
            atomic_file(path) as file,
        ):
            figure.savefig(file, format=path.suffix[1:].lower(), metadata=_no_date(path))
    except OSError as error:
        raise DataNotWritten(
            f"{path} cannot be written: {error.strerror or error}. Free space, or give another file"
        ) from error


def _no_date(path: Path) -> dict[str, None]:
    """Return metadata that omits the date, so that equal plots are equal files."""
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower(), {})
