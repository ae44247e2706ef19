"""A rank that waits for another one does not blame itself."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from unit.distributed.ranks_in_threads import on_ranks

from hyrt.distributed import joined_ranks
from hyrt.distributed.joined_ranks import JoinedRanks
from hyrt.errors import RankLost, Stalled


def test_whoever_waits_hears_out_the_rank_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_ranks, "_PEER_FAILURE_S", 60.0)
    has_begun = threading.Event()
    found: list[RankLost | None] = []

    def work(ranks: JoinedRanks) -> None:
        if ranks.rank == 1:
            has_begun.wait(60)
            # It waits for nobody, so that what hangs is its own.
            assert ranks.why_held_up() is None
            raise Stalled("nothing moved for 9 s")
        adding = ranks.gradients.begin_add(torch.zeros(2), "gradients")
        has_begun.set()

        def wait() -> None:
            with pytest.raises(RankLost):
                adding.wait()

        waiting = threading.Thread(target=wait)
        waiting.start()
        while adding.unwaited is not None:
            time.sleep(0.001)
        found.append(ranks.why_held_up())
        waiting.join()

    assert isinstance(on_ranks(2, work)[1], Stalled)
    assert [str(each) for each in found] == ["rank 1 failed: nothing moved for 9 s"]
