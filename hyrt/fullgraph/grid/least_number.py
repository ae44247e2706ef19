"""The least number of intervals that fits, where it takes long to find out what a number takes."""

from __future__ import annotations

from collections.abc import Callable

# So many numbers are tried one by one.
_ONE_BY_ONE = 32


class NoneFits(Exception):
    """Not even the largest number fits.

    Parameters
    ----------
    needed
        What that takes, or more than which it takes.
    """

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


def least_number(
    bound: Callable[[int], int], needs: Callable[[int], int], most_taken: int, *, first: int, most: int
) -> int:
    """Find the least number from `first` to `most` that takes no more than `most_taken`.

    What a number takes need not fall from each to the next one. Where many do not fit, the result is one that
    does while one less does not: steps become longer then, and what was passed over is halved until it is
    found.

    Parameters
    ----------
    bound
        What a number takes at the least; falls, and is found at once.
    needs
        What a number takes.
    most_taken
        The most that may be taken.
    first, most
        The least and the largest number to try.

    Raises
    ------
    NoneFits
        If `most` takes more.
    """
    low, high = max(1, min(first, most)), most
    if bound(high) > most_taken:
        raise NoneFits(bound(high))
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if bound(middle) <= most_taken else (middle + 1, high)
    number, too_few, step = low, low - 1, 1
    while (needed := needs(number)) > most_taken:
        if number == most:
            raise NoneFits(needed)
        too_few = number
        if number - low >= _ONE_BY_ONE:
            step *= 2
        number = min(most, number + step)
    while number - too_few > 1:
        middle = (number + too_few) // 2
        if needs(middle) <= most_taken:
            number = middle
        else:
            too_few = middle
    return number
