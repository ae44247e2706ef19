"""Whether what a class says of its computation is still true of a class derived from it."""

from __future__ import annotations


def is_newer(kind: type, method: str, account: str) -> bool:
    """Whether a class has a `method` from further down its line than the `account` of what that computes.

    Parameters
    ----------
    kind
        The class.
    method, account
        Names of attributes of it, such as `forward` and `description`.
    """
    having = [{method, account} & vars(each).keys() for each in kind.__mro__]
    return next(names for names in having if names) == {method}
