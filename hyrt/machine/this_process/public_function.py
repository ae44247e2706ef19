"""Public functions of Python: wrong calls end in one line, and errors show the frames of the user alone."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from hyrt_perfmodel.nearest_name import nearest_name

from hyrt.errors import ConfigError, HyrtError, is_user_frame

P = ParamSpec("P")
R = TypeVar("R")


def public_function(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function refuse wrong arguments in one line, and shorten the tracebacks of hyrt's errors.

    With HYRT_TRACEBACK=1 in the environment, tracebacks stay whole.
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
                cause.with_traceback(_keep_frames(cause))
            # The messages of hyrt's errors in between are in the last one already.
            root = next((cause for cause in causes if not isinstance(cause, HyrtError)), error.__cause__)
            raise error.with_traceback(_keep_frames(error)) from root

    return call


def _describe_call(
    name: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    named: Mapping[str, Any],
    error: TypeError,
) -> str:
    """Return what is wrong with the arguments of a call, and what to write."""
    positional = [
        each.name for each in signature.parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD
    ]
    twice = next((each for each in positional[: len(args)] if each in named), None)
    if twice is not None:
        first, second = args[positional.index(twice)], named[twice]
        text = f"{name}: {twice} is given twice, as {first!r:.40} and as {twice}={second!r:.60}"
        if twice == "model" and isinstance(first, str) and isinstance(second, Mapping):
            return f"{text}: give one, such as model={ {'kind': first, **second}!r:.100}"
        return f"{text}: give one of them"
    unknown = next((each for each in named if each not in signature.parameters), None)
    if len(args) > len(positional):
        return (
            f"{name} takes {', '.join(positional)} by place, and all else by name, but {len(args)} values "
            f"are given by place: write names, as help({name}) lists them"
        )
    if unknown is not None:
        near = nearest_name(unknown, list(signature.parameters))
        return f"{name} has no argument {unknown!r}: " + (
            f"did you mean {near!r}?" if near else f"help({name}) lists them"
        )
    return f"{name}: {error}: see help({name})"


def _list_causes(error: BaseException) -> list[BaseException]:
    """Return the causes of an error, the direct one first."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    return chain[1:]


def _keep_frames(error: BaseException) -> TracebackType | None:
    """Return an error's traceback without the frames of hyrt and of libraries.

    If there are no others, the last frame remains of an error that is not hyrt's own: its text names no
    place.
    """
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    kept = [each for each in frames if is_user_frame(each.tb_frame)]
    if not kept and not isinstance(error, HyrtError):
        kept = frames[-1:]
    found = None
    for each in reversed(kept):
        found = TracebackType(found, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return found
