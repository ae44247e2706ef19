"""Error reporting of public functions: one-line messages for invalid calls, and tracebacks with user frames
only.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from hyrt_perfmodel.suggestions import nearest_name

from hyrt.errors import ConfigError, HyrtError, is_user_frame, one_line

P = ParamSpec("P")
R = TypeVar("R")


def public_function(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function report invalid arguments in one line, and shorten the tracebacks of hyrt's errors.

    With HYRT_TRACEBACK=1 in the environment, tracebacks are complete.
    """
    signature = inspect.signature(function)
    name = f"hyrt.{function.__name__}"

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> R:
        try:
            signature.bind(*args, **named)
        except TypeError as error:
            raise ConfigError(_describe_call(name, signature, args, named, error)) from None
        try:
            return function(*args, **named)
        except HyrtError as error:
            if os.environ.get("HYRT_TRACEBACK"):
                raise
            causes = _list_causes(error)
            for cause in causes:
                cause.with_traceback(_shorten_traceback(cause))
            # The error's message already includes the messages of causes that are errors of hyrt.
            root = next((cause for cause in causes if not isinstance(cause, HyrtError)), error.__cause__)
            raise error.with_traceback(_shorten_traceback(error)) from root

    return call


def _describe_call(
    name: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    named: Mapping[str, Any],
    error: TypeError,
) -> str:
    """Return a message about the invalid arguments of a call, with the remedy."""
    parameters = signature.parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    repeated = next((argument for argument in positional[: len(args)] if argument in named), None)
    if repeated is not None:
        first, second = args[positional.index(repeated)], named[repeated]
        values = one_line(f"as {first!r:.40} and as {repeated}={second!r:.60}")
        text = f"{name}: {repeated} is passed twice, {values}"
        if repeated == "model" and isinstance(first, str) and isinstance(second, Mapping):
            return f"{text}: pass only one, such as model={ {'kind': first, **second}!r:.100}"
        return f"{text}: pass it only once"
    unknown = next((argument for argument in named if argument not in signature.parameters), None)
    if len(args) > len(positional):
        return (
            f"{name} accepts only {', '.join(positional)} as positional arguments, but {len(args)} were "
            f"passed: pass the others by name, see help({name})"
        )
    if unknown is not None:
        near = nearest_name(unknown, list(signature.parameters))
        return f"{name} has no argument {unknown!r}: " + (
            f"did you mean {near!r}?" if near else f"help({name}) lists them"
        )
    return f"{name}: {error}: see help({name})"


def _list_causes(error: BaseException) -> list[BaseException]:
    """Return the causes of an error, starting with the direct cause."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    return chain[1:]


def _shorten_traceback(error: BaseException) -> TracebackType | None:
    """Return an error's traceback without the frames of hyrt and of libraries.

    A library's error without user frames keeps its last frame, because its message has no location.
    """
    entries, entry = [], error.__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    shown = [entry for entry in entries if is_user_frame(entry.tb_frame)]
    if not shown and not isinstance(error, HyrtError):
        shown = entries[-1:]
    traceback = None
    for entry in reversed(shown):
        traceback = TracebackType(traceback, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return traceback
