"""Suggestions for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MAX_CANDIDATES = 5


def nearest_name(word: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name most similar to a possibly misspelt word, or None if no name is similar enough.

    A name that differs from the word by one swap of adjacent letters is preferred to all others. `cutoff` is
    the minimum similarity from 0 to 1, as in `difflib.get_close_matches`.
    """

    def similarity(name: str) -> tuple[bool, float]:
        return _is_swapped(name, word), difflib.SequenceMatcher(None, name, word).ratio()

    near = difflib.get_close_matches(word, list(names), n=_MAX_CANDIDATES, cutoff=cutoff)
    return max(near, key=similarity, default=None)


def _is_swapped(name: str, word: str) -> bool:
    """Return whether two words differ by one swap of adjacent letters."""
    if len(name) != len(word):
        return False
    differing = [i for i, (one, other) in enumerate(zip(name, word, strict=True)) if one != other]
    return (
        len(differing) == 2
        and differing[1] == differing[0] + 1
        and name[differing[0] : differing[1] + 1] == word[differing[1]] + word[differing[0]]
    )
