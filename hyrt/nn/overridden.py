"""Check whether a subclass overrides a method but not the method that describes it."""

from __future__ import annotations


def is_newer(kind: type, method: str, account: str) -> bool:
    """Return whether a class overrides `method` without overriding `account`, which describes it.

    Parameters
    ----------
    kind
        The class.
    method, account
        Names of attributes of the class, such as `forward` and `description`.
    """
    defined = [{method, account} & vars(base).keys() for base in kind.__mro__]
    return next(names for names in defined if names) == {method}
