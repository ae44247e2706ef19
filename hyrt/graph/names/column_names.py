"""Names of the columns of tables."""

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
"""What the ends of edges are called, without letters that are none."""


def plain_name(name: str) -> str:
    """Return a name in small letters, without spaces and signs, so that `Source ID` is `sourceid`."""
    return "".join(letter for letter in name.casefold() if letter.isalnum())
