"""Several ranks as threads of one process: what they do together is real, and nothing has to be started."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from hyrt.distributed.context import DistributedContext

T = TypeVar("T")


def on_ranks(
    size: int, work: Callable[[DistributedContext], T], *, timeout_s: float = 60.0, silent_s: float = 30.0
) -> list[T | BaseException]:
    """What `work` returned or raised at each rank."""
    store = dist.HashStore()
    found: list[T | BaseException] = [RuntimeError("the rank did not end")] * size

    def rank(number: int) -> None:
        ranks = None
        try:
            ranks = DistributedContext(store, number, size, timeout_s=timeout_s, max_silence_s=silent_s)
            found[number] = work(ranks)
            ranks.shut_down()
        except BaseException as error:
            found[number] = error
            if ranks is not None:
                ranks.broadcast_failure(error)
        finally:
            if ranks is not None:
                ranks.close()

    threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
    return found


def results_of(size: int, work: Callable[[DistributedContext], T]) -> list[T]:
    """What `work` returned at each rank; what one raised is raised here."""
    found = on_ranks(size, work)
    # What failed first is what the others were told.
    for each in sorted(found, key=lambda each: type(each).__name__ == "RankFailureError"):
        if isinstance(each, BaseException):
            raise each
    return [each for each in found if not isinstance(each, BaseException)]
