"""What a staged mini-batch holds goes back only when no copy writes to it any more."""

from __future__ import annotations

from typing import Any

import pytest
from hyrt_devices.opencl.staged import StagedBatch


def test_buffers_are_given_back_after_every_copy_even_one_that_failed() -> None:
    cl = pytest.importorskip("pyopencl")
    order: list[str] = []

    class Event:
        def __init__(self, name: str, *, fails: bool = False) -> None:
            self.name, self.fails = name, fails

        def wait(self) -> None:
            order.append(self.name)
            if self.fails:
                raise cl.RuntimeError("the copy failed")

    class Lease:
        def release(self) -> None:
            order.append("given back")

    lease: Any = Lease()
    events = [Event("first"), Event("second", fails=True), Event("third")]
    staged = StagedBatch(owner=object(), targets=1, normalizer=1.0, rows=1, events=list(events), lease=lease)
    staged.release()
    assert order == ["first", "second", "third", "given back"]
    assert staged.owner is None
    staged.release()
    assert order[-1] == "given back"
    assert len(order) == 4, "a second time there is nothing to give back"
