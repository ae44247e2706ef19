"""Search for the smallest feasible number, if feasibility is expensive to check."""

from __future__ import annotations

from collections.abc import Callable

# Number of candidates that are tried one by one before steps grow.
_ONE_BY_ONE = 32


class NoneFits(Exception):
    """Raised if even the largest number is infeasible.

    Parameters
    ----------
    needed
        Its cost, or a lower bound of it.
    """

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


def least_number(
    bound: Callable[[int], int], needs: Callable[[int], int], most_taken: int, *, first: int, most: int
) -> int:
    """Find the smallest number from `first` to `most` whose cost is at most `most_taken`.

    Costs need not decrease monotonically. If many numbers are infeasible, the search takes growing steps and
    then bisects; the result is feasible while one less is not.

    Parameters
    ----------
    bound
        Cheap lower bound of the cost; decreasing.
    needs
        The cost.
    most_taken
        The maximum cost.
    first, most
        The smallest and the largest number to try.

    Raises
    ------
    NoneFits
        If the cost of `most` is too high.
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
