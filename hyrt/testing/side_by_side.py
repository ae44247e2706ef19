"""Running calls on threads of their own, whose errors come back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def on_a_thread(call: Callable[[], T]) -> T:
    """What a call returns, or raises, on a new thread."""
    (result,) = together(call)
    return result


def together(*calls: Callable[[], T]) -> list[T]:
    """What calls return that run at the same time; the first one's error is raised when all are over."""
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def run(number: int) -> None:
        try:
            results[number] = calls[number]()
        except BaseException as error:
            errors[number] = error

    threads = [
        threading.Thread(target=run, args=(number,), name=f"hyrt.testing.{number}", daemon=True)
        for number in range(len(calls))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in sorted(errors):
        raise errors[number]
    return [results[number] for number in range(len(calls))]
