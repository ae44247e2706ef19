"""A rank that waits for another one does not blame itself."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from unit.distributed.ranks_in_threads import on_ranks

from hyrt.distributed import context
from hyrt.distributed.context import DistributedContext
from hyrt.errors import RankFailureError, StallError


def test_whoever_waits_hears_out_the_rank_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "_PEER_FAILURE_S", 60.0)
    has_begun = threading.Event()
    found: list[RankFailureError | None] = []

    def work(ranks: DistributedContext) -> None:
        if ranks.rank == 1:
            has_begun.wait(60)
            # It waits for nobody, so that what hangs is its own.
            assert ranks.stall_reason() is None
            raise StallError("nothing moved for 9 s")
        adding = ranks.gradients.start_all_reduce(torch.zeros(2), "gradients")
        has_begun.set()

        def wait() -> None:
            with pytest.raises(RankFailureError):
                adding.wait()

        waiting = threading.Thread(target=wait)
        waiting.start()
        while adding.running_operation is not None:
            time.sleep(0.001)
        found.append(ranks.stall_reason())
        waiting.join()

    assert isinstance(on_ranks(2, work)[1], StallError)
    assert [str(each) for each in found] == ["rank 1 failed: nothing moved for 9 s"]
