"""Column names of tables that identify the two endpoints of an edge."""

from __future__ import annotations

END_NAMES = (
    ("source", "target"),
    ("src", "dst"),
    ("src", "dest"),
    ("from", "to"),
    ("source", "destination"),
    ("sourceid", "targetid"),
    ("srcid", "dstid"),
    ("fromid", "toid"),
    ("fromnodeid", "tonodeid"),
    ("fromnode", "tonode"),
    ("u", "v"),
    ("head", "tail"),
    ("start", "end"),
    ("startid", "endid"),
    ("node1", "node2"),
    ("id1", "id2"),
    ("von", "nach"),
    ("quelle", "ziel"),
)
"""Pairs of column names for the source and the target of an edge, in the form that `plain_name` returns."""


def plain_name(name: str) -> str:
    """Normalize a name: lower case, letters and digits only, so that `Source ID` becomes `sourceid`."""
    return "".join(letter for letter in name.casefold() if letter.isalnum())
