"""Text for outputs that cannot show every character."""

from __future__ import annotations

_PLAIN = str.maketrans({"◀": "<", "·": "-", "━": "=", "╌": ".", "—": "-", "±": "+-", "…": "...", "→": "->"})


def encodable(text: str, encoding: str | None) -> str:
    """The text with plain characters for those that an output's encoding lacks.

    Parameters
    ----------
    text
        Perhaps with characters that no output can show, as undecodable bytes of a file's name are: these
        become `?`.
    encoding
        Of the output; None where it does not say, which is taken for UTF-8.
    """
    encoding = encoding or "utf-8"
    if encoding.lower().startswith("utf"):
        return text.encode("utf-8", "replace").decode()
    return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
