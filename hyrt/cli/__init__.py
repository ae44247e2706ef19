"""The command line: one file per command."""

from __future__ import annotations

from hyrt.cli.commands import main

__all__ = ["main"]
