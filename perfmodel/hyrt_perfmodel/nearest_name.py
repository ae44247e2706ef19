"""The name that a misspelt one was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST = 5


def nearest_name(word: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that is most like a word; None where none is like it.

    A name of which two letters beside each other were swapped wins over all others.

    Parameters
    ----------
    word
        What was written.
    names
        The known names.
    cutoff
        How like a name has to be, from 0 to 1, as in `difflib.get_close_matches`.
    """

    def likeness(name: str) -> tuple[bool, float]:
        return _is_swapped(name, word), difflib.SequenceMatcher(None, name, word).ratio()

    near = difflib.get_close_matches(word, list(names), n=_MOST, cutoff=cutoff)
    return max(near, key=likeness, default=None)


def _is_swapped(name: str, word: str) -> bool:
    """Whether the two differ by a swap of two letters beside each other."""
    if len(name) != len(word):
        return False
    at = [i for i, (one, other) in enumerate(zip(name, word, strict=True)) if one != other]
    return len(at) == 2 and at[1] == at[0] + 1 and name[at[0] : at[1] + 1] == word[at[1]] + word[at[0]]
